"""``ds4proto stats`` and ``ds4proto demo``: what they count, and their verdicts."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import demo, run
from ds4proto.testing import captures_dir
from tests.link.streams import work

ROOT = captures_dir()
THREE = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
PAIR = ROOT / "ds4t" / "v10_everything.pcap"
PROBES = ROOT / "ds4d" / "i_coordinator_hello.pcap"
Stats = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def stats(capfd: pytest.CaptureFixture[str]) -> Stats:
    def call(*args: Any) -> tuple[int, Any, str]:
        status = run(["stats", *map(str, args)])
        out, err = capfd.readouterr()
        return status, json.loads(out) if "--json" in args else out, err

    return call


def test_the_numbers_of_a_pipeline_run(stats: Stats) -> None:
    status, found, _ = stats(THREE, "--json")
    assert status == 0
    assert (found["streams"], found["stream_bytes"]) == (3, 45_340)
    assert (found["accounted_bytes"], found["undecoded_bytes"]) == (45_340, 0)
    assert found["frames"] == {"DS4D.HELLO": 2, "DS4D.RESULT": 18, "DS4D.WORK": 18}
    assert found["frames_by_direction"]["DS4D.WORK"] == {"a>b": 9, "b>a": 9}
    assert found["dialects"] == {"upstream": 38}
    assert found["requests_in_flight"] == 1
    assert found["packets"] == 293
    assert found["problems"] == {}
    hops = {hop["hop"]: hop for hop in found["hops"]}
    first = hops["coordinator -> worker 3:5"]
    # 5 tokens of the prompt and 8 generated: 13 positions, 3174 bytes down
    assert (first["tokens"], first["work_bytes"]) == (13, 3174)
    assert first["bytes_per_token"] == pytest.approx((3174 + 19_620) / 13, abs=0.1)
    assert [run["streams"] for run in found["runs"]] == [
        {"1": "control", "2": "control", "3": "forward"}
    ]


def test_the_numbers_of_a_tensor_parallel_run(stats: Stats) -> None:
    status, found, _ = stats(PAIR, "--json")
    assert status == 0
    assert found["stream_bytes"] == found["accounted_bytes"] == 26_376
    frames = found["frames"]
    # 60 row gates, 6 batch and 10 bulk exchanges each way
    assert frames["DS4T.GATE_ROW"] == 120
    assert frames["DS4B.GATE_BATCH"] == 12
    assert frames["DS4B.GATE_BULK"] == 20
    assert frames["DS4T.HELLO"] == 2
    assert (frames["DS4T.EVAL"], frames["DS4T.LOGITS"]) == (7, 17)
    (gates,) = found["gates"]
    assert (gates["gates_per_token"], gates["row_gates"]) == (4, 60)
    assert found["runs"][0]["streams"] == {"1": "control", "2": "data"}


def test_a_run_that_fell_silent_is_noticed_and_one_that_ended_is_not(
    stats: Stats,
) -> None:
    _, found, _ = stats(ROOT / "ds4t" / "v7_leader_hang.pcap", "--json")
    assert any(n.startswith("no gates since") for n in found["runs"][0]["notes"])
    _, found, _ = stats(ROOT / "ds4t" / "v9_late_second_worker.pcap", "--json")
    assert found["runs"][0]["notes"] == []
    # the second worker dials and nobody listens any more
    assert any(one["notes"] == ["refused"] for one in found["connections"])


def test_undecoded_bytes_come_with_reasons(stats: Stats) -> None:
    status, found, _ = stats(PROBES, "--json")
    assert status == 0
    reasons = found["undecoded_reasons"]
    assert sum(reasons.values()) == found["undecoded_bytes"] > 0
    assert reasons["truncated"] == 34
    assert found["problems"]["DS4D-HELLO-12"] == 4
    assert stats(PROBES, "--strict")[0] == 1
    assert stats(THREE, "--strict")[0] == 0


def test_odd_values_stand_in_the_text_too(stats: Stats, tmp_path: Path) -> None:
    hidden = struct.pack("<4f", float("nan"), float("inf"), 70000.0, 1.0)
    path = tmp_path / "odd.bin"
    path.write_bytes(work(1, tokens=(5,), hidden=hidden))
    _, out, _ = stats(path)
    rows = [line.split() for line in out.splitlines()]
    assert ["nan", "1"] in rows
    assert ["inf", "1"] in rows
    assert ["over_f16", "2"] in rows
    assert not any("odd values" in line for line in stats(THREE)[1].splitlines())


def test_several_captures_are_summed(stats: Stats) -> None:
    _, found, _ = stats(THREE, PAIR, "--json")
    assert found["stream_bytes"] == 45_340 + 26_376
    assert [one["stream_bytes"] for one in found["files"]] == [45_340, 26_376]
    assert found["frames"]["DS4D.WORK"] == 18
    assert found["frames"]["DS4T.EVAL"] == 7


def test_the_text_has_the_totals(stats: Stats) -> None:
    status, out, _ = stats(THREE, PAIR)
    assert status == 0
    assert "45340 payload bytes" in " ".join(out.split())
    assert "all 2 captures" in out
    assert "DS4T.GATE_ROW" in out
    assert "worker 6:output" in out


def test_what_cannot_be_counted(stats: Stats, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(THREE.read_bytes()[:20_000])
    status, found, err = stats(cut, "--json")
    assert status == 0
    assert found["truncated"] is True
    assert "ends inside a record" in err
    assert stats(cut, "--strict")[0] == 1
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(THREE.read_bytes()[:24])
    status, _, err = stats(empty)
    assert status == 2
    assert "no packet was found" in err
    wifi = bytearray(THREE.read_bytes()[:60])
    wifi[20:24] = (105).to_bytes(4, "little")  # a link type that is not read
    wifi[24 + 8 : 24 + 16] = (20).to_bytes(4, "little") * 2
    empty.write_bytes(wifi)
    status, _, err = stats(empty)
    assert status == 2
    assert "1 unknown link type 105" in err
    text = tmp_path / "text"
    text.write_text("hello, this is no capture file at all")
    status, _, err = stats(text)
    assert status == 2
    assert "not a capture file" in err


def test_the_demonstration_gives_a_verdict(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    out = capfd.readouterr().out
    assert "45340 of 45340 bytes lie in frames" in out
    assert "26376 of 26376 bytes lie in frames" in out
    assert "coordinator" in out
    assert "4 row gates" in out
    assert "All is well." in out


def test_the_demonstration_can_fail(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(demo._PAIR_FRAMES, "DS4T.EVAL", 8)
    assert run(["demo"]) == 1
    out = capfd.readouterr().out
    assert "DS4T.EVAL: 7 for 8" in out
    assert "Something failed." in out


def test_the_shipped_captures_are_the_measured_ones() -> None:
    for name, path in ((demo._PIPELINE, THREE), (demo._PAIR, PAIR)):
        assert demo._capture(name).getvalue() == path.read_bytes()


def test_packets_that_a_snap_length_cut_are_told_with_the_way_out(
    stats: Stats, tmp_path: Path
) -> None:
    whole, at = THREE.read_bytes(), 24
    cut = [whole[:at]]
    while at < len(whole):
        head, taken = (
            whole[at : at + 16],
            int.from_bytes(whole[at + 8 : at + 12], "little"),
        )
        kept = min(taken, 66)  # the headers of Ethernet, IPv4 and TCP
        cut.append(head[:8] + kept.to_bytes(4, "little") + head[12:])
        cut.append(whole[at + 16 : at + 16 + kept])
        at += 16 + taken
    path = tmp_path / "cut.pcap"
    path.write_bytes(b"".join(cut))
    status, _, err = stats(path)
    assert status == 2
    assert "a snap length has cut the packets" in err
    assert "tcpdump -s 0" in err
