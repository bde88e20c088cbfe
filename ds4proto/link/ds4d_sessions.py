"""The sessions of a worker: shared by its connections, bounded, hash and length."""

from __future__ import annotations

from dataclasses import dataclass

from ds4proto.codec.token_hash import TOKEN_HASH_START
from ds4proto.link.ds4d_events import Fault
from ds4proto.link.ds4d_texts import text


@dataclass(slots=True)
class WorkerSession:
    """What one session is known to hold.

    Attributes
    ----------
    hash : int
        Of the tokens listed.
    count : int
        Their number.
    dropped : bool
        The engine lost its state: only RESET or a load helps (DS4D-SESS-08).
    """

    hash: int = TOKEN_HASH_START
    count: int = 0
    dropped: bool = False

    def empty(self) -> None:
        """Forget all tokens."""
        self.hash, self.count, self.dropped = TOKEN_HASH_START, 0, False


class SessionTable:
    """Sessions by id alone (DS4D-SESS-01), at most ``cap`` of them."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._sessions: dict[int, WorkerSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: int) -> WorkerSession | None:
        """Return a session that exists."""
        return self._sessions.get(session)

    def create(self, session: int) -> WorkerSession | Fault:
        """Return a session, made empty if there was none (WORK check 24)."""
        fault = self.room(session)
        return fault or self._sessions.setdefault(session, WorkerSession())

    def room(self, session: int) -> Fault | None:
        """Tell why a session can not be made, if it is not there and can not."""
        if session in self._sessions or len(self._sessions) < self._cap:
            return None
        return Fault("DS4D-SESS-10", text("DS4D-WORK-24"), "remote")

    def clear(self) -> tuple[int, ...]:
        """Forget all sessions; return their ids."""
        ids = tuple(self._sessions)
        self._sessions.clear()
        return ids


def judge_session(
    session: WorkerSession, prefix_hash: int, pos0: int, n_tokens: int, cap: int | None
) -> Fault | None:
    """Return what WORK check 26 and the position rules of 27 say, hash first.

    A reset has to have been carried out before (check 25).
    """
    if session.hash != prefix_hash:
        return Fault("DS4D-WORK-26", text("DS4D-WORK-26"), "remote")
    if session.dropped or pos0 != session.count:
        if session.dropped or not session.count:
            return Fault("DS4D-WORK-27", text("DS4D-WORK-27", pos0), "remote")
        words = text("position", session.count, pos0)
        return Fault("DS4D-WORK-27", words, "remote")
    if cap is not None and n_tokens > cap:
        return Fault("DS4D-WORK-27", text("prefill-cap", n_tokens, cap), "remote")
    return None
