"""Captures of TCP conversations under construction, and a check of what they give."""

from __future__ import annotations

import io
from collections import defaultdict

from ds4proto.pcap import Endpoint, PcapWriter, build_tcp, open_capture
from ds4proto.trace.tcp import Reassembler
from ds4proto.trace.tcp_events import Closed, Data, End, Gap, Opened

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
A, B = Endpoint("10.0.0.1", 40000), Endpoint("10.0.0.2", 8001)
MS = 1_000_000


class Tape:
    """A capture under construction: raw IP packets, one millisecond apart."""

    def __init__(self, a=A, b=B):
        self.out = io.BytesIO()
        self.sink = PcapWriter(self.out, linktype=101)
        self.now = 0
        self.ident = 0
        self.ends = (a, b)

    def put(self, side, seq, data=b"", *, ack=0, flags=ACK, keep=None, wait=MS,
            ends=None, ident=None):  # fmt: skip
        """Add a segment of side 0 or 1; `keep` is how much payload is captured."""
        self.now += wait
        self.ident += 1
        pair = ends or self.ends
        packet = build_tcp(
            pair[side],
            pair[1 - side],
            seq=seq,
            ack=ack,
            flags=flags,
            payload=data,
            linktype=101,
            ident=self.ident if ident is None else ident,
        )
        kept = packet if keep is None else packet[: 40 + keep]
        self.sink.packet(self.now, kept, origlen=len(packet))
        return self

    def source(self):
        return io.BytesIO(self.out.getvalue())


class Heard:
    """Events sorted into streams; checks what must hold of any events."""

    def __init__(self, events):
        self.events = list(events)
        self.opened = {}
        self.bytes = defaultdict(bytearray)
        self.at = defaultdict(int)
        self.gaps = defaultdict(list)
        self.closed = []
        self.stats = {}
        for event in self.events:
            if isinstance(event, Opened):
                assert event.stream not in self.opened
                self.opened[event.stream] = event
                continue
            assert event.stream in self.opened
            assert event.stream not in self.stats, "event after the end"
            if isinstance(event, End):
                self.stats[event.stream] = event.stats
            elif isinstance(event, Closed):
                self.closed.append((event.stream, event.direction, event.kind))
            else:
                self._extend(event)
        assert set(self.stats) == set(self.opened)
        for stream, stats in self.stats.items():
            for name in ("a>b", "b>a"):
                self._account(stats.of(name), stream, name)

    def _extend(self, event):
        key = event.stream, event.direction
        assert event.offset == self.at[key], "bytes out of order"
        if isinstance(event, Gap):
            assert event.length > 0
            self.gaps[key].append((event.offset, event.length, event.reason))
            self.bytes[key] += b"?" * min(event.length, 1000)
            self.at[key] += event.length
        else:
            assert isinstance(event, Data)
            assert len(event.data)
            if event.marks is not None:
                assert event.marks.offset[0] == event.offset
            assert event.at(event.offset) == (event.packet, event.time_ns)
            last = event.offset + len(event.data) - 1
            assert event.at(last) == (event.last_packet, event.last_time_ns)
            self.bytes[key] += event.data
            self.at[key] += len(event.data)

    def _account(self, stats, stream, name):
        assert stats.payload_bytes == (
            stats.unique_bytes + stats.retransmitted_bytes + stats.discarded_bytes
        )
        assert self.at[stream, name] == stats.unique_bytes + stats.lost_bytes
        lost = sum(n for _, n, why in self.gaps[stream, name] if why == "lost")
        assert lost == stats.lost_bytes
        cut = sum(n for _, n, why in self.gaps[stream, name] if why != "lost")
        assert cut == stats.not_captured_bytes

    def text(self, direction="a>b", stream=1):
        return bytes(self.bytes[stream, direction])


def hear(tape, *, block_bytes=1 << 20, **options):
    reassembler = Reassembler(**options)
    events = []
    for batch in open_capture(tape.source(), block_bytes=block_bytes):
        events += reassembler.feed(batch)
    events += reassembler.finish()
    return Heard(events)


def shaken(isn_a=100, isn_b=500):
    tape = Tape()
    tape.put(0, isn_a, flags=SYN)
    tape.put(1, isn_b, ack=isn_a + 1, flags=SYN | ACK, wait=3 * MS)
    tape.put(0, isn_a + 1, ack=isn_b + 1)
    return tape
