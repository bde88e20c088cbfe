"""The DS4T hello has no header: where it ends is found from what it says.

Version number, length and the use of pad and feature words belong together; what
follows the hello, and the other direction, settle what they leave open.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ds4proto.schema.declare import offsets_of
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4t import DS4T_MAGIC, HELLO
from ds4proto.schema.ds4t_hello import ROLE_CODES
from ds4proto.schema.fast import struct_of
from ds4proto.schema.recognise import dialect_candidates
from ds4proto.schema.registry import frames, header_of

MAGIC_BYTES = DS4T_MAGIC.to_bytes(4, "little")
_WORD = 4
_HEADER = struct_of(header_of("DS4T"), "*")
_ROLE_AT = offsets_of(HELLO.body, "v14")["role"]
ROLE_BYTES = offsets_of(HELLO.body, "v14")["rdma_ok"] + _WORD
"""First bytes of a hello that tell it from a control frame; equal in all dialects."""
_LONGEST_UNKNOWN = 160
"""A hello of unknown layout is looked for a first frame up to here."""


class Found(NamedTuple):
    """A hello: its size, and the dialects that it allows, the likeliest first."""

    size: int
    candidates: list[tuple[str, str]]


@cache
def _sizes(version: int | None) -> tuple[int, ...]:
    """Return the hello sizes of a version, or all; () where the size is unknown."""
    entries = [d for d in dialects_of("DS4T") if version in (None, d.version)]
    if any(d.hello_size is None for d in entries) and version is not None:
        return ()
    return tuple(sorted({d.hello_size for d in entries if d.hello_size is not None}))


@cache
def _codes() -> frozenset[int]:
    return frozenset(s.code for s in frames("DS4T") if s.code is not None)


def version_of(head: bytes | bytearray) -> int:
    """Return the version word."""
    return int.from_bytes(head[_WORD : 2 * _WORD], "little")


def names_role(head: bytes | bytearray | memoryview) -> bool:
    """Tell a hello from a control frame, where a capture began in mid-stream.

    Where a hello says role and rdma_ok, a frame says its length, which is never 1 or
    2, and begins its payload; a gate has its kind in the upper half of the version,
    and no layer 0 is a version.
    """
    if len(head) < ROLE_BYTES or not 0 < version_of(bytes(head[:ROLE_BYTES])) < 1 << 16:
        return False
    words = bytes(head[_ROLE_AT:ROLE_BYTES])
    role, rdma_ok = words[:_WORD], words[_WORD:]
    roles = {code.to_bytes(_WORD, "little") for code in ROLE_CODES.values()}
    known = {flag.to_bytes(_WORD, "little") for flag in (0, 1)}
    return bytes(head[:_WORD]) == MAGIC_BYTES and role in roles and rdma_ok in known


def measure(
    head: bytes | bytearray, *, ended: bool, other_size: int | None
) -> int | None:
    """Return the size of the hello at the start of ``head``, or None so far.

    Parameters
    ----------
    head : bytes
        What has arrived, at least magic and version.
    ended : bool
        True at the end of the stream.
    other_size : int or None
        Size of the hello of the other direction, where it is known.
    """
    version = version_of(head)
    sizes = _sizes(version)
    known = bool(sizes) and any(d.version == version for d in dialects_of("DS4T"))
    choices = sizes if known else _sizes(None)
    for size in choices if known else _unknown_sizes():
        if _frame_at(head, size):
            return size
    if known and len(sizes) == 1:
        if len(head) >= sizes[0]:
            return sizes[0]
    elif known:
        judged = _by_content(head, sizes)
        if judged is not None:
            return judged
    elif other_size is not None and len(head) >= other_size:
        return other_size
    if ended:
        # cut short, or another size than the version has: the length decides
        exact = [size for size in _sizes(None) if size == len(head)]
        if exact:
            return exact[0]
        fitting = [size for size in choices if size <= len(head)]
        return fitting[-1] if fitting and not known else None
    longest = max(choices) if choices else _LONGEST_UNKNOWN
    if len(head) >= max(longest, _LONGEST_UNKNOWN) + _HEADER.size:
        return max(choices) if choices else None
    return None


def _unknown_sizes() -> Iterator[int]:
    yield from range(_sizes(None)[0], _LONGEST_UNKNOWN, _WORD)


def _frame_at(head: bytes | bytearray, size: int) -> bool:
    if len(head) < size + _HEADER.size:
        return False
    magic, code, _ = _HEADER.unpack_from(head, size)
    return magic == DS4T_MAGIC and code in _codes()


def _by_content(head: bytes | bytearray, sizes: tuple[int, ...]) -> int | None:
    """Tell a short hello from a longer one of the same version by its words.

    The longer form has its pad where the shorter one has gates_per_token: a word
    that is not 0 there speaks for the shorter, and so does a start slot that no
    model of that many layers has.
    """
    short, long = sizes[0], sizes[-1]
    if len(head) < short:
        return None
    words = {}
    for entry in dialects_of("DS4T"):
        if entry.hello_size == long and entry.version == version_of(head):
            words = dict(offsets_of(HELLO.body, entry.name))
            break
    pad = int.from_bytes(head[words["pad"] : words["pad"] + _WORD], "little")
    start = int.from_bytes(
        head[words["gate_slot_start"] : words["gate_slot_start"] + _WORD], "little"
    )
    layers = int.from_bytes(head[words["n_layer"] : words["n_layer"] + _WORD], "little")
    if pad != 0 or start >= 2 * max(1, layers):
        return short
    if len(head) >= long:
        return long
    return None


def candidates_of(hello: bytes) -> list[tuple[str, str]]:
    """Return the dialects that a whole hello allows; a ``?`` marks the nearest."""
    found = dialect_candidates({"a>b": hello})
    return found or [("v14?", "a hello")]
