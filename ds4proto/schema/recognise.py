"""Which dialect is this? Candidates from the first bytes of each direction.

Every dialect says in its ``signs`` what is observed on the wire. The recogniser
looks at what the bytes show and keeps the dialects that nothing speaks against;
nothing keys on a version number alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from ds4proto.schema.declare import size_of
from ds4proto.schema.dialect_spec import Dialect
from ds4proto.schema.dialects import DEFAULT_DS4D, dialects_of
from ds4proto.schema.ds4d import HEADER as DS4D_HEADER
from ds4proto.schema.ds4d import HELLO as DS4D_HELLO
from ds4proto.schema.ds4d import MAGIC as DS4D_MAGIC
from ds4proto.schema.ds4d import RESULT, WORK
from ds4proto.schema.ds4t import DS4T_MAGIC, HEADER
from ds4proto.schema.ds4t import HELLO as DS4T_HELLO
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import frames

_HEAD = struct_of(DS4D_HEADER, "*")
_CONTROL = struct_of(HEADER, "*")
_WORDS = struct.Struct("<III")
_LONGEST_BODY = 1 << 20


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
            sign.kind in self.facts and sign.value not in self.facts[sign.kind]
            for sign in dialect.signs
        )

    def speaks_for(self, dialect: Dialect) -> int:
        """Count the signs of ``dialect`` that were observed."""
        return sum(
            sign.value in self.facts.get(sign.kind, ()) for sign in dialect.signs
        )


def protocol_of(first: Buf) -> str | None:
    """Return the protocol whose magic starts ``first``: DS4D, DS4T, or None.

    ``DS4D-LE`` is the little-endian header of the Swift dialect, ``DS4T-BE`` a
    big-endian peer, ``DS4B`` a gate stream.
    """
    head = bytes(memoryview(first)[:4])
    return {
        DS4D_MAGIC.to_bytes(4, "big"): "DS4D",
        DS4D_MAGIC.to_bytes(4, "little"): "DS4D-LE",
        DS4T_MAGIC.to_bytes(4, "little"): "DS4T",
        DS4T_MAGIC.to_bytes(4, "big"): "DS4T-BE",
        b"B4SD": "DS4B",
    }.get(head)


def dialect_candidates(first: Mapping[str, Buf]) -> list[tuple[str, str]]:
    """Name the dialects that the first bytes allow, the likeliest first.

    Parameters
    ----------
    first : mapping
        The first bytes of each direction (``a>b``, ``b>a``) of one connection, as
        many as there are; a few hundred settle most cases.

    Returns
    -------
    list of (str, str)
        Dialect name, and what would tell it from its neighbours. A name that ends
        in ``?`` is the nearest known dialect to a version that is not registered.
        Empty where no direction starts with a magic.
    """
    views = [memoryview(data).cast("B") for data in first.values() if len(data) >= 4]
    protocols = {protocol_of(view) for view in views}
    if "DS4D-LE" in protocols:
        return [(d.name, d.settles) for d in dialects_of("DS4D") if d.name == "swift"]
    if "DS4D" in protocols:
        return _ds4d(views)
    if "DS4T" in protocols:
        return _ds4t(views)
    return []


def _ds4d(views: list[memoryview]) -> list[tuple[str, str]]:
    seen = Seen()
    for view in views:
        if protocol_of(view) == "DS4D":
            _look_ds4d(view, seen)
    found = []
    for entry in dialects_of("DS4D"):
        plain = {s.kind for s in entry.signs} <= {"hello_fixed"}
        if seen.speaks_against(entry) or not (plain or seen.speaks_for(entry)):
            continue
        found.append(entry)
    found.sort(key=lambda d: (-_beyond_hello(d, seen), d.name != DEFAULT_DS4D))
    return [(d.name, d.settles) for d in found] or [
        (DEFAULT_DS4D + "?", "a HELLO, or more frames")
    ]


def _beyond_hello(entry: Dialect, seen: Seen) -> int:
    return sum(
        sign.kind != "hello_fixed" and sign.value in seen.facts.get(sign.kind, ())
        for sign in entry.signs
    )


def _look_ds4d(view: memoryview, seen: Seen) -> None:
    at, previous = 0, None
    while at + _HEAD.size <= len(view):
        magic, code, size = _HEAD.unpack_from(view, at)
        if magic != DS4D_MAGIC:
            return
        body = view[at + _HEAD.size : at + _HEAD.size + size]
        seen.add("has_type", code)
        if code == DS4D_HELLO.code:
            _hello_fixed(body, size, seen)
        if previous == DS4D_HELLO.code and code == 10:
            seen.add("type10_after_hello", code)
        if code == WORK.code:
            _work_fixed(body, size, seen)
        if code in (5, 6, 9) and len(body) >= 16:
            seen.add("snapshot_id_bit63", body[12] >> 7)
        if size > _LONGEST_BODY:
            return
        previous = code
        at += _HEAD.size + size


def _hello_fixed(body: memoryview, size: int, seen: Seen) -> None:
    for name in (DEFAULT_DS4D, "local-decode"):
        fixed = size_of(DS4D_HELLO.body, name)
        if len(body) >= fixed:
            word = struct_of(DS4D_HELLO.body, DEFAULT_DS4D).unpack_from(body)[-1]
            if word == size - fixed:
                seen.add("hello_fixed", fixed)


def _work_fixed(body: memoryview, size: int, seen: Seen) -> None:
    form = struct_of(WORK.body, DEFAULT_DS4D)
    if len(body) < form.size:
        return
    names = [f.path for f in WORK.body.fields]
    words = dict(zip(names, form.unpack_from(body), strict=False))
    tails = words["token_bytes"] + words["input_hc_bytes"] + words["route_bytes"]
    if size - tails in (WORK.fixed_size(DEFAULT_DS4D), WORK.fixed_size("fodelf")):
        seen.add("work_fixed", size - tails)


def _ds4t(views: list[memoryview]) -> list[tuple[str, str]]:
    seen = Seen()
    version = None
    for view in views:
        if protocol_of(view) != "DS4T" or len(view) < _WORDS.size:
            continue
        version = _WORDS.unpack_from(view)[1]
        seen.add("version", version)
        _look_ds4t(view, seen)
    entries = dialects_of("DS4T")
    found = [d for d in entries if not seen.speaks_against(d)]
    if not found:
        # same version, other length: a fork that is not registered
        found = [d for d in entries if d.version == version]
        if found:
            return [(f"{d.name}?", d.settles) for d in found]
        nearest = min(
            (d for d in entries if d.version is not None),
            key=lambda d: (abs((d.version or 0) - (version or 0)), d.live != "speaks"),
        )
        return [(f"{nearest.name}?", f"a register entry for version {version}")]
    found.sort(key=lambda d: -seen.speaks_for(d))
    return [(d.name, d.settles) for d in found]


def _look_ds4t(view: memoryview, seen: Seen) -> None:
    sizes = sorted({d.hello_size for d in dialects_of("DS4T") if d.hello_size})
    size = hello_size(view)
    if size is not None:
        seen.add("hello_size", size)
    elif len(view) in sizes:
        seen.add("hello_size", len(view))
    for entry in dialects_of("DS4T"):
        if entry.hello_size == 88 and len(view) >= 64:
            pad = int.from_bytes(view[60:64], "little")
            seen.add("pad" if pad == 0 else "pad_nonzero", 0 if pad == 0 else 1)
            if pad:
                seen.add("pad", pad)
            else:
                seen.add("pad_nonzero", 0)
            break
    at = size
    while at is not None and at + _CONTROL.size <= len(view):
        magic, code, length = _CONTROL.unpack_from(view, at)
        if magic != DS4T_MAGIC:
            return
        seen.add("has_type", code)
        at += _CONTROL.size + length


def hello_size(view: memoryview) -> int | None:
    """Return the bytes of a DS4T hello, found by where the first frame starts.

    None where the bytes end before it, or nothing plausible follows.
    """
    codes = {spec.code for spec in frames("DS4T") if spec.code is not None}
    sizes = sorted({d.hello_size for d in dialects_of("DS4T") if d.hello_size})
    for size in sizes:
        if len(view) < size + _CONTROL.size:
            continue
        magic, code, _ = _CONTROL.unpack_from(view, size)
        if magic == DS4T_MAGIC and code in codes:
            return size
    return None


__all__ = [
    "DS4T_HELLO",
    "RESULT",
    "Seen",
    "dialect_candidates",
    "hello_size",
    "protocol_of",
]
