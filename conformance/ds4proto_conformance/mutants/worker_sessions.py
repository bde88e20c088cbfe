"""Workers that keep their sessions wrongly."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link import ds4d_sessions as sessions
from ds4proto.link import ds4d_work_checks
from ds4proto.link import ds4d_worker_queue as worker_queue
from ds4proto.link.ds4d_events import Fault as Refusal
from ds4proto.link.ds4d_texts import text
from ds4proto_conformance.mutants.tools import frames_in
from ds4proto_conformance.peers.faults import Fault, patched

checks: Any = ds4d_work_checks
"""Seconds that the late answer takes; the kill matrix waits less."""
_SERVED = worker_queue.Queue.evaluated
_START = worker_queue.Queue._start
_JUDGE = sessions.judge_session
Patch = Callable[[], contextlib.AbstractContextManager[None]]


def _start(change: Callable[[Any, Any, Any], Any]) -> Patch:
    """Alter ``_start``: ``change(queue, work, slot)`` returns a refusal or None."""

    def patch() -> contextlib.AbstractContextManager[None]:
        def start(self: Any, work: Any, slot: Any) -> Any:
            return change(self, work, slot) or _START(self, work, slot)

        return patched((worker_queue.Queue, "_start", start))

    return patch


def _needs_reset(_self: Any, work: Any, _slot: Any) -> Any:
    if work.fields["flags"] & 4 or work.fields["pos0"]:
        return None
    return Refusal("DS4D-WORK-26", text("DS4D-WORK-26"), "remote")


def _anywhere(self: Any, work: Any, _slot: Any) -> Any:
    if self.worker.sessions.get(work.fields["session"]) is None:
        session = self.worker.sessions.create(work.fields["session"])
        session.hash = work.fields["prefix_hash"]
        session.count = work.fields["pos0"]


def _ignore_reset(_self: Any, work: Any, _slot: Any) -> Any:
    work.fields["flags"] &= ~4


def _keyed(change: Callable[[Any, int], int]) -> Patch:
    """Keep sessions under another key than the id."""

    def alter(self: Any, work: Any, _slot: Any) -> Any:
        work.fields["session"] = change(self, work.fields["session"])

    return _start(alter)


def _undo_reset(self: Any, work: Any, slot: Any) -> Any:
    session = self.worker.sessions.get(work.fields["session"])
    if session is None or not work.fields["flags"] & 4:
        return None
    before = session.hash, session.count
    fault = _START(self, work, slot)
    if fault is not None:
        session.hash, session.count = before
    return fault or _STARTED


class _Started:
    """Stands for "already begun"."""


_STARTED = _Started()


def _undone() -> contextlib.AbstractContextManager[None]:
    def start(self: Any, work: Any, slot: Any) -> Any:
        found = _undo_reset(self, work, slot)
        if found is _STARTED:
            return None
        return found or _START(self, work, slot)

    return patched((worker_queue.Queue, "_start", start))


def _stale_hash() -> contextlib.AbstractContextManager[None]:
    def evaluated(self: Any, event: Any, now: float) -> None:
        due = self._evaluation
        before = due.session.hash
        _SERVED(self, event, now)
        due.session.hash = before

    return patched((worker_queue.Queue, "evaluated", evaluated))


def _no_position() -> contextlib.AbstractContextManager[None]:
    def lenient(session: Any, prefix: int, _pos0: int, count: int, cap: Any) -> Any:
        return _JUDGE(session, prefix, session.count, count, cap)

    return patched((worker_queue, "judge_session", lenient))


def _keeps_cache(engine: Any, job: Any) -> bytes:
    """Evaluate on what the cache held before the reset."""
    past = engine.sessions.setdefault(job.session, [])
    old = engine.sessions.setdefault(("old", job.session), [])
    if job.pos0 == 0:
        past[:] = old
    found: bytes = engine.evaluate(job)
    old[:] = engine.sessions[job.session][-2:]
    return found


def _noisy(engine: Any, job: Any) -> bytes:
    engine.noise = getattr(engine, "noise", 0) + 1
    found: bytes = engine.evaluate(job)
    if not found:
        return found
    return bytes([found[0] ^ engine.noise & 1]) + found[1:]


def _no_history(engine: Any, job: Any) -> bytes:
    engine.sessions[job.session] = []
    found: bytes = engine.evaluate(job)
    return found


def _big_endian_hash() -> contextlib.AbstractContextManager[None]:
    own = checks.token_hash

    def other(tokens: Any, before: int) -> int:
        turned = [int.from_bytes(t.to_bytes(4, "little"), "big") for t in tokens]
        return int(own(turned, before))

    return patched((checks, "token_hash", other))


def _end_with_data(peer: Any, connection: Any, event: Any) -> bool:
    from ds4proto.link.ds4d_events import Close

    if (
        isinstance(event, Close)
        and connection is not None
        and connection.kind == "data"
    ):
        peer.machine.sessions.clear()
    return False


def _ack_skips(engine: Any, job: Any) -> bytes:
    if job.want == "ack":
        return b""
    found: bytes = engine.evaluate(job)
    return found


def _input_ignored(engine: Any, job: Any) -> bytes:
    from dataclasses import replace

    if job.hidden is None:
        return bytes(engine.evaluate(job))
    zero = memoryview(bytes(len(job.hidden)))
    return bytes(engine.evaluate(replace(job, hidden=zero)))


def _swallow_third(connection: Any, code: int, _body: bytes) -> bytes | None:
    if code != 3:
        return None
    seen = connection.memory["seen"] = connection.memory.get("seen", 0) + 1
    return b"" if seen % 3 == 0 else None


def _late(connection: Any, frame: bytes) -> list[bytes]:
    sent = connection.memory["sent"] = connection.memory.get("sent", 0) + 1
    if sent == 6:
        connection.memory["held"] = frame
        return []
    return [connection.memory.pop("held"), frame] if sent == 7 else [frame]


def _per_connection(self: Any, session: int) -> int:
    return (session * 31 + zlib.crc32(str(id(self)).encode())) & (1 << 64) - 1


def _fault(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", "state", about, **hooks)


MUTANTS: Final = (
    _fault(
        "needs-reset", "refuses a new session without RESET", patch=_start(_needs_reset)
    ),
    _fault(
        "new-session-anywhere",
        "begins a new session at any position",
        patch=_start(_anywhere),
    ),
    _fault(
        "hash-not-advanced", "forgets to advance the session's hash", patch=_stale_hash
    ),
    _fault("position-unchecked", "does not compare positions", patch=_no_position),
    _fault("reset-ignored", "passes over RESET", patch=_start(_ignore_reset)),
    _fault("reset-undone", "takes a RESET back when it refuses", patch=_undone),
    _fault(
        "reset-keeps-cache",
        "keeps rows of its cache behind a RESET",
        evaluate=_keeps_cache,
    ),
    _fault(
        "session-per-connection",
        "keys sessions by connection",
        patch=_keyed(_per_connection),
    ),
    _fault(
        "session-ends-with-data",
        "drops sessions when a data connection ends",
        event=_end_with_data,
    ),
    _fault(
        "session-low-half",
        "keys sessions by the lower half of the id",
        patch=_keyed(lambda _s, session: session & 0xFFFFFFFF),
    ),
    _fault(
        "one-session",
        "has one session whatever the id",
        patch=_keyed(lambda _s, _session: 1),
    ),
    _fault("noisy", "gives other bytes each time", evaluate=_noisy),
    _fault(
        "forgets-history",
        "evaluates every span on an empty session",
        evaluate=_no_history,
    ),
    _fault(
        "hash-big-endian", "hashes token ids high byte first", patch=_big_endian_hash
    ),
    _fault(
        "ack-skips-evaluation",
        "does not evaluate what it only acknowledges",
        evaluate=_ack_skips,
    ),
    _fault("input-ignored", "uses no hidden state that came", evaluate=_input_ignored),
    _fault(
        "swallows-every-third",
        "does not answer every third WORK",
        received=frames_in(_swallow_third),
    ),
    _fault(
        "answers-late",
        "answers the sixth WORK of a connection with the seventh",
        out=_late,
    ),
)
