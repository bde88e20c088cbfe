"""The vocabulary in which frames are declared.

A declaration is a table: fields with their ``construct`` type, unit, meaning and
limit, then tails whose length an earlier field gives. Everything else (parsers,
builders, numpy types, spec tables, dissectors, strategies) is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from construct import Bytes, Construct, FormatField

Values = Mapping[str, Any]
Length = Callable[[Any], Any]
"""Number of bytes of a tail, from the values read so far (a ``this`` expression)."""

EVERY = frozenset({"*"})
REST = "rest"
"""Length of a tail that takes whatever the frame still holds."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of one value, both inclusive; ``one_of`` lists what is allowed."""

    low: int | None = None
    high: int | None = None
    one_of: tuple[int, ...] | None = None

    def holds(self, value: Any) -> bool:
        """Tell whether ``value`` is inside the bounds."""
        if self.one_of is not None:
            return value in self.one_of
        return not (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
        )

    def __str__(self) -> str:
        if self.one_of is not None:
            return " or ".join(str(value) for value in self.one_of)
        if self.low is not None and self.high is not None:
            return f"{self.low}..{self.high}"
        return f">= {self.low}" if self.low is not None else f"<= {self.high}"


@dataclass(frozen=True, slots=True)
class Name:
    """One named value of an enumeration, or one named bit of a mask."""

    value: int
    name: str
    doc: str = ""
    dialects: frozenset[str] = EVERY


def in_dialect(dialects: frozenset[str], dialect: str) -> bool:
    """Tell whether ``dialect`` is among ``dialects`` (``*`` holds all)."""
    return dialects is EVERY or "*" in dialects or dialect in dialects


_bytes_of = cache(lambda kind: int(kind.sizeof()))  # construct would count each time


@dataclass(frozen=True, slots=True, eq=False)
class FieldSpec:
    """One field of a fixed part.

    Parameters
    ----------
    path : str
        Wire name; inside a record it is relative to that record.
    type : construct.Construct
        A ``FormatField`` or ``Bytes(n)``: size, byte order and signedness.
    doc : str
        One line of meaning.
    unit : str
        What the number counts (``bytes``, ``tokens``, ``microseconds`` ...).
    limit : Limit or None
        Bounds that every sender keeps; outside them the field is a problem.
    clause : str
        Clause that rules the limit.
    enum, flags : tuple of Name
        Named values, or named bits, with the dialects that carry them.
    dialects : frozenset of str
        Dialects that have the field at all.
    const : int or None
        The only value on the wire.
    default : int, bytes or None
        Value that a builder fills in when none is given.
    auto : callable or None
        Computes the value from the others when none is given (lengths).
    words : str
        Names of the 32-bit words that make up a 64-bit field, if it has any.
    """

    path: str
    type: Construct[Any, Any]
    doc: str
    unit: str = ""
    limit: Limit | None = None
    clause: str = ""
    enum: tuple[Name, ...] = ()
    flags: tuple[Name, ...] = ()
    dialects: frozenset[str] = EVERY
    const: int | None = None
    default: int | bytes | None = None
    auto: Callable[[Values], int] | None = None
    words: str = ""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return _bytes_of(self.type)

    @property
    def code(self) -> str:
        """The ``struct`` code without byte order, such as ``L`` or ``16s``."""
        if isinstance(self.type, FormatField):
            return str(self.type.fmtstr)[1:]
        if isinstance(self.type, Bytes):
            return f"{self.size}s"
        raise TypeError(f"{self.path}: a fixed field is a FormatField or Bytes(n)")

    @property
    def kind(self) -> str:
        """What the field holds: ``int``, ``float`` or ``bytes``."""
        if not isinstance(self.type, FormatField):
            return "bytes"
        return "float" if self.code in "fde" else "int"

    @property
    def order(self) -> str:
        """Byte order: ``>``, ``<``, or an empty string where it has none."""
        if isinstance(self.type, FormatField) and self.size > 1:
            return str(self.type.fmtstr)[0]
        return ""

    @property
    def type_name(self) -> str:
        """The spec's word for the type: ``u32be``, ``i32le``, ``f32le``, ``u8[16]``."""
        if isinstance(self.type, Bytes):
            return f"u8[{self.size}]"
        code = self.code
        kind = "f" if code in "fde" else "u" if code.isupper() else "i"
        end = {">": "be", "<": "le", "": ""}[self.order]
        return f"{kind}{8 * self.size}{end}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tail:
    """A variable part behind the fixed part; ``length`` is in bytes."""

    path: str
    length: Length | str
    doc: str
    clause: str = ""
    dialects: frozenset[str] = EVERY

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Text(Tail):
    """Raw bytes shown as text (UTF-8, other bytes kept by surrogate escapes)."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ints(Tail):
    """A run of equal integers, read as a tuple."""

    item: Construct[Any, Any] = field(kw_only=True)
    limit: Limit | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Payload(Tail):
    """Bulk bytes, handed out as a memoryview and never copied.

    ``shape`` and ``bits`` say what they hold; ``bits`` is a ``this`` expression or
    a constant, and names the codec of the activation widths.
    """

    shape: str = ""
    bits: Length | int = 32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Records(Tail):
    """``count`` records of one layout; values are a list of mappings."""

    record: Layout = field(kw_only=True)
    count: Length = field(kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class One(Tail):
    """Exactly one record of a layout; the value is a mapping."""

    record: Layout = field(kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Blob(Tail):
    """A counted area that holds further tails and nothing else."""

    parts: tuple[Tail, ...] = field(kw_only=True)
    trailing_clause: str = ""
    empty_clause: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule between the values of one frame.

    ``test`` gets the values and returns True where the rule holds. ``expected``
    is a text, or a function of the values.
    """

    clause: str
    path: str
    test: Callable[[Any], bool]
    expected: str | Callable[[Any], str]
    next_step: str = ""
    dialects: frozenset[str] = EVERY


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A fixed part and its tails: a record, or the body of a frame."""

    name: str
    doc: str
    fields: tuple[FieldSpec, ...] = ()
    tails: tuple[Tail, ...] = ()
    rules: tuple[Rule, ...] = ()
    short_clause: str = ""
    trailing_clause: str = ""

    def __repr__(self) -> str:
        return f"<Layout {self.name}>"


@dataclass(frozen=True, slots=True, eq=False)
class FrameSpec:
    """One frame: its name and number, who sends it, and its body.

    Parameters
    ----------
    protocol : {"DS4D", "DS4T", "DS4B"}
    name : str
        Message name, such as ``WORK``.
    code : int or None
        Number in the frame header; None where a frame has no header.
    body : Layout
        Fixed part, tails and rules.
    sender, receiver : tuple of str
        Roles.
    header : Layout or None
        The header in front of the body.
    dialects : frozenset of str
        Dialects that know the frame.
    trailing : bool
        True where a receiver skips surplus bytes at the end.
    raw_follows : callable or None
        Bytes that follow the frame in the stream without being counted in it.
    """

    protocol: str
    name: str
    code: int | None
    body: Layout
    sender: tuple[str, ...]
    receiver: tuple[str, ...]
    header: Layout | None = None
    dialects: frozenset[str] = EVERY
    trailing: bool = False
    raw_follows: Length | None = None

    def __repr__(self) -> str:
        return f"<FrameSpec {self.full_name}>"

    @property
    def full_name(self) -> str:
        """``PROTOCOL.NAME``."""
        return f"{self.protocol}.{self.name}"

    @property
    def doc(self) -> str:
        """One line of meaning."""
        return self.body.doc

    @property
    def opaque(self) -> bool:
        """True where the layout of the body is not known."""
        return any(tail.path == "body" for tail in self.body.tails)

    @property
    def clauses(self) -> tuple[str, ...]:
        """Ids of the clauses that this declaration cites, sorted."""
        return tuple(sorted(clauses_of(self.body)))

    def fixed(self, dialect: str) -> tuple[FieldSpec, ...]:
        """Return the fixed fields that ``dialect`` has, in wire order."""
        return fields_of(self.body, dialect)

    def fixed_size(self, dialect: str) -> int:
        """Return the bytes of the fixed part, header not counted."""
        return size_of(self.body, dialect)

    @property
    def header_size(self) -> int:
        """Bytes of the header: 12, or 0 where there is none."""
        return 0 if self.header is None else size_of(self.header, "*")

    def tails(self, dialect: str) -> tuple[Tail, ...]:
        """Return the tails that ``dialect`` has, in wire order."""
        return tails_of(self.body, dialect)


@cache
def fields_of(layout: Layout, dialect: str) -> tuple[FieldSpec, ...]:
    """Return the fields of ``layout`` that ``dialect`` has, in wire order."""
    return tuple(f for f in layout.fields if in_dialect(f.dialects, dialect))


@cache
def tails_of(layout: Layout, dialect: str) -> tuple[Tail, ...]:
    """Return the tails of ``layout`` that ``dialect`` has, in wire order."""
    return tuple(t for t in layout.tails if in_dialect(t.dialects, dialect))


@cache
def size_of(layout: Layout, dialect: str) -> int:
    """Return the bytes of the fixed part of ``layout`` in ``dialect``."""
    return sum(f.size for f in fields_of(layout, dialect))


@cache
def offsets_of(layout: Layout, dialect: str) -> Mapping[str, int]:
    """Return the offset of each fixed field inside ``layout``."""
    offsets: dict[str, int] = {}
    at = 0
    for spec in fields_of(layout, dialect):
        offsets[spec.path] = at
        at += spec.size
    return offsets


def rest_of(area: Layout | Blob) -> str:
    """Return the key under which surplus bytes of an area are kept."""
    name = area.path if isinstance(area, Blob) else "body"
    return f"{name}_rest"


def clauses_of(layout: Layout) -> frozenset[str]:
    """Return the clause ids that a layout and its records cite."""
    found = {layout.short_clause, layout.trailing_clause}
    found.update(spec.clause for spec in layout.fields)
    found.update(rule.clause for rule in layout.rules)
    for blob in layout.tails:
        if isinstance(blob, Blob):
            found.update((blob.clause, blob.trailing_clause, blob.empty_clause))
    for tail in walk_tails(layout.tails):
        found.add(tail.clause)
        if isinstance(tail, Records | One):
            found |= clauses_of(tail.record)
    return frozenset(found - {""})


def walk_tails(tails: tuple[Tail, ...]) -> Iterator[Tail]:
    """Yield every tail, those inside blobs included, in wire order."""
    for tail in tails:
        if isinstance(tail, Blob):
            yield from walk_tails(tail.parts)
        else:
            yield tail


def names_of(spec: FieldSpec, value: int, dialect: str) -> str:
    """Return the name of ``value``: an enumeration's word, or the set bits."""
    for entry in spec.enum:
        if entry.value == value and in_dialect(entry.dialects, dialect):
            return entry.name
    if not spec.flags:
        return ""
    known = [e for e in spec.flags if in_dialect(e.dialects, dialect)]
    words = [e.name for e in known if value & e.value]
    rest = value & ~sum(e.value for e in known)
    for bit in range(rest.bit_length()):
        if rest >> bit & 1:
            fork = [e for e in spec.flags if e.value == 1 << bit]
            label = f"{fork[0].name}?" if fork else f"bit{bit}"
            words.append(label)
    return "|".join(words)
