"""Every measured capture: all bytes accounted for, all frames as the recording says."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ds4proto.schema import frame_of_code
from ds4proto.testing import captures_dir
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.stats import CaptureStats

ROOT = captures_dir()
DS4D = sorted(path.stem for path in (ROOT / "ds4d").glob("*.pcap"))
DS4T = sorted(path.name.split(".")[0] for path in (ROOT / "ds4t").glob("*.pcap*"))
TOY = sorted(path.parent.name for path in (ROOT / "toy").glob("*/trace.pcap"))
NAMES = {"GATE_BIG": "DS4B.GATE_BULK", "GATE_BATCH": "DS4B.GATE_BATCH"}
# Words of the JSON for what is no frame of ours.
REFUSED = re.compile(
    r"_TRUNC$|^TRUNC_|^TYPE_|_BAD$|GARBAGE|_ON_DATA|^GATE_TRUNC|^[a-z]"
)
Frames = Counter[tuple[str, str]]


class Difference(NamedTuple):
    """One capture whose JSON is not followed to the letter; the bytes win.

    ``frames`` says how many more frames the decoder finds; ``undecoded`` is given where
    the two disagree on whether any bytes lie outside frames.
    """

    reason: str
    frames: dict[tuple[str, str], int]
    undecoded: bool | None = None


_HELLO = (
    "the JSON reads the 88 bytes of the hello as 72 bytes and 16 bytes of garbage; the "
    "recording shows one write of 88 bytes"
)
_CHUNK = (
    "one rank cuts the prompt into chunks of 8: its first exchange (528 bytes) is "
    "whole, of the second only the header came; the JSON takes both for one that was "
    "cut short"
)

KNOWN: Final[dict[str, Difference]] = {
    "ds4t/v10_to_leader_hello_version_0": Difference(_HELLO, {}, False),
    "ds4t/v10_to_leader_hello_version_14": Difference(_HELLO, {}, False),
    "ds4t/v10_asym_chunk": Difference(_CHUNK, {("DS4B.GATE_BULK", "b>a"): 1}),
    "ds4t/v9_asym_chunk": Difference(_CHUNK, {("DS4B.GATE_BULK", "b>a"): 1}),
    "ds4t/v10_to_leader_gate_long_frame": Difference(
        "4 bytes too many behind the first gate; the JSON calls them and the whole "
        "gate behind them garbage, the decoder finds the next header",
        {("DS4T.GATE_ROW", "a>b"): 1},
    ),
}


class Run:
    """One capture, decoded."""

    def __init__(self, path: Path) -> None:
        decoder = CaptureDecoder(path)
        stats = CaptureStats(decoder)
        self.rows: list[FrameRow] = []
        for row in decoder:
            stats.add(row)
            self.rows.append(row)
        self.report = stats.report()
        self.watches = decoder.decoder.ended

    @property
    def frames(self) -> Frames:
        return Counter((r.name, r.direction) for r in self.rows if r.is_frame)

    @property
    def undecoded(self) -> list[FrameRow]:
        return [row for row in self.rows if not row.is_frame]


@cache
def decoded(name: str) -> Run:
    folder, _, stem = name.partition("/")
    if folder == "toy":
        return Run(ROOT / folder / stem / "trace.pcap")
    path = ROOT / folder / f"{stem}.pcap"
    return Run(path if path.exists() else path.with_suffix(".pcap.gz"))


def beside(name: str) -> Any:
    folder, _, stem = name.partition("/")
    path = ROOT / folder / f"{stem}.json"
    if folder == "toy":
        path = ROOT / folder / stem / "manifest.json"
    return json.loads(path.read_text())


def expected_frames(name: str) -> tuple[Frames, bool]:
    """Return the frames that the JSON counts, and whether it names bytes besides."""
    told: Frames = Counter()
    other = False
    document = beside(name)
    if name.startswith("ds4d/"):
        for text, count in document["totals"]["item_counts"].items():
            word, way = text.split(" ", 1)
            direction = "b>a" if way.startswith("server>") else "a>b"
            other |= bool(REFUSED.search(word))
            if not REFUSED.search(word):
                told[f"DS4D.{word}", direction] += count
        return told, other
    for way, counts in document["frames"].items():
        direction = "b>a" if way == "leader_to_worker" else "a>b"
        for word, count in counts.items():
            other |= bool(REFUSED.search(word))
            if not REFUSED.search(word):
                told[NAMES.get(word, f"DS4T.{word}"), direction] += count
    return told, other


MEASURED = [f"ds4d/{name}" for name in DS4D] + [f"ds4t/{name}" for name in DS4T]
EVERY = MEASURED + [f"toy/{name}" for name in TOY]


def test_the_captures_are_all_there() -> None:
    assert (len(DS4D), len(DS4T), len(TOY)) == (20, 272, 4)
    assert KNOWN.keys() <= set(MEASURED)


@pytest.mark.parametrize("name", EVERY)
def test_every_byte_is_accounted_for(name: str) -> None:
    run = decoded(name)
    report = run.report
    carried = 0
    for watch in run.watches:
        assert watch.stats is not None
        for direction, totals in watch.totals.items():
            way = watch.stats.of(direction)
            assert totals.total == way.unique_bytes + way.lost_bytes, watch.number
            carried += totals.total
    assert report["stream_bytes"] == carried
    assert report["accounted_bytes"] + report["undecoded_bytes"] == carried
    assert sum(report["undecoded_reasons"].values()) == report["undecoded_bytes"]


@pytest.mark.parametrize("name", EVERY)
def test_rows_tile_their_streams(name: str) -> None:
    run = decoded(name)
    place: dict[tuple[int, str], int] = {}
    for row in sorted(run.rows, key=lambda r: (r.stream, r.direction, r.stream_offset)):
        key = (row.stream, row.direction)
        assert row.stream_offset == place.get(key, 0), key
        place[key] = row.stream_offset + row.length
        assert row.first_packet <= row.last_packet
        assert row.first_time <= row.time
    for watch in run.watches:
        if watch.foreign:
            continue
        for direction, totals in watch.totals.items():
            assert place.get((watch.number, direction), 0) == totals.total


@pytest.mark.parametrize("name", EVERY)
def test_rows_come_in_the_order_of_the_capture(name: str) -> None:
    packets = [row.last_packet for row in decoded(name).rows]
    assert packets == sorted(packets)


@pytest.mark.parametrize("name", MEASURED)
def test_bytes_and_frames_are_those_of_the_recording(name: str) -> None:
    run, document = decoded(name), beside(name)
    if name.startswith("ds4d/"):
        assert run.report["stream_bytes"] == document["totals"]["stream_bytes"]
    else:
        assert run.report["stream_bytes"] == document["stream_bytes_total"]
    told, other = expected_frames(name)
    known = KNOWN.get(name)
    if known is not None:
        for frame, more in known.frames.items():
            told[frame] += more
        other = other if known.undecoded is None else known.undecoded
    assert run.frames == +told
    assert bool(run.report["undecoded_bytes"]) == other


@pytest.mark.parametrize("name", MEASURED)
def test_undecoded_bytes_say_why(name: str) -> None:
    for row in decoded(name).undecoded:
        assert row.fields["reason"]
        assert row.problems, "bytes outside frames cite the rule that they break"
        first = [p for p in row.problems if p.stream_offset is not None]
        ends = row.stream_offset + row.length
        assert all(row.stream_offset <= (p.stream_offset or 0) <= ends for p in first)


@pytest.mark.parametrize("name", [f"ds4d/{name}" for name in DS4D])
def test_every_item_of_the_pipeline_recordings(name: str) -> None:
    run = decoded(name)
    for one in beside(name)["connections"]:
        rows = {
            (row.direction, row.stream_offset): row
            for row in run.rows
            if one["client"] in (row.src, row.dst)
            and one["server"] in (row.src, row.dst)
        }
        for item in one["items"]:
            direction = "a>b" if item["from"] == "client" else "b>a"
            row = rows.get((direction, item["off"]))
            if row is None:
                # foreign bytes on a listener that nobody had shown to be one
                assert item["item"] == "garbage"
                continue
            assert row.length == item["bytes"]
            if item["item"] != "frame":
                assert not row.is_frame
                continue
            assert row.type == item["name"]
            assert row.time == pytest.approx(item["t"], abs=2e-6)
            same_fields(row, item["f"])


def same_fields(row: FrameRow, told: dict[str, Any]) -> None:
    fields = row.fields
    for key in ("request", "pos0", "n_tokens", "status", "model_id", "listen_port"):
        if key in told and key in fields:
            assert fields[key] == told[key], key
    for key in ("session", "prefix_hash", "result_hash"):
        if key in told:
            assert f"{fields[key]:016x}" == told[key], key
    if "tokens" in told:
        assert list(fields["tokens"]) == told["tokens"]
    if "layers" in told:
        assert [fields["layer_start"], fields["layer_end"]] == told["layers"]
    digest = told.get("act_sha256") or told.get("payload_sha256")
    if digest and row.payload is not None:
        assert row.payload.hash == digest[:16]


@pytest.mark.parametrize("name", TOY)
def test_the_toy_sessions_frame_by_frame(name: str) -> None:
    run, document = decoded(f"toy/{name}"), beside(f"toy/{name}")
    assert not run.report["undecoded_bytes"]
    total = 0
    for connection in document["connections"]:
        for stream in connection["streams"]:
            total += stream["bytes"]
            rows = [
                row
                for row in run.rows
                if row.src.endswith(f":{stream['src_port']}")
                and row.dst.endswith(f":{stream['dst_port']}")
            ]
            assert len(rows) == len(stream["frames"])
            for row, (offset, code, body, _) in zip(
                rows, stream["frames"], strict=True
            ):
                spec = frame_of_code("DS4D", code, dialect="upstream")
                assert spec is not None
                assert (row.stream_offset, row.type) == (offset, spec.name)
                assert row.length == 12 + body
            assert {row.src_role for row in rows} == {stream["sender"]}
    assert run.report["stream_bytes"] == total


@pytest.mark.parametrize("name", [f"ds4d/{name}" for name in DS4D])
def test_requests_in_flight_are_those_of_the_recording(name: str) -> None:
    told = beside(name)["facts"].get("max_requests_in_flight") or {}
    if name.startswith("ds4d/i_"):  # hand-made probes: requests without an answer
        return
    if told:
        assert decoded(name).report["requests_in_flight"] == max(told.values())


def test_a_gzip_of_a_capture_is_the_same_capture(tmp_path: Path) -> None:
    plain = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
    packed = tmp_path / "x.pcap.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(CaptureDecoder(packed)) == decoded("ds4d/d_s3_forward_f16").rows
