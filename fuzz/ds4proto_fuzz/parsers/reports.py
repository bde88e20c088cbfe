"""JSON that comes back in: reports of runs, expected verdicts, preflight messages.

Invariants: a report is read whole, or refused with an error of ours that names the
file; what was read can be used; a message of another preflight is taken, or refused
with `JoinError`, the same whether it arrives at once or byte by byte, and no length is
believed before it was checked.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, cast

from ds4proto.errors import Ds4ProtoError, PeerLost
from ds4proto.peer.channel import SocketChannel
from ds4proto.preflight.live import facts_of, outcome_of
from ds4proto.preflight.protocol import receive
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["MESSAGE", "REPORT", "readers"]

GROUP: Final = "ds4proto.readers"


@cache
def readers() -> Mapping[str, Callable[[str], Any]]:
    """Return the readers of files that the installed packages register.

    Raises
    ------
    LookupError
        There are none: the package was installed before they were added.
    """
    found = {point.name: point.load() for point in entry_points(group=GROUP)}
    if not found:
        raise LookupError(f"no entry points in {GROUP}. Next: make setup")
    return found


@cache
def _place() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="ds4-reports-")
    _KEPT.append(folder)
    return Path(folder.name) / "report.jsonl"


_KEPT: Final[list[tempfile.TemporaryDirectory[str]]] = []


def check_report(data: bytes) -> None:
    """Give a file to every reader; use what comes out."""
    path = _place()
    path.write_bytes(data)
    for name, read in readers().items():
        try:
            found = read(os.fspath(path))
        except Ds4ProtoError as error:
            if str(path) not in str(error):
                broken("an error names the file", reader=name, error=str(error))
            continue
        _use(found)


def _use(found: Any) -> None:
    """Do with a report what every command that reads one does."""
    if isinstance(found, dict):
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in found.items()):
            broken("expected verdicts are texts", found=found)
        return
    verdicts = {name: str(line["verdict"]) for name, line in found.cases.items()}
    if len(verdicts) != len(found.cases) or not found.footer:
        broken("a report is whole", cases=len(found.cases), footer=found.footer)
    str(found.peer)
    dict(found.identity)


def seeds_report() -> Iterator[bytes]:
    """Yield reports: whole, cut, of another version; and expected verdicts."""
    header = {
        "kind": "header", "version": 1, "tool": "0.1.0", "peer": "exec:x",
        "role": "worker", "seed": 1, "cases": 1,
    }  # fmt: skip
    case = {
        "kind": "case", "id": "a", "verdict": "pass", "clauses": ["DS4D-HELLO-01"],
        "category": "hello", "severity": "must", "deviations": [], "seed": 1,
        "reproduce": "ds4proto check -k a",
    }  # fmt: skip
    footer = {
        "kind": "footer", "verdicts": {"pass": 1}, "seconds": 1.5, "exit": 0,
        "identity": {"name": "Toy V4"},
    }  # fmt: skip
    lines = [json.dumps(line) for line in (header, case, footer)]
    yield "\n".join(lines).encode() + b"\n"
    yield "\n".join([lines[0], lines[1], lines[1], lines[2]]).encode()
    yield "\n".join(lines[:2]).encode()
    yield json.dumps({**header, "version": 2}).encode()
    yield json.dumps({"about": "x", "verdicts": {"a": "pass", "b": "fail"}}).encode()
    yield b'{"verdicts": {"a": "nonsense"}}'
    yield b"[" * 200 + b"]" * 200


# -- messages of another preflight


class _Wire:
    """Stands in for a channel: gives the bytes of an input, then the peer is gone."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = data
        self._at = 0
        self._step = step
        self.phase = ""
        self.largest = 0

    def recv_exact(self, buffer: bytearray, *, deadline: float) -> None:
        """Fill a buffer in steps."""
        del deadline
        self.largest = max(self.largest, len(buffer))
        done = 0
        while done < len(buffer):
            piece = self._data[self._at : self._at + self._step]
            piece = piece[: len(buffer) - done]
            if not piece:
                raise PeerLost(f"the peer left while {self.phase}")
            buffer[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)


KINDS: Final = ("facts", "report", "challenge", "answer", "welcome")
MOST_MESSAGE: Final = 4 << 20
"""The largest message that the protocol of preflights allows."""


def check_message(data: bytes) -> None:
    """Receive messages until the peer is gone; read what they carry."""
    same("whole or byte by byte", _messages(data, 1 << 20), _messages(data, 1))


def _messages(data: bytes, step: int) -> list[str]:
    wire = _Wire(data, step)
    told: list[str] = []
    while True:
        try:
            message = receive(cast(SocketChannel, wire), *KINDS)
            kind = str(message["type"])
            if kind == "facts":
                told.append(repr(facts_of(message)))
            elif kind == "report":
                told.append(repr(outcome_of(message)))
            else:
                told.append(repr(message))
        except PeerLost as error:
            told.append(str(error))
            break
        except Ds4ProtoError as error:
            told.append(str(error))
    if wire.largest > MOST_MESSAGE:
        broken("no length is believed unchecked", buffer=wire.largest)
    return told


def seeds_message() -> Iterator[bytes]:
    """Yield messages: sound ones, ones that say too little, ones that lie."""
    facts = '{"machine":{"name":"a"},"time":1.5}'
    for message in (
        {"type": "challenge", "version": 1, "nonce": "00ff"},
        {"type": "answer", "version": 1, "proof": "ab"},
        {"type": "facts", "gathered": facts},
        {"type": "facts", "gathered": "{}"},
        {"type": "report", "outcome": '{"plan":{},"findings":[],"links":[]}'},
        {"type": "refused", "reason": "the code is wrong"},
        {"type": "facts"},
    ):
        body = json.dumps(message).encode()
        yield len(body).to_bytes(4, "big") + body
    yield b"\xff\xff\xff\xff{}"
    yield b"\0\0\0\x02{}\0\0\0\x02[]"


REPORT: Final = Target(
    "report", "reports and expected verdicts as JSON", check_report, seeds_report, 1500
)
MESSAGE: Final = Target(
    "message", "messages of another preflight", check_message, seeds_message, 1500
)
