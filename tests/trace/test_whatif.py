"""What narrower widths would have done: counted against plain numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ds4proto.cli import run
from ds4proto.cli.whatif import cmd
from ds4proto.codec import CodecError, get
from ds4proto.errors import NothingRan
from ds4proto.pcap import PcapWriter, TcpConversation
from ds4proto.testing import capture_path
from ds4proto.trace.narrowing import (
    Narrowed,
    NarrowingLook,
    NarrowingSummary,
    verdict,
)
from ds4proto.trace.whatif import what_if
from tests.link.streams import ds4d, result, work
from tests.trace.diagnosis.built import COORDINATOR, HELLO, MS, START, WORKER

WIDTH = 64


def recorded(path: Path, *states: np.ndarray) -> Path:
    """Record requests of two tokens each, one a state of shape (2, 64)."""
    sink = PcapWriter(path, linktype=101)
    line = TcpConversation(sink, WORKER, COORDINATOR)
    line.open(START)
    line.data(START + MS, "a>b", ds4d("HELLO", **HELLO))
    for number, state in enumerate(states, 1):
        now = START + 4 * number * MS
        frame = work(number, state.astype("<f4").tobytes(), pos0=2 * (number - 1))
        # in two segments, so that a row lies in both
        line.data(now, "b>a", frame[:400])
        line.data(now + MS, "b>a", frame[400:])
        line.data(now + 2 * MS, "a>b", result(number))
    sink.close()
    return path


def states(count: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(0, 2, (2, WIDTH)).astype(np.float32) for _ in range(count)]


def test_values_above_240_are_counted_with_their_token(tmp_path: Path) -> None:
    made = states()
    made[0][0, :31] = np.linspace(241, 300, 31)
    found = what_if(recorded(tmp_path / "run.pcap", *made))
    eight = found.total("e4m3")
    assert (eight.clipped, eight.clipped_tokens) == (31, {0: 31})
    assert verdict("e4m3", eight).startswith(
        "8 bits unsafe: 31 values above 240, all in token 0"
    )
    assert eight.worst[1] == 0
    assert found.unsafe == ["e4m3"]
    assert found.total("f16").safe


def test_values_above_65504_break_16_bits(tmp_path: Path) -> None:
    made = states()
    made[1][1, 5] = -70_000.0
    made[2][0, 6] = 66_000.0
    found = what_if(recorded(tmp_path / "run.pcap", *made))
    sixteen = found.total("f16")
    # the second request holds positions 2 and 3, the third 4 and 5
    assert sixteen.non_finite_tokens == {3: 1, 4: 1}
    said = verdict("f16", sixteen)
    assert said.startswith(
        "16 bits unsafe: 2 values above 65504, in tokens 3 (1), 4 (1)"
    )
    assert found.unsafe == ["f16", "e4m3"]
    assert found.total("bf16").safe


def test_the_ratio_is_that_of_the_squares(tmp_path: Path) -> None:
    made = states()
    made[0][0, 3] = 1e-9
    found = what_if(recorded(tmp_path / "run.pcap", *made), ("f16",))
    one = found.total("f16")
    x = np.concatenate(made).astype(np.float64)
    back = np.concatenate(made).astype(np.float16).astype(np.float64)
    noise = ((back - x) ** 2).sum(axis=1)
    signal = (x**2).sum(axis=1)
    assert one.sqnr == pytest.approx(10 * np.log10(signal.sum() / noise.sum()))
    rows = 10 * np.log10(signal / noise)
    assert one.worst[0] == pytest.approx(rows.min())
    assert one.worst[1] == int(rows.argmin())
    assert (one.flushed, one.values) == (1, 6 * WIDTH)


def test_places_are_told_apart_by_hop_and_layer() -> None:
    found = what_if(capture_path("ds4d/d_s3_hidden_return_f32.pcap"))
    assert [(p.name, p.what) for p in found.places] == [
        ("coordinator -> worker 3:5", "hidden state before layer 3"),
        ("worker 3:5 -> worker 6:7", "hidden state before layer 6"),
        ("worker 6:7 -> worker 3:5", "hidden state behind layer 7"),
        ("worker 3:5 -> coordinator", "hidden state behind layer 7"),
    ]
    # 13 positions of 64 values on each hop
    assert [p.values for p in found.places] == [832] * 4
    assert found.unsafe == []


def test_gates_count_by_layer_and_token() -> None:
    found = what_if(capture_path("ds4t/v10_decode8.pcap"), ("f16",))
    assert len(found.places) == 8
    assert {p.what for p in found.places} == {
        f"partial of layer {n} {kind}" for n in (0, 1) for kind in ("ATTN", "FFN")
    }
    # 8 tokens of 16 values each
    assert all(p.values == 128 for p in found.places)
    assert all(1 <= p.by_format["f16"].worst[1] <= 8 for p in found.places)


def test_narrow_recordings_cannot_tell() -> None:
    with pytest.raises(NothingRan, match="narrow already \\(9 at f16\\)"):
        what_if(capture_path("ds4d/b_s2_decode_f16.pcap"))


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(CodecError, match="unknown codec"):
        what_if(capture_path("ds4d/a_s2_decode_f32.pcap"), ("f16", "nine"))


def test_nothing_is_safe_by_default() -> None:
    assert Narrowed().safe
    assert not Narrowed(clipped=1).safe
    assert not Narrowed(non_finite=1).safe


def test_long_payloads_go_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4proto.trace.narrowing._BATCH", WIDTH)
    rows = np.concatenate(states(2))
    rows[2, 9], rows[3, 1] = 500.0, 300.0
    look = NarrowingLook("hidden", {"e4m3": get("e4m3")}, 4 * WIDTH)
    data = rows.astype("<f4").tobytes()
    for start in range(0, len(data), 300):
        look.update(data[start : start + 300])
    summary = look.finish()
    assert isinstance(summary, NarrowingSummary)
    found = summary.narrowed["e4m3"]
    assert found.clipped_tokens == {2: 1, 3: 1}
    assert (found.values, found.clipped) == (4 * WIDTH, 2)
    assert summary.values == 4 * WIDTH


def test_values_that_cross_exactly_have_no_worst_token(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.pcap", np.full((2, WIDTH), 0.5, np.float32))
    found = what_if(file)
    assert verdict("f16", found.total("f16")) == (
        "16 bits fit this run: no value clipped or infinite; 0 % of the values become "
        "0, and all others cross exactly"
    )
    done = CliRunner().invoke(cmd, [str(file), "--json"], standalone_mode=False)
    assert json.loads(done.stdout)["formats"]["f16"]["worst_token"] is None
    assert json.loads(done.stdout)["formats"]["f16"]["worst_token_sqnr_db"] is None


def test_a_run_without_a_finite_value_is_not_called_safe(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.pcap", np.full((2, WIDTH), np.nan, np.float32))
    with pytest.raises(NothingRan, match="all 128 values at 32 bits are infinite"):
        what_if(file)


def test_an_unknown_format_is_wrong_usage_and_no_unsafe_width(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.pcap", *states(1))
    assert run(["whatif", str(file), "--formats", "bogus"]) == 2
