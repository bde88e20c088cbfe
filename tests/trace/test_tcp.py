"""TCP reassembly on made-up conversations, each with a known answer."""

from __future__ import annotations

import io
import random
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.pcap import CaptureError, Endpoint, PcapWriter, build_tcp, open_capture
from ds4proto.trace.tcp import Reassembler, read_streams, stream_file_events
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


BOTH = pytest.mark.parametrize("block_bytes", [1, 1 << 20])


def shaken(isn_a=100, isn_b=500):
    tape = Tape()
    tape.put(0, isn_a, flags=SYN)
    tape.put(1, isn_b, ack=isn_a + 1, flags=SYN | ACK, wait=3 * MS)
    tape.put(0, isn_a + 1, ack=isn_b + 1)
    return tape


@BOTH
def test_a_plain_conversation(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"hello ").put(0, 107, b"world").put(1, 501, b"fine", ack=112)
    tape.put(0, 112, b"bye", ack=505)
    tape.put(0, 115, flags=FIN | ACK).put(1, 505, ack=116).put(1, 505, flags=FIN | ACK)
    tape.put(0, 116, ack=506)
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"hello worldbye"
    assert heard.text("b>a") == b"fine"
    assert heard.closed == [(1, "a>b", "fin"), (1, "b>a", "fin")]
    (opened,) = heard.opened.values()
    assert (opened.a, opened.b, opened.syn_seen, opened.packet) == (A, B, True, 1)
    stats = heard.stats[1]
    assert (stats.first_packet, stats.last_packet) == (1, 11)
    assert stats.min_rtt_ns == MS
    assert (stats.ab.segments, stats.ab.data_segments, stats.ba.segments) == (7, 3, 4)
    assert (stats.ab.payload_bytes, stats.ab.retransmitted_bytes) == (14, 0)
    assert (stats.ab.syn, stats.ab.fin, stats.ba.syn, stats.ba.fin) == (True,) * 4


def test_round_trip_of_the_handshake():
    tape = shaken()
    tape.put(0, 101, b"x", ack=501).put(1, 501, b"y", ack=102, wait=9 * MS)
    assert hear(tape).stats[1].min_rtt_ns == 3 * MS


def test_turns_keep_capture_order_and_batches_do_not():
    tape = shaken()
    for k in range(4):
        tape.put(0, 101 + 4 * k, b"ping").put(1, 501 + 4 * k, b"pong")
    turns = [
        (e.direction, bytes(e.data)) for e in hear(tape).events if isinstance(e, Data)
    ]
    assert turns == [("a>b", b"ping"), ("b>a", b"pong")] * 4
    joined = [
        (e.direction, bytes(e.data))
        for e in hear(tape, join="batch").events
        if isinstance(e, Data)
    ]
    assert joined == [("a>b", b"ping" * 4), ("b>a", b"pong" * 4)]


def test_marks_tell_packet_and_time_of_each_byte():
    tape = shaken()
    for k in range(5):
        tape.put(0, 101 + 10 * k, bytes([k]) * 10)
    (data,) = [e for e in hear(tape).events if isinstance(e, Data)]
    assert [data.at(offset)[0] for offset in (0, 9, 10, 25, 49)] == [4, 4, 5, 6, 8]
    assert data.at(30)[1] == data.time_ns + 3 * MS
    assert (data.packet, data.last_packet) == (4, 8)


def test_pieces_are_bounded():
    tape = shaken()
    for k in range(100):
        tape.put(0, 101 + 1000 * k, bytes([k]) * 1000)
    heard = hear(tape, max_piece=4096)
    assert max(len(e.data) for e in heard.events if isinstance(e, Data)) <= 5096
    assert len(heard.text()) == 100_000


@BOTH
def test_retransmission_overlap_and_conflict(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"0123456789")
    tape.put(0, 101, b"0123456789")  # again
    tape.put(0, 106, b"56789abcde")  # half of it new
    tape.put(0, 111, b"abXde")  # other content
    tape.put(0, 108, b"7Y9abcdefgh")  # other content, and three new bytes
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"0123456789abcdefgh"
    stats = heard.stats[1].ab
    assert stats.retransmitted_bytes == 10 + 5 + 5 + 8
    assert (stats.retransmissions, stats.overlaps, stats.conflicts) == (2, 2, 2)
    assert stats.unique_bytes == 18


@BOTH
def test_reordering(block_bytes):
    tape = shaken()
    tape.put(0, 104, b"def").put(0, 110, b"jkl").put(0, 107, b"ghi").put(0, 101, b"abc")
    tape.put(0, 113, b"mno")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abcdefghijklmno"
    stats = heard.stats[1].ab
    assert (stats.out_of_order, stats.retransmitted_bytes, stats.lost_bytes) == (
        3,
        0,
        0,
    )
    packets = [(e.offset, e.packet) for e in heard.events if isinstance(e, Data)]
    assert packets == [(0, 7), (3, 4), (6, 6), (9, 5), (12, 8)]


@BOTH
def test_first_copy_wins_behind_a_hole(block_bytes):
    tape = shaken()
    tape.put(0, 105, b"EFGH").put(0, 103, b"cdefghij").put(0, 101, b"abXXefghijkl")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abcdEFGHijkl"
    stats = heard.stats[1].ab
    assert stats.payload_bytes == 24
    assert (stats.unique_bytes, stats.retransmitted_bytes) == (12, 12)
    assert stats.conflicts == 3


@BOTH
def test_acknowledged_hole_is_given_up_after_a_few_packets(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc").put(0, 110, b"xyz")
    for k in range(40):
        tape.put(0, 113 + k, b".").put(1, 501, ack=114 + k)
    heard = hear(tape, block_bytes=block_bytes, grace_packets=8)
    assert heard.text() == b"abc??????xyz" + b"." * 40
    assert heard.gaps[1, "a>b"] == [(3, 6, "lost")]
    place = next(k for k, e in enumerate(heard.events) if isinstance(e, Gap))
    assert heard.events[place + 1].data == b"xyz"
    # Behind the gap all is in order again, so the rest joins, or comes as it is read.
    last = [e for e in heard.events if isinstance(e, Data)][-1]
    assert last.marks is not None or place < len(heard.events) - 30


@BOTH
def test_late_segment_within_the_grace_fills_the_hole(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc").put(0, 107, b"ghi").put(1, 501, ack=110)
    tape.put(0, 104, b"def").put(0, 110, b"jkl")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abcdefghijkl"


@BOTH
def test_acknowledgement_of_part_of_a_hole(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc").put(0, 110, b"jkl")
    tape.put(1, 501, ack=106).put(1, 501, ack=106).put(1, 501, ack=106)
    tape.put(0, 106, b"fghi")
    heard = hear(tape, block_bytes=block_bytes, grace_packets=1)
    assert heard.text() == b"abc??fghijkl"


def test_unacknowledged_hole_waits_for_the_end():
    tape = shaken()
    tape.put(0, 101, b"abc").put(0, 105, b"e")
    for k in range(100):
        tape.put(0, 106 + k, b".").put(1, 501, ack=104)
    heard = hear(tape, grace_packets=1)
    assert heard.gaps[1, "a>b"] == [(3, 1, "lost")]
    assert isinstance(heard.events[-1], End)
    assert heard.text() == b"abc?e" + b"." * 100


def test_hole_is_given_up_when_too_much_waits_or_for_too_long():
    tape = shaken()
    tape.put(0, 101, b"abc")
    for k in range(60):
        tape.put(0, 105 + 1000 * k, bytes(1000))
    first = next(e for e in hear(tape, max_pending=20_000).events if isinstance(e, Gap))
    assert (first.offset, first.length) == (3, 1)
    heard = hear(tape, max_hold_ns=10 * MS)
    last = [e for e in heard.events if isinstance(e, Data)][-1]
    assert (last.marks is not None, len(heard.text())) == (True, 60_004)


@BOTH
def test_last_segment_lost_shows_when_the_sender_goes_past_it(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc").put(0, 109, flags=FIN | ACK)
    tape.put(1, 501, b"data").put(1, 510, ack=110)
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abc?????"
    assert heard.text("b>a") == b"data?????"
    assert (1, "a>b", "fin") in heard.closed


@BOTH
def test_keep_alives_and_window_probes(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc").put(1, 501, ack=104)
    tape.put(0, 103).put(1, 501, ack=104)  # keep-alive without data
    tape.put(0, 103, b"\0")  # keep-alive with a byte of garbage
    tape.put(0, 104, b"d", wait=300 * MS).put(0, 104, b"defg")  # probe, then the rest
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abcdefg"
    stats = heard.stats[1].ab
    assert (stats.keep_alives, stats.conflicts, stats.lost_bytes) == (2, 0, 0)
    assert stats.retransmitted_bytes == 2


@BOTH
@pytest.mark.parametrize("isn", [100, 0xFFFF_FFF0])
def test_four_tuple_used_again(block_bytes, isn):
    tape = shaken(isn)
    tape.put(0, isn + 1, b"first").put(1, 501, b"one")
    tape.put(0, isn + 70_000, flags=SYN).put(
        1, 9_000, flags=SYN | ACK, ack=isn + 70_001
    )
    tape.put(0, isn + 70_001, b"second").put(1, 9_001, b"two")
    heard = hear(tape, block_bytes=block_bytes)
    assert [heard.text("a>b", k) for k in (1, 2)] == [b"first", b"second"]
    assert [heard.text("b>a", k) for k in (1, 2)] == [b"one", b"two"]
    assert [heard.opened[k].syn_seen for k in (1, 2)] == [True, True]
    kinds = [type(e).__name__ for e in heard.events]
    assert kinds.index("End") < len(kinds) - 1 - kinds[::-1].index("Opened")


def test_used_again_by_the_other_side():
    tape = shaken()
    tape.put(0, 101, b"first")
    tape.put(1, 7_000, flags=SYN).put(0, 80, flags=SYN | ACK, ack=7_001)
    tape.put(1, 7_001, b"mine")
    heard = hear(tape)
    assert (heard.opened[2].a, heard.opened[2].b) == (B, A)
    assert heard.text("a>b", 2) == b"mine"


@BOTH
def test_used_again_without_a_captured_syn(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"first")
    for k in range(10):
        tape.put(0, 0xA000_0000 + k, bytes([65 + k]))
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"first"
    assert heard.text("a>b", 2) == b"DEFGHIJ"
    assert heard.stats[1].ab.discarded_bytes == 3
    assert not heard.opened[2].syn_seen


@BOTH
def test_repeated_syn_is_the_same_stream(block_bytes):
    tape = Tape()
    tape.put(0, 100, flags=SYN).put(0, 100, flags=SYN, wait=1000 * MS)
    tape.put(1, 500, flags=SYN | ACK, ack=101).put(1, 500, flags=SYN | ACK, ack=101)
    tape.put(0, 101, b"x")
    heard = hear(tape, block_bytes=block_bytes)
    assert (len(heard.opened), heard.text()) == (1, b"x")


@BOTH
def test_simultaneous_open(block_bytes):
    tape = Tape()
    tape.put(0, 100, flags=SYN).put(1, 500, flags=SYN)
    tape.put(0, 100, flags=SYN | ACK, ack=501).put(1, 500, flags=SYN | ACK, ack=101)
    tape.put(0, 101, b"x").put(1, 501, b"y")
    heard = hear(tape, block_bytes=block_bytes)
    assert (len(heard.opened), heard.text(), heard.text("b>a")) == (1, b"x", b"y")


@BOTH
def test_data_in_the_syn(block_bytes):
    tape = Tape()
    tape.put(0, 100, b"fast", flags=SYN).put(1, 500, b"open", flags=SYN | ACK, ack=105)
    tape.put(0, 105, b"er").put(1, 505, b"ed")
    heard = hear(tape, block_bytes=block_bytes)
    assert (heard.text(), heard.text("b>a")) == (b"faster", b"opened")
    assert heard.stats[1].min_rtt_ns == MS


@BOTH
def test_capture_starts_in_mid_stream(block_bytes):
    tape = Tape()
    tape.put(0, 0x8000_0000, ack=77).put(1, 77, b"answer", ack=0x8000_0000)
    tape.put(0, 0x8000_0000, b"more")
    heard = hear(tape, block_bytes=block_bytes)
    assert (heard.opened[1].a, heard.opened[1].syn_seen) == (B, False)
    assert (heard.text("a>b"), heard.text("b>a")) == (b"answer", b"more")
    assert heard.opened[1].packet == 2


def test_bare_acknowledgements_alone_open_nothing():
    tape = Tape()
    tape.put(0, 5, ack=9).put(1, 9, ack=5)
    assert hear(tape).events == []


@BOTH
def test_bytes_before_the_start_are_discarded(block_bytes):
    tape = Tape()
    tape.put(0, 1000, b"start").put(0, 990, b"0123456789start")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"start"
    stats = heard.stats[1].ab
    assert (stats.discarded_bytes, stats.retransmitted_bytes) == (10, 5)


@BOTH
def test_snap_length(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"0123456789", keep=4).put(0, 111, b"abcdefghij", keep=0)
    tape.put(0, 121, b"whole").put(1, 501, b"cut off", keep=6)
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"0123" + b"?" * 16 + b"whole"
    assert heard.gaps[1, "a>b"] == [(4, 6, "not captured"), (10, 10, "not captured")]
    assert heard.gaps[1, "b>a"] == [(6, 1, "not captured")]


@BOTH
def test_snap_length_behind_a_hole(block_bytes):
    tape = shaken()
    tape.put(0, 111, b"abcdefghij", keep=2).put(0, 101, b"0123456789")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"0123456789ab????????"


@BOTH
def test_sequence_numbers_wrap(block_bytes):
    tape = shaken(isn_a=0xFFFF_FFFA)
    tape.put(0, 0xFFFF_FFFB, b"0123456789")
    tape.put(0, 8, b"later").put(0, 5, b"abc").put(0, 13, b"end")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"0123456789abclaterend"


def test_offsets_go_on_past_four_gibibytes():
    tape = shaken(isn_a=0)
    step = 1 << 29
    at = 1
    for _ in range(20):  # holes of half a gibibyte each, given up at once
        tape.put(0, at & 0xFFFF_FFFF, b"mark")
        at += step
    tape.put(0, (at + 9) & 0xFFFF_FFFF, b"last")
    reassembler = Reassembler(max_pending=1)
    events = []
    for batch in open_capture(tape.source()):
        events += reassembler.feed(batch)
    events += reassembler.finish()
    offsets = [e.offset for e in events if isinstance(e, Data)]
    assert offsets == [k * step for k in range(20)] + [20 * step + 9]
    assert offsets[-1] > 1 << 33


def test_reset():
    tape = shaken()
    tape.put(0, 101, b"abc").put(1, 501, flags=RST).put(1, 501, flags=RST)
    tape.put(0, 104, b"still on its way")
    heard = hear(tape)
    assert heard.closed == [(1, "b>a", "rst")]
    assert heard.text() == b"abcstill on its way"
    assert heard.stats[1].ba.rst


def test_refused_connection_and_forged_reset():
    tape = Tape()
    tape.put(0, 100, flags=SYN).put(1, 0, flags=RST | ACK, ack=101)
    assert hear(tape).closed == [(1, "b>a", "rst")]
    tape = shaken()
    tape.put(1, 501, b"x").put(1, 0x9000_0000, flags=RST).put(1, 502, b"y")
    heard = hear(tape)
    assert (heard.closed, heard.text("b>a")) == ([], b"xy")


@BOTH
def test_data_after_fin_is_discarded(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc", flags=FIN | ACK).put(0, 104, b"zzz").put(0, 103, b"czz")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abc"
    assert heard.closed == [(1, "a>b", "fin")]
    stats = heard.stats[1].ab
    assert (stats.discarded_bytes, stats.retransmitted_bytes) == (5, 1)


@BOTH
@pytest.mark.parametrize("ident", [None, 0])
def test_packets_captured_twice(ident, block_bytes):
    tape = shaken()
    for k in range(50):
        for _ in range(2):
            tape.put(0, 101 + 4 * k, b"ping", wait=1000, ident=ident or 1000 + k)
        for _ in range(2):
            tape.put(1, 501 + 2 * k, b"ok", wait=1000, ident=ident or 1000 + k)
    heard = hear(tape, block_bytes=block_bytes)
    assert (heard.text(), heard.text("b>a")) == (b"ping" * 50, b"ok" * 50)
    stats = heard.stats[1]
    assert (stats.ab.duplicate_packets, stats.ba.duplicate_packets) == (50, 50)
    assert (stats.ab.retransmissions, stats.ab.retransmitted_bytes) == (0, 200)
    assert (stats.ab.segments, stats.ab.data_segments) == (102, 100)


def test_true_retransmission_has_another_ident():
    tape = shaken()
    tape.put(0, 101, b"ping", wait=1000).put(0, 101, b"ping", wait=1000)
    stats = hear(tape).stats[1].ab
    assert (stats.duplicate_packets, stats.retransmissions) == (0, 1)


def test_made_up_acknowledgements_do_no_harm():
    rng = random.Random(5)
    tape = shaken()
    for k in range(200):
        tape.put(0, 101 + 3 * k, b"abc", ack=rng.getrandbits(32))
        tape.put(1, 501 + 2 * k, b"xy", ack=101 + 50_000)
    heard = hear(tape)
    assert (heard.text(), heard.text("b>a")) == (b"abc" * 200, b"xy" * 200)
    assert not any(heard.gaps.values())


@BOTH
def test_delayed_acknowledgements_are_counted(block_bytes):
    tape = shaken()
    at = 101
    for _ in range(5):
        tape.put(0, at, b"head").put(1, 501, ack=at + 4, wait=40 * MS)
        tape.put(0, at + 4, b"payload", wait=MS)
        at += 11
    tape.put(0, at, b"x").put(1, 501, ack=at + 1, wait=900 * MS).put(0, at + 1, b"y")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.stats[1].ab.delayed_ack_pauses == 5
    assert heard.stats[1].ba.delayed_ack_pauses == 0


def test_small_segments_are_counted():
    tape = shaken()
    tape.put(0, 101, bytes(255)).put(0, 356, bytes(256)).put(0, 612, b"x")
    stats = hear(tape).stats[1].ab
    assert (stats.small_segments, stats.data_segments, stats.segments) == (2, 3, 5)


def test_many_streams_at_once():
    tape = Tape()
    want = {}
    rng = random.Random(7)
    streams = [
        (Endpoint("10.0.0.1", 1000 + k % 5), Endpoint(f"10.0.1.{k // 5}", 80))
        for k in range(40)
    ]
    sent = dict.fromkeys(range(40), 0)
    for _ in range(2000):
        k = rng.randrange(40)
        data = rng.randbytes(rng.randrange(1, 30))
        tape.put(0, 1 + sent[k], data, ends=streams[k])
        sent[k] += len(data)
        want[k] = want.get(k, b"") + data
    for options in ({}, {"join": "batch"}, {"block_bytes": 3000}):
        heard = hear(tape, **options)
        got = {
            streams.index((opened.a, opened.b)): heard.text("a>b", number)
            for number, opened in heard.opened.items()
        }
        assert got == want
        numbers = [e.packet for e in heard.events if isinstance(e, Data)]
        assert numbers == sorted(numbers)


def test_streams_are_bounded():
    tape = Tape()
    for k in range(10):
        tape.put(0, 1, b"x", ends=(Endpoint("10.0.0.1", 1000 + k), B))
    heard = hear(tape, max_streams=3)
    kinds = [type(e).__name__ for e in heard.events]
    assert len(heard.opened) == 10
    live = most = 0
    for kind in kinds:
        live += (kind == "Opened") - (kind == "End")
        most = max(most, live)
    assert most == 3


def test_ipv6_and_ipv4_streams():
    six = (Endpoint("::1", 5), Endpoint("::2", 6))
    tape = Tape()
    tape.put(0, 1, b"four").put(0, 1, b"six", ends=six).put(1, 9, b"back", ends=six)
    heard = hear(tape)
    assert (heard.text(), heard.text("a>b", 2)) == (b"four", b"six")
    assert (heard.text("b>a", 2), heard.opened[2].b) == (b"back", six[1])


def test_a_stream_from_a_port_to_itself():
    me = (A, A)
    tape = Tape(*me)
    tape.put(0, 100, flags=SYN).put(0, 100, flags=SYN | ACK, ack=101)
    tape.put(0, 101, b"self").put(0, 105, b"talk")
    assert hear(tape).text() == b"selftalk"


def test_memory_stays_bounded():
    packet = build_tcp(A, B, seq=0, payload=bytes(1448), linktype=101)

    class Endless(io.RawIOBase):
        """32 MiB of segments in order, made on the way."""

        def __init__(self):
            head = io.BytesIO()
            PcapWriter(head, linktype=101)
            self.left, self.head, self.seq = 22_000, head.getvalue(), 0

        def read(self, _=-1):
            if self.head:
                out, self.head = self.head, b""
                return out
            out = bytearray()
            while self.left and len(out) < 200_000:
                out += bytes(8) + len(packet).to_bytes(4, "little") * 2 + packet
                at = len(out) - len(packet) + 24
                out[at : at + 4] = self.seq.to_bytes(4, "big")
                # every hundredth segment is missing
                self.seq += 1448 if self.left % 100 else 2896
                self.left -= 1
            return bytes(out)

    tracemalloc.start()
    try:
        total = sum(len(e.data) for e in read_streams(Endless()) if isinstance(e, Data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 22_000 * 1448
    assert peak < 40 << 20


def test_damage_ends_the_streams_before_it_is_told():
    tape = shaken()
    tape.put(0, 101, b"abc")
    data = tape.out.getvalue() + b"\xff" * 64
    events = []

    def take_all():
        for event in read_streams(io.BytesIO(data)):
            events.append(event)

    with pytest.raises(CaptureError):
        take_all()
    assert Heard(events).text() == b"abc"


def test_plain_stream_file(tmp_path):
    path = tmp_path / "one.bin"
    path.write_bytes(bytes(range(256)) * 9000)
    heard = Heard(stream_file_events(path, direction="b>a"))
    assert heard.text("b>a") == path.read_bytes()
    assert heard.opened[1].a.host == str(path)


@st.composite
def deliveries(draw):
    """Bytes, and segments of them: cut anywhere, repeated, in disorder, some lost."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    data = rng.randbytes(rng.randrange(1, 600))
    segments = []
    at = 0
    while at < len(data):
        size = rng.randrange(1, 40)
        segments.append((at, min(at + size, len(data))))
        at += size
    for _ in range(rng.randrange(0, 8)):
        low = rng.randrange(len(data))
        segments.append((low, min(len(data), low + rng.randrange(1, 80))))
    spread = rng.choice((0, 3, 50))
    order = sorted(range(len(segments)), key=lambda k: k + rng.random() * spread)
    loss = rng.choice((0, 0, 0.2))
    return data, [segments[k] for k in order if rng.random() >= loss]


@settings(max_examples=300, deadline=None)
@given(
    deliveries(),
    st.sampled_from([0, 100, 0xFFFF_FF00]),
    st.sampled_from([1, 300, 1 << 20]),
    st.sampled_from(["turn", "batch"]),
    st.booleans(),
)
def test_any_delivery_of_a_stream(delivery, isn, block_bytes, join, replies):
    data, segments = delivery
    tape = Tape()
    tape.put(0, isn, flags=SYN)
    for k, (low, high) in enumerate(segments):
        tape.put(0, isn + 1 + low, data[low:high])
        if replies:
            tape.put(1, 501 + k, b"r", ack=isn + 1)
    heard = hear(tape, block_bytes=block_bytes, join=join)
    seen = bytearray(b"?" * len(data))
    for low, high in segments:
        seen[low:high] = data[low:high]
    lost = set(range(len(data)))
    for low, high in segments:
        lost -= set(range(low, high))
    got = heard.text()
    gaps = {k for at, n, _ in heard.gaps[1, "a>b"] for k in range(at, at + n)}
    assert all(got[k] == seen[k] for k in range(len(got)) if k not in gaps)
    top = max((high for _, high in segments), default=0)
    assert (len(got), gaps) == (top, {k for k in lost if k < top})
    stats = heard.stats[1].ab
    assert stats.unique_bytes == len(data) - len(lost)
    assert stats.conflicts == 0
    if replies:
        assert heard.text("b>a") == b"r" * len(segments)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([200, 1 << 20]))
def test_chaos_keeps_the_books(seed, block_bytes):
    rng = random.Random(seed)
    tape = Tape()
    for _ in range(rng.randrange(80)):
        tape.put(
            rng.randrange(2),
            rng.choice((rng.randrange(200), rng.getrandbits(32), 0xFFFF_FFF0)),
            rng.randbytes(rng.choice((0, 0, 1, 5, 60))),
            ack=rng.choice((rng.randrange(300), rng.getrandbits(32))),
            flags=rng.choice((ACK, ACK, ACK, PSH | ACK, SYN, SYN | ACK, FIN, RST)),
            keep=rng.choice((None, None, 3, 0)),
            wait=rng.choice((0, MS, 60_000 * MS)),
        )
    grace = rng.randrange(5)
    heard = hear(tape, block_bytes=block_bytes, grace_packets=grace)
    again = hear(tape, block_bytes=1, grace_packets=grace)
    assert again.stats == heard.stats
    assert (again.bytes, again.gaps) == (heard.bytes, heard.gaps)
    packets = sum(s.ab.segments + s.ba.segments for s in heard.stats.values())
    assert packets <= 80
