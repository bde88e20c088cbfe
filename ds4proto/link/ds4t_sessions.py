"""What each session holds, kept alike on both ranks from the control frames alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Session:
    """One session.

    Attributes
    ----------
    session_id : int
    ctx_size : int
        Context of SESSION_CREATE, in tokens.
    tokens : list of int
        The valid tokens.
    """

    session_id: int
    ctx_size: int
    tokens: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.ctx_size - len(self.tokens)

    def extends(self, prompt: tuple[int, ...]) -> bool:
        """Tell whether a prompt starts with the valid tokens and goes beyond them."""
        held = len(self.tokens)
        return held < len(prompt) and list(prompt[:held]) == self.tokens


class Sessions:
    """The sessions of one connection."""

    def __init__(self) -> None:
        self._held: dict[int, Session] = {}
        self._used: set[int] = set()
        self._highest = 0

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._held

    def __getitem__(self, session_id: int) -> Session:
        return self._held[session_id]

    def get(self, session_id: int | None) -> Session | None:
        """Return a session, None where it is not open."""
        return None if session_id is None else self._held.get(session_id)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the sessions that are open."""
        return tuple(self._held)

    @property
    def next_id(self) -> int:
        """An id that was never used: real leaders count 1, 2, 3."""
        return self._highest + 1

    def was_used(self, session_id: int) -> bool:
        """Tell whether an id was given away before on this connection."""
        return session_id in self._used

    def create(self, session_id: int, ctx_size: int) -> None:
        """Open a session, empty."""
        self._held[session_id] = Session(session_id, ctx_size)
        self._used.add(session_id)
        self._highest = max(self._highest, session_id)

    def destroy(self, session_id: int) -> None:
        """Close a session."""
        self._held.pop(session_id, None)

    def synced(self, session_id: int, prompt: tuple[int, ...]) -> None:
        """Note that a session holds exactly this prompt."""
        self._held[session_id].tokens[:] = prompt

    def extend(self, session_id: int, *tokens: int) -> None:
        """Note decoded tokens, kept or replayed drafts (DS4T-PLAN-05)."""
        self._held[session_id].tokens.extend(tokens)

    def rewind(self, session_id: int, position: int) -> int:
        """Cut a session; below 0 counts as 0, beyond the end changes nothing.

        Returns
        -------
        int
            The tokens left (DS4T-ROBUST-15).
        """
        tokens = self._held[session_id].tokens
        del tokens[max(position, 0) :]
        return len(tokens)

    def invalidate(self, session_id: int) -> None:
        """Empty a session; it stays open."""
        self._held[session_id].tokens.clear()
