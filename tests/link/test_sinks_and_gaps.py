"""Bulk through sinks in constant memory; bytes that the capture does not hold."""

import errno
import tracemalloc
from typing import Any

import pytest

from ds4proto.link.events import FrameReceived, Skipped, Violation
from ds4proto.link.framing import Framer
from ds4proto.link.limits import Limits
from ds4proto.schema.declare import FrameSpec
from tests.link.streams import (
    KeepSink,
    accounted,
    ds4d,
    ds4t,
    names,
    pieces,
    plain,
    result,
    work,
)

HIDDEN = bytes(range(256)) * 512  # 128 KiB


class Asked:
    """A factory that notes what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int | None, dict[str, Any]]] = []
        self.sinks: list[KeepSink] = []

    def __call__(
        self, spec: FrameSpec, fields: Any, path: str, nbytes: int | None
    ) -> KeepSink:
        self.calls.append((spec.name, path, nbytes, dict(fields)))
        self.sinks.append(KeepSink())
        return self.sinks[-1]


def images(rows: int) -> bytes:
    record = {
        "token_start": 0,
        "token_count": rows,
        "data_width": 64,
        "width": 10,
        "height": 10,
        "content_width": 10,
        "content_height": 10,
    }
    return ds4t(
        "SYNC_MULTIMODAL",
        session_id=1,
        tokens=(1,) * (3 * rows),
        images=[
            record | {"token_start": i * rows, "rows": bytes([i]) * rows * 256}
            for i in range(3)
        ],
    )


@pytest.mark.parametrize("size", [600, 128 * 1024])
def test_a_sink_takes_the_hidden_state_and_replaces_it(size: int) -> None:
    data = work(1, HIDDEN[:size] * 1)
    for seed in (None, 1, 2):
        asked = Asked()
        machine = Framer("DS4D", dialect="upstream", sink=asked)
        parts = [data] if seed is None else pieces(data, seed)
        (event,) = [e for part in parts for e in machine.feed(part, 0.0)]
        assert isinstance(event, FrameReceived)
        assert event.fields["hidden"] == ("kept", HIDDEN[:size], 0)
        assert event.payload is None
        assert event.fields["route"][1]["host"] == "::1"
        name, path, nbytes, fields = asked.calls[0]
        assert (name, path, nbytes) == ("WORK", "hidden", size)
        assert fields["request"] == 1
        assert len(asked.calls) == 1


def test_every_image_gets_a_sink_of_its_own() -> None:
    data = images(300)  # 230 KiB
    for seed in (0, 5):
        asked = Asked()
        machine = Framer("DS4T", dialect="v10", sink=asked)
        (event,) = [e for p in pieces(data, seed) for e in machine.feed(p, 0.0)]
        assert isinstance(event, FrameReceived)
        assert [call[1] for call in asked.calls] == [
            f"images[{i}].rows" for i in (0, 1, 2)
        ]
        for index, image in enumerate(event.fields["images"]):
            assert image["rows"] == ("kept", bytes([index]) * 300 * 256, 0)
        assert event.fields["tokens"] == (1,) * 900


def test_a_factory_may_decline() -> None:
    data = work(1, HIDDEN)
    machine = Framer("DS4D", dialect="upstream", sink=lambda *_: None)
    (event,) = [e for p in pieces(data, 3) for e in machine.feed(p, 0.0)]
    assert isinstance(event, FrameReceived)
    assert event.fields["hidden"] == HIDDEN


def test_a_64_mib_frame_passes_in_constant_memory() -> None:
    size = 64 << 20
    head = work(1, b"")
    body = size
    prefix = bytearray(head[: 12 + 80 + 8])
    prefix[12 + 60 : 12 + 64] = size.to_bytes(4, "big")
    prefix[8:12] = (len(head) - 12 + size).to_bytes(4, "big")
    counted = 0

    class Count(KeepSink):
        def write(self, view: memoryview) -> None:
            nonlocal counted
            counted += len(view)

    machine = Framer("DS4D", dialect="upstream", sink=lambda *_: Count())
    piece = bytes(1 << 16)
    machine.feed(bytes(prefix), 0.0)
    tracemalloc.start()
    while body:
        assert machine.feed(piece, 0.0) == []
        body -= len(piece)
    (event,) = machine.feed(head[100:], 0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(event, FrameReceived)
    assert counted == size
    assert event.length == len(head) + size
    assert peak < 1 << 20


def test_a_streamed_frame_may_not_hide_bulk_in_other_tails() -> None:
    limits = Limits(small=100_000)
    data = ds4d(
        "SNAPSHOT_LOAD_BEGIN",
        model_id=0,
        session=1,
        request=1 << 63,
        token_hash=0,
        layer_start=0,
        layer_end=1,
        payload_size=10,
        tokens=(1,) * 40_000,
    )
    machine = Framer("DS4D", dialect="upstream", limits=limits)
    assert names(machine.feed(data, 0.0)) == ["DS4D-FRAME-13"]
    lying = bytearray(work(1, HIDDEN))
    lying[12 + 60 : 12 + 64] = bytes(4)  # input_hc_bytes 0: the bulk is unclaimed
    for seed in (0, 1):
        streamed = Framer(
            "DS4D", dialect="upstream", limits=limits, sink=lambda *_: KeepSink()
        )
        out = [e for p in pieces(bytes(lying), seed) for e in streamed.feed(p, 0.0)]
        assert names(out) == ["DS4D-FRAME-13", "too long"]
        assert accounted(out) == len(lying)


def test_a_frame_for_which_there_is_no_room_is_skipped_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("ds4proto.link.assembly.mmap.mmap", refused)
    lost: list[None] = []
    machine = Framer(
        "DS4D",
        dialect="upstream",
        sink=lambda *_: KeepSink(),
        on_loss=lambda: lost.append(None),
    )
    stream = work(1, HIDDEN) + ds4d("ERROR", text="behind it")
    cut = len(work(1, HIDDEN)) - 5
    events = machine.feed(stream[:cut], 0.0) + machine.feed(stream[cut:], 0.0)
    violation, skipped, after = events
    assert isinstance(violation, Violation)
    assert not violation.fatal
    assert violation.problem.clause == "DS4D-FRAME-13"
    assert violation.problem.path == "WORK"
    assert "no" in violation.problem.found
    assert isinstance(skipped, Skipped)
    assert skipped.length == len(work(1, HIDDEN))
    assert isinstance(after, FrameReceived)
    assert after.spec.name == "ERROR"
    assert len(lost) == 1


def test_a_bulk_length_above_the_body_is_a_problem_of_the_frame() -> None:
    lying = bytearray(work(1, HIDDEN))
    lying[12 + 60 : 12 + 64] = (1 << 31).to_bytes(4, "big")  # input_hc_bytes
    found = []
    for seed in (None, 0, 1):
        asked = Asked()
        machine = Framer("DS4D", dialect="upstream", sink=asked)
        parts = [bytes(lying)] if seed is None else pieces(bytes(lying), seed)
        out = [e for part in parts for e in machine.feed(part, 0.0)]
        assert names(out) == ["WORK"]
        assert asked.calls == []
        found.append(plain(out))
    assert found[0] == found[1] == found[2]
    assert "hidden" not in found[0][0][5]


@pytest.mark.parametrize("with_sink", [False, True])
def test_a_gap_inside_a_payload_keeps_the_frame(with_sink: bool) -> None:
    asked = Asked()
    data = work(1, HIDDEN) + result(1)
    start = 12 + 80 + 8
    machine = Framer("DS4D", dialect="upstream", sink=asked if with_sink else None)
    out = machine.feed(data[: start + 1000], 0.0)
    out += machine.gap(50_000, 0.0)
    out += machine.feed(data[start + 51_000 :], 0.0)
    assert names(out) == ["WORK", "RESULT"]
    event = out[0]
    assert isinstance(event, FrameReceived)
    assert event.missing == 50_000
    assert event.fields["route"][0]["port"] == 21101
    expected = HIDDEN[:1000] + bytes(50_000) + HIDDEN[51_000:]
    if with_sink:
        assert event.fields["hidden"] == ("kept", expected, 50_000)
    else:
        assert event.fields["hidden"] == expected
    assert accounted(out) == len(data)


def test_a_gap_up_to_the_end_of_a_payload_completes_it() -> None:
    data = ds4d("SNAPSHOT_CHUNK", request=1 << 63, data=HIDDEN[:2000])
    machine = Framer("DS4D", dialect="upstream")
    assert machine.feed(data[:100], 0.0) == []
    (event,) = machine.gap(len(data) - 100, 0.0, "not captured")
    assert isinstance(event, FrameReceived)
    assert event.missing == len(data) - 100


def test_a_gap_in_tokens_keeps_the_fixed_part_only() -> None:
    data = ds4t("SYNC", session_id=4, tokens=tuple(range(1, 151))) + ds4t("STOP")
    machine = Framer("DS4T", dialect="v10")
    out = machine.feed(data[:94], 0.0)
    out += machine.gap(628 - 94, 0.0, "not captured")
    out += machine.feed(data[628:], 0.0)
    assert names(out) == ["SYNC", "STOP"]
    event = out[0]
    assert isinstance(event, FrameReceived)
    assert event.fields["count"] == 150
    assert "tokens" not in event.fields
    assert event.problems == ()
    assert event.missing == 534


def test_a_gap_in_a_header_resumes_at_the_next_true_header() -> None:
    first, second = work(1), work(2)
    machine = Framer("DS4D", dialect="upstream")
    out = machine.feed(first[:6], 0.0)
    out += machine.gap(100, 0.0)
    out += machine.feed(first[106:] + second + result(2), 0.0)
    assert names(out) == ["gap", "WORK", "RESULT"]
    assert out[0] == Skipped(0.0, 0, len(first), "gap")
    assert accounted(out) == len(first) + len(second) + len(result(2))


def test_a_gap_over_the_end_of_a_frame() -> None:
    first, second, third = work(1), work(2), work(3)
    data = first + second + third
    machine = Framer("DS4D", dialect="upstream")
    out = machine.feed(data[:200], 0.0)
    out += machine.gap(len(first), 0.0, "not captured")
    out += machine.feed(data[200 + len(first) :], 0.0) + machine.feed(None, 0.0)
    assert names(out) == ["not captured", "WORK"]
    assert out[0] == Skipped(0.0, 0, 2 * len(first), "not captured")


def test_gaps_and_splits_agree() -> None:
    data = work(1, HIDDEN) + work(2) + result(1) + result(2)
    for at, size in ((40, 10), (300, 2000), (131_000, 500), (len(work(1, HIDDEN)), 30)):

        def events(seed: int, at: int = at, size: int = size) -> list[Any]:
            machine = Framer("DS4D", dialect="upstream", auto_resync=True)
            out: list[Any] = []
            for part in pieces(data[:at], seed):
                out += machine.feed(part, 0.0)
            out += machine.gap(size, 0.0)
            for part in pieces(data[at + size :], seed):
                out += machine.feed(part, 0.0)
            out += machine.feed(None, 0.0)
            assert accounted(out) == len(data)
            return plain(out)

        assert events(1) == events(2) == events(3)
