"""TCP reassembly of any segments, in any order, from any senders.

The input is a list of segments in a compact form, so that a mutation changes what a
segment says rather than breaks its container. Invariants: any segments give events,
never an exception; offsets of a direction follow each other; the books balance; the
same whether packets come in one batch or one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from struct import Struct
from typing import Any, Final, NamedTuple

from ds4proto.pcap.build import build_tcp
from ds4proto.pcap.reader import open_capture
from ds4proto.pcap.types import Endpoint, LinkType
from ds4proto.pcap.writer import PcapWriter
from ds4proto.trace.decoder import Decoder
from ds4proto.trace.tcp import Join, Reassembler
from ds4proto.trace.tcp_events import Closed, Data, End, Gap, Opened, StreamEvent
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["TCP", "Segment", "pack", "segments"]

_FORM: Final = Struct("<BBHBB")
"""Who and flags, payload length, sequence number, acknowledgement, odds."""
A: Final = (Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 8_001))
B: Final = (Endpoint("10.0.0.3", 40_001), Endpoint("10.0.0.2", 8_001))
FIN, SYN, RST, ACK = 1, 2, 4, 16
_FLAGS: Final = (ACK, ACK | 8, SYN, SYN | ACK, FIN | ACK, RST, FIN | SYN, 0)
_BASES: Final = (0, 0xFFFF_FF00, 0x7FFF_FF80, 0x8000_0000)
MS: Final = 1_000_000


class Segment(NamedTuple):
    """One packet: its sender, what it says, and how much of it was captured."""

    second: bool
    from_b: bool
    flags: int
    seq: int
    ack: int
    size: int
    kept: int | None
    wait_ns: int
    other: bool


def segments(data: bytes) -> Iterator[Segment]:
    """Read segments; a byte of each names one of four places in sequence space."""
    usable = len(data) - len(data) % _FORM.size
    for who, size, number, ack, odds in _FORM.iter_unpack(data[:usable]):
        base = _BASES[who >> 5 & 3]
        seq = (base + number) & 0xFFFF_FFFF
        yield Segment(
            bool(who & 16),
            bool(who & 1),
            _FLAGS[who >> 1 & 7],
            seq,
            (base + 4 * ack) & 0xFFFF_FFFF,
            size % 64 if odds & 4 else size,
            size // 2 if odds & 1 else None,
            40_000 * MS if odds & 2 else MS,
            bool(odds & 8),
        )


def pack(items: Iterable[tuple[int, ...]]) -> bytes:
    """Return the input of rows: who, length, number, acknowledgement, odds."""
    return b"".join(_FORM.pack(*item) for item in items)


def check(data: bytes) -> None:
    """Take options from the first byte, segments from the rest."""
    if not data:
        return
    capture = _capture(data[1:])
    options: dict[str, Any] = {
        "join": "turn" if data[0] & 1 else "batch",
        "grace_packets": data[0] >> 4,
        "max_pending": 600 if data[0] & 2 else 16 << 20,
        "max_streams": 2 if data[0] & 4 else 65_536,
        "max_piece": 100 if data[0] & 8 else 1 << 20,
    }
    whole = _heard(capture, 1 << 20, options)
    pieces = _heard(capture, 1, options)
    if data[0] & 6 and any(item.second for item in segments(data[1:])):
        # Conversations of one batch are taken one after the other, so that a bound
        # over all of them is met elsewhere than where they come mixed.
        return
    for name, one, other in zip(("bytes", "gaps", "stats"), whole, pieces, strict=True):
        same(f"one batch or packet by packet: {name}", one, other)


def _capture(data: bytes) -> bytes:
    out = BytesIO()
    sink = PcapWriter(out, linktype=LinkType.RAW)
    now = 0
    for number, item in enumerate(segments(data), 1):
        now += item.wait_ns
        ends = B if item.second else A
        packet = build_tcp(
            ends[item.from_b],
            ends[not item.from_b],
            seq=item.seq,
            ack=item.ack,
            flags=item.flags,
            payload=_text(item.seq, item.size, other=item.other),
            linktype=LinkType.RAW,
            ident=number,
        )
        kept = packet if item.kept is None else packet[: 40 + item.kept]
        sink.packet(now, kept, origlen=len(packet))
    return out.getvalue()


@cache
def _letters() -> bytes:
    return bytes(k * 7 & 0xFF for k in range(1 << 10))


def _text(seq: int, size: int, *, other: bool) -> bytes:
    """Return the bytes at a place of sequence space; ``other`` ones contradict them."""
    start = seq & 0xFF
    found = _letters()[start : start + size]
    return bytes(byte ^ 0x55 for byte in found) if other else found


def _heard(capture: bytes, step: int, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    join: Join = options["join"]
    reassembler = Reassembler(**{**options, "join": join})
    decoder = Decoder(start_ns=0)
    books = _Books()
    for batch in open_capture(BytesIO(capture), block_bytes=step):
        for event in reassembler.feed(batch):
            books.take(event)
            list(decoder.feed(event))
        if reassembler._context.pending_bytes > options["max_pending"] + (1 << 17):
            broken("what waits behind holes is bounded", held=options["max_pending"])
    for event in reassembler.finish():
        books.take(event)
        list(decoder.feed(event))
    books.close()
    return books.result()


class _Books:
    """Sorts events into streams and checks what must hold of any events."""

    def __init__(self) -> None:
        self._opened: dict[int, Opened] = {}
        self._bytes: dict[tuple[int, str], bytearray] = defaultdict(bytearray)
        self._at: dict[tuple[int, str], int] = defaultdict(int)
        self._gaps: dict[tuple[int, str], list[tuple[int, int, str]]] = defaultdict(
            list
        )
        self._stats: dict[int, Any] = {}

    def take(self, event: StreamEvent) -> None:
        """Take one event."""
        number = event.stream
        if isinstance(event, Opened):
            if number in self._opened:
                broken("a stream opens once", stream=number)
            self._opened[number] = event
            return
        if number not in self._opened or number in self._stats:
            broken("events lie between opening and end", stream=number, event=event)
        if isinstance(event, End):
            self._stats[number] = event.stats
        elif not isinstance(event, Closed):
            self._extend(event)

    def _extend(self, event: Data | Gap) -> None:
        key = event.stream, event.direction
        if event.offset != self._at[key]:
            broken("offsets follow each other", due=self._at[key], event=event)
        if isinstance(event, Gap):
            if event.length <= 0:
                broken("a gap has a length", event=event)
            self._join_gap(key, event)
            self._at[key] += event.length
            return
        size = len(event.data)
        last = event.offset + size - 1
        if not size or event.at(event.offset) != (event.packet, event.time_ns):
            broken("a piece begins in its first packet", event=event)
        if event.at(last) != (event.last_packet, event.last_time_ns):
            broken("a piece ends in its last packet", event=event)
        self._bytes[key] += event.data
        self._at[key] += size

    def _join_gap(self, key: tuple[int, str], event: Gap) -> None:
        gaps = self._gaps[key]
        if gaps and gaps[-1][2] == event.reason:
            start, length, reason = gaps[-1]
            if start + length == event.offset:
                gaps[-1] = start, length + event.length, reason
                return
        gaps.append((event.offset, event.length, event.reason))

    def close(self) -> None:
        """Balance the books of every stream."""
        if set(self._stats) != set(self._opened):
            broken(
                "every stream ends", opened=len(self._opened), ended=len(self._stats)
            )
        for stream, stats in self._stats.items():
            for way in ("a>b", "b>a"):
                half = stats.of(way)
                gaps = self._gaps[stream, way]
                lost = sum(n for _, n, why in gaps if why == "lost")
                cut = sum(n for _, n, why in gaps if why != "lost")
                told = half.unique_bytes, half.lost_bytes, half.not_captured_bytes
                seen = self._at[stream, way] - lost, lost, cut
                if told != seen:
                    broken("bytes and gaps are those counted", told=told, seen=seen)
                parts = (
                    half.unique_bytes + half.retransmitted_bytes + half.discarded_bytes
                )
                if half.payload_bytes != parts:
                    broken("payload is the sum of its parts", stats=half)

    def result(self) -> tuple[Any, Any, Any]:
        """Return bytes, gaps and counts of every stream."""
        stats = {number: repr(stats) for number, stats in self._stats.items()}
        return dict(self._bytes), dict(self._gaps), stats


def seeds() -> Iterator[bytes]:
    """Yield conversations: whole, in disorder, with holes, repeats and two streams."""
    shake = [(4, 0, 100, 0, 0), (7, 0, 200, 25, 0), (0, 0, 101, 51, 0)]
    talk = [(0, 40, 101 + 40 * k, 51, 0) for k in range(5)]
    answers = [(1, 20, 201 + 20 * k, 90, 0) for k in range(3)]
    end = [(8, 0, 301, 70, 0), (9, 0, 261, 76, 0)]
    for options in (0, 1, 2, 0x11, 0x1F):
        head = bytes((options,))
        yield head + pack(shake + talk + answers + end)
        yield head + pack(shake + talk[::-1] + end)
        yield head + pack(shake + talk[::2] + answers + talk[1::2] + end)
        yield head + pack(talk[::2] + answers + [(10, 0, 1, 0, 0)])
        yield head + pack([*shake, *talk, *((w | 16, *rest) for w, *rest in talk)])
        yield head + pack(shake + [(w, n, s, a, 9) for w, n, s, a, _ in talk] + talk)
        yield head + pack([(32 | w, n, s, a, o) for w, n, s, a, o in shake + talk])
        yield head + pack([(w, n, s, a, 3) for w, n, s, a, _ in shake + talk + end])


TCP: Final = Target("tcp", "TCP segments into streams", check, seeds, most=400)
