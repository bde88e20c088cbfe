"""Forwarding: we are the coordinator above and the next worker below."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4d_frames import TELEMETRY_PART
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench.forward import Relay
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.cases.worker_widths import compare, rows
from ds4proto_conformance.registry import Position, case
from ds4proto_conformance.verdicts import Deviation

HERE: tuple[Position, ...] = ("first", "middle")


def finish(relay: Relay, seen: Any) -> None:
    """Answer from below, so that the worker owes nothing."""
    relay.comes_up(relay.result(seen))


@case(
    "worker/forward/next-hop",
    clauses=("DS4D-FWD-02",),
    role="worker",
    category="forwarding",
    positions=HERE,
    mutants=("forward-own-layers", "forward-index-kept"),
    smoke=True,
)
def next_hop(peer: WorkerBench) -> None:
    """Layers and index of the next record, INPUT_HC set."""
    relay = Relay(peer)
    _, seen = relay.forward(2)
    f = peer.facts
    relay.same(
        "DS4D-FWD-02",
        seen,
        layer_start=f.layer_end + 1,
        layer_end=f.n_layers - 1,
        route_index=1,
    )
    if not seen["flags"] & 1:
        raise Deviation("DS4D-FWD-02", "INPUT_HC in the forwarded WORK", "not set")
    finish(relay, seen)


@case(
    "worker/forward/logits-flag",
    clauses=("DS4D-FWD-02", "DS4D-WORK-35"),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"flag": (0, 1)},
    mutants=("forward-logits-lost", "forward-logits-always"),
)
def logits_flag(peer: WorkerBench, p: dict[str, Any]) -> None:
    """OUTPUT_LOGITS is that of the next record."""
    relay = Relay(peer)
    hops = [peer.hop(flags=0), peer.next_hop(flags=p["flag"])]
    _, seen = relay.forward(1, hops=hops)
    if bool(seen["flags"] & 2) != bool(p["flag"]):
        raise Deviation(
            "DS4D-FWD-02", f"OUTPUT_LOGITS {p['flag']}", f"{seen['flags']:#x}"
        )
    finish(relay, seen)


@case(
    "worker/forward/kept-bit-for-bit",
    clauses=("DS4D-FWD-04", "DS4D-FWD-01"),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"ack": (False, True), "reset": (True, False), "tokens": (1, 3)},
    mutants=(
        "forward-reset-lost",
        "forward-ack-lost",
        "forward-new-request",
        "forward-route-cut",
        "forward-hash-swapped",
    ),
)
def kept(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Ids, hashes, positions, tokens, flags and the route stay as they are."""
    relay = Relay(peer)
    work, seen = relay.forward(p["tokens"], ack=p["ack"], reset=p["reset"])
    names = (
        "model_id",
        "session",
        "request",
        "prefix_hash",
        "result_hash",
        "pos0",
        "n_tokens",
        "route_count",
    )
    relay.same("DS4D-FWD-04", seen, **{name: work.words[name] for name in names})
    relay.same("DS4D-FWD-04", seen, tokens=work.tokens)
    for bit, name in ((4, "RESET_SESSION"), (8, "ACK_ONLY")):
        if (seen["flags"] ^ work.words["flags"]) & bit:
            raise Deviation("DS4D-FWD-04", f"{name} as it came", f"{seen['flags']:#x}")
    if not seen.body.endswith(work.blob):
        raise Deviation("DS4D-FWD-04", "the route blob as it came", "another")
    finish(relay, seen)


@case(
    "worker/forward/width",
    clauses=("DS4D-FWD-03",),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"bits": (32, 16, 8, 0), "tokens": (1, 3)},
    mutants=("forward-always-32", "forward-zero-kept"),
)
def width(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Hidden state leaves at the width that came, 32 written where it was 0."""
    relay = Relay(peer)
    _, seen = relay.forward(p["tokens"], bits=p["bits"])
    due = peer.facts.hidden_bytes(p["tokens"], p["bits"])
    relay.same("DS4D-FWD-03", seen, input_hc_bits=p["bits"] or 32, input_hc_bytes=due)
    finish(relay, seen)


@case(
    "worker/forward/re-encodes",
    clauses=("DS4D-FWD-03", "DS4D-WORK-53"),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"bits": (16, 8)},
    mutants=("forward-not-evaluated", "forward-rounds-to-even"),
)
def re_encodes(peer: WorkerBench, p: dict[str, Any]) -> None:
    """What is forwarded at a narrow width is the 32-bit result, narrowed."""
    relay = Relay(peer)
    tokens, found = peer.tokens(8), []
    for bits in (32, p["bits"]):
        hidden = rows(peer, 8, bits) if peer.facts.layer_start else b""
        _, seen = relay.forward(tokens, bits=bits, hidden=hidden)
        found.append(bytes(seen["hidden"]))
        if hidden and found[-1] == hidden:
            raise Deviation("DS4D-WORK-53", "the slice's own output", "the input")
        finish(relay, seen)
    compare(peer, found[0], found[1], p["bits"])


@case(
    "worker/forward/ack-computes",
    clauses=("DS4D-WORK-53", "DS4D-FWD-04"),
    role="worker",
    category="forwarding",
    positions=HERE,
    mutants=("forward-ack-answered",),
)
def ack_computes(peer: WorkerBench) -> None:
    """Under ACK_ONLY a middle hop still computes and forwards; the ACK goes up."""
    relay = Relay(peer)
    _, seen = relay.forward(2, ack=True)
    up = relay.comes_up(relay.result(seen, kind=ACK, bits=0, payload=b""))
    relay.same("DS4D-FWD-08", up, result_kind=ACK, payload_bytes=0, payload_bits=0)


@case(
    "worker/forward/relays-unread",
    clauses=("DS4D-FWD-08",),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"kind": (LOGITS, HIDDEN_STATE), "bits": (32, 16, 8)},
    mutants=("relay-changes-bits", "relay-changes-payload"),
    smoke=True,
)
def relays(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Kind, width and payload of the next hop's RESULT go up unchanged."""
    relay = Relay(peer)
    _, seen = relay.forward(2, bits=p["bits"])
    size = peer.facts.hidden_bytes(2, p["bits"])
    payload = peer.rng.randbytes(size if p["kind"] == HIDDEN_STATE else 1024)
    up = relay.comes_up(
        relay.result(seen, kind=p["kind"], bits=p["bits"], payload=payload)
    )
    relay.same(
        "DS4D-FWD-08",
        up,
        status=0,
        result_kind=p["kind"],
        payload_bits=p["bits"],
        payload=payload,
        request=seen["request"],
        result_hash=seen["result_hash"],
    )


@case(
    "worker/forward/relays-an-error",
    clauses=("DS4D-FWD-08", "DS4D-TELEM-02"),
    role="worker",
    category="forwarding",
    positions=HERE,
    mutants=("relay-rewrites-error", "relay-error-bare"),
)
def relays_error(peer: WorkerBench) -> None:
    """A refusal of the next hop goes up with its text, and with our record."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    text = b"layer-slice failed somewhere below"
    up = relay.comes_up(
        relay.result(
            seen, status=1, kind=0, bits=0, result_hash=0, telemetry=b"", payload=text
        )
    )
    relay.same("DS4D-FWD-08", up, status=1, payload=text, result_hash=0)
    relay.same("DS4D-TELEM-02", up, telemetry_count=1)
    _, seen = relay.forward(1)
    finish(relay, seen)


@case(
    "worker/forward/telemetry-order",
    clauses=("DS4D-TELEM-02",),
    role="worker",
    category="telemetry",
    positions=HERE,
    params={"below": (0, 1, 3)},
    mutants=("telemetry-in-front", "telemetry-not-appended"),
)
def telemetry_order(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The own record stands behind those that came, the last hop's first."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    came = b"".join(relay.record(seen, eval_usec=100 + i) for i in range(p["below"]))
    up = relay.comes_up(relay.result(seen, telemetry=came))
    relay.same("DS4D-TELEM-02", up, telemetry_count=p["below"] + 1)
    raw = up.body[40 : 40 + up["telemetry_bytes"]]
    if raw[: len(came)] != came:
        raise Deviation("DS4D-TELEM-02", "the records that came, in front", "others")


@case(
    "worker/forward/own-record",
    clauses=("DS4D-TELEM-04", "DS4D-TELEM-05", "DS4D-TELEM-06"),
    role="worker",
    category="telemetry",
    positions=HERE,
    params={"bits": (32, 8), "ack": (False, True)},
    mutants=("forward-record-of-next", "forward-record-no-output"),
)
def own_record(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The own record tells the own slice, what came in and what was forwarded."""
    relay = Relay(peer)
    work, seen = relay.forward(3, bits=p["bits"], ack=p["ack"])
    up = relay.comes_up(relay.result(seen))
    own = TELEMETRY_PART.read(up.body, 40 + up["telemetry_bytes"] - 40)
    f = peer.facts
    relay.same(
        "DS4D-TELEM-04",
        own,
        layer_start=f.layer_start,
        layer_end=f.layer_end,
        route_index=0,
        pos0=0,
        n_tokens=3,
    )
    relay.same("DS4D-TELEM-05", own, input_bytes=12 + len(work.hidden))
    relay.same("DS4D-TELEM-06", own, output_bytes=len(seen["hidden"]))


@case(
    "worker/forward/wait-is-measured",
    clauses=("DS4D-TELEM-08",),
    role="worker",
    category="telemetry",
    positions=HERE,
    mutants=("forward-wait-missing",),
)
def wait_measured(peer: WorkerBench) -> None:
    """downstream_wait_usec covers the time that the next hop took."""
    from ds4proto.peer import SYSTEM_CLOCK

    relay = Relay(peer)
    _, seen = relay.forward(1)
    SYSTEM_CLOCK.sleep(0.02)
    up = relay.comes_up(relay.result(seen))
    own = TELEMETRY_PART.read(up.body, up["telemetry_bytes"])
    if own["downstream_wait_usec"] < 10_000:
        raise Deviation(
            "DS4D-TELEM-08",
            "a wait of at least 10 ms",
            f"{own['downstream_wait_usec']} microseconds",
        )


@case(
    "worker/forward/one-connection",
    clauses=("DS4D-FWD-05",),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"count": (2, 4)},
    mutants=("forward-dials-each-time",),
)
def one_connection(peer: WorkerBench, p: dict[str, Any]) -> None:
    """All requests of one upstream connection share one forward connection."""
    relay = Relay(peer)
    for _ in range(p["count"]):
        _, seen = relay.forward(1)
        finish(relay, seen)


@case(
    "worker/forward/fifo",
    clauses=("DS4D-FWD-07", "DS4D-FWD-06"),
    role="worker",
    category="forwarding",
    positions=HERE,
    params={"count": (2, 3)},
    mutants=("forward-window-1", "relay-reversed"),
)
def fifo(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Several requests are forwarded before an answer, and stay in order."""
    relay = Relay(peer)
    works = [relay.send(relay.make(1)) for _ in range(p["count"])]
    seen = [relay.arrives("DS4D-FWD-06") for _ in works]
    for frame in seen:
        up = relay.comes_up(relay.result(frame))
        relay.same("DS4D-FWD-07", up, request=frame["request"])


@case(
    "worker/forward/split-result",
    clauses=("DS4D-FRAME-06", "DS4D-FWD-08"),
    role="worker",
    category="framing",
    positions=HERE,
    params={"sizes": ((1, 11, 40), (12, 39, 1), (60, 100))},
    mutants=("split-body-below",),
)
def split_result(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A RESULT that comes in pieces goes up whole."""
    relay = Relay(peer)
    _, seen = relay.forward(1)
    payload = peer.rng.randbytes(1024)
    assert relay.below is not None
    relay.below.send_pieces(relay.result(seen, payload=payload), p["sizes"])
    up = relay.above.frame("RESULT", "DS4D-FRAME-06")
    relay.same("DS4D-FWD-08", up, status=0, payload=payload)


@case(
    "worker/forward/only-the-next",
    clauses=("DS4D-ROUTE-27", "DS4D-FWD-02"),
    role="worker",
    category="forwarding",
    positions=HERE,
    mutants=("forward-own-layers",),
)
def only_next(peer: WorkerBench) -> None:
    """With three hops the worker dials the second, and leaves the third to it."""
    relay = Relay(peer)
    f = peer.facts
    middle = f.layer_end + 1
    if middle >= f.n_layers - 1:
        middle = f.n_layers - 1
        hops = [peer.hop(flags=0), peer.next_hop()]
    else:
        hops = [
            peer.hop(flags=0),
            peer.next_hop(layer_end=middle, flags=0),
            peer.next_hop(layer_start=middle + 1, port=1),
        ]
    _, seen = relay.forward(1, hops=hops)
    relay.same("DS4D-FWD-02", seen, layer_start=f.layer_end + 1, layer_end=middle)
    finish(relay, seen)


@case(
    "worker/forward/second-in-the-route",
    clauses=("DS4D-FWD-02", "DS4D-TELEM-04"),
    role="worker",
    category="forwarding",
    positions=("middle",),
    mutants=("forward-index-1", "telemetry-index-zero"),
)
def second(peer: WorkerBench) -> None:
    """A worker that is second counts on from its own place."""
    from ds4proto_conformance.bench.work import Hop

    relay = Relay(peer)
    before = Hop(
        b"127.0.0.1", 1, peer.facts.layer_start - 1, peer.facts.layer_start - 1, 0
    )
    hops = [before, peer.hop(flags=0), peer.next_hop()]
    _, seen = relay.forward(1, hops=hops, route_index=1)
    relay.same("DS4D-FWD-02", seen, route_index=2)
    up = relay.comes_up(relay.result(seen))
    own = TELEMETRY_PART.read(up.body, up["telemetry_bytes"])
    relay.same("DS4D-TELEM-04", own, route_index=1)
