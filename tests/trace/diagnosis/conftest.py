"""A conversation to write, for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace.diagnosis.script import Script


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path / "run.pcap")
