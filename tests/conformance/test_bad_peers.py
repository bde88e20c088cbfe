"""Peers that are silent, slow, gone, random or something else altogether."""

import sys
from pathlib import Path

import pytest
from ds4proto_conformance.front import run
from ds4proto_conformance.settings import Settings

from ds4proto.errors import ExitCode

CONNECT = """
import random, socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
"""
LARGE, HALF = "b'DS4D' + bytes([0,0,0,1])", "bytes([0,0,0,60]) + bytes(20)"
PEERS = {
    "silent": "",
    "crashing": "sys.exit('out of luck')",
    "http": "s.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')",
    "other protocol": "s.sendall(b'DS4T' + bytes(60))",
    "random": "s.sendall(random.Random(5).randbytes(4000))",
    "endless frame": f"s.sendall({LARGE} + bytes([255] * 4))",
    "half a hello": f"s.sendall({LARGE} + {HALF})",
}


@pytest.mark.parametrize("name", PEERS)
def test_each_gets_a_clear_verdict(name: str, tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(f"{CONNECT}{PEERS[name]}\ntime.sleep(60)\n")
    settings = Settings(
        f"exec:{sys.executable} {script} {{host}} {{port}}",
        "worker",
        patience=0.3,
        connect=1.5,
    )
    report, status = run(settings, only=["worker/work/unknown-flag"])
    if status is ExitCode.PEER_LOST:
        assert "peer" in report.footer["stopped"]
        assert "HELLO" in report.footer["stopped"]
        if name == "crashing":
            assert "out of luck" in report.footer["stopped"]
        return
    assert status is ExitCode.FAILED
    line = report.cases["worker/work/unknown-flag"]
    assert line["verdict"] == "fail"
    assert line["deviations"][0]["clause"].startswith("DS4D-")


def test_nobody_there_is_a_lost_peer() -> None:
    settings = Settings("tcp:127.0.0.1:1", "coordinator", patience=0.2, connect=0.5)
    _, status = run(settings, "smoke")
    assert status is ExitCode.PEER_LOST
