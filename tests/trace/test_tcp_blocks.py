"""Order and numbers of streams do not depend on where a block of the file ends."""

from __future__ import annotations

from ds4proto.pcap import Endpoint
from ds4proto.trace.tcp_events import Closed, Data, Opened
from tests.trace.tcp_tape import ACK, RST, SYN, A, B, Tape, hear

C = Endpoint("10.0.0.3", 40_001)


def order(tape: Tape, block_bytes: int) -> list[tuple[str, int, str]]:
    return [
        (type(event).__name__, event.stream, getattr(event, "a", C).host)
        for event in hear(tape, block_bytes=block_bytes).events
        if isinstance(event, Opened | Data | Closed)
    ]


def test_two_one_way_conversations_come_in_the_order_of_the_capture() -> None:
    tape = Tape()
    tape.put(0, 101, b"a")
    tape.put(0, 201, b"c", ends=(C, B))
    tape.put(0, 102, flags=RST)
    whole = order(tape, 1 << 20)
    assert [(kind, stream) for kind, stream, _ in whole] == [
        ("Opened", 1), ("Data", 1), ("Opened", 2), ("Data", 2), ("Closed", 1),
    ]  # fmt: skip
    assert whole == order(tape, 1)


def test_streams_are_numbered_by_the_packets_that_open_them() -> None:
    # The first conversation is replaced by a new one with the same ports, after the
    # second has begun; it is taken first all the same.
    tape = Tape()
    tape.put(0, 100, flags=SYN)
    tape.put(0, 500, flags=SYN, ends=(C, B))
    tape.put(0, 90_000, flags=SYN)
    whole = [event for event in order(tape, 1 << 20) if event[0] == "Opened"]
    assert whole == [
        ("Opened", 1, A.host),
        ("Opened", 2, C.host),
        ("Opened", 3, A.host),
    ]
    assert whole == [event for event in order(tape, 1) if event[0] == "Opened"]


def test_a_conversation_that_never_opens_takes_no_number() -> None:
    tape = Tape()
    tape.put(0, 100, flags=ACK, ends=(C, B))
    tape.put(0, 500, b"data")
    heard = hear(tape)
    assert [event.stream for event in heard.opened.values()] == [1]
    assert heard.text() == b"data"
