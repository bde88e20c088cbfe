"""qlog-style events and PNG files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pytest

from ds4proto.errors import WrongUsage
from ds4proto.testing import captures_dir
from ds4proto.trace import decode
from ds4proto.trace.pictures import QlogWriter, draw, write_png
from tests.trace.pictures.long_run import START_NS, LongRun

ROOT = captures_dir()
THREE = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
PROBES = ROOT / "ds4d" / "i_worker_work.pcap"
PAIR = ROOT / "ds4t" / "v10_everything.pcap"
PNG = b"\x89PNG\r\n\x1a\n"

# What the main logging schema for qlog asks of a contained file, older and newer keys.
TEXT = {"type": "string", "minLength": 1}
SCHEMA = {
    "type": "object",
    "required": ["qlog_version", "file_schema", "serialization_format", "traces"],
    "properties": {
        "qlog_version": TEXT,
        "qlog_format": {"const": "JSON"},
        "file_schema": {"const": "urn:ietf:params:qlog:file:contained"},
        "serialization_format": {"const": "application/qlog+json"},
        "traces": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["event_schemas", "events", "vantage_point"],
                "properties": {
                    "vantage_point": {
                        "required": ["type"],
                        "properties": {
                            "type": {"enum": ["client", "server", "network", "unknown"]}
                        },
                    },
                    "event_schemas": {
                        "type": "array",
                        "minItems": 1,
                        # absolute URIs; the IETF's own are for registered ones
                        "items": {"type": "string", "pattern": "^[a-z]+:(?!ietf:)"},
                    },
                    "events": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["time", "name", "data"],
                            "properties": {
                                "time": {"type": "number"},
                                "name": {"pattern": "^[a-z0-9]+:[a-z_]+$"},
                                "data": {"type": "object"},
                                "group_id": TEXT,
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize("path", [THREE, PROBES, PAIR], ids=lambda path: path.stem)
def test_every_row_is_an_event_of_a_file_that_keeps_the_schema(
    path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "run.qlog"
    draw(str(path), qlog=str(target))
    text = target.read_text(encoding="utf-8")
    assert '"file_schema"' in text[:256]
    assert '"serialization_format"' in text[:256]
    log = json.loads(text)
    jsonschema.validate(log, SCHEMA)
    rows = list(decode(path))
    events = log["traces"][0]["events"]
    assert len(events) == len(rows)
    for event, row in zip(events, rows, strict=True):
        wanted = (
            "ds4:undecoded" if not row.is_frame else f"{row.protocol.lower()}:frame"
        )
        assert event["name"] == wanted
        assert event["time"] == pytest.approx(row.epoch * 1e3, abs=1e-3)
        assert event["data"]["type"] == row.type
        assert event["data"]["length"] == row.length
        assert event["group_id"] == str(row.stream)
        assert [p["clause"] for p in event["data"]["problems"]] == [
            problem.clause for problem in row.problems
        ]
    assert all(event["data"]["first_byte"] <= event["time"] for event in events)


def test_events_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "run.pcapng"
    built = LongRun(path, 400)
    stream = io.BytesIO()
    writer = QlogWriter(stream, "x")
    held = []
    for row in decode(path):
        writer.write(row)
        held.append(len(writer._block))
    writer.finish()
    assert writer.events == built.total == 400
    assert max(held) < 70_000 < len(stream.getvalue())
    log = json.loads(stream.getvalue())
    times = [event["time"] for event in log["traces"][0]["events"]]
    assert times == sorted(times)
    assert times[0] == START_NS / 1e6


def test_the_same_capture_gives_the_same_files(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        png, qlog = folder / "png", folder / "run.qlog"
        draw(str(PAIR), png=str(png), qlog=str(qlog))
        made.append({p.name: p.read_bytes() for p in [*png.iterdir(), qlog]})
    assert made[0] == made[1]
    assert set(made[0]) == {
        "timeline.png", "throughput.png", "heat-1-gate-skew.png",
        "heat-2-activation-range.png", "run.qlog",
    }  # fmt: skip
    for name, data in made[0].items():
        assert name == "run.qlog" or (data[:8] == PNG and len(data) > 5000)


def test_pictures_go_into_a_folder_and_leave_no_remains(tmp_path: Path) -> None:
    drawn = draw(str(THREE), png=str(tmp_path / "a" / "b"))
    names = sorted(Path(name).name for name in drawn.files)
    assert names == ["heat-1-activation-range.png", "throughput.png", "timeline.png"]
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == names
    plain = tmp_path / "file"
    plain.write_text("x")
    with pytest.raises(WrongUsage, match="expected a folder"):
        write_png(str(plain), drawn.picture)


def test_labels_of_a_peer_are_no_formulas(tmp_path: Path) -> None:
    picture = draw(str(THREE), html=str(tmp_path / "x.html")).picture
    picture.nodes[0]["name"] = r"$\frac{$ " + "x" * 500
    assert write_png(str(tmp_path / "png"), picture)


def test_a_file_where_pictures_should_go_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib")
    taken, page = tmp_path / "pictures", tmp_path / "run.html"
    taken.write_text("mine")
    with pytest.raises(WrongUsage, match="expected a folder"):
        draw(str(PAIR), html=str(page), png=str(taken))
    assert not page.exists()
