"""Framing of one direction, and observers of whole connections.

Invariants: any bytes give events, never an exception; the events depend on the bytes
and the places of the gaps alone, never on how the bytes were split; every byte ends up
in exactly one frame or skipped run, without a seam; the end is told once, last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from ds4proto.link.events import Direction, Ended, Event, FrameReceived, Skipped
from ds4proto.link.framing import Framer
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.observer import FIRST_BYTES, StreamObserver, open_observer
from ds4proto.link.pair import TpPair
from ds4proto.link.sink import Sink
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.dialects import dialects_of
from ds4proto_fuzz.parsers.comparing import lasting_events
from ds4proto_fuzz.parsers.schemas import FORMS, pool
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["FRAMING", "OBSERVER"]

SMALL: Final = Limits(frames={}, small=600, unknown=200, held=150, raw=2_000)
"""Caps that short inputs reach."""
WIDE: Final = Limits(
    frames={name: min(most, 64 << 20) for name, most in DEFAULT_LIMITS.frames.items()}
)
"""The default caps, as far as all streams of a check fit an address space of 1 GiB."""
DIALECTS: Final[tuple[tuple[Literal["DS4D", "DS4T"], str], ...]] = tuple(
    (protocol, entry.name)
    for protocol in ("DS4D", "DS4T")
    for entry in dialects_of(protocol)
    if not entry.foreign
)
LONGEST_GAP: Final = 4_000
Part = bytes | int
"""Bytes, or the length of a gap."""
Feed = Callable[[Part | None], Iterable[Event]]


class _Kept:
    """A sink that keeps what it gets; a gap stays a number."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def write(self, view: memoryview) -> None:
        """Take bytes."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, bytes):
            self._parts[-1] = last + bytes(view)
        else:
            self._parts.append(bytes(view))

    def gap(self, nbytes: int) -> None:
        """Take a gap."""
        self._parts.append(nbytes)

    def close(self) -> tuple[Part, ...]:
        """Return the parts; empty writes leave no trace."""
        return tuple(part for part in self._parts if part)


def _sink(
    _spec: FrameSpec, _fields: Mapping[str, Any], _path: str, _nbytes: int | None
) -> Sink:
    return _Kept()


def split_parts(data: bytes) -> list[Part]:
    """Read runs of bytes and gaps: a length byte, above 0xE0 the size of a gap."""
    parts: list[Part] = []
    at = 0
    while at < len(data):
        word = data[at]
        at += 1
        if word > 0xE0:
            parts.append(min((word - 0xE0) ** 2 * 5, LONGEST_GAP))
        else:
            parts.append(data[at : at + word + 1])
            at += word + 1
    return parts


def single_bytes(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the same parts with every run cut into bytes."""
    for part in parts:
        if isinstance(part, int):
            yield part
        else:
            for at in range(len(part)):
                yield part[at : at + 1]


def joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the same parts with neighbouring runs joined."""
    run = b""
    for part in parts:
        if isinstance(part, bytes):
            run += part
            continue
        if run:
            yield run
        run = b""
        yield part
    if run:
        yield run


def account(events: Iterable[Event], size: int) -> None:
    """Require that events cover ``size`` bytes of one direction without a seam."""
    at, ended = 0, 0
    for event in events:
        if ended:
            broken("nothing comes behind the end", event=event)
        if isinstance(event, FrameReceived | Skipped):
            if event.stream_offset != at or event.length <= 0:
                broken("frames and skipped runs follow each other", at=at, event=event)
            at += event.length
        elif isinstance(event, Ended):
            ended += 1
            if event.stream_offset != at:
                broken("the end stands behind the last byte", at=at, event=event)
    if not ended or at != size:
        broken("every byte is accounted for", fed=size, accounted=at, ended=ended)


def size_of(parts: Iterable[Part]) -> int:
    """Return the bytes that parts stand for."""
    return sum(part if isinstance(part, int) else len(part) for part in parts)


# -- one direction


def check_framing(data: bytes) -> None:
    """Take dialect and options from two bytes, the stream from the rest."""
    if len(data) < 2:
        return
    protocol, dialect = DIALECTS[data[0] % len(DIALECTS)]
    options = data[1]
    parts = split_parts(data[2:]) if options & 8 else [data[2:]]

    def events(pieces: Iterable[Part]) -> list[Event]:
        framer = Framer(
            protocol,
            dialect=dialect,
            sink=_sink if options & 1 else None,
            limits=SMALL if options & 2 else WIDE,
            auto_resync=bool(options & 4),
        )
        if options & 16:
            framer.resync(0.0)
        found: list[Event] = []
        fed = 0
        for piece in pieces:
            if isinstance(piece, int):
                found += framer.gap(piece, 0.0)
                fed += piece
            else:
                found += framer.feed(piece, 0.0)
                fed += len(piece)
            if framer.offset != fed:
                broken("the offset is where the stream is", fed=fed, at=framer.offset)
        pending = framer.pending
        told = sum(e.length for e in found if isinstance(e, FrameReceived | Skipped))
        if pending + told != fed:
            broken("what is pending is known", fed=fed, told=told, pending=pending)
        return found + framer.feed(None, 0.0)

    whole = events(joined(parts))
    account(whole, size_of(parts))
    expected = lasting_events(whole)
    same("whole or byte by byte", expected, lasting_events(events(single_bytes(parts))))
    same("whole or in pieces", expected, lasting_events(events(_cut(parts, data[1]))))


def _cut(parts: Iterable[Part], seed: int) -> Iterator[Part]:
    """Cut the runs into pieces of a few lengths."""
    sizes = (1 + seed % 13, 12, 3, 25, 64)
    turn = 0
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        at = 0
        while at < len(part):
            size = sizes[turn % len(sizes)]
            yield part[at : at + size]
            at += size
            turn += 1


def seeds_framing() -> Iterator[bytes]:
    """Yield streams of sound frames under each dialect that has a header."""
    for number, (protocol, dialect) in enumerate(DIALECTS):
        stream = _stream(protocol, dialect)
        for options in (0, 5, 6, 8, 12):
            body = stream[:500]
            if options & 8:
                body = _as_parts(body[:180]) + b"\xe8" + _as_parts(body[180:260])
            yield bytes((number, options)) + body


def _stream(protocol: str, dialect: str) -> bytes:
    frames = [
        frame
        for (spec, name), made in pool().items()
        if spec.protocol == protocol
        and spec.header is not None
        and (name == dialect or "*" in spec.dialects or dialect in spec.dialects)
        for frame in made[1:3]
        if len(frame) < 200
    ]
    return b"".join(frames[:8])


def _as_parts(data: bytes) -> bytes:
    found = b""
    for at in range(0, len(data), 0x80):
        piece = data[at : at + 0x80]
        found += bytes((len(piece) - 1,)) + piece
    return found


# -- whole connections

WAYS: Final[tuple[Direction, Direction]] = ("a>b", "b>a")
Step = tuple[int, Part]
"""Channel (bit 0 the direction, bit 1 the connection), and what it carries."""


def split_steps(data: bytes) -> list[Step]:
    """Read steps: a byte of channel and length, then the bytes.

    Two bits name the channel, six the length less one; 63 makes it a gap of as many
    bytes as the next byte says.
    """
    steps: list[Step] = []
    at = 0
    while at < len(data):
        channel, length = data[at] & 3, data[at] >> 2
        at += 1
        if length == 63:
            if at < len(data):
                steps.append((channel, data[at] + 1))
            at += 1
        else:
            part = data[at : at + 2 * length + 1]
            if part:
                steps.append((channel, part))
            at += 2 * length + 1
    return steps


def check_observer(data: bytes) -> None:
    """Watch a connection, or the two of a pair, that carry the steps of an input."""
    if len(data) < 2:
        return
    options = data[0]
    chosen = None
    if options & 1:
        chosen = DIALECTS[data[1] % len(DIALECTS)][1]
    steps = split_steps(data[2:])
    if not options & 2:
        steps = [(channel & 1, part) for channel, part in steps]
    streams = {
        channel: [part for number, part in steps if number == channel]
        for channel in range(4)
    }
    first = {
        channel: b"".join(_before_gap(parts))[:FIRST_BYTES]
        for channel, parts in streams.items()
    }

    def events(pieces: Iterable[Step]) -> dict[int, list[Event]]:
        pair = TpPair() if options & 2 else None
        watched: dict[int, StreamObserver] = {}
        found: dict[int, list[Event]] = {channel: [] for channel in range(4)}
        for connection in range(2 if options & 2 else 1):
            observer = open_observer(
                {way: first[2 * connection + n] for n, way in enumerate(WAYS)},
                pair=pair,
                sink=_sink if options & 4 else None,
                limits=SMALL if options & 8 else WIDE,
                dialect=chosen,
                complete=not options & 16,
            )
            if observer is not None:
                watched[connection] = observer
        for channel, piece in pieces:
            watching = watched.get(channel >> 1)
            if watching is None:
                continue
            way = WAYS[channel & 1]
            if isinstance(piece, int):
                found[channel] += watching.gap(way, piece, 0.0)
            else:
                found[channel] += watching.feed(way, piece, 0.0)
        for connection, watching in watched.items():
            for number, way in enumerate(WAYS):
                found[2 * connection + number] += watching.feed(way, None, 0.0)
            _names(watching)
        return {c: found[c] for c in found if c >> 1 in watched}

    whole = events(steps)
    for channel, told in whole.items():
        account(told, size_of(streams[channel]))
    again = events(
        (channel, piece) for channel, part in steps for piece in single_bytes([part])
    )
    for channel, told in whole.items():
        same(
            f"whole or byte by byte, channel {channel}",
            lasting_events(told),
            lasting_events(again[channel]),
        )


def _before_gap(parts: Iterable[Part]) -> Iterator[bytes]:
    for part in parts:
        if isinstance(part, int):
            return
        yield part


def _names(observer: StreamObserver) -> None:
    """Ask an observer what it learned."""
    candidates = observer.candidates
    if not candidates or not observer.dialect:
        broken("a dialect is named", dialect=observer.dialect, candidates=candidates)
    observer.role_of("a")
    observer.role_of("b")


def seeds_observer() -> Iterator[bytes]:
    """Yield short connections: both directions, one connection or a pair."""
    by_name: dict[str, bytes] = {}
    for spec, dialect in FORMS:
        made = [frame for frame in pool()[spec, dialect] if len(frame) < 300]
        by_name[f"{spec.full_name}/{dialect}"] = made[-1] if made else b""
    hellos = [name for name in by_name if name.startswith("DS4T.HELLO")]
    for hello in hellos:
        dialect = hello.partition("/")[2]
        gates = [n for n in by_name if "GATE" in n and n.endswith(dialect)]
        rest = [n for n in by_name if n.startswith("DS4T.") and n.endswith(dialect)]
        rest = [n for n in rest if "HELLO" not in n and "GATE" not in n]
        steps = _steps(0, by_name[hello]) + _steps(1, by_name[hello])
        for number, name in enumerate(rest[:6]):
            steps += _steps(number & 1, by_name[name])
        for number, name in enumerate(gates[:3]):
            steps += _steps(2 | number & 1, by_name[name] + bytes(64))
        yield bytes((2, 0)) + steps
        yield bytes((6, 0)) + steps
    for dialect in dict.fromkeys(
        name for spec, name in FORMS if spec.protocol == "DS4D"
    ):
        steps = b""
        for name, frame in by_name.items():
            if name.startswith("DS4D.") and name.endswith("/" + dialect):
                steps += _steps(0 if "WORK" in name or "REQ" in name else 1, frame)
        yield bytes((0, 0)) + steps[:700]
        yield bytes((4, 0)) + steps[:700]


def _steps(channel: int, data: bytes) -> bytes:
    found = b""
    while data:
        size = min(len(data) - 1 | 1, 123)
        size = size if size <= len(data) else size - 2 if size > 1 else 1
        found += bytes((channel | (size - 1) // 2 << 2,)) + data[:size]
        data = data[size:]
    return found


FRAMING: Final = Target(
    "framing", "frames in the bytes of one direction", check_framing, seeds_framing, 900
)
OBSERVER: Final = Target(
    "observer",
    "both directions of a connection, or of a tensor-parallel pair",
    check_observer,
    seeds_observer,
    900,
)
