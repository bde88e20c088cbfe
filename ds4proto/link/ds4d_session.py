"""A coordinator's session: transcript, checkpoint, hash chain, ids, spans."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from ds4proto.codec.token_hash import TokenHash
from ds4proto.link.ds4d_texts import text
from ds4proto.schema.ds4d_work import ACK_ONLY, INPUT_HC, OUTPUT_LOGITS, RESET_SESSION

SNAPSHOT_IDS: Final = 1 << 63
MAX_WINDOW: Final = 64
MAX_DEPTH: Final = 8
WINDOW_FLOOR, WINDOW_CEILING = 2, 8


class SettingError(ValueError):
    """A setting of our own that no request can run with; a local error."""


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
        Width word of hidden state on the wire.
    kv_spans : bool
        Whether every hop sends the KV of each chunk to the last (DS4D-OURS-10).
    """

    prefill_cap: int = 4096
    chunk: int | None = None
    window: int | None = None
    send_depth: int = 2
    ack_only: bool = True
    pipeline: bool = True
    bits: int = 32
    kv_spans: bool = False

    def chunk_tokens(self) -> int:
        """Return the largest number of tokens of one chunk.

        Raises
        ------
        SettingError
            If the chunk setting is above the prefill capacity (DS4D-COORD-16).
        """
        if self.chunk is None:
            return self.prefill_cap
        if self.chunk > self.prefill_cap:
            raise SettingError(text("DS4D-COORD-16", self.chunk, self.prefill_cap))
        if self.chunk < 1:
            raise SettingError(text("option", "--dist-prefill-chunk", self.chunk))
        return self.chunk

    def window_chunks(self, route_count: int, chunks: int) -> int:
        """Return how many chunks may be in flight (DS4D-COORD-22).

        Raises
        ------
        SettingError
            If the window is outside 1..64.
        """
        window = self.window
        if window is None:
            window = max(WINDOW_FLOOR, min(WINDOW_CEILING, route_count + 2))
        elif window > MAX_WINDOW:
            raise SettingError(text("chunk-window", window, MAX_WINDOW))
        elif window < 1:
            raise SettingError(text("option", "--dist-prefill-window", window))
        return min(window, chunks)

    def depth_chunks(self, chunks: int) -> int:
        """Return how many evaluated chunks may wait to be sent (DS4D-COORD-25)."""
        return min(max(1, min(MAX_DEPTH, self.send_depth)), chunks)


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


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one attempt: where they start, and whether with RESET."""

    pos0: int
    tokens: Sequence[int]
    reset: bool
    prefix: TokenHash

    def chunks(
        self, size: int, *, logits: bool, input_hidden: bool, ack_only: bool
    ) -> Iterator[Chunk]:
        """Yield the chunks in order, each hashed once.

        Parameters
        ----------
        size : int
            Tokens of a chunk at most.
        logits : bool
            Whether the first hop's record has the logits flag (DS4D-WORK-35).
        input_hidden : bool
            Whether the first hop starts above layer 0.
        ack_only : bool
            Whether all chunks but the last ask for an ACK (DS4D-COORD-23).
        """
        chain = self.prefix.copy()
        base = (INPUT_HC if input_hidden else 0) | (OUTPUT_LOGITS if logits else 0)
        for index, at in enumerate(range(0, len(self.tokens), size)):
            part = tuple(self.tokens[at : at + size])
            last = at + len(part) == len(self.tokens)
            flags = base
            if self.reset and not index:
                flags |= RESET_SESSION
            if ack_only and not last:
                flags |= ACK_ONLY
            before = chain.value
            after = chain.update(part)
            yield Chunk(index, self.pos0 + at, part, before, after, flags, last)


class Session:
    """One session: what the workers are known to hold, and the next ids.

    Nothing here changes while a request runs, so that a replay always has the
    transcript as it was before the failed attempt (DS4D-COORD-36).

    Parameters
    ----------
    session_id : int
        64 bits, non-zero (DS4D-COORD-01); see ``new_session_id``.
    """

    def __init__(self, session_id: int) -> None:
        if not 1 <= session_id < 1 << 64:
            raise ValueError(f"session id: expected 1 to 2^64 - 1, found {session_id}")
        self.session_id = session_id
        self._tokens: list[int] = []
        self._hash = TokenHash()
        self._held = False
        self._requests = 0
        self._snapshots = SNAPSHOT_IDS - 1

    @property
    def transcript(self) -> Sequence[int]:
        """Tokens of the last successful request; do not change them."""
        return self._tokens

    @property
    def checkpoint(self) -> int:
        """Tokens that every slice is known to hold; 0 after a failure."""
        return len(self._tokens) if self._held else 0

    @property
    def token_hash(self) -> int:
        """Hash of the transcript."""
        return self._hash.value

    @property
    def last_request(self) -> int:
        """The WORK id given out last, 0 before the first."""
        return self._requests

    def next_request(self) -> int:
        """Return the next WORK id: 1, 2, 3 ... (DS4D-COORD-02)."""
        self._requests += 1
        return self._requests

    def next_snapshot_request(self) -> int:
        """Return the next snapshot id: 2^63 and up (DS4D-COORD-03)."""
        self._snapshots += 1
        return self._snapshots

    def sync_span(self, tokens: Sequence[int]) -> Span | None:
        """Return what a sync has to send, None for nothing (DS4D-COORD-10 to -12)."""
        known = self.checkpoint
        if known and list(tokens[:known]) == self._tokens:
            if len(tokens) == known:
                return None
            return Span(known, tokens[known:], False, self._hash)
        return Span(0, tokens, True, TokenHash())

    def eval_span(self, token: int) -> Span:
        """Return what a decode step has to send (DS4D-COORD-13)."""
        if self._held:
            return Span(len(self._tokens), (token,), False, self._hash)
        return Span(0, [*self._tokens, token], True, TokenHash())

    def replay_span(self, kind: Literal["sync", "eval"], tokens: Sequence[int]) -> Span:
        """Return the whole transcript of a request, with RESET (DS4D-COORD-30)."""
        whole = tokens if kind == "sync" else [*self._tokens, *tokens]
        return Span(0, whole, True, TokenHash())

    def advanced(self, span: Span) -> None:
        """Take a span that every slice has evaluated."""
        if span.pos0 == 0:
            self._tokens = list(span.tokens)
            self._hash = TokenHash(span.tokens)
        else:
            self._tokens.extend(span.tokens)
            self._hash.update(tuple(span.tokens))
        self._held = True

    def loaded(self, tokens: Sequence[int]) -> None:
        """Take the transcript of a snapshot that every slice has restored."""
        self._tokens = list(tokens)
        self._hash = TokenHash(self._tokens)
        self._held = bool(self._tokens)

    def forget(self) -> None:
        """Treat the checkpoint as empty: the next request starts with RESET."""
        self._held = False


def new_session_id(source: Literal["random"] | int = "random") -> int:
    """Return a non-zero 64-bit id from the system, or from a seed (DS4D-COORD-05)."""
    if source == "random":
        return secrets.randbelow((1 << 64) - 1) + 1
    return Random(source).randrange(1, 1 << 64)
