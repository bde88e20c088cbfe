"""The framer: whole frames, cut frames, limits, loss and its outcomes."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.link.events import Ended, FrameReceived, Skipped, Violation
from ds4proto.link.framing import Framer
from ds4proto.link.limits import Limits
from tests.link.streams import (
    HELLO,
    KeepSink,
    accounted,
    contiguous,
    ds4d,
    ds4t,
    feed_all,
    names,
    pieces,
    plain,
    result,
    work,
)

BIG = bytes(range(256)) * 1024  # 256 KiB, above what is collected with a sink
SESSION = b"".join(
    [
        ds4d("HELLO", **HELLO),
        work(1),
        work(2, BIG),
        result(1),
        ds4d("ERROR", text="no"),
        ds4d("SNAPSHOT_CHUNK", request=1 << 63, data=BIG[:70_000]),
        ds4d("SNAPSHOT_DONE", request=1 << 63, status=0, message=""),
    ]
)


def framer(sink: Any = None, **options: Any) -> Framer:
    return Framer("DS4D", dialect="upstream", sink=sink, **options)


def run(data: bytes, parts: Iterator[bytes] | list[bytes], sink: Any) -> list[Any]:
    machine = framer(sink, auto_resync=True)
    return feed_all(lambda part: machine.feed(part, 0.0), parts)


def test_frames_and_fields_of_a_session() -> None:
    events = framer().feed(SESSION, 1.5)
    assert names(events) == [
        "HELLO",
        "WORK",
        "WORK",
        "RESULT",
        "ERROR",
        "SNAPSHOT_CHUNK",
        "SNAPSHOT_DONE",
    ]
    assert accounted(events) == len(SESSION)
    first = events[0]
    assert isinstance(first, FrameReceived)
    assert first.fields["model_name"] == "Toy V4"
    assert (first.time, first.stream_offset, first.length) == (1.5, 0, 58)
    assert not any(e.problems for e in events if isinstance(e, FrameReceived))


def test_a_payload_in_one_piece_is_not_copied() -> None:
    data = bytearray(work(1, bytes(512)))
    (event,) = framer().feed(data, 0.0)
    assert isinstance(event, FrameReceived)
    assert event.payload is not None
    data[12 + 80 + 8] = 0x5A
    assert event.payload[0] == 0x5A


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("cut", [None, 1, 70, 900, -1, -90])
def test_the_events_do_not_depend_on_the_split(
    with_sink: bool, cut: int | None
) -> None:
    def sink(*_: Any) -> KeepSink:
        return KeepSink()

    garbage = b"GET / HTTP/1.1\r\n\r\n"
    data = (SESSION[:700] + garbage + SESSION)[:cut]
    chosen = sink if with_sink else None
    whole = run(data, [data], chosen)
    for seed in range(6):
        assert run(data, pieces(data, seed), chosen) == whole


def test_byte_by_byte() -> None:
    data = SESSION[:700] + b"?" + SESSION[:55]
    single = [data[i : i + 1] for i in range(len(data))]
    assert run(data, single, None) == run(data, [data], None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                ds4d("HELLO", **HELLO),
                work(3),
                result(3),
                ds4d("ERROR", text="x" * 30),
                b"DS4D",
                b"\0\0\0\3",
                b"DS4D\0\0\0\4\0\0\0\2",
                bytes(9),
                b"DS4D\0\0\0\x63\0\0\0\5hello",
                work(1)[:-30],
                work(1)[40:],
            ]
        ),
        max_size=8,
    ),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_any_mixture_is_accounted_for_and_split_proof(
    parts: list[bytes], seed: int, resync: bool
) -> None:
    data = b"".join(parts)

    def events(cuts: Any) -> list[Any]:
        machine = framer(auto_resync=resync)
        out: list[Any] = []
        for part in cuts:
            out += machine.feed(part, 0.0)
        out += machine.feed(None, 0.0)
        assert accounted(out) == len(data)
        assert contiguous(out)
        return plain(out)

    assert events(pieces(data, seed)) == events([data])


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 1 << 30))
def test_garbage_of_both_protocols(noise: bytes, seed: int) -> None:
    for protocol, dialect, magic in (
        ("DS4D", "upstream", b"DS4D"),
        ("DS4T", "v10", b"T4SD"),
    ):
        data = noise[:40] + magic + noise
        machine = Framer(protocol, dialect=dialect, auto_resync=True)  # type: ignore[arg-type]
        out = [e for part in pieces(data, seed) for e in machine.feed(part, 0.0)]
        out += machine.feed(None, 0.0)
        assert accounted(out) == len(data)
        assert machine.pending == 0


def test_a_bad_magic_is_fatal_and_stays_so() -> None:
    machine = framer()
    good = ds4d("HELLO", **HELLO)
    events = machine.feed(good + b"HTTP/1.1 200 OK\r\n", 0.0)
    assert names(events) == ["HELLO", "DS4D-FRAME-01"]
    violation = events[1]
    assert isinstance(violation, Violation)
    assert violation.fatal
    assert violation.problem.stream_offset == len(good)
    assert (violation.problem.expected, violation.problem.found) == (
        "0x44533444",
        "0x48545450",
    )
    assert machine.lost
    assert machine.feed(good, 0.0) == []
    end = machine.feed(None, 0.0)
    assert end == [
        Skipped(0.0, len(good), 17 + len(good), "not a frame"),
        Ended(0.0, len(good) + 17 + len(good), False),
    ]


def test_resync_is_the_callers_choice_and_misses_nothing() -> None:
    machine = framer()
    good = ds4d("HELLO", **HELLO)
    machine.feed(b"garbage garbage" + good + work(1), 0.0)
    assert machine.lost
    found = machine.resync(0.0)
    assert names(found) == ["not a frame", "HELLO", "WORK"]
    assert not machine.lost
    assert names(machine.feed(work(2), 0.0)) == ["WORK"]


def test_a_magic_inside_a_hidden_state_fools_nobody() -> None:
    fake = ds4d("ERROR", text="q" * 20)[:12]
    hidden = (b"DS4D" * 3 + fake + b"\1\2\3\4" * 4 + bytes(12)) * 8 + bytes(64)
    hidden = hidden[:512].ljust(512, b"D")
    stream = work(1, hidden)
    # the capture begins inside the hidden state
    data = stream[150:] + work(2) + result(2)
    machine = framer(auto_resync=True)
    machine.resync(0.0)
    events = machine.feed(data, 0.0) + machine.feed(None, 0.0)
    assert names(events) == ["not a frame", "WORK", "RESULT"]
    assert accounted(events) == len(data)


def test_a_candidate_needs_length_fields_that_add_up() -> None:
    lying = bytearray(work(1))
    lying[12 + 56 + 3] += 4  # token_bytes
    machine = framer(auto_resync=True)
    events = machine.feed(b"?" + bytes(lying) + work(2), 0.0)
    events += machine.feed(None, 0.0)
    assert names(events) == ["DS4D-FRAME-01", "not a frame", "WORK"]
    skipped = events[1]
    assert isinstance(skipped, Skipped)
    assert skipped.length == 1 + len(lying)


def test_too_long_is_refused_before_anything_is_held() -> None:
    machine = framer(limits=Limits(frames={"DS4D.WORK": 4096}))
    head = b"DS4D" + (3).to_bytes(4, "big") + (5000).to_bytes(4, "big")
    (event,) = machine.feed(head, 0.0)
    assert isinstance(event, Violation)
    assert event.fatal
    assert event.problem.clause == "DS4D-FRAME-13"
    assert event.problem.path == "WORK.header.bytes"
    assert event.problem.expected == "at most 4096 bytes in WORK"
    assert event.problem.found == "5000"
    assert names(machine.feed(None, 0.0)) == ["too long"]


def test_the_largest_length_word_allocates_nothing() -> None:
    for code in range(12):
        machine = framer()
        machine.feed(b"DS4D" + code.to_bytes(4, "big") + b"\xff\xff\xff\xff", 0.0)
        assert machine.lost


def test_an_unknown_type_is_skipped_whole() -> None:
    unknown = b"DS4D" + (99).to_bytes(4, "big") + (5).to_bytes(4, "big") + b"hello"
    events = framer().feed(unknown + work(1), 0.0)
    assert names(events) == ["DS4D-FRAME-02", "unknown type", "WORK"]
    violation, skipped = events[0], events[1]
    assert isinstance(violation, Violation)
    assert not violation.fatal
    assert violation.problem.stream_offset == 4
    assert skipped == Skipped(0.0, 0, 17, "unknown type")


def test_a_cut_frame_tells_what_came_and_what_was_due() -> None:
    data = ds4d("HELLO", **HELLO) + work(1)[:100]
    machine = framer()
    machine.feed(data, 0.0)
    assert machine.pending == 100
    violation, skipped, ended = machine.feed(None, 2.0)
    assert isinstance(violation, Violation)
    problem = violation.problem
    assert problem.clause == "DS4D-FRAME-07"
    assert problem.expected == f"{len(work(1)) - 12} bytes of WORK"
    assert problem.found == "88, then the end of the stream"
    assert problem.next_step == "the last complete frame is DS4D.HELLO at 0"
    assert problem.stream_offset == len(data)
    assert skipped == Skipped(2.0, 58, 100, "truncated")
    assert ended == Ended(2.0, 158, False)


def test_a_cut_header() -> None:
    machine = framer()
    machine.feed(b"DS4D\0\0", 0.0)
    assert names(machine.feed(None, 0.0)) == ["DS4D-FRAME-07", "truncated"]


def test_a_clean_end() -> None:
    machine = framer()
    machine.feed(work(1), 0.0)
    assert machine.feed(None, 0.0) == [Ended(0.0, len(work(1)), True)]
    assert machine.feed(None, 0.0) == []


def test_a_body_below_its_fixed_part_is_a_frame_with_a_fatal_problem() -> None:
    short = b"DS4D" + (3).to_bytes(4, "big") + (4).to_bytes(4, "big") + bytes(4)
    (event,) = framer().feed(short, 0.0)
    assert isinstance(event, FrameReceived)
    assert event.problems[0].fatal
    assert event.problems[0].clause == "DS4D-WORK-01"


def test_a_number_that_was_retired_is_read_as_its_last_dialect_had_it() -> None:
    ack = ds4t("SYNC_ACK", "v6")
    (event,) = Framer("DS4T", dialect="v10").feed(ack, 0.0)
    assert isinstance(event, FrameReceived)
    assert event.spec.name == "SYNC_ACK"
    assert [p.clause for p in event.problems] == ["DS4T-CTRL-02"]


def test_a_number_of_a_later_dialect_is_unknown() -> None:
    later = ds4t(
        "SYNC_CHECKPOINT", "v12", seq=1, point=0, current=0, total=3, cancelled=0
    )
    events = Framer("DS4T", dialect="v10").feed(later, 0.0)
    assert names(events) == ["DS4T-CTRL-02", "unknown type"]


def test_a_raw_stream_belongs_to_the_frame_in_front_of_it() -> None:
    restore = ds4t("RESTORE_PAYLOAD", "v15", session_id=1, payload_bytes=50_000)
    data = restore + b"T4SD" * 12_500 + ds4t("STOP", "v15")
    sink: list[KeepSink] = []

    def kept(*_: Any) -> KeepSink:
        sink.append(KeepSink())
        return sink[-1]

    for seed in (0, 1):
        machine = Framer("DS4T", dialect="v15", sink=kept)
        out = [e for part in pieces(data, seed) for e in machine.feed(part, 0.0)]
        assert names(out) == ["RESTORE_PAYLOAD", "STOP"]
        frame = out[0]
        assert isinstance(frame, FrameReceived)
        assert frame.length == 12 + 16 + 50_000
        assert frame.fields["raw"] == ("kept", b"T4SD" * 12_500, 0)


@pytest.mark.parametrize("seed", range(3))
def test_cut_at_any_place_the_account_is_whole(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        data = SESSION[: chance.randrange(3000)]
        machine = framer()
        out = [e for part in pieces(data, seed) for e in machine.feed(part, 0.0)]
        out += machine.feed(None, 0.0)
        assert accounted(out) == len(data)
        assert contiguous(out)
