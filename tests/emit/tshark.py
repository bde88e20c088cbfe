"""Captures as tshark shows them under our dissector, and as our decoder does."""

import gzip
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ds4proto.schema.names import field_names
from ds4proto.trace.decoder import decode

LISTED = {name.name: name for name in field_names()}
PROTOCOLS = ("ds4d", "ds4t", "ds4b")
CLAUSE = re.compile(r"[A-Z0-9]+-[A-Z0-9]+-\d{2}")
LIMIT_S = 300


@dataclass
class Shown:
    """One frame: its name, and the values of each field in order."""

    name: str
    fields: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    clauses: list[str] = field(default_factory=list)
    dialect: str = ""


Streams = dict[tuple[str, str], list[Shown]]


@cache
def tshark() -> str:
    """Return tshark's path; without it the test fails and says what to do."""
    found = shutil.which("tshark")
    assert found, (
        "tshark is not installed: `apt-get install tshark` or `brew install wireshark`"
    )
    return found


def run_tshark(script: Path, capture: Path, *words: str) -> bytes:
    command = [tshark(), "-X", f"lua_script:{script}", "-r", str(capture), *words]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    complaints = [
        line
        for line in done.stderr.decode().splitlines()
        if "lua" in line.lower() or "error" in line.lower()
    ]
    assert complaints == []
    return done.stdout


def by_tshark(script: Path, capture: Path) -> Streams:
    """Return what tshark shows, by the two ends of each direction."""
    xml = run_tshark(
        script, capture, "-T", "pdml", "-J", "ip tcp ds4d ds4t ds4b _ws.lua"
    )
    assert b"Lua Error" not in xml
    streams: Streams = defaultdict(list)
    for packet in ET.fromstring(xml).iter("packet"):
        ends = _ends(packet)
        for proto in packet.iter("proto"):
            if proto.get("name") in PROTOCOLS:
                streams[ends].append(_shown(proto))
    return streams


def _ends(packet: ET.Element) -> tuple[str, str]:
    words = {}
    for element in packet.iter("field"):
        name = element.get("name", "")
        if name in {"ip.src", "ip.dst", "tcp.srcport", "tcp.dstport"}:
            words.setdefault(name, element.get("show", ""))
    return (
        f"{words.get('ip.src')}:{words.get('tcp.srcport')}",
        f"{words.get('ip.dst')}:{words.get('tcp.dstport')}",
    )


def _shown(proto: ET.Element) -> Shown:
    shown = Shown("")
    for element in proto.iter("field"):
        name = element.get("name", "")
        if name.endswith(".frame"):
            shown.name = element.get("show", "")
        elif name.endswith(".dialect"):
            shown.dialect = element.get("show", "")
        elif name == "_ws.expert.message":
            clause = element.get("show", "").partition(":")[0]
            if CLAUSE.fullmatch(clause):  # Wireshark has remarks of its own
                shown.clauses.append(clause)
        elif name in LISTED and ".header." not in name:
            shown.fields[name].append(_value(name, element))
    return shown


def _value(name: str, element: ET.Element) -> Any:
    entry = LISTED[name]
    if entry.type in {"text", "bytes"} or entry.type.startswith("u8["):
        return bytes.fromhex(element.get("value", ""))
    if entry.type in {"list", "record"}:
        return None
    show = element.get("show", "")
    return float(show) if entry.type.startswith("f") else int(show, 0)


def by_us(capture: Path, **words: Any) -> Streams:
    """Return what our decoder shows, in the same form."""
    streams: Streams = defaultdict(list)
    for row in decode(str(capture), payload="summary", **words):
        shown = Shown(row.name, dialect=row.dialect)
        stem = f"{row.name.lower()}."
        for name, value in _flat(stem, row.fields):
            shown.fields[name].append(value)
        shown.clauses = [problem.clause for problem in row.problems]
        streams[row.src, row.dst].append(shown)
    return streams


def _flat(stem: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in fields.items():
        name = stem + path
        if name not in LISTED:
            continue
        kind = LISTED[name].type
        if isinstance(value, Mapping):
            yield from _flat(f"{name}.", value)
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, Mapping):
                    yield from _flat(f"{name}.", item)
                else:
                    yield name, item
        elif kind == "text":
            if value:
                yield name, value.encode("utf-8", "surrogateescape")
        elif isinstance(value, int | float):
            yield name, value
        elif isinstance(value, bytes | str) and kind.startswith("u8["):
            yield name, bytes.fromhex(value) if isinstance(value, str) else bytes(value)


def plain_capture(path: Path, folder: Path) -> Path:
    """Return an uncompressed copy where the capture is compressed."""
    if path.suffix != ".gz":
        return path
    copy = folder / path.stem
    copy.write_bytes(gzip.decompress(path.read_bytes()))
    return copy
