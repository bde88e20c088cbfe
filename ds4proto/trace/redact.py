"""What a frame looks like once nobody can read the prompt or the answer out of it.

Kept: every header, length, position, flag, identifier, status, error text, route, name,
address and time; how bytes fall into segments. Replaced: token ids (by 0), hidden
states, logits, partials, snapshot shards, image rows and unknown bodies (by zero
bytes). A token hash would let a reader guess the tokens one by one, so it becomes the
hash of as many zeros: equal hashes stay equal, and a stale one stays stale where the
capture shows what it was stale against.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from ds4proto.codec.token_hash import TOKEN_HASH_PRIME, TOKEN_HASH_START
from ds4proto.schema import build, frame, read
from ds4proto.schema.declare import FrameSpec, Ints, Payload, Records, Tail
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import SchemaError
from ds4proto.trace.rows import FrameRow

__all__ = ["REDACTED", "Redactor", "head_size", "zero_hash"]

REDACTED: Final = "redacted: token ids and payloads replaced, structure kept"
"""Comment in the section header of a redacted file, by which readers know it."""
_MOST_HASHES: Final = 1 << 20
_MASK: Final = (1 << 64) - 1
_TOKENS: Final = frozenset({"token", "id0", "id1", "value0", "value1"})
"""Fixed fields that hold a token id, or a logit."""
_STATE_HASH: Final = "DS4T.HASH"
_KEPT: Final = frozenset({"DS4T.HELLO", "DS4D.ERROR"})
"""Frames without anything private; a hello's unknown rest is its identity."""


def zero_hash(count: int) -> int:
    """Return the token hash of ``count`` zeros, without walking over them.

    Exclusive-or with a zero byte changes nothing, so that only the multiplications
    of the four bytes a token remain.
    """
    return TOKEN_HASH_START * pow(TOKEN_HASH_PRIME, 4 * count, 1 << 64) & _MASK


class Redactor:
    """Replaces what is private in frames, one after the other.

    Parameters
    ----------
    key : bytes
        Secret under which hashes of the state (frame HASH) become others: equal ones
        stay equal inside one output. Throw it away.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hashes: dict[int, int] = {}

    def frame(self, row: FrameRow, data: bytes) -> bytes:
        """Return bytes of equal length for one row.

        Parameters
        ----------
        row : FrameRow
            What the bytes were decoded as.
        data : bytes
            All bytes of the row.
        """
        if row.name in _KEPT:
            return data
        try:
            spec = frame(row.name, dialect=row.dialect)
        except KeyError:
            return bytes(len(data))
        head = spec.header_size + struct_of(spec.body, row.dialect.rstrip("?")).size
        if spec.header is None:
            values = data[:head]
            return values + bytes(len(data) - len(values))
        redacted = self._rebuilt(spec, row, data)
        if redacted is not None:
            return redacted
        return data[: spec.header_size] + bytes(max(0, len(data) - spec.header_size))

    def _rebuilt(self, spec: FrameSpec, row: FrameRow, data: bytes) -> bytes | None:
        """Build the frame anew; None where it cannot be taken apart."""
        reading = read(spec, data, dialect=row.dialect)
        if not reading.whole:
            return None
        # The fast reader leaves tails in; the values are the frame's own.
        values = dict(reading.values)
        self._tails(spec.body.tails, values)
        for name in _TOKENS & values.keys():
            values[name] = 0
        self._hash_fields(row.name, values)
        header = data[: spec.header_size]
        try:
            built = b"".join(build(spec, values, dialect=row.dialect))
        except (SchemaError, KeyError, TypeError, ValueError):
            return None
        if len(built) != len(data):
            return None
        return header + built[len(header) :]

    def _tails(self, tails: tuple[Tail, ...], values: dict[str, Any]) -> None:
        for tail in tails:
            name = tail.path
            if name not in values:
                continue
            if isinstance(tail, Ints):
                values[name] = (0,) * len(values[name])
            elif isinstance(tail, Payload) and not values.get("status"):
                # a RESULT with a status carries the text of the error instead
                values[name] = bytes(memoryview(values[name]).nbytes)
            elif isinstance(tail, Records):
                values[name] = [self._record(tail, one) for one in values[name]]

    def _record(self, tail: Records, record: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(record)
        self._tails(tail.record.tails, values)
        for name in _TOKENS & values.keys():
            values[name] = 0
        return values

    def _hash_fields(self, name: str, values: dict[str, Any]) -> None:
        if name == _STATE_HASH:
            state = int(values["hash"]).to_bytes(8, "little")
            digest = hashlib.blake2b(state, digest_size=8, key=self._key).digest()
            values["hash"] = int.from_bytes(digest, "little")
            return
        if "prefix_hash" in values:
            at = int(values["pos0"])
            values["prefix_hash"] = self._hash(values["prefix_hash"], at)
            at += int(values["n_tokens"])
            values["result_hash"] = self._hash(values["result_hash"], at)
        elif "result_hash" in values:
            values["result_hash"] = self._hash(values["result_hash"], None)
        if "token_hash" in values:
            count = values.get("token_count", values.get("n_tokens"))
            values["token_hash"] = self._hash(values["token_hash"], count)

    def _hash(self, value: int, count: int | None) -> int:
        if value == 0:  # not set: nothing to hide
            return 0
        known = self._hashes.get(value)
        if known is not None:
            return known
        # An answer with a hash that nobody asked for differs from all of ours.
        made = zero_hash(count) if count is not None else zero_hash(0) ^ 1
        if count is not None and len(self._hashes) < _MOST_HASHES:
            self._hashes[value] = made
        return made


def head_size(row: FrameRow) -> int:
    """Return the bytes of a frame's header and fixed fields; 0 for other rows."""
    try:
        spec = frame(row.name, dialect=row.dialect)
    except KeyError:
        return 0
    fixed = struct_of(spec.body, row.dialect.rstrip("?")).size
    return min(row.length, spec.header_size + fixed)
