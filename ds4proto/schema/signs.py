"""What first bytes show: one function for each kind of sign that dialects name.

A dialect's ``signs`` hold a kind and a value. Of some kinds there is exactly one
value in a stream, so that another one speaks against a dialect (``DECIDING``); the
others are seen or not seen, and their absence means nothing.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field

from ds4proto.schema.declare import Layout, offsets_of, size_of
from ds4proto.schema.dialect_spec import Dialect
from ds4proto.schema.dialects import DEFAULT_DS4D
from ds4proto.schema.ds4d import HEADER, HELLO, MAGIC, RESULT, WORK
from ds4proto.schema.ds4d_forks import IPC_INBOX
from ds4proto.schema.dsv4 import DSVL, DSVL_MAGIC
from ds4proto.schema.fast import struct_of
from ds4proto.schema.registry import read_body

DECIDING = frozenset(
    {"version", "hello_size", "pad", "mesh_words", "spark_words", "hello_fixed"}
    | {"work_fixed", "result_fixed", "snapshot_id_bit63", "dsvl_version"}
    | {"payload16_bf16", "magic_le"}
)
SNAPSHOT_CODES = (5, 6, 7, 8, 9)
GREETING = struct.Struct(">IIHH16s")
"""Queue pair greeting of edwardtian: qpn, psn, lid, two zero bytes, gid."""
GREETING_PSN = 7
ENOUGH_VALUES = 2000
"""16-bit values from which the two encodings can be told apart."""
BF16_WINDOW = 8
BF16_SHARE = 0.8
"""Share of values within eight octaves from which a payload reads as BF16. True
BF16 activations put nearly all there; halves read as BF16 spread each octave over
eight exponents, so that eight exponents hold one octave."""

_HEAD = struct_of(HEADER, "*")
_HELLO_DIALECTS = (DEFAULT_DS4D, "local-decode", "ds4proto")
_WORK_DIALECTS = (DEFAULT_DS4D, "fodelf")


@dataclass(slots=True)
class Seen:
    """What the bytes show so far: each sign's kind with the values observed."""

    facts: dict[str, set[int]] = field(default_factory=dict)

    def add(self, kind: str, value: int) -> None:
        """Note one observation."""
        self.facts.setdefault(kind, set()).add(value)

    def speaks_against(self, dialect: Dialect) -> bool:
        """Tell whether an observation contradicts a sign of ``dialect``."""
        return any(
            sign.kind in DECIDING
            and sign.kind in self.facts
            and sign.value not in self.facts[sign.kind]
            for sign in dialect.signs
        )

    def speaks_for(self, dialect: Dialect) -> int:
        """Count the signs of ``dialect`` that were observed."""
        return sum(
            sign.value in self.facts.get(sign.kind, ()) for sign in dialect.signs
        )


@dataclass(slots=True)
class Stream:
    """One direction of a DS4D connection, as far as its first bytes go."""

    codes: list[int] = field(default_factory=list)
    first_hop: bool = False
    """True where a WORK for the first hop was seen."""


def look_ds4d(view: memoryview, seen: Seen) -> Stream:
    """Note what one direction shows, frame by frame."""
    stream = Stream()
    at = 0
    while at + _HEAD.size <= len(view):
        magic, code, size = _HEAD.unpack_from(view, at)
        if magic != MAGIC:
            break
        body = view[at + _HEAD.size : at + _HEAD.size + size]
        seen.add("has_type", code)
        if stream.codes[-1:] == [HELLO.code] and _is_inbox(code, body):
            seen.add("type10_after_hello", code)
        _body(code, body, size, seen, stream)
        stream.codes.append(code)
        at += _HEAD.size + size
    return stream


def _is_inbox(code: int, body: memoryview) -> bool:
    if code != IPC_INBOX.code:
        return False
    return not read_body(IPC_INBOX, body, dialect="anyei").problems


def _body(code: int, body: memoryview, size: int, seen: Seen, stream: Stream) -> None:
    if code == HELLO.code:
        _hello(body, size, seen)
    elif code == WORK.code:
        _work(body, size, seen, stream)
    elif code == RESULT.code:
        words = _words(RESULT.body, body)
        if words:
            tails = words["telemetry_bytes"] + words["payload_bytes"]
            at = size - words["payload_bytes"]
            _fixed("result_fixed", RESULT.body, size - tails, seen)
            _values16(words["payload_bits"], body[at:], seen)
    elif code in SNAPSHOT_CODES:
        _snapshot(code, body, seen)


def _words(layout: Layout, body: memoryview) -> dict[str, int]:
    """Return the fixed part in the order of upstream, or nothing if it is cut."""
    form = struct_of(layout, DEFAULT_DS4D)
    if len(body) < form.size:
        return {}
    return dict(
        zip(offsets_of(layout, DEFAULT_DS4D), form.unpack_from(body), strict=True)
    )


def _fixed(kind: str, layout: Layout, found: int, seen: Seen) -> None:
    if found in {size_of(layout, name) for name in _WORK_DIALECTS}:
        seen.add(kind, found)


def _hello(body: memoryview, size: int, seen: Seen) -> None:
    words = _words(HELLO.body, body)
    if not words:
        return
    found = size - words["model_name_len"]
    known = {size_of(HELLO.body, name) for name in _HELLO_DIALECTS}
    if found in known or _is_unknown_layout(found, max(known), body[found:size]):
        seen.add("hello_fixed", found)


def _is_unknown_layout(fixed: int, largest: int, name: memoryview) -> bool:
    """Tell a HELLO that grew once more from one whose lengths are wrong.

    It has more whole words than any known one, and a readable name behind them.
    """
    text = bytes(name).decode("latin-1")
    return fixed > largest and fixed % 4 == 0 and bool(text) and text.isprintable()


def _work(body: memoryview, size: int, seen: Seen, stream: Stream) -> None:
    words = _words(WORK.body, body)
    if not words:
        return
    stream.first_hop = stream.first_hop or words["route_index"] == 0
    hidden = words["input_hc_bytes"]
    fixed = size - words["token_bytes"] - hidden - words["route_bytes"]
    _fixed("work_fixed", WORK.body, fixed, seen)
    at = fixed + words["token_bytes"]
    if 0 < at <= len(body):
        _values16(words["input_hc_bits"], body[at : at + hidden], seen)


def _snapshot(code: int, body: memoryview, seen: Seen) -> None:
    at = 12 if code in (5, 6, 9) else 0  # where the request id starts
    if len(body) > at:
        seen.add("snapshot_id_bit63", body[at] >> 7)
    data = body[12:] if code == 7 else body[:0]
    form = struct_of(DSVL, DEFAULT_DS4D)
    if len(data) >= form.size:
        magic, version = form.unpack_from(data)[:2]
        if magic == DSVL_MAGIC:
            seen.add("dsvl_version", version)


def _values16(bits: int, data: memoryview, seen: Seen) -> None:
    if bits != 16 or len(data) < 2 * ENOUGH_VALUES:
        return
    whole = data[: len(data) // 2 * 2][: 1 << 16]
    reads = reads_as_bf16(whole)
    if reads is not None:
        seen.add("payload16_bf16", int(reads))


def reads_as_bf16(data: memoryview) -> bool | None:
    """Tell whether 16-bit values cluster as BF16 does; None where too few count.

    Zeros of either sign say nothing and are left out.
    """
    values = struct.unpack(f"<{len(data) // 2}H", data)
    exponents = Counter(value >> 7 & 0xFF for value in values if value & 0x7FFF)
    total = exponents.total()
    if total < ENOUGH_VALUES:
        return None
    most = max(
        sum(exponents[start + step] for step in range(BF16_WINDOW))
        for start in range(257 - BF16_WINDOW)
    )
    return most >= BF16_SHARE * total


def is_greeting(view: memoryview) -> bool:
    """Tell whether a direction starts with the 28 bytes of edwardtian's greeting."""
    if len(view) < GREETING.size:
        return False
    qpn, psn, _lid, zero, gid = GREETING.unpack_from(view)
    rest = bytes(view[GREETING.size : GREETING.size + 4])
    framed = not rest or MAGIC.to_bytes(4, "big").startswith(rest)
    return (
        psn == GREETING_PSN and zero == 0 and 0 < qpn < 1 << 24 and any(gid) and framed
    )
