"""What a forwarding worker does when its next worker fails."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4d_frames import HEADER_SIZE, RESULT_PART
from ds4proto_conformance.bench.forward import Relay
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.cases.worker_forward import HERE, finish
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended

FIXED = HEADER_SIZE + RESULT_PART.size


@case(
    "worker/forward/dial-failure",
    clauses=("DS4D-FWD-09",),
    role="worker",
    category="faults",
    positions=HERE,
    mutants=("forward-dial-closes", "forward-dial-silent"),
    slow=True,
)
def dial_failure(peer: WorkerBench) -> None:
    """A next hop that cannot be reached is a refusal; the connection stays open."""
    relay = Relay(peer)
    relay.above.patience = peer.settings.wait(max(12.0, peer.settings.patience))
    hops = [peer.hop(flags=0), peer.next_hop(port=1)]
    work = relay.send(relay.make(1, hops=hops))
    found = relay.above.next()
    if isinstance(found, Ended) or not found.values.get("status"):
        raise Deviation("DS4D-FWD-09", "a RESULT error with the dial text", str(found))
    if "unable to connect to 127.0.0.1:1" not in found.message:
        peer.concept(f"refused in other words: {found.message!r}")
    relay.same("DS4D-FWD-09", found, request=work.words["request"])
    peer.work(1, wire=relay.above).served("DS4D-FWD-09")


def lost(relay: Relay, clause: str, wanted: str | None) -> None:
    """Take it that an error (or nothing) comes up, then the end."""
    found = relay.above.next()
    if wanted is not None:
        if isinstance(found, Ended) or not found.values.get("status"):
            raise Deviation(
                clause, f"a RESULT error {wanted!r}, then a close", str(found)
            )
        if found.message != wanted:
            relay.peer.concept(f"in other words: {found.message!r} not {wanted!r}")
        found = relay.above.next()
    if not isinstance(found, Ended) or found.how == "silence":
        raise Deviation(clause, "the upstream connection to close", str(found))


@case(
    "worker/forward/next-closes-while-pending",
    clauses=("DS4D-FWD-10",),
    role="worker",
    category="faults",
    positions=HERE,
    mutants=("forward-loss-silent", "forward-loss-stays-open"),
)
def next_closes(peer: WorkerBench) -> None:
    """A next worker that goes with a request pending: an error, then a close."""
    relay = Relay(peer)
    relay.forward(1)
    assert relay.below is not None
    relay.below.close()
    lost(relay, "DS4D-FWD-10", "next worker closed connection")


@case(
    "worker/forward/next-closes-while-idle",
    clauses=("DS4D-FWD-11",),
    role="worker",
    category="faults",
    positions=HERE,
    mutants=("forward-idle-loss-ignored",),
)
def next_closes_idle(peer: WorkerBench) -> None:
    """A next worker that goes with nothing pending: a close without a frame."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    finish(relay, seen)
    assert relay.below is not None
    relay.below.close()
    lost(relay, "DS4D-FWD-11", None)


@case(
    "worker/forward/next-breaks-magic",
    clauses=("DS4D-FWD-10", "DS4D-FRAME-01"),
    role="worker",
    category="faults",
    positions=HERE,
    mutants=("magic-ignored-below",),
)
def breaks_magic(peer: WorkerBench) -> None:
    """A next worker that breaks the magic: an error, then a close."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    assert relay.below is not None
    relay.below.send(b"DS4X" + relay.result(seen)[4:])
    found = relay.above.next()
    if not isinstance(found, Ended) and not found.values.get("status"):
        raise Deviation("DS4D-FWD-10", "an error, then a close", str(found))
    if not isinstance(found, Ended):
        relay.above.closed("DS4D-FWD-10")


@case(
    "worker/forward/next-sends-other-frame",
    clauses=("DS4D-FWD-12",),
    role="worker",
    category="faults",
    positions=HERE,
    params={"code": (2, 3, 99), "size": (0, 39)},
    mutants=("forward-skips-others",),
)
def other_frame(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A frame other than RESULT from below: an error, then a close."""
    relay = Relay(peer)
    relay.forward(1)
    assert relay.below is not None
    size = p["size"]
    relay.below.send(
        b"DS4D" + p["code"].to_bytes(4, "big") + size.to_bytes(4, "big") + bytes(size)
    )
    lost(relay, "DS4D-FWD-12", "next worker did not return valid RESULT")


@case(
    "worker/forward/short-result",
    clauses=("DS4D-FWD-12",),
    role="worker",
    category="faults",
    positions=HERE,
    params={"size": (0, 39)},
    mutants=("forward-short-result-padded",),
)
def short_result(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A RESULT body below 40 bytes from below: an error, then a close."""
    relay = Relay(peer)
    relay.forward(1)
    assert relay.below is not None
    size = p["size"]
    relay.below.send(
        b"DS4D" + (4).to_bytes(4, "big") + size.to_bytes(4, "big") + bytes(size)
    )
    lost(relay, "DS4D-FWD-12", "next worker did not return valid RESULT")


@case(
    "worker/forward/other-request-id",
    clauses=("DS4D-FWD-14", "DS4D-FWD-07"),
    role="worker",
    category="faults",
    positions=HERE,
    mutants=("forward-id-unchecked",),
)
def other_id(peer: WorkerBench) -> None:
    """Another request id from below: an error, then a close."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    assert relay.below is not None
    relay.below.send(relay.result(seen, request=seen["request"] ^ 1))
    lost(relay, "DS4D-FWD-14", "next worker RESULT metadata mismatch")


@case(
    "worker/forward/inconsistent-lengths",
    clauses=("DS4D-FWD-14",),
    role="worker",
    category="faults",
    positions=HERE,
    params={"word": (6, 7, 8)},
    mutants=("forward-lengths-unchecked",),
)
def lengths(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Telemetry or payload lengths that do not fit: an error, then a close."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    frame = bytearray(relay.result(seen))
    frame[12 + 4 * p["word"] + 3] ^= 1
    assert relay.below is not None
    relay.below.send(frame)
    lost(relay, "DS4D-FWD-14", "next worker RESULT metadata mismatch")


@case(
    "worker/forward/result-out-of-the-blue",
    clauses=("DS4D-FWD-15",),
    role="worker",
    category="faults",
    positions=HERE,
    mutants=("forward-extra-result-ignored",),
)
def out_of_the_blue(peer: WorkerBench) -> None:
    """A RESULT with nothing pending ends the upstream connection."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    frame = relay.result(seen)
    relay.comes_up(frame)
    assert relay.below is not None
    relay.below.send(frame)
    lost(relay, "DS4D-FWD-15", None)


@case(
    "worker/forward/next-ends-in-fixed-part",
    clauses=("DS4D-FWD-13",),
    role="worker",
    category="faults",
    positions=HERE,
    params={"cut": (HEADER_SIZE, HEADER_SIZE + 1, FIXED - 1)},
    mutants=("forward-cut-silent",),
)
def ends_in_fixed_part(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A next worker that ends inside a RESULT's fixed part: an error, then a close."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    assert relay.below is not None
    relay.below.send(relay.result(seen)[: p["cut"]])
    relay.below.close()
    lost(relay, "DS4D-FWD-13", "next worker closed while returning RESULT")


@case(
    "worker/forward/next-ends-in-payload",
    clauses=("DS4D-FWD-18",),
    role="worker",
    category="faults",
    positions=HERE,
    params={"left": (1, 100)},
    mutants=("forward-cut-filled",),
)
def ends_in_payload(peer: WorkerBench, p: dict[str, Any]) -> None:
    """What a next worker left out of a RESULT is not made up: the frame stays cut."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    assert relay.below is not None
    relay.below.send(relay.result(seen)[: -p["left"]])
    relay.below.close()
    lost(relay, "DS4D-FWD-18", None)
