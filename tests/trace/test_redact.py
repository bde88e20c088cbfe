"""``ds4proto trace``: what is kept, what is gone, and files that appear whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.codec.token_hash import TokenHash
from ds4proto.pcap import CaptureReader
from ds4proto.testing import captures_dir
from ds4proto.trace import merge as merging
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.redact import zero_hash
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp import read_streams
from ds4proto.trace.tcp_events import Data

ROOT = captures_dir()
WHOLE = [
    "ds4d/a_s2_decode_f32", "ds4d/d_s3_forward_f16", "ds4d/e_s3_prefill_c8_w4",
    "ds4d/f_snapshot_save_s2", "ds4d/f_snapshot_load_s3",
    "ds4d/g_kill_mid_request_s2", "ds4d/h_hello_reject_layers",
    "ds4d/l_s2_ipc_anyei", "ds4t/v7_mixed_batch", "ds4t/v9_top2",
    "ds4t/v9_verify_replay", "ds4t/v10_everything", "ds4t/v10_multimodal",
    "ds4t/v10_glm_mtp",
]  # fmt: skip
Trace = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(capfd: pytest.CaptureFixture[str]) -> Trace:
    def call(*args: Any) -> tuple[int, str, str]:
        status = run(["trace", *map(str, args)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


def rows_of(path: Path, payload: Any = "summary") -> list[FrameRow]:
    return list(CaptureDecoder(path, payload=payload))


def sent(path: Path) -> bytes:
    """All bytes of all directions, in the order of the capture."""
    return b"".join(bytes(e.data) for e in read_streams(path) if isinstance(e, Data))


def shape(row: FrameRow) -> tuple[Any, ...]:
    return (row.stream, row.direction, row.name, row.dialect, row.stream_offset,
            row.length, round(row.time, 6), row.src_role)  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_redacted_capture_has_the_same_frames(
    trace: Trace, tmp_path: Path, name: str
) -> None:
    old, new = ROOT / f"{name}.pcap", tmp_path / "new.pcapng"
    assert trace("redact", old, "-o", new)[0] == 0
    before, after = rows_of(old), rows_of(new)
    assert sorted(map(shape, before)) == sorted(map(shape, after))
    assert sum(len(r.problems) for r in before) == sum(len(r.problems) for r in after)


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_of_tokens_and_payloads_is_left(
    trace: Trace, tmp_path: Path, name: str
) -> None:
    old, new = ROOT / f"{name}.pcap", tmp_path / "new.pcapng"
    trace("redact", old, "-o", new)
    rest = sent(new)
    for row in rows_of(old, "full"):
        if row.name in ("DS4D.ERROR", "DS4T.HELLO") or row.fields.get("status"):
            continue
        data = getattr(row.payload, "data", None)
        if data is not None and any(bytes(data)):
            bits = bytes(data)
            probe = next(bits[i : i + 16] for i in range(len(bits)) if bits[i])
            assert len(probe) < 8 or probe not in rest
    for row in rows_of(new):
        assert not any(row.fields.get("tokens", ())), row
        assert row.fields.get("token", 0) == 0
        assert not any(item["token"] for item in row.fields.get("items", ()))
        if row.payload is not None and not row.fields.get("status"):
            assert (row.payload.low or 0) == (row.payload.high or 0) == 0


def test_hashes_agree_with_the_zeros_that_stand_for_the_tokens(
    trace: Trace, tmp_path: Path
) -> None:
    new = tmp_path / "new.pcapng"
    trace("redact", ROOT / "ds4d/d_s3_forward_f16.pcap", "-o", new)
    work = [r for r in rows_of(new) if r.type == "WORK"]
    assert len(work) > 5
    for row in work:
        at = row.fields["pos0"]
        assert row.fields["prefix_hash"] == TokenHash([0] * at).value
        end = at + row.fields["n_tokens"]
        assert row.fields["result_hash"] == TokenHash([0] * end).value
    asked = {r.fields["request"]: r.fields["result_hash"] for r in work}
    answers = [r for r in rows_of(new) if r.type == "RESULT"]
    assert {r.fields["result_hash"] for r in answers} <= set(asked.values())


@pytest.mark.parametrize("count", [0, 1, 5, 4097])
def test_zero_hash_is_the_hash_of_zeros(count: int) -> None:
    assert zero_hash(count) == TokenHash([0] * count).value


def test_error_texts_stay(trace: Trace, tmp_path: Path) -> None:
    new = tmp_path / "new.pcapng"
    trace("redact", ROOT / "ds4d/i_worker_work.pcap", "-o", new)
    assert b"invalid distributed WORK flags" in sent(new)


def test_headers_alone_keep_types_lengths_and_times(
    trace: Trace, tmp_path: Path
) -> None:
    old, new = ROOT / "ds4d/d_s3_forward_f16.pcap", tmp_path / "new.pcapng"
    status, _, _ = trace("redact", old, "-o", new, "--headers-only")
    assert status == 0
    before, after = rows_of(old), rows_of(new)
    assert [shape(r)[:6] for r in before] == [shape(r)[:6] for r in after]
    assert new.stat().st_size < old.stat().st_size / 2
    work = next(r for r in after if r.type == "WORK")
    assert work.payload is not None
    assert (work.payload.length, work.payload.captured) == (640, 0)
    assert "tokens" not in work.fields


def test_cut_by_time_keeps_hellos_and_the_part(trace: Trace, tmp_path: Path) -> None:
    old, new = ROOT / "ds4d/d_s3_forward_f16.pcap", tmp_path / "new.pcapng"
    times = [r.time for r in rows_of(old)]
    low, high = times[20], times[30]
    assert low < high
    status, out, _ = trace("cut", old, "-o", new, "--from", low, "--to", high, "--json")
    assert status == 0
    due = [r for r in rows_of(old) if low <= r.time < high or r.type == "HELLO"]
    kept = [r for r in rows_of(new) if r.is_frame]
    assert sorted(r.fields.get("request", 0) for r in kept) == sorted(
        r.fields.get("request", 0) for r in due
    )
    report = json.loads(out)
    assert report["frames"] == len(due)
    assert report["frames_left_out"] == len(times) - len(due)


def test_cut_by_connection_and_by_condition(trace: Trace, tmp_path: Path) -> None:
    old, new = ROOT / "ds4t/v10_everything.pcap", tmp_path / "new.pcapng"
    control = rows_of(old)[0].stream
    trace("cut", old, "-o", new, "--stream", control)
    assert len({r.stream for r in rows_of(new)}) == 1
    due = [r.name for r in rows_of(old) if r.stream == control]
    assert [r.name for r in rows_of(new)] == due
    assert len(due) > 50
    trace("cut", old, "-o", new, "--where", 'type == "EVAL"', "--no-hellos")
    assert {r.type for r in rows_of(new) if r.is_frame} == {"EVAL"}


def test_what_holds_no_frame_is_not_written(trace: Trace, tmp_path: Path) -> None:
    new = tmp_path / "new.pcapng"
    old = ROOT / "ds4d/d_s3_forward_f16.pcap"
    status, _, err = trace("cut", old, "-o", new, "--stream", 99)
    assert status == 2
    assert "no frame of ours is left" in err
    assert not new.exists()
    for part in (("--from", 500), ("--where", 'type == "EVAL"')):
        status, _, err = trace("cut", old, "-o", new, *part)
        assert status == 2
        last = max(r.time for r in rows_of(old) if r.is_frame)
        assert "only hellos would stay" in err
        assert f"to {last:.6f} s" in err
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["redact", "cut", "merge"])
def test_what_is_no_capture_is_named_and_nothing_is_written(
    trace: Trace, tmp_path: Path, verb: str
) -> None:
    text, new = tmp_path / "text", tmp_path / "new.pcapng"
    text.write_text("hello, this is no capture file at all")
    status, _, err = trace(verb, text, "-o", new)
    assert status == 2
    assert f"{text}: not a capture file" in err
    assert not new.exists()


def test_a_merge_names_files_whose_names_are_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not every file system takes such names
    real = ROOT / "ds4d/a_s2_decode_f32.pcap"
    monkeypatch.setattr(merging, "CaptureReader", lambda _: CaptureReader(real))
    new = tmp_path / "new.pcapng"
    with new.open("wb") as target:
        merging.merge(["in/odd\udcff.pcap", "two.pcap"], target)
    assert b"odd\\xff.pcap" in new.read_bytes()


def test_a_merge_of_nothing_writes_nothing(trace: Trace, tmp_path: Path) -> None:
    empty, new = tmp_path / "empty", tmp_path / "new.pcapng"
    empty.write_bytes(b"")
    status, _, err = trace("merge", empty, empty, "-o", new)
    assert status == 2
    assert "there is no packet to merge" in err
    assert not new.exists()


@pytest.mark.parametrize(
    "args",
    [("cut", "--from", 2, "--to", 1), ("merge", "--shift", "9=1"),
     ("merge", "--shift", "0=nan"), ("merge", "--shift", "0=inf"),
     ("merge", "--shift", "0=1e10"), ("merge", "--shift", "0=-1e10")],
)  # fmt: skip
def test_wrong_usage(trace: Trace, tmp_path: Path, args: tuple[Any, ...]) -> None:
    verb, *rest = args
    old = ROOT / "ds4d/h_hello_reject_layers.pcap"
    status, _, err = trace(verb, old, "-o", tmp_path / "x", *rest)
    assert status == 2
    assert err
    assert not (tmp_path / "x").exists()


def test_a_cut_off_input_is_redacted_up_to_its_end(
    trace: Trace, tmp_path: Path
) -> None:
    data = (ROOT / "ds4d/d_s3_forward_f16.pcap").read_bytes()
    old, new = tmp_path / "old.pcap", tmp_path / "new.pcapng"
    old.write_bytes(data[: len(data) // 2])
    status, _, err = trace("redact", old, "-o", new)
    assert status == 0
    assert "ends inside a record" in err
    full = [shape(r) for r in rows_of(old) if r.is_frame]
    assert [shape(r) for r in rows_of(new) if r.is_frame] == full


def test_merge_orders_by_time_and_shifts(trace: Trace, tmp_path: Path) -> None:
    one = ROOT / "ds4d/a_s2_decode_f32.pcap"
    two = ROOT / "ds4t/v10_everything.pcap"
    new = tmp_path / "both.pcapng"
    first = rows_of(one)[0].epoch - rows_of(two)[0].epoch
    status, out, _ = trace(
        "merge", one, two, "-o", new, "--shift", f"1={first}", "--json"
    )
    assert status == 0
    rows = rows_of(new)
    assert len(rows) == len(rows_of(one)) + len(rows_of(two))
    assert {r.protocol for r in rows} == {"DS4D", "DS4T", "DS4B"}
    frames = [r.epoch for r in rows]
    assert max(frames) - min(frames) < 60
    from ds4proto.pcap import CaptureReader

    with CaptureReader(new) as reader:
        stamps = [int(t) for batch in reader for t in batch.time_ns]
    assert all(a <= b for a, b in pairwise(stamps))
    assert json.loads(out)["packets"] == len(stamps)
