"""WORK as cases build it: right by default, wrong where they say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.ds4d_frames import (
    RETURN_PART,
    ROUTE_PART,
    WORK_PART,
    framed,
    pack_tokens,
)
from ds4proto.schema.ds4d_work import (
    ACK_ONLY,
    INPUT_HC,
    OUTPUT_LOGITS,
    RESET_SESSION,
    WORK,
)

__all__ = ["ACK_ONLY", "INPUT_HC", "OUTPUT_LOGITS", "RESET_SESSION", "Hop", "Work"]


@dataclass(slots=True)
class Hop:
    """One record of a route; a lying ``host_len`` is possible."""

    host: bytes
    port: int
    layer_start: int
    layer_end: int
    flags: int
    host_len: int | None = None

    def wire(self) -> bytes:
        """Return its bytes."""
        words = {
            "host_len": len(self.host) if self.host_len is None else self.host_len,
            "port": self.port,
            "layer_start": self.layer_start,
            "layer_end": self.layer_end,
            "flags": self.flags,
        }
        return ROUTE_PART.build(words) + self.host


def return_record(kind: int = 1, host: bytes = b"", port: int = 0) -> bytes:
    """Return the record that ends a route."""
    words = {"kind": kind, "host_len": len(host), "port": port}
    return RETURN_PART.build(words) + host


def route_blob(hops: Sequence[Hop], *, end: bytes | None = None) -> bytes:
    """Return a route's bytes."""
    parts = [hop.wire() for hop in hops]
    return b"".join([*parts, return_record() if end is None else end])


@dataclass(slots=True)
class Work:
    """One WORK; ``lies`` are header words that override the true ones."""

    words: dict[str, int]
    tokens: tuple[int, ...]
    hidden: bytes
    blob: bytes
    lies: Mapping[str, int] = field(default_factory=dict)

    def frame(self) -> bytes:
        """Return the frame."""
        words = {
            **self.words,
            "token_bytes": 4 * len(self.tokens),
            "input_hc_bytes": len(self.hidden),
            "route_bytes": len(self.blob),
            **self.lies,
        }
        parts = [WORK_PART.build(words), pack_tokens(self.tokens)]
        return b"".join(map(bytes, framed(WORK, [*parts, self.hidden, self.blob])))

    @property
    def asked(self) -> dict[str, Any]:
        """The words as they are sent."""
        return {**self.words, **self.lies}


def chain(prefix: Sequence[int] = ()) -> int:
    """Return the hash of some tokens."""
    return token_hash(prefix, TOKEN_HASH_START)
