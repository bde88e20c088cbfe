"""Scapy layers of every frame, made from the declarations; needs the extra ``scapy``.

Scapy is under GPL-2.0-only: nothing else in ds4proto imports this module, and this
module imports no more of ds4proto than the declarations. For interactive use and for
making packets; captures in bulk are read by ``ds4proto decode``::

    >>> from ds4proto.emit.scapy_layers import DS4D, bind, layer
    >>> work = layer("DS4D.WORK", "upstream")
    >>> packet = work(request=1, tokens=[3], n_tokens=1)
    >>> bind(21100)            # TCP streams of that port are put together by frame
    >>> sniff(offline="run.pcap", session=TCPSession)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Final

from scapy.fields import (
    ByteField,
    Field,
    FieldListField,
    IntField,
    LEIntField,
    LELongField,
    LEShortField,
    LESignedIntField,
    LongField,
    PacketField,
    PacketListField,
    ShortField,
    SignedIntField,
    StrField,
    StrFixedLenField,
    StrLenField,
)
from scapy.layers.inet import TCP
from scapy.packet import Packet, bind_layers

from ds4proto.schema.declare import (
    Blob,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    One,
    Records,
    Tail,
    Text,
    fields_of,
    size_of,
    tails_of,
    walk_tails,
)
from ds4proto.schema.dialects import DEFAULT_DS4D, DEFAULT_DS4T, all_dialects
from ds4proto.schema.registry import frame, frame_of_code, header_of, to_bytes

_NUMBERS: Final[dict[str, type[Any]]] = {
    "u8": ByteField,
    "u16be": ShortField,
    "u16le": LEShortField,
    "u32be": IntField,
    "u32le": LEIntField,
    "i32be": SignedIntField,
    "i32le": LESignedIntField,
    "u64be": LongField,
    "u64le": LELongField,
}
_HELLOS: Final = 2
_ROLES: Final = (b"\1\0\0\0", b"\2\0\0\0")
_TAKEN: Final = frozenset(vars(Packet)) | frozenset(Packet.__slots__)
"""Names that scapy's packets have for themselves."""
_LARGEST: Final = 1 << 26
"""Frames above this many bytes are not put together; bulk is not scapy's trade."""


def scapy_name(path: str) -> str:
    """Return the name of a field in scapy: its own, or ``payload_`` for one it has."""
    return f"{path}_" if path in _TAKEN else path


class _Values(Mapping[str, Any]):
    """A packet as the declarations' expressions read it."""

    def __init__(self, packet: Packet) -> None:
        self._packet = packet

    def __getitem__(self, name: str) -> Any:
        return self._packet.getfieldval(scapy_name(name))

    def __iter__(self) -> Iterator[str]:
        return iter(field.name for field in self._packet.fields_desc)

    def __len__(self) -> int:
        return len(self._packet.fields_desc)


class Ds4Packet(Packet):  # type: ignore[misc]  # scapy has no types
    """One frame. Lengths that are not given are computed; those given are kept."""

    name = "ds4"
    spec: FrameSpec
    dialect: str
    fields_desc: ClassVar[list[Any]] = []

    def self_build(self) -> bytes:
        """Return the bytes of the frame, header included."""
        if self.raw_packet_cache is not None:
            return bytes(self.raw_packet_cache)
        words = [f.path for f in self.spec.header.fields] if self.spec.header else []
        header = {
            name: self.fields[f"header_{name}"]
            for name in words
            if self.fields.get(f"header_{name}") is not None
        }
        given = _given(self, self.spec.body, self.dialect)
        return to_bytes(self.spec, given, dialect=self.dialect, header=header or None)

    def do_dissect(self, s: bytes) -> bytes:
        """Read one frame; what follows it is left over."""
        size = _frame_size(self.spec, s)
        rest = super().do_dissect(s[:size])
        return bytes(rest) + s[size:]

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Leave what follows to the next frame."""
        return b"", s


class Ds4Record(Packet):  # type: ignore[misc]  # scapy has no types
    """One record inside a frame."""

    fields_desc: ClassVar[list[Any]] = []

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Leave what follows to the next record."""
        return b"", s


def _given(packet: Packet, layout: Layout, dialect: str) -> dict[str, Any]:
    """Return what was set in a packet, and the defaults, as the builder wants it."""
    found: dict[str, Any] = {}
    for spec in fields_of(layout, dialect):
        value = packet.getfieldval(spec.path)
        if value is not None:
            found[spec.path] = value
    for tail in walk_tails(tails_of(layout, dialect)):
        value = packet.getfieldval(scapy_name(tail.path))
        if isinstance(tail, Text):
            value = bytes(value).decode("utf-8", "surrogateescape")
        elif isinstance(tail, Records):
            value = [_given(item, tail.record, dialect) for item in value]
        elif isinstance(tail, One):
            value = _given(value, tail.record, dialect)
        found[tail.path] = value
    return found


def _frame_size(spec: FrameSpec, data: bytes) -> int:
    """Return the bytes of the frame at the start of ``data``, as its header says."""
    if spec.header is None:
        return len(data)
    at = size_of(spec.header, "*")
    last = spec.header.fields[-1]
    order: Any = "big" if last.order == ">" else "little"
    return at + int.from_bytes(data[at - last.size : at], order)


@cache
def layer(name: str, dialect: str) -> type[Ds4Packet]:
    """Return the packet class of a frame, such as ``DS4D.WORK``, in a dialect.

    Raises
    ------
    KeyError
        If there is no such frame or dialect.
    """
    spec = frame(name, dialect=dialect)
    head = [
        _number(word, f"header_{word.path}", _header_value(spec, word))
        for word in (spec.header.fields if spec.header else ())
    ]
    body = list(_fields(spec.body, dialect))
    members = {
        "name": f"{spec.full_name} ({dialect})",
        "spec": spec,
        "dialect": dialect,
        "fields_desc": head + body,
        "__doc__": spec.doc,
    }
    title = "".join(part.title() for part in name.replace(".", "_").split("_"))
    return type(f"{title}_{dialect}", (Ds4Packet,), members)


def _header_value(spec: FrameSpec, word: FieldSpec) -> int | None:
    return spec.code if word.path == "type" else word.const


def _number(spec: FieldSpec, name: str, default: Any) -> Any:
    if spec.kind == "bytes":
        return StrFixedLenField(name, default or bytes(spec.size), spec.size)
    if spec.kind == "float":
        return Field(name, default or 0.0, spec.order + spec.code)
    return _NUMBERS[spec.type_name](name, default)


def _fields(layout: Layout, dialect: str) -> Iterator[Any]:
    for spec in fields_of(layout, dialect):
        default = spec.const if spec.const is not None else spec.default
        if default is None and spec.auto is None:
            default = bytes(spec.size) if spec.kind == "bytes" else 0
        yield _number(spec, spec.path, default)
    for tail in tails_of(layout, dialect):
        parts = tail.parts if isinstance(tail, Blob) else (tail,)
        for part in parts:
            yield _tail(part, dialect)


def _length(tail: Tail) -> Callable[[Packet], int] | None:
    length = tail.length
    if not callable(length):
        return None
    return lambda packet: int(length(_Values(packet)))


def _tail(tail: Tail, dialect: str) -> Any:
    length, name = _length(tail), scapy_name(tail.path)
    if isinstance(tail, Ints):
        item = _number(FieldSpec(tail.path, tail.item, tail.doc), tail.path, 0)
        return FieldListField(name, [], item, length_from=length)
    if isinstance(tail, Records):
        count = tail.count
        return PacketListField(
            name,
            [],
            _record(tail.record, dialect),
            count_from=lambda packet: int(count(_Values(packet))),
        )
    if isinstance(tail, One):
        record = _record(tail.record, dialect)
        return PacketField(name, record(), record)
    if length is None:
        return StrField(name, b"")
    return StrLenField(name, b"", length_from=length)


@cache
def _record(layout: Layout, dialect: str) -> type[Ds4Record]:
    members = {
        "name": layout.name.lower(),
        "fields_desc": list(_fields(layout, dialect)),
        "__doc__": layout.doc,
    }
    return type(f"{layout.name.title()}_{dialect}", (Ds4Record,), members)


class DS4D(Packet):  # type: ignore[misc]  # scapy has no types
    """Any DS4D frame: dissecting one gives the packet of its type."""

    name = "DS4D"
    protocol = "DS4D"
    dialect = DEFAULT_DS4D
    fields_desc: ClassVar[list[Any]] = []

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *_: Any, **__: Any) -> Any:
        """Return the class of the frame that ``_pkt`` starts with."""
        return _class_of(cls.protocol, _pkt or b"", cls.dialect) or cls

    @classmethod
    def tcp_reassemble(
        cls, data: bytes, _metadata: Any, _session: dict[str, Any]
    ) -> Packet | None:
        """Return the first whole frame of a stream; None while it is not whole."""
        head = header_of(cls.protocol)
        size = size_of(head, "*")
        if len(data) < size:
            return None
        kind = _class_of(cls.protocol, data, cls.dialect)
        if kind is None:
            return None
        whole = _frame_size(kind.spec, data)
        if whole > _LARGEST or len(data) < whole:
            return None
        return kind(data)


class DS4T(DS4D):
    """Any DS4T control frame; the first of each direction is the hello."""

    name = "DS4T"
    protocol = "DS4T"
    dialect = DEFAULT_DS4T

    @classmethod
    def tcp_reassemble(
        cls, data: bytes, _metadata: Any, _session: dict[str, Any]
    ) -> Packet | None:
        """Return the hello, then frame after frame, under the hello's dialect."""
        # scapy keeps one session for both directions, each of which has its hello
        if _session.get("hellos", 0) < _HELLOS and data[8:12] in _ROLES:
            found = _hello(data)
            if found is None:
                return None
            _session["hellos"] = _session.get("hellos", 0) + 1
            _session["dialect"] = found
            hello = layer("DS4T.HELLO", found)
            size = size_of(hello.spec.body, found)
            return hello(data[:size]) / _rest(data[size:])
        name = _session.get("dialect", cls.dialect)
        if len(data) < size_of(header_of("DS4T"), "*"):
            return None
        kind = _class_of("DS4T", data, name)
        if kind is None or len(data) < _frame_size(kind.spec, data):
            return None
        return kind(data)


def _rest(data: bytes) -> Packet:
    from scapy.packet import NoPayload, Padding

    return Padding(data) if data else NoPayload()


def _class_of(protocol: str, data: bytes, dialect: str) -> type[Ds4Packet] | None:
    head = header_of(protocol)
    if len(data) < size_of(head, "*"):
        return None
    order: Any = "big" if head.fields[0].order == ">" else "little"
    magic, code = (int.from_bytes(data[at : at + 4], order) for at in (0, 4))
    if magic != head.fields[0].const:
        return None
    spec = frame_of_code(protocol, code, dialect=dialect)
    return None if spec is None or spec.opaque else layer(spec.full_name, dialect)


def _hello(data: bytes) -> str | None:
    """Return the dialect of a hello, or None while more bytes are needed."""
    version = int.from_bytes(data[4:8], "little")
    fits = [
        entry
        for entry in all_dialects()
        if entry.protocol == "DS4T" and entry.version == version and entry.hello_size
    ]
    magic = (header_of("DS4T").fields[0].const or 0).to_bytes(4, "little")
    for entry in fits:
        size = entry.hello_size or 0
        if len(data) == size or data[size : size + 4] == magic:
            return entry.name
    longest = max((entry.hello_size or 0 for entry in fits), default=0)
    return fits[-1].name if fits and len(data) >= longest else None


def bind(port: int, protocol: str = "DS4D", *, dialect: str | None = None) -> None:
    """Let scapy read TCP streams of ``port`` as ``protocol``.

    Parameters
    ----------
    port : int
        Of the listener; scapy's ``TCPSession`` puts together bound ports alone.
    protocol : {"DS4D", "DS4T"}
    dialect : str, optional
        Default: the main one; DS4T streams take that of their hello.
    """
    kind = DS4D if protocol == "DS4D" else DS4T
    if dialect is not None:
        named = type(f"{protocol}_{dialect}", (kind,), {"dialect": dialect})
        bind_layers(TCP, named, sport=port)
        bind_layers(TCP, named, dport=port)
        return
    bind_layers(TCP, kind, sport=port)
    bind_layers(TCP, kind, dport=port)


__all__ = ["DS4D", "DS4T", "Ds4Packet", "Ds4Record", "bind", "layer", "scapy_name"]
