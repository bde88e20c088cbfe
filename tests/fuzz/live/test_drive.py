"""A coordinator that asks only when it is made to: ``--drive``."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from ds4proto_fuzz.findings import Finding, Store
from ds4proto_fuzz.hunt import Hunt
from ds4proto_fuzz.roles import target_of
from ds4proto_fuzz.target import Settings

from ds4proto.cli import run
from ds4proto.errors import WrongUsage

ASKED = """
import os, selectors, sys
from ds4proto_fuzz.mutants.small_coordinator import SmallCoordinator

class Driven(SmallCoordinator):
    def run(self):
        self.asks, self.hops = 0, []
        pipe = os.open(sys.argv[3], os.O_RDWR | os.O_NONBLOCK)
        self._selector.register(pipe, selectors.EVENT_READ, "drive")
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                elif key.data == "drive":
                    self.asks += len(os.read(pipe, 64))
                    self.serve()
                else:
                    self._readable(key.data)

    def _work(self, hop):
        self.hops.append(hop)
        self.serve()

    def serve(self):
        self.hops = [hop for hop in self.hops if hop.sock.fileno() >= 0]
        while self.asks and self.hops:
            self.asks -= 1
            super()._work(self.hops.pop())

Driven((sys.argv[1], int(sys.argv[2]))).run()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    script, pipe = tmp_path / "coordinator.py", tmp_path / "drive"
    script.write_text(ASKED)
    os.mkfifo(pipe)
    peer = shlex.join([sys.executable, str(script)]) + f" {{host}} {{port}} {pipe}"
    drive = f"exec:sh -c 'printf x > {pipe}'"
    return Settings(f"exec:{peer}", "coordinator", patience=20.0, drive=drive)


def test_what_is_driven_is_fuzzed_in_every_state(
    settings: Settings, tmp_path: Path
) -> None:
    target = target_of(settings)
    found: list[Finding] = []
    try:
        target.start()
        known = [n for n in range(40) if target.make(1, n).state == "asked"][:6]
        store = Store(tmp_path / "findings")
        tally = Hunt(target, 1, store, tell=found.append).run(known)
    finally:
        target.stop()
    assert (tally.cases, found, tally.unproven) == (6, [], {})
    assert target.identity()["layer_start"] == 2


def test_a_drive_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fuzz", "peer", "--peer", "exec:x", "--role", "coordinator"]
    assert run([*words, "--drive", "knock", "--out", str(tmp_path)]) == 2
    assert "expected one of exec:COMMAND, http:URL" in capsys.readouterr().err
    with pytest.raises(WrongUsage, match="nothing behind it"):
        target_of(Settings("exec:x", "coordinator", drive="exec: "))
