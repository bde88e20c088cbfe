"""Caps on every length that a peer can announce, each with its reason.

A frame above its cap is refused before anything is allocated for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20

MAX_BULK = 1 << 30
"""Frames with a bulk tail: a Pro prefill chunk of 8,192 tokens at 32 bit is 896 MiB."""
MAX_SMALL = 16 * MIB
"""Frames without one: a prompt of a million tokens takes 4 MiB, with its route or
its batch items still well below this."""
MAX_TEXT = 64 * 1024
"""Texts: real peers send at most 512 bytes, a fork 4,096."""
MAX_CHUNK_BODY = 8 * MIB + 12
"""SNAPSHOT_CHUNK: 8 MiB of data behind 12 bytes."""
MAX_UNKNOWN = MIB
"""Types that no dialect knows: skipped whole up to here, as real receivers do."""
MAX_HELD = 4 * MIB
"""Bytes held while a search waits for the header that confirms a candidate."""
MAX_RAW = 1 << 40
"""The raw stream behind RESTORE_PAYLOAD: passed through, never held."""

_FRAMES: Mapping[str, int] = {
    "DS4D.HELLO": MAX_TEXT,
    "DS4D.ERROR": MAX_TEXT,
    "DS4D.WORK": MAX_BULK,
    "DS4D.RESULT": MAX_BULK,
    "DS4D.SNAPSHOT_SAVE_REQ": MAX_TEXT,
    "DS4D.SNAPSHOT_CHUNK": MAX_CHUNK_BODY,
    "DS4D.SNAPSHOT_DONE": MAX_TEXT,
    "DS4T.SYNC_MULTIMODAL": MAX_BULK,
    "DS4B.GATE_BULK": MAX_BULK,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of a framer or an observer.

    Parameters
    ----------
    frames : mapping of str to int
        Largest body in bytes by frame name (``DS4D.WORK``); wins over ``small``.
    small : int
        Largest body of any other frame.
    unknown : int
        Largest body of an unknown type that is skipped without losing the stream.
    held : int
        Bytes held while searching for the next header.
    raw : int
        Largest raw stream behind a frame.
    """

    frames: Mapping[str, int] = field(default_factory=lambda: _FRAMES)
    small: int = MAX_SMALL
    unknown: int = MAX_UNKNOWN
    held: int = MAX_HELD
    raw: int = MAX_RAW

    def body(self, full_name: str) -> int:
        """Return the largest body of a frame, header not counted."""
        return self.frames.get(full_name, self.small)


DEFAULT_LIMITS = Limits()
