"""A coordinator's session: transcript, checkpoint, hash chain, ids, spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """How spans become chunks (DS4D-COORD-15 to -25).

    Parameters
    ----------
    prefill_cap : int
        Largest span the engine takes at once, in tokens.
    chunk : int or None
        ``--dist-prefill-chunk``; None is ``prefill_cap``.
    window : int or None
        Chunks in flight, 1..64; None is route_count + 2, held between 2 and 8.
    send_depth : int
        Evaluated chunks not yet written, 1..8.
    ack_only, pipeline : bool
    bits : int
        Width of hidden state on the wire: 32, 16 or 8.
    """

    prefill_cap: int = 4096
    chunk: int | None = None
    window: int | None = None
    send_depth: int = 2
    ack_only: bool = True
    pipeline: bool = True
    bits: int = 32


@dataclass(frozen=True, slots=True)
class Chunk:
    """One WORK of a span.

    ``flags`` are those of the frame, OUTPUT_LOGITS included.
    """

    index: int
    pos0: int
    tokens: tuple[int, ...]
    prefix_hash: int
    result_hash: int
    flags: int
    last: bool


class Session:
    """One session: what the workers are known to hold, and the next ids.

    ``transcript`` is what the last successful request left; ``checkpoint`` is its
    length while workers are known to hold it, else 0. Appending a token costs the
    same at any length. ``session_id`` is given by the caller, non-zero
    (DS4D-COORD-01, -05).
    """

    def __init__(self, session_id: int) -> None:
        raise NotImplementedError

    @property
    def transcript(self) -> Sequence[int]:
        """Tokens of the last successful request."""
        raise NotImplementedError

    @property
    def token_hash(self) -> int:
        """Hash of the transcript."""
        raise NotImplementedError

    def next_request(self) -> int:
        """Return the next WORK id: 1, 2, 3 ... (DS4D-COORD-02)."""
        raise NotImplementedError

    def next_snapshot_request(self) -> int:
        """Return the next snapshot id: 2^63 and up (DS4D-COORD-03)."""
        raise NotImplementedError

    def loaded(self, tokens: Sequence[int]) -> None:
        """Take the transcript of a snapshot that every slice has restored."""
        raise NotImplementedError

    def forget(self) -> None:
        """Treat the checkpoint as empty: the next request starts with RESET."""
        raise NotImplementedError


def new_session_id(source: Literal["random"] | int = "random") -> int:
    """Return a non-zero 64-bit id from the system, or from a seed."""
    raise NotImplementedError
