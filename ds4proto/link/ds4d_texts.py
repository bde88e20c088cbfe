"""The words of DS4D endpoints: each text once, keyed by the clause that rules it.

Texts that a clause declares come from the clause register. The few that share a
clause with another text, or that only logs show, stand in ``_MORE``.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from ds4proto import clauses

_MORE: Final = {
    "hello-type": "expected HELLO frame, got type %u",
    "hello-length": "invalid HELLO payload length %u",
    "hello-name-length": "invalid HELLO model name length %u",
    "hello-name-nul": "HELLO model family contains NUL bytes",
    "position": "layer-slice KV position mismatch: have %d want %u",
    "prefill-cap": "layer-slice chunk %u exceeds prefill cap %u",
    "work-memory-queue": "out of memory queueing distributed WORK",
    "session-memory": "out of memory creating distributed session",
    "read-header": "failed to read frame header: %s",
    "worker-silent": "distributed worker did not answer within %g s",
    "next-silent": "next worker did not answer within %g s",
    "peer-stalled": "peer stopped inside a frame",
    "peer-idle": "peer sent no frame within %g s",
    "hello-late": "no complete HELLO within %g s",
    "payload-large": "distributed result payload is larger than any legal answer",
    "shard-large": "distributed KV shard is larger than this side allows",
    "shard-stuck": "distributed KV shard transfer makes no progress",
    "sessions-dropped": "cleared %u sessions after coordinator disconnect",
    "save-flush": "failed to flush worker KV shard",
    "save-temp": "failed to create worker snapshot temp file",
    "restore-memory": "out of memory restoring worker KV shard",
    "chunk-window": "distributed prefill window %u exceeds limit %u",
    "option": "invalid value for %s: %s",
    "local-decode-layers": "--local-decode requires --layers N:output",
}


@cache
def template(key: str) -> str:
    """Return a text before its values are filled in.

    Parameters
    ----------
    key : str
        A clause id, or the name of one of the further texts.

    Raises
    ------
    LookupError
        If the clause declares no text.
    """
    if key in _MORE:
        return _MORE[key]
    found = clauses.get(key).error
    if found is None:
        raise LookupError(f"clause {key} declares no error text")
    return found


def text(key: str, *values: object) -> str:
    """Return the text of a clause with its values filled in."""
    words = template(key)
    return words % values if values else words


def cut(words: str, size: int) -> bytes:
    """Return a text as wire bytes, cut at ``size`` bytes as peers cut it."""
    return words.encode("utf-8", "surrogateescape")[:size]


def kept(data: bytes | memoryview, size: int) -> str:
    """Return peer text of at most ``size`` bytes, cut at the first NUL.

    Bytes that are no UTF-8 are kept by surrogate escapes.
    """
    raw = bytes(data[:size]).split(b"\0", 1)[0]
    return raw.decode("utf-8", "surrogateescape")


def printable(words: str) -> str:
    """Return peer text safe for a terminal or a log line (DS4D-ERROR-05)."""
    return "".join(c if c.isprintable() else f"\\x{ord(c) & 0xFF:02x}" for c in words)
