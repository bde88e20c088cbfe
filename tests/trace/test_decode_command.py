"""``ds4proto decode``: formats, choices, files that appear whole, exit statuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ds4proto.cli import run
from ds4proto.testing import captures_dir
from ds4proto.trace.decoder import CaptureDecoder

ROOT = captures_dir()
THREE = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
PROBES = ROOT / "ds4d" / "i_worker_work.pcap"
PAIR = ROOT / "ds4t" / "v10_everything.pcap"
DOCS = Path(__file__).parents[2] / "docs" / "schemas" / "frame-row.schema.json"
SCHEMA = json.loads(
    files("ds4proto").joinpath("data/schemas/frame-row.schema.json").read_text()
)
Decode = Callable[..., tuple[int, str, str]]


@pytest.fixture
def decode(capfd: pytest.CaptureFixture[str]) -> Decode:
    def call(*args: Any) -> tuple[int, str, str]:
        status = run(["decode", *map(str, args)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


def test_text_names_who_what_and_the_payload(decode: Decode) -> None:
    status, out, err = decode(THREE)
    lines = out.splitlines()
    assert status == 0
    assert len(lines) == 1 + 38
    assert "coordinator -> worker 3:5" in lines[3]
    assert "WORK" in lines[3]
    assert "request 1 pos 0+5 layers 3:5 hop 1/2 INPUT_HC|RESET_SESSION" in lines[3]
    assert "hidden 5x64 f16" in lines[3]
    assert "#7f64255bf4b34106" in lines[3]  # SHA-256 that the recording tells
    assert lines[3].lstrip().startswith("0.018279")
    assert "worker 3:5 -> worker 6:output" in lines[4]
    assert err.count("prompts") == 1


def test_problems_stand_below_their_frame_with_the_clause(decode: Decode) -> None:
    status, out, _ = decode(PROBES, "--where", '"DS4D-WORK-07" in problems')
    lines = out.splitlines()[1:]
    assert status == 0
    assert sum("WORK" in line and "->" in line for line in lines) == 2
    assert sum(line.lstrip().startswith("! DS4D-WORK-07") for line in lines) == 2


def test_gates_name_their_token(decode: Decode) -> None:
    _, out, _ = decode(PAIR, "--where", "ds4t.gate_row.seq == 8")
    assert out.count("layer 1 FFN seq 8 token 2") == 2


def test_the_gid_of_a_queue_pair_is_an_address(decode: Decode) -> None:
    control = ROOT / "rdma" / "rc_first_gate_rnr.control.pcap"
    _, out, _ = decode(control, "--where", 'type == "RDMA_INFO"')
    assert "gid=::ffff:192.0.2.2 " in out
    assert "gid=::ffff:192.0.2.1 " in out


@pytest.mark.parametrize("capture", [THREE, PROBES, PAIR], ids=lambda p: p.stem)
@pytest.mark.parametrize("payload", ["none", "summary", "full"])
def test_json_lines_follow_their_schema(
    decode: Decode, capture: Path, payload: str
) -> None:
    status, out, _ = decode(capture, "--format", "jsonl", "--payload", payload)
    assert status == 0
    check = jsonschema.Draft202012Validator(SCHEMA)
    rows = [json.loads(line) for line in out.splitlines()]
    for row in rows:
        check.validate(row)
    assert len(rows) == sum(1 for _ in CaptureDecoder(capture))
    kept = [row for row in rows if row["payload"] and "data" in row["payload"]]
    assert bool(kept) == (payload == "full")


def test_the_schema_refuses_a_row_that_lacks_something(decode: Decode) -> None:
    _, out, _ = decode(THREE, "--format", "jsonl", "--limit", 1)
    row = json.loads(out)
    del row["dialect"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(row, SCHEMA)


def test_the_schema_in_the_docs_is_the_one_that_ships() -> None:
    assert json.loads(DOCS.read_text()) == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_where_fields_and_limit(decode: Decode) -> None:
    status, out, _ = decode(
        THREE, "--where", "ds4d.work.route_index == 1", "--limit", 2, "--format",
        "jsonl", "--fields", "type,ds4d.work.request,ds4d.work.route.port,ds4d.error",
    )  # fmt: skip
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {
            "type": "WORK",
            "ds4d.work.request": number,
            "ds4d.work.route.port": [21101, 21102],
            "ds4d.error": None,
        }
        for number in (1, 2)
    ]


def test_fields_as_text_are_columns_split_by_tabs(decode: Decode) -> None:
    _, out, _ = decode(
        THREE, "--fields", "src_role,type,ds4d.work.tokens", "--limit", 3
    )
    assert out.splitlines() == [
        "src_role\ttype\tds4d.work.tokens",
        "worker 3:5\tHELLO",
        "worker 6:output\tHELLO",
        "coordinator\tWORK\t1,2,3,4,5",
    ]


def test_payload_bytes_on_demand_and_bounded(decode: Decode) -> None:
    _, out, _ = decode(
        THREE, "--payload", "full", "--where", "ds4d.result", "--limit", 1
    )
    dump = [line for line in out.splitlines() if line.startswith(" " * 14)]
    assert len(dump) == 32 + 1
    assert dump[-1].strip() == "... 1536 more bytes"
    _, out, _ = decode(THREE, "--payload", "none", "--where", "ds4d.work", "--limit", 1)
    assert "hidden" not in out


def test_a_cut_file_is_decoded_up_to_its_last_whole_frame(
    decode: Decode, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(THREE.read_bytes()[:40_000])
    status, out, err = decode(cut)
    assert status == 0
    assert "ends inside a record" in err
    assert 10 < len(out.splitlines()) < 39
    assert decode(cut, "--strict")[0] == 1
    assert decode(THREE, "--strict")[0] == 0
    assert decode(PROBES, "--strict")[0] == 1


def test_a_damaged_file_gives_what_lies_before_the_damage(
    decode: Decode, tmp_path: Path
) -> None:
    data = bytearray(THREE.read_bytes())
    at = 24
    for _ in range(200):
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    data[at + 8 : at + 12] = b"\xff\xff\xff\x7f"
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(data)
    status, out, err = decode(bad)
    assert status == 0
    assert "packet record too long" in err
    assert len(out.splitlines()) > 10


def test_a_file_appears_whole_or_not_at_all(decode: Decode, tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    assert decode(THREE, "--format", "jsonl", "-o", target)[:2] == (0, "")
    assert len(target.read_text().splitlines()) == 38
    target.write_text("older")
    assert decode(THREE, "-o", target, "--where", "tiem")[0] == 2
    assert decode(tmp_path / "absent.pcap", "-o", target)[0] == 2
    assert target.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
    status, _, err = decode(THREE, "-o", tmp_path / "no" / "folder")
    assert status == 2
    assert "no folder" in err


def test_several_files_name_themselves(decode: Decode) -> None:
    _, out, _ = decode(THREE, PAIR, "--format", "jsonl", "--limit", 40)
    names = [json.loads(line)["file"] for line in out.splitlines()]
    assert names == [str(THREE)] * 38 + [str(PAIR)] * 2
    _, out, _ = decode(THREE, PAIR)
    assert out.count("== ") == 2


def test_standard_input_and_plain_byte_streams(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ds4proto", "decode", "-"]
    done = subprocess.run(
        command, input=THREE.read_bytes(), capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 39
    # the first direction of the worker's connection, as plain bytes
    rows = [r for r in CaptureDecoder(THREE) if r.stream == 1 and r.direction == "a>b"]
    data = stream_bytes(THREE, 1, "a>b")
    plain = tmp_path / "conn.bin"
    plain.write_bytes(data)
    again = list(CaptureDecoder(plain))
    assert [(r.type, r.stream_offset, r.length, r.payload) for r in again] == [
        (r.type, r.stream_offset, r.length, r.payload) for r in rows
    ]
    assert next(iter(CaptureDecoder(io.BytesIO(data)))).type == "HELLO"


def stream_bytes(path: Path, stream: int, direction: str) -> bytes:
    from ds4proto.trace.tcp import read_streams
    from ds4proto.trace.tcp_events import Data

    return b"".join(
        bytes(event.data)
        for event in read_streams(path)
        if isinstance(event, Data)
        and event.stream == stream
        and event.direction == direction
    )


def test_rows_from_a_pipe_come_while_it_is_open() -> None:
    command = [sys.executable, "-m", "ds4proto", "decode", "-", "--format", "jsonl"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(THREE.read_bytes()[:30_000])
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["type"] == "HELLO"
        process.stdin.close()
        assert process.stdout.read().count(b"\n") > 5
    assert process.returncode == 0


def test_a_named_pipe_is_read_once_from_its_first_byte(
    decode: Decode, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = (
        "import sys; open(sys.argv[2], 'wb').write(open(sys.argv[1], 'rb').read())"
    )
    with subprocess.Popen([sys.executable, "-c", command, str(THREE), str(pipe)]):
        status, out, _ = decode(pipe)
    assert status == 0
    assert len(out.splitlines()) == 1 + 38


def test_follow_sees_what_is_appended(tmp_path: Path) -> None:
    data = THREE.read_bytes()
    growing = tmp_path / "growing.pcap"
    growing.write_bytes(data[:30_000])
    command = [sys.executable, "-m", "ds4proto", "decode", str(growing), "--follow"]
    command += ["--format", "jsonl", "--until", "600s", "--limit", "36"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()  # rows come before the file has ended
        assert json.loads(first)["type"] == "HELLO"
        with growing.open("ab") as file:
            file.write(data[30_000:])
        rest = process.stdout.read()  # ends at the limit, long before --until
    assert process.returncode == 0
    assert len(rest.splitlines()) == 35


def test_ctrl_c_ends_following_and_the_rows_are_kept(tmp_path: Path) -> None:
    import signal

    target = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "ds4proto", "decode", str(THREE), "--follow"]
    command += ["--until", "600s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        lines += process.stdout.read().splitlines()
    assert process.returncode == 0
    assert len(lines) == 39
    assert not target.exists()


def test_until_needs_follow(decode: Decode) -> None:
    assert decode(THREE, "--until", "1s")[0] == 2
    status, out, _ = decode(THREE, "--follow", "--until", "100ms")
    assert status == 0
    assert len(out.splitlines()) == 39


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "ds4proto", "decode", str(THREE)]
    os.close(reading)
    try:
        done = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, timeout=300, check=False
        )
    finally:
        os.close(writing)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 141


def test_hostile_text_cannot_steer_the_terminal_or_break_json(
    decode: Decode, tmp_path: Path
) -> None:
    from ds4proto.schema import frame, to_bytes

    text = "\x1b[2J\udcff\n\u202e!"
    data = to_bytes(
        frame("DS4D.ERROR", dialect="upstream"), {"text": text}, dialect="upstream"
    )
    path = tmp_path / "error.bin"
    path.write_bytes(data)
    status, out, _ = decode(path)
    assert status == 0
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out.splitlines()) == 2
    _, out, _ = decode(path, "--format", "jsonl")
    assert json.loads(out)["fields"]["text"] == "\x1b[2J\\xff\n\u202e!"


def test_parquet_holds_typed_columns(decode: Decode, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    target = tmp_path / "rows.parquet"
    assert decode(THREE, "--format", "parquet", "-o", target)[0] == 0
    rows = pq.read_table(target).to_pylist()
    assert len(rows) == 38
    works = [row for row in rows if row["type"] == "WORK"]
    assert [row["ds4d.work.request"] for row in works[:4]] == [1, 1, 2, 2]
    assert works[0]["ds4d.result.status"] is None
    assert works[0]["payload.shape"] == [5, 64]
    assert json.loads(works[0]["fields"])["tokens"] == [1, 2, 3, 4, 5]
    decode(
        THREE, "--format", "parquet", "-o", target, "--fields", "type,ds4d.work.pos0"
    )
    assert pq.read_table(target).column_names == ["type", "ds4d.work.pos0"]


def test_fast_parquet_agrees_with_the_slow_one(decode: Decode, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    slow, fast = tmp_path / "slow.parquet", tmp_path / "fast.parquet"
    for capture in (THREE, ROOT / "ds4d" / "f_snapshot_load_s3.pcap", PAIR):
        assert decode(capture, "--format", "parquet", "-o", slow)[0] == 0
        assert decode(capture, "--format", "parquet", "--fast", "-o", fast)[0] == 0
        there = {
            (row["stream"], row["direction"], row["stream_offset"]): row
            for row in pq.read_table(slow).to_pylist()
        }
        here = pq.read_table(fast).to_pylist()
        gates = sum(row["type"].startswith("GATE") for row in there.values())
        hellos = sum(row["type"] == "HELLO" for row in there.values() if gates)
        assert len(here) == len(there) - gates - hellos
        for row in here:
            same = there[row["stream"], row["direction"], row["stream_offset"]]
            for name, value in row.items():
                if value is not None:
                    assert same[name] == value, name
    assert decode(THREE, "--fast")[0] == 2
    assert decode(THREE, "--fast", "--format", "parquet", "--limit", 3)[0] == 2


def test_parquet_without_its_package_says_what_to_install(
    decode: Decode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, _, err = decode(THREE, "--format", "parquet", "-o", tmp_path / "x")
    assert status == 2
    assert "ds4proto[parquet]" in err
    assert not list(tmp_path.iterdir())
