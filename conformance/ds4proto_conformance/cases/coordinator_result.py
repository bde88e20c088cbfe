"""RESULT as a coordinator has to judge it: what is taken, what costs the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench.coordinator import CoordinatorBench, Hop
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Frame

Bad = Callable[[Hop, Frame, Any], bytes]


def start(peer: CoordinatorBench, **changes: Any) -> Hop:
    """Return a registered worker that completes the route."""
    hop = peer.register(**changes)
    peer.drive()
    return hop


def transport(
    name: str,
    number: str,
    about: str,
    values: tuple[Any, ...],
    make: Bad,
    *,
    mutant: str = "",
) -> None:
    """Declare the case of an answer that costs the worker its connection."""
    clause = f"DS4D-RESULT-{number}"

    def body(peer: CoordinatorBench, p: dict[str, Any]) -> None:
        hop = start(peer)
        work, _ = hop.decode()
        hop.wire.send(make(hop, work, p["value"]))
        hop.given_up(clause)
        again = start(peer)
        again.work("DS4D-COORD-31")

    body.__doc__ = about
    body.__qualname__ = f"result_{name}"
    case(
        f"coordinator/result/{name}",
        clauses=(clause, "DS4D-COORD-31", "DS4D-COORD-39"),
        role="coordinator",
        category="faults",
        params={"value": values},
        mutants=(mutant or f"takes-{name}",),
    )(body)


def _patched(hop: Hop, work: Frame, word: int, change: int) -> bytes:
    frame = bytearray(hop.result(work))
    at = 12 + 4 * word
    value = int.from_bytes(frame[at : at + 4], "big") + change
    frame[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(frame)


def _header(code: int, size: int) -> bytes:
    return b"DS4D" + code.to_bytes(4, "big") + size.to_bytes(4, "big") + bytes(size)


transport(
    "bad-magic",
    "02",
    "Another magic where a RESULT is due.",
    (b"DS4T", b"\xa5" * 4),
    lambda h, w, v: v + h.result(w)[4:],
)
transport(
    "other-frame",
    "03",
    "Another frame where a RESULT is due.",
    (2, 3, 99),
    lambda _h, _w, v: _header(v, 44),
)
transport(
    "short-body",
    "03",
    "A RESULT body below 40 bytes.",
    (0, 39),
    lambda _h, _w, v: _header(4, v),
)
transport(
    "telemetry-count",
    "04",
    "telemetry_count that does not fit its bytes.",
    (1, 5),
    lambda h, w, v: _patched(h, w, 6, v),
)
transport(
    "telemetry-bytes",
    "04",
    "telemetry_bytes beside the count, or past the body.",
    (1, 40, 1 << 20),
    lambda h, w, v: _patched(h, w, 7, v),
)
transport(
    "payload-bytes",
    "04",
    "payload_bytes that is not the rest.",
    (1, -4, 1 << 20),
    lambda h, w, v: _patched(h, w, 8, v),
)
transport(
    "request-id",
    "05",
    "Another request id than the oldest WORK's.",
    (1, -1, 77),
    lambda h, w, v: h.result(w, request=w["request"] + v),
)
transport(
    "request-upper-half",
    "05",
    "An id that differs in its upper half.",
    (1, 9),
    lambda h, w, v: h.result(w, request=w["request"] + (v << 32)),
)
transport(
    "hidden-width",
    "07",
    "A HIDDEN_STATE of a width that is none.",
    (7, 64, 1),
    lambda h, w, v: h.result(
        w, kind=HIDDEN_STATE, bits=v, payload=bytes(h.peer.facts.hidden_bytes(1, 32))
    ),
)
transport(
    "result-hash",
    "08",
    "Another result hash.",
    (1, 1 << 40),
    lambda h, w, v: h.result(w, result_hash=w["result_hash"] ^ v),
)
transport(
    "unknown-kind",
    "09",
    "A result kind that nobody defined.",
    (3, 7, 0xFFFFFFFF),
    lambda h, w, v: h.result(
        w, kind=v, bits=32, payload=bytes(4 * (h.peer.facts.vocab or 64))
    ),
)
transport(
    "logits-size",
    "09",
    "LOGITS of another size than the vocabulary.",
    (-4, 4, -999),
    lambda h, w, v: h.result(
        w,
        kind=LOGITS,
        bits=32,
        payload=bytes(max(0, 4 * (h.peer.facts.vocab or 64) + v) & ~3),
    ),
)
transport(
    "ack-not-asked",
    "09",
    "An ACK for a request that asked for more.",
    (0,),
    lambda h, w, v: h.result(w, kind=ACK, bits=v, payload=b""),
)
transport(
    "hidden-size",
    "34",
    "A HIDDEN_STATE of another number of rows.",
    (2, 0, 5),
    lambda h, w, v: h.result(
        w, kind=HIDDEN_STATE, bits=32, payload=bytes(h.peer.facts.hidden_bytes(v, 32))
    ),
)


@case(
    "coordinator/result/hidden-odd-length",
    clauses=("DS4D-RESULT-35",),
    role="coordinator",
    category="faults",
    params={"bits": (32, 16)},
    mutants=("takes-hidden-odd-length",),
)
def odd_length(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A HIDDEN_STATE whose bytes are no multiple of the width."""
    hop = start(peer)
    work, _ = hop.decode()
    size = peer.facts.hidden_bytes(1, p["bits"])
    hop.answer(work, kind=HIDDEN_STATE, bits=p["bits"], payload=bytes(size + 1))
    hop.given_up("DS4D-RESULT-35")


@case(
    "coordinator/result/closed",
    clauses=("DS4D-RESULT-01", "DS4D-COORD-31"),
    role="coordinator",
    category="faults",
    params={"how": ("close", "reset", "half")},
    mutants=("waits-for-the-gone",),
)
def closed(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A worker that goes with an answer due: a new one gets the whole transcript."""
    hop = start(peer)
    work, _ = hop.decode()
    if p["how"] == "half":
        hop.wire.send(hop.result(work)[:30])
    hop.wire.close(reset=p["how"] == "reset")
    again = start(peer)
    found = again.work("DS4D-COORD-31")
    if not found["flags"] & 4 or found["pos0"]:
        raise Deviation(
            "DS4D-COORD-31",
            "RESET from position 0 on the new route",
            f"pos0 {found['pos0']}, flags {found['flags']:#x}",
        )


# what is taken


@case(
    "coordinator/result/telemetry-any-number",
    clauses=("DS4D-RESULT-31",),
    role="coordinator",
    category="telemetry",
    params={"count": (0, 1, 3, 20)},
    mutants=("wants-one-record",),
    smoke=True,
)
def telemetry(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """Any consistent number of telemetry records is taken, none included."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.answer(work, telemetry=bytes(40 * p["count"]))
    hop.work("DS4D-RESULT-31")


@case(
    "coordinator/result/telemetry-not-judged",
    clauses=("DS4D-TELEM-09",),
    role="coordinator",
    category="telemetry",
    params={"fill": (0, 255)},
    mutants=("judges-telemetry",),
)
def telemetry_contents(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """What stands in a record decides nothing."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.answer(work, telemetry=bytes([p["fill"]]) * 40)
    hop.work("DS4D-TELEM-09")


@case(
    "coordinator/result/logits-bits-not-judged",
    clauses=("DS4D-RESULT-30",),
    role="coordinator",
    category="codec",
    params={"bits": (0, 8, 77)},
    mutants=("judges-logits-bits",),
)
def logits_bits(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """payload_bits of LOGITS is not judged."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.answer(work, kind=LOGITS, bits=p["bits"])
    hop.work("DS4D-RESULT-30")


@case(
    "coordinator/result/not-finite",
    clauses=("DS4D-RESULT-32",),
    role="coordinator",
    category="codec",
    params={"word": (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff")},
    mutants=("refuses-not-finite",),
)
def not_finite(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """Logits of NaN or infinity are no transport error."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.answer(work, kind=LOGITS, bits=32, payload=p["word"] * (peer.facts.vocab or 0))
    hop.work("DS4D-RESULT-32")


@case(
    "coordinator/result/hidden-instead-of-logits",
    clauses=("DS4D-RESULT-33", "DS4D-RESULT-07"),
    role="coordinator",
    category="codec",
    params={"bits": (32, 16, 8, 0)},
    mutants=("refuses-hidden", "refuses-narrow-hidden"),
)
def hidden(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A coordinator with the head takes a hidden state at any width."""
    hop = start(peer, has_output=0)
    asked = hop.wire.next()
    if not isinstance(asked, Frame):
        raise NotApplicable("the coordinator does not own the output head")
    if asked.name != "WORK":
        raise Deviation("DS4D-HELLO-16", "a WORK", str(asked))
    hop.answer(asked)
    work, _ = hop.until(lambda w: w["n_tokens"] == 1 and not w["flags"] & 12)
    if work is None:
        raise NotApplicable("the coordinator sent no single token")
    hop.answer(
        work,
        kind=HIDDEN_STATE,
        bits=p["bits"],
        payload=bytes(peer.facts.hidden_bytes(1, p["bits"])),
    )
    hop.work("DS4D-RESULT-33")


@case(
    "coordinator/result/split",
    clauses=("DS4D-FRAME-06",),
    role="coordinator",
    category="framing",
    params={"sizes": ((1, 11, 40), (12, 39, 1, 500), (60, 100))},
    mutants=("result-in-one-piece",),
)
def split(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A RESULT that arrives in pieces is read as one."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.wire.send_pieces(hop.result(work), p["sizes"])
    hop.work("DS4D-FRAME-06")


# refusals and replays

NO_DIAL = b"unable to connect to 127.0.0.1:1: Connection refused"
"""What a hop answers that could not reach the next one; its own span is evaluated."""


@case(
    "coordinator/recovery/remote-error",
    clauses=("DS4D-RESULT-06", "DS4D-COORD-30", "DS4D-COORD-36", "DS4D-FWD-23"),
    role="coordinator",
    category="faults",
    params={
        "text": (b"failed", b"", b"x" * 600, NO_DIAL),
        "status": (1, 2, 0xFFFFFFFF),
    },
    mutants=(
        "drops-on-remote-error",
        "replays-without-reset",
        "replays-token-twice",
        "replays-without-token",
    ),
    smoke=True,
)
def remote_error(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A refused decode step is replayed whole, with RESET, on the same connection."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.answer(
        work,
        status=p["status"],
        kind=0,
        bits=0,
        result_hash=0,
        telemetry=b"",
        payload=p["text"],
    )
    replay = hop.work("DS4D-COORD-30")
    if replay["session"] != work["session"] or replay["request"] <= work["request"]:
        raise Deviation(
            "DS4D-COORD-30",
            "a replay in the same session, a new id",
            f"session {replay['session']}, request {replay['request']}",
        )
    if replay["pos0"] or not replay["flags"] & 4:
        raise Deviation(
            "DS4D-COORD-30",
            "RESET from position 0",
            f"pos0 {replay['pos0']}, flags {replay['flags']:#x}",
        )
    count, last = replay["n_tokens"], replay
    while last["flags"] & 8:
        hop.answer(last)
        last = hop.work("DS4D-COORD-33")
        count += last["n_tokens"]
    if count != work["pos0"] + 1:
        raise Deviation(
            "DS4D-COORD-36", f"{work['pos0'] + 1} tokens, each once", f"{count} tokens"
        )
    if last["tokens"][-1] != work["tokens"][0]:
        raise Deviation(
            "DS4D-COORD-36",
            f"the last token {work['tokens'][0]}",
            str(last["tokens"][-1]),
        )
    if last["result_hash"] != work["result_hash"]:
        raise Deviation(
            "DS4D-COORD-36", "the transcript of the refused step", "another"
        )


@case(
    "coordinator/recovery/goes-on-behind-it",
    clauses=("DS4D-COORD-30", "DS4D-COORD-13"),
    role="coordinator",
    category="faults",
    mutants=("replay-then-stale",),
)
def goes_on(peer: CoordinatorBench) -> None:
    """Behind a replay that succeeded, decoding goes on where it was."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.fail(work)
    replay = hop.work("DS4D-COORD-30")
    while replay["flags"] & 8:
        hop.answer(replay)
        replay = hop.work("DS4D-COORD-33")
    hop.answer(replay)
    after = hop.work("DS4D-COORD-13")
    if (
        after["session"] == work["session"]
        and not after["flags"] & 4
        and (
            after["prefix_hash"] != replay["result_hash"]
            or after["pos0"] != replay["pos0"] + replay["n_tokens"]
        )
    ):
        raise Deviation(
            "DS4D-COORD-13",
            "a step behind the replayed transcript",
            f"pos0 {after['pos0']}",
        )


@case(
    "coordinator/recovery/replayed-once",
    clauses=("DS4D-COORD-32", "DS4D-COORD-35"),
    role="coordinator",
    category="faults",
    mutants=("replays-for-ever",),
)
def once(peer: CoordinatorBench) -> None:
    """A replay that is refused too is not replayed again."""
    hop = start(peer)
    work, _ = hop.decode()
    hop.fail(work)
    replay = hop.work("DS4D-COORD-30")
    hop.fail(replay)
    found = hop.wire.quiet(max(peer.quiet, 0.5))
    if not isinstance(found, Frame):
        return
    same = found["session"] == work["session"] and found["flags"] & 4
    if same and found["result_hash"] == replay["result_hash"]:
        raise Deviation(
            "DS4D-COORD-32", "no second replay", "the same transcript again"
        )


@case(
    "coordinator/recovery/refused-prefill",
    clauses=("DS4D-COORD-30", "DS4D-COORD-02"),
    role="coordinator",
    category="faults",
    mutants=("request-id-reused", "drops-on-remote-error"),
)
def prefill(peer: CoordinatorBench) -> None:
    """A refused prefill is replayed under a new id, the transcript unchanged."""
    hop = start(peer)
    work = hop.prefill()
    hop.fail(work)
    replay = hop.work("DS4D-COORD-30")
    if work["flags"] & 8:
        return
    if replay["request"] != work["request"] + 1:
        raise Deviation(
            "DS4D-COORD-02", f"request {work['request'] + 1}", str(replay["request"])
        )
    if replay["result_hash"] != work["result_hash"]:
        raise Deviation("DS4D-COORD-36", "the same transcript", "another")


@case(
    "coordinator/recovery/error-frame",
    clauses=("DS4D-RESULT-03", "DS4D-COORD-31"),
    role="coordinator",
    category="faults",
    params={"text": (b"", b"boom", b"y" * 3000)},
    mutants=("takes-error-for-refusal",),
)
def error_frame(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """ERROR instead of RESULT is a transport error, not a refusal."""
    hop = start(peer)
    work, _ = hop.decode()
    assert work
    size = len(p["text"]).to_bytes(4, "big")
    hop.wire.send(b"DS4D" + (2).to_bytes(4, "big") + size + p["text"])
    hop.given_up("DS4D-RESULT-03")
