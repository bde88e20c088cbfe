"""Measured captures as four byte strings: control and data, both ways."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.schema.ds4t_hello import HELLO
from ds4proto.schema.registry import parse
from ds4proto.testing import captures_dir
from ds4proto.trace.tcp import read_streams
from ds4proto.trace.tcp_events import Data, Opened

DIALECT = {7: "v7", 9: "v9w", 10: "v10"}
FOLDER = captures_dir() / "ds4t"


@dataclass(frozen=True)
class Stream:
    """One connection; ``from_worker`` is what the dialling side wrote."""

    from_leader: bytes
    from_worker: bytes


@dataclass(frozen=True)
class Captured:
    """One capture and what its peers said."""

    name: str
    about: dict[str, Any]
    streams: tuple[Stream, ...]

    @property
    def dialect(self) -> str:
        return DIALECT[self.version]

    @property
    def version(self) -> int:
        digits = self.name.split("_", 1)[0].removeprefix("v")
        return int(digits)

    @property
    def hello_size(self) -> int:
        return HELLO.fixed_size(self.dialect)

    @property
    def control(self) -> Stream:
        return self.streams[0]

    @property
    def data(self) -> Stream:
        return self.streams[1] if len(self.streams) > 1 else Stream(b"", b"")

    @property
    def cut(self) -> bool:
        """Part of the payload is not in the file."""
        return bool(self.about.get("payload_bytes_cut_by_snaplen"))

    def real(self, role: str) -> bool:
        return str(self.about["roles"][role].get("kind", "")).startswith("real")

    def log(self, role: str) -> str:
        entry = self.about["roles"][role]
        return "\n".join([*entry.get("log", ()), *entry.get("stderr", ())])

    def exit(self, role: str) -> Any:
        return self.about["roles"][role].get("exit")

    def settings(self, role: TpRole) -> TpSettings:
        """Settings as the real side's hello says, vocabulary split by the stub."""
        hello = (
            self.control.from_leader
            if role == "tp-leader"
            else self.control.from_worker
        )
        words = parse(HELLO, hello[: self.hello_size], dialect=self.dialect)
        glm = bool(self.about["parameters"].get("glm"))
        return TpSettings(
            role,
            Identity.of(words),
            self.dialect,
            vocabulary_split=not glm,
            ctx_size=words["ctx_size"],
            transport="tcp",
        )


@cache
def load(name: str) -> Captured:
    about = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    path = next(
        p for p in (FOLDER / f"{name}.pcap", FOLDER / f"{name}.pcap.gz") if p.exists()
    )
    order: list[int] = []
    found: dict[tuple[int, str], bytearray] = {}
    for event in read_streams(path):
        if isinstance(event, Opened):
            order.append(event.stream)
        elif isinstance(event, Data):
            piece = found.setdefault((event.stream, event.direction), bytearray())
            piece[event.offset : event.offset + len(event.data)] = event.data
    streams = tuple(
        Stream(bytes(found.get((n, "b>a"), b"")), bytes(found.get((n, "a>b"), b"")))
        for n in order
        if (n, "a>b") in found or (n, "b>a") in found
    )
    return Captured(name, about, streams)


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(Path(p).stem for p in FOLDER.glob("v*.json")))


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Cut control bytes into (type, whole frame), by the header alone."""
    found, at = [], 0
    while at + 12 <= len(data):
        code = int.from_bytes(data[at + 4 : at + 8], "little")
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        if at + 12 + size > len(data):
            break
        found.append((code, data[at : at + 12 + size]))
        at += 12 + size
    return found
