"""Routes as a coordinator builds them and writes them into WORK."""

from __future__ import annotations

from typing import Any

from ds4proto_conformance.bench.coordinator import CoordinatorBench, Hop
from ds4proto_conformance.cases.coordinator_result import start
from ds4proto_conformance.cases.coordinator_work import same
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Frame

_TURNS = 6
"""Requests after which a coordinator has to have taken a new worker."""


@case(
    "coordinator/route/record",
    clauses=("DS4D-ROUTE-20", "DS4D-ROUTE-23", "DS4D-ROUTE-21"),
    role="coordinator",
    category="handshake",
    params={"port": (1, 5555, 65535)},
    mutants=("route-port-swapped", "route-host-name", "return-kind-0"),
    smoke=True,
)
def record(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """The record of the hop: its address, announced port, layers, logits flag."""
    hop = start(peer, listen_port=p["port"])
    work = hop.work()
    f = peer.facts
    route = work["route"][0]
    due = {
        "port": p["port"],
        "layer_start": f.layer_end + 1,
        "layer_end": f.n_layers - 1,
        "flags": 1,
    }
    for name, value in due.items():
        if route[name] != value:
            raise Deviation("DS4D-ROUTE-23", f"{name} {value}", str(route[name]))
    if (
        not route["host"].replace(".", "").replace(":", "").isalnum()
        or route["host"].isalpha()
    ):
        raise Deviation("DS4D-ROUTE-23", "a numeric address", route["host"])
    back = work["route_return"]
    if (back["kind"], back["host_len"], back["port"]) != (1, 0, 0):
        raise Deviation("DS4D-ROUTE-21", "kind 1, no host, port 0", str(back))


@case(
    "coordinator/route/first-hop",
    clauses=("DS4D-WORK-41", "DS4D-ROUTE-22"),
    role="coordinator",
    category="handshake",
    mutants=("route-index-1", "route-with-itself"),
)
def first_hop(peer: CoordinatorBench) -> None:
    """One worker: route_count 1, route_index 0, no record of the coordinator."""
    hop = start(peer)
    work = hop.work()
    same("DS4D-WORK-41", work, route_count=1, route_index=0)
    same("DS4D-ROUTE-22", work, layer_start=peer.facts.layer_end + 1)


def pair(peer: CoordinatorBench) -> tuple[Hop, Hop, int]:
    """Register two workers that share the layers; return the cut."""
    f = peer.facts
    start_, last = f.layer_end + 1, f.n_layers - 1
    if start_ >= last:
        raise NotApplicable("there is one layer beyond the coordinator's own")
    lower = peer.register("second", layer_start=start_ + 1, listen_port=7002)
    upper = peer.register("first", layer_end=start_, has_output=0, listen_port=7001)
    peer.drive()
    return upper, lower, start_


@case(
    "coordinator/route/two-hops",
    clauses=("DS4D-ROUTE-30", "DS4D-ROUTE-38", "DS4D-WORK-41"),
    role="coordinator",
    category="handshake",
    mutants=("route-reversed",),
)
def two_hops(peer: CoordinatorBench) -> None:
    """Two workers make one route; WORK comes to the first alone."""
    upper, lower, cut = pair(peer)
    work = upper.work("DS4D-ROUTE-30")
    same("DS4D-WORK-41", work, route_count=2, route_index=0, layer_end=cut)
    spans = [(r["layer_start"], r["layer_end"], r["port"]) for r in work["route"]]
    last = peer.facts.n_layers - 1
    due = [(cut, cut, 7001), (cut + 1, last, 7002)]
    if spans != due:
        raise Deviation("DS4D-ROUTE-30", str(due), str(spans))
    if work["flags"] & 2:
        raise Deviation("DS4D-WORK-35", "no OUTPUT_LOGITS for a first of two", "set")
    stray = lower.wire.quiet(peer.quiet)
    if stray is not None:
        raise Deviation(
            "DS4D-ROUTE-38", "nothing on the second hop's control", str(stray)
        )


@case(
    "coordinator/route/rebuilt",
    clauses=("DS4D-HELLO-33", "DS4D-ROUTE-31"),
    role="coordinator",
    category="state",
    mutants=("route-kept",),
)
def rebuilt(peer: CoordinatorBench) -> None:
    """A worker with the head and a longer range is taken once it registers."""
    upper, _, _ = pair(peer)
    upper.answer(upper.work("DS4D-ROUTE-30"))
    whole = peer.register("whole", listen_port=7003)
    for _ in range(_TURNS):
        found = whole.wire.quiet(max(peer.quiet, 0.2))
        if isinstance(found, Frame):
            return
        pending = upper.wire.quiet(max(peer.quiet, 0.2))
        if isinstance(pending, Frame):
            upper.answer(pending)
    raise Deviation("DS4D-HELLO-33", "WORK for the new worker", "none")


@case(
    "coordinator/route/last-registered-first",
    clauses=("DS4D-HELLO-31", "DS4D-ROUTE-32"),
    role="coordinator",
    category="state",
    mutants=("oldest-first",),
)
def last_first(peer: CoordinatorBench) -> None:
    """Of workers that are equal, the one registered last gets the WORK."""
    old = start(peer, listen_port=7001)
    pending: Frame | None = old.work()  # nothing else tells that it is registered
    new = peer.register("new", listen_port=7002)
    for _ in range(_TURNS):
        if isinstance(pending, Frame):
            old.answer(pending)
        work = new.wire.quiet(max(peer.quiet, 0.2))
        if isinstance(work, Frame):
            same("DS4D-ROUTE-32", work["route"][0], port=7002)
            return
        found = old.wire.quiet(max(peer.quiet, 0.2))
        pending = found if isinstance(found, Frame) else None
    raise Deviation("DS4D-ROUTE-32", "WORK for the worker registered last", "none")


@case(
    "coordinator/route/no-hidden-in-the-middle",
    clauses=("DS4D-ROUTE-33",),
    role="coordinator",
    category="state",
    mutants=("hidden-not-needed",),
)
def no_hidden(peer: CoordinatorBench) -> None:
    """A worker that cannot return hidden state is no middle hop."""
    f = peer.facts
    start_ = f.layer_end + 1
    if start_ >= f.n_layers - 1:
        raise NotApplicable("there is one layer beyond the coordinator's own")
    peer.register("second", layer_start=start_ + 1)
    upper = peer.register("first", layer_end=start_, has_output=0, has_hidden=0)
    peer.drive()
    found = upper.wire.quiet(max(peer.quiet, 0.3))
    if found is not None:
        raise Deviation("DS4D-ROUTE-33", "no WORK for it", str(found))
