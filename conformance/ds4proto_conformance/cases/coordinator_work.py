"""WORK as a coordinator sends it: spans, hashes, flags, sessions."""

from __future__ import annotations

from typing import Any

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto_conformance.bench.coordinator import CoordinatorBench
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
    if not hop.work()["session"]:
        raise Deviation("DS4D-COORD-01", "a session id other than 0", "0")
    # Not every coordinator closes the registration that a newer one replaces.
    hop.wire.close()
    hop = start(peer)

    def new(work: Frame) -> bool:
        fresh = work["session"] not in seen and bool(work["flags"] & 4)
        known = bool(seen)
        seen.add(work["session"])
        return fresh and known

    work, _ = hop.until(new)
    if work is None:
        raise NotApplicable("no second session was begun")
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
        same(
            "DS4D-COORD-11",
            work,
            pos0=before["pos0"] + before["n_tokens"],
            prefix_hash=before["result_hash"],
        )


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
            raise Deviation(
                "DS4D-WORK-35",
                f"as route flags {work['route'][0]['flags']}",
                f"flags {work['flags']:#x}",
            )
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
            raise Deviation(
                "DS4D-WORK-32", "32, 16, 8 or 0", str(work["input_hc_bits"])
            )
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
            raise Deviation(
                "DS4D-COORD-17",
                f"at most {peer.facts.ctx} tokens",
                f"{work['pos0']} + {work['n_tokens']}",
            )
        hop.answer(work)
