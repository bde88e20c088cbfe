"""WORK checks of a worker, one by one, and their order.

A row of the table is one case: a WORK that is right but for the words named, and the
clause whose refusal it has to meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4proto_conformance.bench.work import (
    ACK_ONLY,
    INPUT_HC,
    OUTPUT_LOGITS,
    RESET_SESSION,
    Work,
)
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import Position, case
from ds4proto_conformance.verdicts import NotApplicable

Change = Callable[[WorkerBench, dict[str, Any]], tuple[Work, tuple[object, ...]]]
ABOVE: tuple[Position, ...] = ("middle", "last")


def refusal(
    name: str,
    number: str,
    about: str,
    *,
    params: dict[str, Any] | None = None,
    positions: tuple[Position, ...] = (),
    mutants: tuple[str, ...] = (),
    smoke: bool = False,
) -> Callable[[Change], Change]:
    """Declare the case of one check; the function makes the WORK."""
    clause = f"DS4D-{number}"

    def declare(change: Change) -> Change:
        def body(peer: WorkerBench, p: dict[str, Any] | None = None) -> None:
            work, values = change(peer, p or {})
            peer.answer(peer.send(work)).refused(clause, *values)
            peer.work(wire=peer.data).served("DS4D-WORK-45")

        body.__doc__ = about
        body.__module__ = __name__
        body.__qualname__ = name
        case(
            f"worker/work/{name}",
            clauses=(clause, "DS4D-WORK-44", "DS4D-WORK-45"),
            role="worker",
            category="limits",
            params=params,
            positions=positions,
            mutants=mutants or (f"skip-{number}",),
            smoke=smoke,
        )(body)
        return change

    return declare


def _flags(peer: WorkerBench) -> int:
    return int(peer.make(1).words["flags"])


@refusal(
    "truncated",
    "WORK-01",
    "A body below 80 bytes is refused with request id 0.",
    params={"size": (0, 1, 79)},
    mutants=("refuses-short-with-own-id",),
)
def truncated(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    work = peer.make(1)
    whole = work.frame()
    size = p["size"]

    class Short(Work):
        def frame(self) -> bytes:
            return bytes(whole[:8] + size.to_bytes(4, "big") + whole[12 : 12 + size])

    return Short(work.words, work.tokens, work.hidden, work.blob), ()


@refusal(
    "token-bytes",
    "WORK-02",
    "token_bytes has to be four times n_tokens.",
    params={"n_tokens": (2, 4, 0x40000001)},
    smoke=True,
)
def token_bytes(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    return peer.make(3, n_tokens=p["n_tokens"]), ()


@refusal(
    "tails-do-not-add-up",
    "WORK-02",
    "The three tails fill the body exactly.",
    params={"off": (1, -1, 1 << 20)},
    mutants=("tails-unchecked",),
)
def tails(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    work = peer.make(3)
    work.lies = {"route_bytes": len(work.blob) + p["off"]}
    return work, ()


@refusal(
    "sizes-wrap",
    "WORK-02",
    "Sums of lengths are judged without wrap-around.",
    mutants=("sizes-wrap",),
)
def sizes_wrap(
    peer: WorkerBench, _p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    work = peer.make(3)
    size = len(work.hidden)
    work.lies = {
        "input_hc_bytes": 0xFFFFFFF0,
        "route_bytes": len(work.blob) + size + 16,
    }
    return work, ()


@refusal("no-route", "WORK-03", "A WORK without route records is refused.")
def no_route(peer: WorkerBench, _p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, route_count=0), ()


@refusal(
    "route-index",
    "WORK-04",
    "route_index has to be below route_count.",
    params={"index": (1, 2, 0xFFFFFFFF)},
)
def route_index(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, route_index=p["index"]), ()


@refusal(
    "model-id",
    "WORK-05",
    "A WORK for another model is refused, with both ids.",
    params={"other": (1, 7, 0xFFFFFFFF)},
)
def model_id(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    own = peer.facts.model_id
    other = p["other"] if p["other"] != own else own + 1
    return peer.make(2, model_id=other), (other, own)


@refusal(
    "layers",
    "WORK-06",
    "Other layers than the assigned slice are refused.",
    params={"shift": ((1, 0), (0, -1), (0, 1), (-1, 0))},
)
def layers(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    f = peer.facts
    start, end = f.layer_start + p["shift"][0], f.layer_end + p["shift"][1]
    if start < 0 or end < start:
        start, end = f.layer_start, f.layer_end + 1
    flags = _flags(peer) & ~INPUT_HC | (INPUT_HC if start else 0)
    asked = {"layer_start": start, "layer_end": end}
    hidden = peer.hidden(2) if start else b""  # right for the layers that are asked
    work = peer.make(2, hops=[peer.hop(**asked)], hidden=hidden, flags=flags, **asked)
    return work, (f.layer_start, f.layer_end, start, end)


@refusal(
    "unknown-flag",
    "WORK-07",
    "A flag beyond the four defined ones is refused.",
    params={"flag": (0x10, 0x20, 0x80000000)},
    smoke=True,
)
def unknown_flag(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, flags=_flags(peer) | p["flag"]), ()


@refusal("no-tokens", "WORK-08", "A WORK without tokens is refused.")
def no_tokens(peer: WorkerBench, _p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    return peer.make(0), ()


@refusal(
    "beyond-context",
    "WORK-09",
    "A span that starts or ends past the context.",
    params={"from_end": (1, 0, -1, -2)},
)
def beyond(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    return peer.make(3, pos0=peer.facts.ctx + p["from_end"]), ()


@refusal(
    "layer-0-input", "WORK-10", "Layer 0 takes no hidden state.", positions=("first",)
)
def layer_0(peer: WorkerBench, _p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    flags = _flags(peer) | INPUT_HC
    return peer.make(2, flags=flags, hidden=peer.hidden(2)), ()


@refusal(
    "no-input",
    "WORK-11",
    "Above layer 0 the INPUT_HC flag is needed.",
    params={"with_bytes": (True, False)},
    positions=ABOVE,
)
def no_input(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    hidden = None if p["with_bytes"] else b""
    return peer.make(2, flags=_flags(peer) & ~INPUT_HC, hidden=hidden), ()


@refusal(
    "no-head",
    "WORK-12",
    "Logits asked of a worker without the head.",
    positions=("first", "middle"),
)
def no_head(peer: WorkerBench, _p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, flags=_flags(peer) | OUTPUT_LOGITS), ()


@refusal(
    "token-above-int",
    "WORK-14",
    "A token id above 2147483647 is refused.",
    params={"at": (0, 2)},
    mutants=("tokens-signed",),
)
def token_int(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    tokens = list(peer.tokens(3))
    tokens[p["at"]] = 0x80000000
    return peer.make(tokens), ()


@refusal(
    "token-outside",
    "WORK-14",
    "A token id that the vocabulary lacks.",
    params={"at": (0, 2), "over": (0, 1000)},
)
def token_out(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    if peer.facts.vocab is None:
        raise NotApplicable("the vocabulary is not known; give --vocab")
    tokens = list(peer.tokens(3))
    tokens[p["at"]] = peer.facts.vocab + p["over"]
    return peer.make(tokens), ()


@refusal(
    "result-hash",
    "WORK-15",
    "result_hash has to follow from prefix and tokens.",
    params={"bit": (0, 31, 32, 63)},
)
def result_hash(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    work = peer.make(3)
    work.lies = {"result_hash": work.words["result_hash"] ^ 1 << p["bit"]}
    return work, ()


@refusal(
    "width",
    "WORK-17",
    "Widths other than 32, 16, 8 and 0 are refused.",
    params={"bits": (1, 4, 7, 24, 64, 0xFFFFFFFF)},
)
def width(peer: WorkerBench, p: dict[str, Any]) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, input_hc_bits=p["bits"]), ()


@refusal(
    "hidden-size",
    "WORK-18",
    "The hidden tail fits tokens and width exactly.",
    params={"off": (-1, -4, 4), "bits": (32, 16, 8)},
    positions=ABOVE,
)
def hidden_size(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    hidden = (peer.hidden(2, p["bits"]) + bytes(8))[: p["off"] - 8 or None]
    return peer.make(2, bits=p["bits"], hidden=hidden), ()


@refusal(
    "hidden-of-other-width",
    "WORK-18",
    "The tail has the width that bits says.",
    params={"said": (32, 16, 8)},
    positions=ABOVE,
    mutants=("width-guessed",),
)
def other_width(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    sent = {32: 16, 16: 8, 8: 32}[p["said"]]
    work = peer.make(2, bits=sent)
    work.lies = {"input_hc_bits": p["said"]}
    return work, ()


@refusal(
    "hidden-without-flag",
    "WORK-19",
    "Layer 0: hidden bytes without the flag.",
    positions=("first",),
)
def without_flag(
    peer: WorkerBench, _p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, hidden=peer.hidden(2)), ()


@refusal(
    "route-layers-differ",
    "WORK-21",
    "The own route record has the own layers.",
    positions=("middle", "last"),
)
def route_layers(
    peer: WorkerBench, _p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    hop = peer.hop(layer_start=peer.facts.layer_start - 1)
    return peer.make(2, hops=[hop]), ()


@refusal(
    "logits-flag-differs",
    "WORK-22",
    "OUTPUT_LOGITS agrees with the route.",
    params={"route": (0, 1)},
    positions=("last",),
)
def logits_flag(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    hops = [peer.hop(flags=p["route"])]
    return peer.make(2, hops=hops, logits=not p["route"]), ()


@refusal(
    "prefix-hash",
    "WORK-26",
    "A prefix that the session does not hold.",
    params={"bit": (0, 40)},
)
def prefix_hash(
    peer: WorkerBench, p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    from ds4proto_conformance.bench.work import chain

    return peer.make(2, prefix=chain() ^ 1 << p["bit"], reset=False), ()


@refusal(
    "reset-with-prefix",
    "WORK-25",
    "RESET empties first, then prefix is judged.",
    mutants=("reset-takes-prefix",),
)
def reset_prefix(
    peer: WorkerBench, _p: dict[str, Any]
) -> tuple[Work, tuple[object, ...]]:
    return peer.make(2, prefix=(1, 2, 3)), ()


ORDER: tuple[
    tuple[str, str, Callable[[WorkerBench], Work], tuple[Position, ...]], ...
] = (
    ("02", "03", lambda w: w.make(3, n_tokens=2, route_count=0), ()),
    ("03", "05", lambda w: w.make(2, route_count=0, model_id=w.facts.model_id + 1), ()),
    ("04", "05", lambda w: w.make(2, route_index=9, model_id=w.facts.model_id + 1), ()),
    (
        "05",
        "06",
        lambda w: w.make(
            2, model_id=w.facts.model_id + 1, layer_end=w.facts.layer_end + 1
        ),
        (),
    ),
    ("06", "07", lambda w: w.make(2, layer_end=w.facts.layer_end + 1, flags=0xFF), ()),
    ("07", "08", lambda w: w.make(0, flags=0xFF), ()),
    ("08", "09", lambda w: w.make(0, pos0=w.facts.ctx + 1), ()),
    (
        "09",
        "11",
        lambda w: w.make(2, pos0=w.facts.ctx + 1, hidden=b"", flags=RESET_SESSION),
        ABOVE,
    ),
    (
        "11",
        "14",
        lambda w: w.make([0x80000000], hidden=b"", flags=RESET_SESSION),
        ABOVE,
    ),
    ("14", "15", lambda w: w.make([0x80000000], result_hash=1), ()),
    ("15", "17", lambda w: w.make(2, result_hash=1, input_hc_bits=7), ()),
    ("17", "18", lambda w: w.make(2, input_hc_bits=7, hidden=w.hidden(3)), ABOVE),
    (
        "18",
        "22",
        lambda w: w.make(2, hidden=w.hidden(3), hops=[w.hop(flags=0)], logits=True),
        ("last",),
    ),
    (
        "22",
        "26",
        lambda w: w.make(2, prefix=5, reset=False, logits=True, hops=[w.hop(flags=0)]),
        ("last",),
    ),
)
"""First fault, second fault, a WORK that has both."""


def _order(
    first: str,
    second: str,
    make: Callable[[WorkerBench], Work],
    positions: tuple[Position, ...],
) -> None:
    def body(peer: WorkerBench) -> None:
        peer.answer(peer.send(make(peer))).refused(f"DS4D-WORK-{first}")

    body.__doc__ = f"Of two faults, check {first} is answered before check {second}."
    body.__qualname__ = f"order_{first}_{second}"
    case(
        f"worker/work/order-{first}-before-{second}",
        clauses=("DS4D-WORK-43", f"DS4D-WORK-{first}", f"DS4D-WORK-{second}"),
        role="worker",
        category="limits",
        positions=positions,
        mutants=(f"order-{first}-{second}",),
    )(body)


for _row in ORDER:
    _order(*_row)


@case(
    "worker/work/refusal-keeps-session",
    clauses=("DS4D-WORK-45", "DS4D-WORK-47"),
    role="worker",
    category="state",
    params={"fault": ("flags", "hash", "ctx")},
    mutants=("refusal-empties-session",),
)
def keeps_session(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A refused WORK leaves its session as it was."""
    tokens = peer.tokens(2)
    first = peer.make(tokens)
    session = first.words["session"]
    peer.answer(peer.send(first)).served()
    bad = peer.make(1, pos0=2, prefix=tokens, reset=False, session=session)
    lies = {
        "flags": {"flags": 0xF0},
        "hash": {"result_hash": 3},
        "ctx": {"pos0": 1 << 30},
    }[p["fault"]]
    bad.lies = lies
    clause = {"flags": "DS4D-WORK-07", "hash": "DS4D-WORK-15", "ctx": "DS4D-WORK-09"}
    peer.answer(peer.send(bad)).refused(clause[p["fault"]])
    good = peer.make(1, pos0=2, prefix=tokens, reset=False, session=session)
    peer.answer(peer.send(good)).served("DS4D-WORK-47")


@case(
    "worker/work/all-flags",
    clauses=("DS4D-WORK-33", "DS4D-WORK-50"),
    role="worker",
    category="state",
    params={"ack": (False, True), "reset": (False, True), "logits": (True, False)},
    mutants=("flags-ack-refused",),
)
def all_flags(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Every combination of the defined flags that fits the slice is served."""
    logits = p["logits"] and peer.facts.has_output
    work = peer.make(2, ack=p["ack"], reset=p["reset"], logits=logits)
    assert bool(work.words["flags"] & ACK_ONLY) == p["ack"]
    peer.answer(peer.send(work)).served("DS4D-WORK-33")
