"""Sessions of a worker: RESET, the hash chain, who shares what, determinism."""

from __future__ import annotations

from typing import Any

from ds4proto_conformance.bench.work import Work, chain
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation


def step(
    peer: WorkerBench,
    session: int,
    before: tuple[int, ...],
    count: int = 1,
    **more: Any,
) -> tuple[Work, tuple[int, ...]]:
    """Return the WORK that goes on from some tokens, and the tokens after it."""
    tokens = peer.tokens(count)
    work = peer.make(
        tokens,
        pos0=len(before),
        prefix=before,
        reset=not before,
        **more,
        session=session,
    )
    return work, before + tokens


@case(
    "worker/sessions/new-without-reset",
    clauses=("DS4D-SESS-03", "DS4D-WORK-24"),
    role="worker",
    category="state",
    mutants=("needs-reset",),
)
def new_without_reset(peer: WorkerBench) -> None:
    """An unknown session is created empty: position 0 is served without RESET."""
    peer.work(2, reset=False).served("DS4D-SESS-03")


@case(
    "worker/sessions/new-in-the-middle",
    clauses=("DS4D-SESS-04", "DS4D-WORK-26"),
    role="worker",
    category="state",
    mutants=("new-session-anywhere",),
)
def new_in_the_middle(peer: WorkerBench) -> None:
    """An unknown session cannot be continued from a later position."""
    before = peer.tokens(5)
    peer.work(1, pos0=5, prefix=before, reset=False).refused("DS4D-WORK-26")


@case(
    "worker/sessions/goes-on",
    clauses=("DS4D-SESS-04", "DS4D-SESS-06"),
    role="worker",
    category="state",
    params={"count": (1, 2, 5), "steps": (1, 3), "bits": (32, 8)},
    mutants=("hash-not-advanced",),
    smoke=True,
)
def goes_on(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Each WORK is served where the one before it ended."""
    session = peer.session()
    before: tuple[int, ...] = ()
    for _ in range(p["steps"] + 1):
        work, before = step(peer, session, before, p["count"], bits=p["bits"])
        peer.answer(peer.send(work)).served("DS4D-SESS-06")


@case(
    "worker/sessions/old-position",
    clauses=("DS4D-SESS-04", "DS4D-WORK-26"),
    role="worker",
    category="state",
    mutants=("hash-not-advanced",),
)
def old_position(peer: WorkerBench) -> None:
    """The same WORK sent twice without RESET is refused the second time."""
    session = peer.session()
    first, before = step(peer, session, ())
    peer.answer(peer.send(first)).served()
    second, _ = step(peer, session, before)
    peer.answer(peer.send(second)).served()
    peer.answer(peer.send(second)).refused("DS4D-WORK-26")


@case(
    "worker/sessions/position-is-judged",
    clauses=("DS4D-WORK-46", "DS4D-SESS-04", "DS4D-WORK-27"),
    role="worker",
    category="state",
    params={"off": (1, -1, 7)},
    mutants=("position-unchecked",),
)
def position(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The right prefix hash at the wrong position is refused."""
    session = peer.session()
    first, before = step(peer, session, (), 2)
    peer.answer(peer.send(first)).served()
    work, _ = step(peer, session, before)
    work.words["pos0"] += p["off"]
    answer = peer.answer(peer.send(work))
    if not answer.frame["status"]:
        raise Deviation("DS4D-WORK-46", "a refusal of the position", str(answer.frame))


@case(
    "worker/sessions/reset",
    clauses=("DS4D-SESS-05", "DS4D-WORK-25"),
    role="worker",
    category="state",
    params={"filled": (1, 3), "again": (1, 2)},
    mutants=("reset-ignored",),
    smoke=True,
)
def reset(peer: WorkerBench, p: dict[str, Any]) -> None:
    """RESET empties a live session and evaluates from position 0."""
    session = peer.session()
    first, _ = step(peer, session, (), p["filled"])
    peer.answer(peer.send(first)).served()
    for _ in range(p["again"]):
        work, _ = step(peer, session, (), 2)
        peer.answer(peer.send(work)).served("DS4D-SESS-05")


@case(
    "worker/sessions/reset-though-refused",
    clauses=("DS4D-WORK-25", "DS4D-SESS-02"),
    role="worker",
    category="state",
    mutants=("reset-undone",),
)
def reset_though_refused(peer: WorkerBench) -> None:
    """A RESET is carried out even where the WORK is then refused."""
    session = peer.session()
    first, before = step(peer, session, (), 2)
    peer.answer(peer.send(first)).served()
    bad = peer.make(1, prefix=before)
    bad.words["session"] = session
    peer.answer(peer.send(bad)).refused("DS4D-WORK-25")
    plain = peer.make(1)
    plain.words["session"] = session
    plain.words["flags"] &= ~4
    peer.answer(peer.send(plain)).served("DS4D-WORK-25")


@case(
    "worker/sessions/reset-forgets-history",
    clauses=("DS4D-SESS-05", "DS4D-WORK-25"),
    role="worker",
    category="determinism",
    mutants=("reset-keeps-cache",),
)
def forgets(peer: WorkerBench) -> None:
    """The answer behind a RESET does not depend on what was there before."""
    first, tokens = peer.session(), peer.tokens(3)
    work = peer.make(tokens)
    work.words["session"] = first
    fresh = peer.answer(peer.send(work)).served().payload
    other, _ = step(peer, first, (), 4)
    peer.answer(peer.send(other)).served()
    again = peer.answer(peer.send(work)).served().payload
    if again != fresh:
        raise Deviation(
            "DS4D-SESS-05",
            "the same answer as in an empty session",
            f"{_differing(fresh, again)} bytes differ",
        )


@case(
    "worker/sessions/shared-by-connections",
    clauses=("DS4D-SESS-01", "DS4D-WORKER-01"),
    role="worker",
    category="state",
    mutants=("session-per-connection",),
)
def shared(peer: WorkerBench) -> None:
    """A session that one connection began goes on over another one."""
    session = peer.session()
    first, before = step(peer, session, (), 2)
    peer.answer(peer.send(first)).served()
    second, _ = step(peer, session, before)
    other = peer.dial("data 2")
    peer.answer(peer.send(second, other), other).served("DS4D-SESS-01")


@case(
    "worker/sessions/outlive-a-data-connection",
    clauses=("DS4D-SESS-11",),
    role="worker",
    category="state",
    mutants=("session-ends-with-data", "session-per-connection"),
)
def outlive(peer: WorkerBench) -> None:
    """The end of a data connection does not end the sessions that it used."""
    session = peer.session()
    wire = peer.dial("data 1")
    first, before = step(peer, session, (), 2)
    peer.answer(peer.send(first, wire), wire).served()
    wire.half_close()
    wire.closed("DS4D-WORKER-04")
    wire.close()
    second, _ = step(peer, session, before)
    peer.answer(peer.send(second)).served("DS4D-SESS-11")


@case(
    "worker/sessions/are-apart",
    clauses=("DS4D-SESS-01", "DS4D-SESS-04"),
    role="worker",
    category="state",
    mutants=("session-low-half",),
)
def apart(peer: WorkerBench) -> None:
    """Ids that differ in the upper half alone are two sessions."""
    low = peer.rng.randrange(1, 1 << 31)
    one, two = low | 1 << 32, low | 2 << 32
    first, before_one = step(peer, one, (), 1)
    peer.answer(peer.send(first)).served()
    second, before_two = step(peer, two, (), 2)
    peer.answer(peer.send(second)).served()
    for session, before in ((one, before_one), (two, before_two)):
        work, _ = step(peer, session, before)
        peer.answer(peer.send(work)).served("DS4D-SESS-01")


@case(
    "worker/sessions/interleaved",
    clauses=("DS4D-SESS-01", "DS4D-SESS-06"),
    role="worker",
    category="state",
    mutants=("one-session", "hash-not-advanced"),
)
def interleaved(peer: WorkerBench) -> None:
    """Three sessions that take turns do not disturb each other."""
    befores: dict[int, tuple[int, ...]] = {peer.session(): () for _ in range(3)}
    for _ in range(3):
        for session, before in befores.items():
            work, befores[session] = step(peer, session, before)
            peer.answer(peer.send(work)).served("DS4D-SESS-06")


@case(
    "worker/sessions/same-twice",
    clauses=("DS4D-SESS-05", "DS4D-RESULT-26"),
    role="worker",
    category="determinism",
    params={"tokens": (1, 4), "bits": (32, 16, 8)},
    mutants=("noisy",),
    smoke=True,
)
def same_twice(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The same WORK gives the same bytes, in two sessions and two connections."""
    work = peer.make(p["tokens"], bits=p["bits"])
    first = peer.answer(peer.send(work)).served().payload
    work.words["session"] = peer.session()
    other = peer.dial("data 2")
    second = peer.answer(peer.send(work, other), other).served().payload
    if first != second:
        raise Deviation(
            "DS4D-SESS-05",
            "the same bytes for the same WORK",
            f"{_differing(first, second)} bytes differ",
        )


@case(
    "worker/sessions/three-prompts",
    clauses=("DS4D-SESS-05", "DS4D-SESS-06"),
    role="worker",
    category="determinism",
    mutants=("reset-keeps-cache", "noisy"),
)
def three_prompts(peer: WorkerBench) -> None:
    """Three prompts in one process, twice over: the answers are the same."""
    prompts = [peer.make(n) for n in (2, 5, 3)]
    rounds = []
    for _ in range(2):
        found = []
        for work in prompts:
            work.words["session"] = prompts[0].words["session"]
            found.append(peer.answer(peer.send(work)).served().payload)
        rounds.append(found)
    if rounds[0] != rounds[1]:
        raise Deviation("DS4D-SESS-05", "equal answers in both rounds", "they differ")


@case(
    "worker/sessions/history-matters",
    clauses=("DS4D-SESS-06",),
    role="worker",
    category="state",
    mutants=("forgets-history",),
)
def history_matters(peer: WorkerBench) -> None:
    """A span in two pieces gives the last rows that it gives in one piece."""
    tokens, width = peer.tokens(4), peer.facts.hidden_values * 4
    whole = peer.make(tokens)
    once = peer.answer(peer.send(whole)).served().payload
    session = peer.session()
    last = b""
    for at in (0, 2):
        hidden = whole.hidden[at * width : (at + 2) * width]
        work = peer.make(
            tokens[at : at + 2],
            pos0=at,
            prefix=tokens[:at],
            reset=not at,
            hidden=hidden,
            session=session,
        )
        last = peer.answer(peer.send(work)).served().payload
    if last != once[-len(last) :]:
        raise Deviation(
            "DS4D-SESS-06",
            "the rows of the undivided span",
            f"{_differing(last, once[-len(last) :])} bytes differ",
        )


@case(
    "worker/sessions/hash-order",
    clauses=("DS4D-WORK-15", "DS4D-WORK-36"),
    role="worker",
    category="state",
    mutants=("hash-big-endian",),
)
def hash_order(peer: WorkerBench) -> None:
    """The hash runs over each token id, low byte first, in the order of the span."""
    vocab = peer.facts.vocab or 64
    tokens = (1, 2, max(3, vocab - 1))
    assert chain(tokens) != chain(tokens[::-1])
    peer.work(tokens).served("DS4D-WORK-15")


def _differing(one: bytes, two: bytes) -> int:
    return sum(a != b for a, b in zip(one, two, strict=False)) + abs(
        len(one) - len(two)
    )
