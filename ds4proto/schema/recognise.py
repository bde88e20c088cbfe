"""Which dialect is this? Candidates from the first bytes of each direction.

Every dialect says in its ``signs`` what is observed on the wire. The recogniser
notes what the bytes show, drops the dialects that a sign speaks against, and orders
the others by how well they read the frames. Nothing keys on a version number alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from ds4proto.schema.dialect_spec import Dialect
from ds4proto.schema.dialects import DEFAULT_DS4D, DEFAULT_DS4T, dialects_of
from ds4proto.schema.ds4d import HEADER as DS4D_HEADER
from ds4proto.schema.ds4d import HELLO, WORK
from ds4proto.schema.ds4d import MAGIC as DS4D_MAGIC
from ds4proto.schema.ds4t import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import frame_of_code, read_body
from ds4proto.schema.signs import Seen, Stream, is_greeting, look_ds4d
from ds4proto.schema.signs_ds4t import (
    gate_header_sizes,
    hello_size,
    is_hello,
    look_at_hello,
    misfits,
    possible_sizes,
    version_of,
)

Views = Mapping[str, memoryview]

_HEAD = struct_of(DS4D_HEADER, "*")
_MORE = "the control connection, from its first byte"


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
        DS4B_MAGIC.to_bytes(4, "little"): "DS4B",
    }.get(head)


def dialect_candidates(first: Mapping[str, Buf]) -> list[tuple[str, str]]:
    """Name the dialects that the first bytes allow, the likeliest first.

    Parameters
    ----------
    first : mapping
        The first bytes of each direction (``a>b``, ``b>a``), as many as there are; a
        few hundred settle most cases. Directions of several connections of one run
        may be given together, each key with a name in front: ``control a>b``,
        ``data b>a``; where WORK travels is known only then.

    Returns
    -------
    list of (str, str)
        Dialect name, and what would tell it from its neighbours. A name that ends
        in ``?`` is the nearest known dialect to something that is not registered.
        Empty where no direction starts as a known protocol does.
    """
    views = {key: memoryview(data).cast("B") for key, data in first.items() if data}
    protocols = {protocol_of(view) for view in views.values()}
    if "DS4D-LE" in protocols:
        return [(d.name, d.settles) for d in dialects_of("DS4D") if d.foreign]
    long = [view for view in views.values() if len(view) >= 4]
    greeted = [view for view in long if protocol_of(view) is None]
    if greeted and len(greeted) == len(long) and all(map(is_greeting, greeted)):
        return _named("DS4D", "first_not_magic")
    if "DS4D" in protocols:
        return _ds4d(views)
    if protocols & {"DS4T", "DS4B"}:
        return _ds4t([view for view in long if protocol_of(view) in ("DS4T", "DS4B")])
    return []


def _named(protocol: str, kind: str) -> list[tuple[str, str]]:
    """Return the dialects that one kind of sign points to."""
    return [
        (d.name, d.settles)
        for d in dialects_of(protocol)
        if any(sign.kind == kind for sign in d.signs)
    ]


def _ds4d(views: Views) -> list[tuple[str, str]]:
    seen = Seen()
    framed = {key: view for key, view in views.items() if protocol_of(view) == "DS4D"}
    streams = {key: look_ds4d(view, seen) for key, view in framed.items()}
    if _work_on_dialled(streams):
        seen.add("work_on_dialled", 1)
    found = [
        entry
        for entry in dialects_of("DS4D")
        if not entry.foreign and _allowed(entry, seen)
    ]
    unread = {
        entry.name: sum(_unread(view, entry.name) for view in framed.values())
        for entry in found
    }
    found.sort(
        key=lambda d: (-_own_signs(d, seen), unread[d.name], d.name != DEFAULT_DS4D)
    )
    return [(d.name, d.settles) for d in found] or [
        (DEFAULT_DS4D + "?", "a HELLO, or more frames")
    ]


_SHARED = frozenset({"hello_fixed", "snapshot_id_bit63"})
"""Signs of upstream's own texts."""


def _allowed(entry: Dialect, seen: Seen) -> bool:
    """Tell whether a dialect is worth naming.

    Forks whose bytes are upstream's until a sign of theirs shows are named once it
    has; before that no byte speaks for them.
    """
    fixed = seen.facts.get("hello_fixed")
    if seen.speaks_against(entry) or (fixed and entry.hello_size not in fixed):
        return False
    plain = entry.hello_size == 40 and {s.kind for s in entry.signs} <= _SHARED
    return plain or _own_signs(entry, seen) > 0


def _own_signs(entry: Dialect, seen: Seen) -> int:
    """Count the observed signs that upstream does not show."""
    return sum(
        sign.value in seen.facts.get(sign.kind, ())
        for sign in entry.signs
        if (sign.kind, sign.value) != ("hello_fixed", 40)
    )


def _work_on_dialled(streams: Mapping[str, Stream]) -> bool:
    """Tell whether first-hop WORK leaves a HELLO's connection silent."""
    groups: dict[str, list[Stream]] = {}
    for key, stream in streams.items():
        groups.setdefault(key.rpartition(" ")[0], []).append(stream)
    registered = [
        group for group in groups.values() if any(HELLO.code in s.codes for s in group)
    ]
    others = [group for group in groups.values() if group not in registered]
    silent = all(s.codes in ([], [HELLO.code]) for g in registered for s in g)
    dialled = any(s.first_hop and s.codes[0] == WORK.code for g in others for s in g)
    return bool(registered) and silent and dialled


def _unread(view: memoryview, dialect: str) -> int:
    """Count the frames that ``dialect`` does not have or cannot read whole."""
    found, at = 0, 0
    while at + _HEAD.size <= len(view):
        magic, code, size = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        body = view[at : at + size]
        if magic != DS4D_MAGIC:
            break
        spec = frame_of_code("DS4D", code, dialect=dialect)
        if spec is None or spec.opaque:
            found += 1
        elif len(body) == size:
            found += not read_body(spec, body, dialect=dialect).whole
        at += size
    return found


def _ds4t(views: list[memoryview]) -> list[tuple[str, str]]:
    hellos = [view for view in views if protocol_of(view) == "DS4T" and is_hello(view)]
    if not hellos:
        return _gates(views)
    seen = Seen()
    for view in hellos:
        look_at_hello(view, seen)
    sizes = _sizes(hellos)
    seen.facts["hello_size"] = set().union(*sizes)
    if "pad_used" in seen.facts:
        seen.facts["pad"].discard(0)
    found = [d for d in dialects_of("DS4T") if not seen.speaks_against(d)]
    if not found:
        return _nearest(seen)
    unread = {
        entry.name: sum(
            misfits(view, min(size), entry.name)
            for view, size in zip(hellos, sizes, strict=True)
            if len(size) == 1
        )
        for entry in found
    }
    found.sort(key=lambda d: (unread[d.name], -seen.speaks_for(d)))
    return [(d.name, d.settles) for d in found]


def _sizes(hellos: list[memoryview]) -> list[set[int]]:
    """Return the sizes that each hello may have; equal versions have one size."""
    sizes = [possible_sizes(view) for view in hellos]
    if len({version_of(view) for view in hellos}) == 1:
        common = set.intersection(*sizes)
        sizes = [common or own for own in sizes]
    return sizes


def _nearest(seen: Seen) -> list[tuple[str, str]]:
    """Return the nearest known dialects: same length first, then the version."""
    (version, *_) = sorted(seen.facts["version"])
    sizes = seen.facts.get("hello_size", set())
    usable = [
        d
        for d in dialects_of("DS4T")
        if d.version and d.hello_size and _fits_but_for_version(d, seen)
    ]
    usable.sort(
        key=lambda d: (
            d.hello_size not in sizes,
            abs((d.version or 0) - version),
            d.live != "speaks",
            d.live == "recognises",
        )
    )
    best = usable[0]
    near = [
        d
        for d in usable
        if abs((d.version or 0) - version) == abs((best.version or 0) - version)
        and (d.hello_size in sizes) == (best.hello_size in sizes)
    ]
    return [(f"{d.name}?", f"a registered dialect of version {version}") for d in near]


def _fits_but_for_version(entry: Dialect, seen: Seen) -> bool:
    """Tell whether every other sign of a dialect was seen, as far as it can be."""
    return all(
        sign.value in seen.facts.get(sign.kind, {sign.value})
        for sign in entry.signs
        if sign.kind not in ("version", "hello_size", "pad_used")
    ) and ("pad_used" in seen.facts) >= any(s.kind == "pad_used" for s in entry.signs)


def _gates(views: list[memoryview]) -> list[tuple[str, str]]:
    """Return candidates for a data connection, which has no hello of its own."""
    versions = [version_of(view) for view in views]
    if all(version is None for version in versions):
        return [(f"{DEFAULT_DS4T}?", _MORE)]
    allowed = set.intersection(*(gate_header_sizes(view) for view in views))
    forks = [("v14-odinlink", 24), ("v15", 40)]
    found = [name for name, size in forks if size in allowed]
    return [(name, _MORE) for name in found] + [(f"{DEFAULT_DS4T}?", _MORE)]


__all__ = ["Seen", "dialect_candidates", "hello_size", "protocol_of"]
