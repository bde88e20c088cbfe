"""Repeats, disorder, holes and cut packets, each with a known answer."""

from __future__ import annotations

import random

import pytest

from ds4proto.trace.tcp_events import Data, End, Gap
from tests.trace.tcp_tape import (
    ACK,
    FIN,
    MS,
    SYN,
    Tape,
    hear,
    shaken,
)

BOTH = pytest.mark.parametrize("block_bytes", [1, 1 << 20])


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
@pytest.mark.parametrize("ack", [101, 0, 0xF000_0000])
def test_bytes_behind_a_syn_that_was_not_captured(block_bytes, ack):
    """The SYN-ACK tells where they began, unless its number is made up."""
    tape = Tape().put(1, 500, flags=SYN | ACK, ack=ack)
    tape.put(1, 501, b"answer", ack=105)
    tape.put(0, 1 << 28 if ack == 0 else 105, b"efgh", ack=507)
    heard = hear(tape, block_bytes=block_bytes)
    lost = [(e.direction, e.offset, e.length) for e in heard.events if type(e) is Gap]
    assert lost == ([("a>b", 0, 4)] if ack == 101 else [])
    assert heard.opened[1].syn_seen
    text = b"????efgh" if lost else b"efgh"
    assert (heard.text("a>b"), heard.text("b>a")) == (text, b"answer")


@BOTH
def test_a_side_that_sent_nothing_captured_but_its_acknowledgement(block_bytes):
    tape = Tape().put(1, 500, flags=SYN | ACK, ack=101)
    tape.put(1, 501, b"answer", ack=105).put(0, 105, ack=507)
    heard = hear(tape, block_bytes=block_bytes)
    lost = [(e.direction, e.offset, e.length) for e in heard.events if type(e) is Gap]
    assert lost == [("a>b", 0, 4)]


@BOTH
def test_a_syn_captured_behind_its_answer_has_the_last_word(block_bytes):
    tape = Tape().put(1, 500, flags=SYN | ACK, ack=90).put(0, 100, flags=SYN)
    tape.put(0, 101, b"abc", ack=501)
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abc"
    assert not [event for event in heard.events if type(event) is Gap]


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
def test_first_copy_wins_around_a_mark_of_bytes_never_seen(block_bytes):
    tape = shaken()
    tape.put(0, 115)  # the sender is past bytes that are not there
    tape.put(0, 111, b"abcdefghij").put(0, 116, b"FGHIJklmno")
    tape.put(0, 101, b"0123456789")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"0123456789abcdefghijklmno"
    assert heard.stats[1].ab.conflicts == 1


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
def test_data_after_fin_is_discarded(block_bytes):
    tape = shaken()
    tape.put(0, 101, b"abc", flags=FIN | ACK).put(0, 104, b"zzz").put(0, 103, b"czz")
    tape.put(0, 105, b"q")
    heard = hear(tape, block_bytes=block_bytes)
    assert heard.text() == b"abc"
    assert heard.closed == [(1, "a>b", "fin")]
    stats = heard.stats[1].ab
    assert (stats.discarded_bytes, stats.retransmitted_bytes) == (6, 1)


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
