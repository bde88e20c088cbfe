"""``ds4proto diagnose`` and ``ds4proto whatif``: what they print, and their status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.testing import captures_dir

ROOT = captures_dir()
SOUND = ROOT / "ds4d" / "a_s2_decode_f32.pcap"
KILLED = ROOT / "ds4d" / "g_kill_mid_request_s2.pcap"
NARROW = ROOT / "ds4d" / "b_s2_decode_f16.pcap"
Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def go(*args: Any) -> tuple[int, Any, str]:
        status = run([*map(str, args)])
        out, err = capfd.readouterr()
        return status, json.loads(out) if "--json" in args else out, err

    return go


def test_a_sound_run_ends_with_status_0(call: Call) -> None:
    status, out, err = call("diagnose", SOUND)
    assert (status, err) == (0, "")
    assert "0 severe, 0 warnings" in " ".join(out.split())
    assert "computing in worker 4:output" in " ".join(out.split())


def test_a_severe_finding_ends_with_status_1_and_proves_itself(call: Call) -> None:
    status, out, _ = call("diagnose", KILLED, "--no-notes")
    text = " ".join(out.split())
    assert status == 1
    assert "Worker 4:output went away first" in text
    assert "proof: DS4D.WORK, stream 1 b>a, packet 63" in text
    assert "next: look at the last lines of worker 4:output" in text
    assert "pipeline.time" not in text


def test_the_json_holds_the_same(call: Call) -> None:
    status, found, _ = call("diagnose", KILLED, "--json")
    assert status == 1
    assert (found["worst"], found["frames"]) == ("severe", 17)
    first = found["findings"][0]
    assert first["code"] == "end.peer-gone"
    assert first["severity"] == "severe"
    assert first["confidence"] == "certain"
    assert first["numbers"]["request"] == 4
    assert first["evidence"][0]["packet"] == 63
    assert first["evidence"][0]["offset"] == 1323
    assert found["counts"]["severe"] == 1


def test_a_file_without_frames_ends_with_status_2(call: Call, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("nothing of ours\n")
    status, _, err = call("diagnose", text)
    assert status == 2
    assert "no frame of the protocols and no known line" in err
    status, _, err = call("diagnose", tmp_path / "missing.pcap")
    assert status == 2
    assert "missing.pcap" in err


def test_a_damaged_file_is_judged_as_far_as_it_goes(call: Call, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(SOUND.read_bytes()[:-40])
    status, found, err = call("diagnose", cut, "--json")
    assert status == 0
    assert found["frames"] >= 18
    assert "ends inside a record" in err
    assert str(cut) in found["unreadable"]


def test_a_capture_may_come_from_standard_input() -> None:
    with SOUND.open("rb") as source:
        done = subprocess.run(
            [sys.executable, "-m", "ds4proto", "diagnose", "-", "--json"],
            stdin=source, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames"] == 19


def test_a_log_line_becomes_a_place(call: Call, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4-tp: timeout waiting gate seq 77 (recv_done 76)\n")
    status, out, _ = call("diagnose", log, "--gates", "7,2,75")
    assert status == 1
    assert "token 2, layer 4, FFN" in out
    assert "line 1" in out


@pytest.mark.parametrize(
    "text", ["", "x", "1,2", "0", "1,0,5", "1,2,3,4", "99999999", "9" * 5000]
)
def test_a_schedule_that_is_none_is_refused(call: Call, text: str) -> None:
    status, _, err = call("diagnose", SOUND, "--gates", text)
    assert status == 2
    assert "--gates" in err


def test_a_page_never_takes_the_place_of_an_input(call: Call, tmp_path: Path) -> None:
    capture = tmp_path / "run.pcap"
    capture.write_bytes(SOUND.read_bytes())
    status, out, err = call("diagnose", capture, "--html", capture)
    assert (status, out) == (2, "")
    assert "that is an input itself" in err
    assert capture.read_bytes() == SOUND.read_bytes()
    status, out, err = call("diagnose", capture, "--html", tmp_path / "no" / "a.html")
    assert (status, out) == (2, "")
    assert "there is no folder" in err


def test_a_page_needs_a_capture_with_frames(call: Call, tmp_path: Path) -> None:
    damaged, page = tmp_path / "damaged.pcap", tmp_path / "page.html"
    damaged.write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(60))
    status, _, err = call("diagnose", damaged, "--html", page)
    assert status == 2
    assert "none of the files is a capture with frames" in err
    assert not page.exists()


def test_peer_text_cannot_steer_a_terminal(call: Call, tmp_path: Path) -> None:
    log = tmp_path / "odd\x1b[31m.log"
    log.write_text("bad frame magic 0x41424344 \x1b[2J\n")
    status, out, _ = call("diagnose", log)
    assert status == 1
    assert "\x1b" not in out


def test_what_if_says_which_width_fits(call: Call) -> None:
    status, out, _ = call("whatif", SOUND)
    text = " ".join(out.split())
    assert status == 0
    assert "16 bits fit this run: no value clipped or infinite" in text
    assert "8 bits fit this run" in text
    assert "other prompts may differ" in text
    status, found, _ = call("whatif", SOUND, "--json", "--formats", "e4m3,int8")
    assert list(found["formats"]) == ["e4m3", "int8"]
    assert found["unsafe"] == []
    assert found["places"][0]["values"] == 832


def test_what_if_needs_32_bits(call: Call) -> None:
    status, out, err = call("whatif", NARROW)
    assert (status, out) == (2, "")
    assert "narrow already" in err
    assert "--dist-activation-bits 32" in err


def test_what_if_without_a_format_passes_nothing(call: Call) -> None:
    status, _, err = call("whatif", SOUND, "--formats", ",")
    assert status == 2
    assert "--formats" in err


@pytest.mark.parametrize("command", ["diagnose", "whatif"])
def test_help_has_an_example_and_the_exit_status(call: Call, command: str) -> None:
    status, out, _ = call(command, "--help")
    assert status == 0
    assert f"ds4proto {command} run.pcap" in out
    assert "The exit status is" in out


def test_a_log_without_a_known_line_is_not_sent_to_stats(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("all is well\n")
    assert run(["diagnose", str(log)]) == 2
    err = capfd.readouterr().err
    assert "read its last lines" in err
    assert "ds4proto stats" not in err
