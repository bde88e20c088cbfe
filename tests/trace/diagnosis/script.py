"""Conversations written line by line, and a look at what a diagnosis finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ds4proto.pcap import Endpoint, PcapWriter, TcpConversation
from ds4proto.testing import captures_dir
from ds4proto.trace.diagnosis import Finding, diagnose
from tests.link.streams import ds4d, ds4t
from tests.trace.diagnosis.built import (
    COORDINATOR,
    HELLO,
    LEADER,
    MS,
    RANK,
    START,
    TP_HELLO,
    WORKER,
)

ROOT = captures_dir()
Way = Literal["a>b", "b>a"]
DATA = Endpoint("10.0.0.2", 21101)


class Script:
    """Connections and what crosses them, a millisecond apart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sink = PcapWriter(path, linktype=101)
        self.now = START

    def tick(self, milliseconds: float = 1.0) -> int:
        self.now += round(milliseconds * MS)
        return self.now

    def dial(self, a: Endpoint, b: Endpoint) -> TcpConversation:
        found = TcpConversation(self.sink, a, b)
        found.open(self.tick())
        return found

    def say(
        self, line: TcpConversation, way: Way, data: bytes, wait: float = 1
    ) -> None:
        line.data(self.tick(wait), way, data)

    def done(self) -> list[Finding]:
        self.sink.close()
        return diagnose([self.path])


def of(findings: Sequence[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


def one(findings: Sequence[Finding], code: str) -> Finding:
    found = of(findings, code)
    assert len(found) == 1, [f"{f.code}: {f.sentence}" for f in findings]
    return found[0]


def capture(name: str) -> list[Finding]:
    return diagnose([ROOT / f"{name}.pcap"])


def pair(script: Script, **worker: Any) -> TcpConversation:
    """Bring a pair's control connection through both hellos."""
    control = script.dial(RANK, LEADER)
    leads = {**TP_HELLO, "role": 1, "ctx_size": 4096}
    script.say(control, "b>a", ds4t("HELLO", **leads))
    script.say(control, "a>b", ds4t("HELLO", **{**TP_HELLO, "role": 2, **worker}))
    return control


def worker(script: Script) -> TcpConversation:
    """Register a worker at a coordinator."""
    control = script.dial(WORKER, COORDINATOR)
    script.say(control, "a>b", ds4d("HELLO", **HELLO))
    return control
