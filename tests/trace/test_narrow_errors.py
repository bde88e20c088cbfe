"""Damage of a file is told; a fault of our own is not taken for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.testing import capture_path
from ds4proto.trace.diagnosis import examine
from ds4proto.trace.diagnosis.check import up_to_damage
from ds4proto.trace.diagnosis.compare import first_difference
from ds4proto.trace.making import RowMaker
from ds4proto.trace.whatif import what_if

CAPTURE = capture_path("ds4d/a_s2_decode_f32.pcap")
WAYS: dict[str, Callable[[Path], Any]] = {
    "diagnose": lambda path: examine([path]),
    "whatif": what_if,
    "compare": lambda path: first_difference(str(path), str(path)),
}


class OwnFaultError(ValueError):
    """What a programming error may raise."""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OwnFaultError("a bug")

    monkeypatch.setattr(RowMaker, "rows", fail)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Give a capture whose 81st record has a header of nonsense."""
    data = bytearray(CAPTURE.read_bytes())
    at = 24
    for _ in range(80):
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    data[at : at + 16] = b"\xff" * 16
    path = tmp_path / "damaged.pcap"
    path.write_bytes(data)
    return path


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_fault_of_our_own_is_no_damage(way: str) -> None:
    with pytest.raises(OwnFaultError):
        WAYS[way](CAPTURE)


def test_rows_end_at_damage_and_nowhere_else() -> None:
    with pytest.raises(OwnFaultError):
        list(up_to_damage(_raising()))


def _raising() -> Any:
    raise OwnFaultError("a bug")
    yield


def test_damage_is_told_and_what_came_before_is_judged(damaged: Path) -> None:
    found = examine([damaged])
    assert list(found.unreadable) == [str(damaged)]
    assert found.frames > 5
    assert what_if(damaged).damage
    assert first_difference(str(damaged), str(damaged)) != 0


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("command", ["decode", "stats", "diagnose", "whatif"])
def test_a_fault_of_our_own_says_that_it_is_one(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.pcap"
    shutil.copyfile(CAPTURE, path)
    assert run([command, str(path)]) == 1
    err = capfd.readouterr().err
    assert "DS4PROTO_TRACEBACK=1" in err
    assert "Traceback" not in err
