"""TCP streams opening, carrying bytes and closing, each with a known answer."""

from __future__ import annotations

import io
import random
import tracemalloc

import pytest

from ds4proto.pcap import CaptureError, Endpoint, PcapWriter, build_tcp, open_capture
from ds4proto.trace.tcp import Reassembler, read_streams, stream_file_events
from ds4proto.trace.tcp_events import Data
from tests.trace.tcp_tape import (
    ACK,
    FIN,
    MS,
    RST,
    SYN,
    A,
    B,
    Heard,
    Tape,
    hear,
    shaken,
)

BOTH = pytest.mark.parametrize("block_bytes", [1, 1 << 20])


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


def test_events_of_several_streams_keep_capture_order():
    tape = Tape()
    other = (Endpoint("10.0.0.7", 7), B)
    for k in range(5):
        for ends in (tape.ends, other):
            tape.put(0, 1 + k, b"q", ends=ends).put(1, 1 + k, b"a", ends=ends)
    events = hear(tape).events
    numbers = [e.packet for e in events if isinstance(e, Data)]
    assert numbers == list(range(1, 21))


def test_padded_packets_of_one_size_join_to_their_own_bytes():
    out = io.BytesIO()
    sink = PcapWriter(out)
    seq = 1
    for k in range(1, 7):
        packet = build_tcp(A, B, seq=seq, payload=b"abcdef"[:k])
        sink.packet(k, packet.ljust(60, b"\xee"))
        seq += k
    heard = Heard(read_streams(io.BytesIO(out.getvalue())))
    assert heard.text() == b"aababcabcdabcdeabcdef"


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
    six = (Endpoint("fe80::1", 5), Endpoint("2001:db8::2", 6))
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
