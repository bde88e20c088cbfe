"""Series, heat maps, spans and heads: numbers against sums made by hand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ds4proto.testing import captures_dir
from ds4proto.trace import decode
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.payload import PayloadSummary
from ds4proto.trace.pictures.bins import BINS, Peaks, Sums
from ds4proto.trace.pictures.collecting import Collector
from ds4proto.trace.pictures.heads import HeadDecoder, watch_heads
from ds4proto.trace.pictures.heat import (
    COLUMNS,
    ROWS,
    ActivationRange,
    GateSkew,
    HeatMap,
)
from ds4proto.trace.pictures.spans import Spans
from ds4proto.trace.pictures.values import shown
from ds4proto.trace.rows import FrameRow

ROOT = captures_dir()


def row_of(kind: str, time: float, *, up: bool = True, **more: Any) -> FrameRow:
    """Return a row of a pair (leader, worker) or of a pipeline."""
    pipeline = kind in ("WORK", "RESULT", "HELLO")
    names = ("coordinator", "worker 3:7") if pipeline else ("leader", "worker")
    values: dict[str, Any] = {
        "run": 1, "stream": 1, "direction": "a>b" if up else "b>a",
        "protocol": "DS4D" if pipeline else "DS4T", "dialect": "upstream", "type": kind,
        "time": time, "stream_offset": 0, "length": 100, "first_packet": 1,
        "last_packet": 1, "fields": {}, "problems": (), "first_time": time,
        "epoch": 0.0, "src": "x", "dst": "y",
        "src_role": names[up], "dst_role": names[not up],
    }  # fmt: skip
    return FrameRow(**(values | more))


# -- series ---------------------------------------------------------------------


def test_sums_keep_every_amount_however_often_the_bins_double() -> None:
    chance = random.Random(3)
    sums = Sums()
    times = sorted(chance.uniform(0, 3600) for _ in range(500))
    for time in times:
        sums.add(time, 7)
    width = sums.width
    assert width * BINS > 3600 >= times[-1]
    assert width * BINS < 4 * 3600
    found = sums.values(width, BINS)
    wanted = np.bincount([int(time / width) for time in times], minlength=BINS) * 7
    assert found == wanted.tolist()
    twice = sums.values(width * 2, BINS // 2)
    assert twice == wanted.reshape(-1, 2).sum(axis=1).tolist()


def test_a_spread_amount_lies_evenly_between_its_ends() -> None:
    sums = Sums()
    sums.add(1.0, 0)  # fixes the width
    width = sums.width
    sums.spread(0.25, 0.75, 1000)
    found = np.array(sums.values(width, BINS))
    assert found.sum() == pytest.approx(1000)
    inside = found[int(0.25 / width) + 1 : int(0.75 / width)]
    assert inside == pytest.approx(np.full(len(inside), 2000 * width))
    assert found[: int(0.25 / width)].sum() == 0


def test_peaks_hold_a_level_until_it_changes() -> None:
    peaks = Peaks()
    for time, change in ((0.1, 1), (0.2, 1), (0.7, -1), (0.9, -1)):
        peaks.step(time, change)
    width = peaks.width
    found = peaks.values(width, int(1 / width))

    def at(time: float) -> float:
        return found[int(time / width)]

    assert [at(t) for t in (0.05, 0.15, 0.45, 0.8, 0.95)] == [0, 1, 2, 1, 0]


# -- heat maps ------------------------------------------------------------------


def gate(time: float, seq: int, layer: int, gate: int, *, up: bool) -> FrameRow:
    fields = {"seq": seq, "layer": layer, "gate": gate}
    return row_of("GATE_ROW", time, up=up, fields=fields, dialect="v10")


def test_gate_skew_is_the_later_rank_minus_the_earlier_one() -> None:
    skew = GateSkew()
    # token 1: the leader 2 ms behind in layer 0, ahead by 5 ms in layer 1
    changes = [
        skew.add(one, 2)
        for one in (
            gate(0.000, 1, 0, 0, up=True),
            gate(0.002, 1, 0, 0, up=False),
            gate(0.010, 2, 1, 1, up=False),
            gate(0.015, 2, 1, 1, up=True),
            gate(0.020, 3, 0, 0, up=True),  # token 2; its partner never comes
        )
    ]
    assert changes == [1, -1, 1, -1, 1]
    found = skew.map.document(1)
    assert found["labels"] == ["0 ATTN", "1 FFN"]
    assert found["columns"] == 1
    assert [row[0] for row in found["cells"]] == [[2.0, 2.0, 1], [-5.0, -5.0, 1]]


def test_two_gates_of_one_side_are_no_pair() -> None:
    skew = GateSkew()
    assert skew.add(gate(0.0, 1, 0, 0, up=True), 2) == 1
    assert skew.add(gate(0.5, 1, 0, 0, up=True), 2) == 0
    assert not skew.map
    assert skew.add(gate(0.6, 1, 0, 0, up=False), 2) == -1
    assert skew.map.document(1)["cells"] == [[[100.0, 100.0, 1]]]


def test_a_heat_map_joins_columns_and_keeps_mean_extreme_and_count() -> None:
    heat = HeatMap("x", "", "token")
    for token in range(4 * COLUMNS):
        heat.add((0,), "one", token, float(token % 4) - 2)  # -2 -1 0 1
    found = heat.document(1)
    assert found["join"] == 4
    assert found["columns"] == COLUMNS
    assert found["cells"][0] == [[-0.5, -2.0, 4]] * COLUMNS
    for layer in range(ROWS + 3):
        heat.add((layer,), f"layer {layer}", 0, 1.0)
    assert heat.document(1)["left_out"] == 3


def test_activation_range_is_the_largest_magnitude_by_hop() -> None:
    ranges = ActivationRange()

    def crossing(kind: str, request: int, low: float, high: float, **f: Any) -> None:
        summary = PayloadSummary("hidden", "f32", 16, low=low, high=high)
        fields = {"request": request, **f}
        ranges.add(row_of(kind, 0.0, fields=fields, payload=summary), None)

    crossing("WORK", 70, -3.0, 2.0, layer_start=3)
    crossing("RESULT", 70, -1.0, 9.0, result_kind=2)
    crossing("WORK", 71, -1.0, 2.5, layer_start=3)
    found = ranges.map.document(1)
    assert found["labels"] == ["into layer 3", "logits"]
    assert [cell and cell[1] for cell in found["cells"][0]] == [3.0, 2.5]
    assert found["cells"][1] == [[9.0, 9.0, 1], None]


# -- spans ----------------------------------------------------------------------


def test_a_span_is_busy_until_passed_on_and_waits_until_the_answer() -> None:
    spans = Spans()
    first = row_of("WORK", 1.0, fields={"request": 4})
    onward = row_of("WORK", 2.5, first_time=2.0, fields={"request": 4}, stream=2)
    late = row_of("RESULT", 3.5, first_time=3.0, fields={"request": 4}, stream=2)
    last = row_of("RESULT", 5.0, first_time=4.0, fields={"request": 4})
    assert spans.add(first, 0, 1) is None
    assert spans.add(onward, 1, 2) is None
    end = spans.add(late, 2, 1)
    assert end is not None
    assert (end.node, end.begin, end.passed_on, end.end) == (2, 2.5, 3.0, 3.0)
    middle = spans.add(last, 1, 0)
    assert middle is not None
    assert (middle.node, middle.begin, middle.passed_on, middle.end) == (1, 1, 2, 4)


# -- heads ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "ds4d/i_worker_work.pcap",
        "ds4t/v10_everything.pcap",
        "ds4t/v10_to_worker_payload_close.pcap",
    ],
)
def test_heads_are_taken_once_and_none_is_left_behind(name: str) -> None:
    capture = CaptureDecoder(str(ROOT / name))
    heads = watch_heads(capture, 32)
    for row in capture:
        head = heads.take(row)
        assert len(head) == min(32, row.length)
        assert heads.take(row) == b""
        held = heads._pending.get((row.stream, row.direction))
        end = row.stream_offset + row.length
        # what a row has told of is not kept
        assert held is None or all(s + len(d) > end for s, d in held.pieces)
    assert heads._heads == {}
    assert heads._pending == {}


def test_heads_of_frames_larger_than_what_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ds4proto.trace.pictures.heads._HELD", 100)
    path = str(ROOT / "ds4d" / "d_s3_forward_f16.pcap")
    whole = list(decode(path))
    capture = CaptureDecoder(path)
    heads = watch_heads(capture, 24)
    assert isinstance(heads, HeadDecoder)
    for row, known in zip(capture, whole, strict=True):
        head = heads.take(row)
        assert row == known
        # the magic stands first in every head that there is
        assert head[:4] in (b"DS4D", b"")
        assert max((p.size for p in heads._pending.values()), default=0) < 70_000


# -- fields ---------------------------------------------------------------------


def test_fields_are_cut_to_size_and_large_numbers_stay_exact() -> None:
    assert shown(2**53 + 1) == str(2**53 + 1)
    assert shown(-5) == -5
    assert shown(list(range(70)))[-1] == "6 more"
    assert shown("\x1b[31mred") == "\\x1b[31mred"
    assert shown("x" * 3000).endswith("(1000 more)")
    assert shown({"a": [{"b": [[1]]}]}) == {"a": [{"b": "..."}]}
    assert shown(None) is None


def test_heat_maps_are_capped_by_runs() -> None:
    collector = Collector()
    for run in range(1, 101):
        for up in (True, False):
            fields = {"seq": 1, "layer": 0, "gate": 0}
            collector.add(row_of("GATE_ROW", 0.0, run=run, up=up, fields=fields))
    picture = collector.picture(title="x")
    assert [heat["run"] for heat in picture.heat] == list(range(1, 65))
    assert any("no heat maps" in note for note in picture.notes)


def test_lanes_are_capped_and_the_leading_node_is_drawn_first() -> None:
    collector = Collector()
    for number in range(100):
        collector.add(row_of("HELLO", 0.0, src_role=f"worker {number}:{number}"))
    picture = collector.picture(title="x")
    names = [node["name"] for node in picture.nodes]
    assert names[:3] == ["coordinator", "worker 0:0", "worker 1:1"]
    assert len(names) <= 65
    assert picture.summary["frames"] == 100
    assert any("share one lane" in note for note in picture.notes)
