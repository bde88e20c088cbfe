"""WORK as a coordinator sends it: spans, hashes, routes, prefill, sessions."""

from __future__ import annotations

from typing import Any

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto_conformance.bench.coordinator import CoordinatorBench, Hop
from ds4proto_conformance.cases.coordinator_result import start
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Frame


def same(clause: str, frame: Frame, **due: Any) -> None:
    """Compare fields of a WORK."""
    for name, value in due.items():
        if frame[name] != value:
            raise Deviation(clause, f"{name} {value}", str(frame[name]))


@case(
    "coordinator/work/first",
    clauses=("DS4D-COORD-12", "DS4D-WORK-37"),
    role="coordinator",
    category="state",
    mutants=("first-without-reset", "first-hash-zero"),
    smoke=True,
)
def first(peer: CoordinatorBench) -> None:
    """The first WORK of a session has RESET, position 0, the hash of no tokens."""
    hop = start(peer)
    work = hop.first()
    same("DS4D-WORK-37", work, pos0=0, prefix_hash=TOKEN_HASH_START)


@case(
    "coordinator/work/first-id",
    clauses=("DS4D-COORD-02", "DS4D-COORD-01"),
    role="coordinator",
    category="state",
    mutants=("ids-from-zero", "session-zero"),
)
def first_id(peer: CoordinatorBench) -> None:
    """A new session has a non-zero id and begins with request 1."""
    hop = start(peer)
    seen: set[int] = set()

    def new(work: Frame) -> bool:
        fresh = work["session"] not in seen and bool(work["flags"] & 4)
        known = bool(seen)
        seen.add(work["session"])
        return fresh and known

    work, _ = hop.until(new)
    if work is None:
        raise NotApplicable("no second session was begun")
    if not work["session"]:
        raise Deviation("DS4D-COORD-01", "a session id other than 0", "0")
    same("DS4D-COORD-02", work, request=1)


@case(
    "coordinator/work/decode",
    clauses=("DS4D-COORD-13", "DS4D-WORK-36"),
    role="coordinator",
    category="state",
    mutants=("decode-position-off", "decode-prefix-stale", "decode-with-reset"),
    smoke=True,
)
def decode(peer: CoordinatorBench) -> None:
    """A decode step: one token, no RESET, behind the tokens before it."""
    hop = start(peer)
    work, before = hop.decode()
    if work["session"] != before["session"]:
        raise Deviation("DS4D-COORD-13", "the session of the step before", "another")
    same("DS4D-COORD-13", work, n_tokens=1, pos0=before["pos0"] + before["n_tokens"])
    same("DS4D-WORK-36", work, prefix_hash=before["result_hash"])


@case(
    "coordinator/work/ids-rise",
    clauses=("DS4D-COORD-02",),
    role="coordinator",
    category="state",
    mutants=("ids-by-two", "request-id-reused"),
)
def ids_rise(peer: CoordinatorBench) -> None:
    """Request ids rise by one with every WORK of a session."""
    hop = start(peer)
    work, before = hop.decode()
    same("DS4D-COORD-02", work, request=before["request"] + 1)


@case(
    "coordinator/work/hash",
    clauses=("DS4D-WORK-36", "DS4D-WORK-31"),
    role="coordinator",
    category="state",
    mutants=("result-hash-off",),
)
def hashes(peer: CoordinatorBench) -> None:
    """result_hash is prefix_hash extended by the tokens of the frame."""
    hop = start(peer)
    for _ in range(3):
        work = hop.work()
        due = token_hash(work["tokens"], work["prefix_hash"])
        same("DS4D-WORK-36", work, result_hash=due)
        hop.answer(work)


@case(
    "coordinator/work/suffix",
    clauses=("DS4D-COORD-11",),
    role="coordinator",
    category="state",
    mutants=("suffix-with-all",),
)
def suffix(peer: CoordinatorBench) -> None:
    """A longer transcript sends its suffix alone, without RESET."""
    hop = start(peer)
    work, before = hop.until(
        lambda w: w["n_tokens"] > 1 and w["pos0"] and not w["flags"] & 12
    )
    if work is None or before is None:
        raise NotApplicable("the coordinator never went on with several tokens")
    if work["session"] == before["session"]:
        same("DS4D-COORD-11", work, pos0=before["pos0"] + before["n_tokens"],
             prefix_hash=before["result_hash"])  # fmt: skip


@case(
    "coordinator/work/flags",
    clauses=("DS4D-WORK-33", "DS4D-WORK-34"),
    role="coordinator",
    category="state",
    mutants=("flag-undefined", "input-flag-missing"),
)
def flags(peer: CoordinatorBench) -> None:
    """Only defined flags; INPUT_HC exactly where the hop starts above layer 0."""
    hop = start(peer)
    for _ in range(3):
        work = hop.work()
        if work["flags"] & ~15:
            raise Deviation("DS4D-WORK-33", "flags 1, 2, 4, 8", f"{work['flags']:#x}")
        if bool(work["flags"] & 1) != (work["layer_start"] > 0):
            raise Deviation("DS4D-WORK-34", "INPUT_HC above layer 0", "otherwise")
        hop.answer(work)


@case(
    "coordinator/work/logits-flag",
    clauses=("DS4D-WORK-35",),
    role="coordinator",
    category="state",
    mutants=("logits-flag-missing",),
)
def logits_flag(peer: CoordinatorBench) -> None:
    """OUTPUT_LOGITS is that of the hop's own route record."""
    hop = start(peer)
    for _ in range(3):
        work = hop.work()
        if bool(work["flags"] & 2) != bool(work["route"][0]["flags"] & 1):
            raise Deviation("DS4D-WORK-35", f"as route flags {work['route'][0]['flags']}",
                            f"flags {work['flags']:#x}")  # fmt: skip
        hop.answer(work)


@case(
    "coordinator/work/hidden-size",
    clauses=("DS4D-WORK-32", "DS4D-WORK-30"),
    role="coordinator",
    category="codec",
    mutants=("hidden-one-row",),
)
def hidden_size(peer: CoordinatorBench) -> None:
    """The hidden tail holds one row for each token, at a width that exists."""
    hop = start(peer)
    for _ in range(3):
        work = hop.work()
        if work["input_hc_bits"] not in (0, 8, 16, 32):
            raise Deviation("DS4D-WORK-32", "32, 16, 8 or 0", str(work["input_hc_bits"]))
        due = peer.facts.hidden_bytes(work["n_tokens"], work["input_hc_bits"])
        same("DS4D-WORK-32", work, input_hc_bytes=due)
        hop.answer(work)


@case(
    "coordinator/work/context",
    clauses=("DS4D-COORD-17",),
    role="coordinator",
    category="limits",
    mutants=("beyond-its-context",),
)
def in_context(peer: CoordinatorBench) -> None:
    """No span goes past the context."""
    hop = start(peer)
    for _ in range(6):
        work = hop.work()
        if peer.facts.ctx and work["pos0"] + work["n_tokens"] > peer.facts.ctx:
            raise Deviation("DS4D-COORD-17", f"at most {peer.facts.ctx} tokens",
                            f"{work['pos0']} + {work['n_tokens']}")  # fmt: skip
        hop.answer(work)


# routes


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
    due = {"port": p["port"], "layer_start": f.layer_end + 1,
           "layer_end": f.n_layers - 1, "flags": 1}  # fmt: skip
    for name, value in due.items():
        if route[name] != value:
            raise Deviation("DS4D-ROUTE-23", f"{name} {value}", str(route[name]))
    if not route["host"].replace(".", "").replace(":", "").isalnum() or route[
        "host"
    ].isalpha():
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
        raise Deviation("DS4D-ROUTE-38", "nothing on the second hop's control", str(stray))


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
    for _ in range(4):
        found = whole.wire.quiet(0.2)
        if isinstance(found, Frame):
            return
        pending = upper.wire.quiet(0.2)
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
    peer.register("old", listen_port=7001)
    new = start(peer, listen_port=7002)
    work = new.work("DS4D-ROUTE-32")
    if work["route"][0]["port"] != 7002:
        raise Deviation("DS4D-ROUTE-32", "port 7002", str(work["route"][0]["port"]))


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


# pipelined prefill


def chunks(peer: CoordinatorBench, *, answer: bool = True) -> tuple[Hop, list[Frame]]:
    """Return the chunks of a pipelined prefill, answered or not."""
    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable("no pipelined prefill: give the peer a chunk below its prompt")
    found = [work]
    while found[-1]["flags"] & 8:
        if answer:
            hop.answer(found[-1])
        more = hop.wire.next()
        if not isinstance(more, Frame):
            break
        found.append(more)
    return hop, found


@case(
    "coordinator/prefill/ack-only",
    clauses=("DS4D-COORD-23",),
    role="coordinator",
    category="state",
    mutants=("last-chunk-ack", "first-chunk-full"),
)
def ack_only(peer: CoordinatorBench) -> None:
    """Every chunk but the last asks for an ACK."""
    _, found = chunks(peer)
    marks = [bool(work["flags"] & 8) for work in found]
    if marks != [True] * (len(marks) - 1) + [False] or len(marks) < 2:
        raise Deviation("DS4D-COORD-23", "ACK_ONLY on all chunks but the last", str(marks))


@case(
    "coordinator/prefill/reset-once",
    clauses=("DS4D-COORD-12", "DS4D-COORD-24"),
    role="coordinator",
    category="state",
    mutants=("reset-every-chunk",),
)
def reset_once(peer: CoordinatorBench) -> None:
    """RESET is on the first chunk alone; ids and positions follow each other."""
    _, found = chunks(peer)
    for before, work in zip(found, found[1:], strict=False):
        if work["flags"] & 4:
            raise Deviation("DS4D-COORD-12", "RESET on the first chunk alone", "a second")
        same("DS4D-COORD-24", work, request=before["request"] + 1,
             pos0=before["pos0"] + before["n_tokens"],
             prefix_hash=before["result_hash"])  # fmt: skip


@case(
    "coordinator/prefill/window",
    clauses=("DS4D-COORD-21", "DS4D-COORD-22"),
    role="coordinator",
    category="limits",
    mutants=("window-open", "window-1"),
)
def window(peer: CoordinatorBench) -> None:
    """Not more chunks are unanswered than the window says, and more than one."""
    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable("no pipelined prefill: give the peer a chunk below its prompt")
    found = [work]
    while found[-1]["flags"] & 8:
        more = hop.wire.quiet(max(peer.quiet, 0.15))
        if not isinstance(more, Frame):
            break
        found.append(more)
    limit = max(2, min(8, found[0]["route_count"] + 2))
    if not 2 <= len(found) <= limit:
        raise Deviation("DS4D-COORD-22", f"2 to {limit} chunks in flight", str(len(found)))


@case(
    "coordinator/prefill/logits-for-a-chunk",
    clauses=("DS4D-RESULT-37",),
    role="coordinator",
    category="state",
    mutants=("wants-ack",),
)
def logits_chunk(peer: CoordinatorBench) -> None:
    """Full logits are taken for a chunk that asked for an ACK."""
    from ds4proto.schema.ds4d_result import LOGITS

    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable("no pipelined prefill: give the peer a chunk below its prompt")
    hop.answer(work, kind=LOGITS)
    more = hop.work("DS4D-RESULT-37")
    if more["session"] != work["session"] or more["flags"] & 4:
        raise Deviation("DS4D-RESULT-37", "the next chunk", "a replay")


@case(
    "coordinator/prefill/ack-for-the-last",
    clauses=("DS4D-RESULT-36",),
    role="coordinator",
    category="faults",
    mutants=("takes-last-ack",),
)
def ack_last(peer: CoordinatorBench) -> None:
    """An ACK for the last chunk is a transport error."""
    from ds4proto.schema.ds4d_result import ACK

    hop, found = chunks(peer)
    hop.answer(found[-1], kind=ACK)
    hop.given_up("DS4D-RESULT-36")


@case(
    "coordinator/prefill/other-hash",
    clauses=("DS4D-RESULT-39",),
    role="coordinator",
    category="faults",
    mutants=("takes-prefill-hash",),
)
def other_hash(peer: CoordinatorBench) -> None:
    """A chunk answered with another hash is a transport error."""
    hop, found = chunks(peer)
    hop.answer(found[-1], result_hash=3)
    hop.given_up("DS4D-RESULT-39")


@case(
    "coordinator/prefill/refused-chunk",
    clauses=("DS4D-COORD-34", "DS4D-COORD-38"),
    role="coordinator",
    category="faults",
    mutants=("replays-before-drained", "drops-on-remote-error"),
)
def refused_chunk(peer: CoordinatorBench) -> None:
    """A refused chunk: the rest is drained, then all is replayed on the connection."""
    hop = start(peer)
    work, _ = hop.until(lambda w: w["flags"] & 8)
    if work is None:
        raise NotApplicable("no pipelined prefill: give the peer a chunk below its prompt")
    owed = []
    while True:
        more = hop.wire.quiet(max(peer.quiet, 0.15))
        if not isinstance(more, Frame):
            break
        owed.append(more)
    hop.fail(work)
    early = hop.wire.quiet(max(peer.quiet, 0.15)) if owed else None
    if isinstance(early, Frame) and early["flags"] & 4:
        raise Deviation("DS4D-COORD-38", "no replay while answers are due", "a replay")
    for chunk in owed:
        hop.answer(chunk)
    replay = hop.work("DS4D-COORD-34")
    if replay["pos0"] or not replay["flags"] & 4:
        raise Deviation("DS4D-COORD-34", "RESET from position 0",
                        f"pos0 {replay['pos0']}, flags {replay['flags']:#x}")  # fmt: skip
