"""What recordings of real builds show: frames, bytes and logs, and faults in them.

A proof on a recording asks whether real peers did what the clause says. Its planted
fault is a recording in which one of them did not: `altered` and `dropped` change the
frames that the check sees, `retold` the logs, `rewritten` the bytes.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import dpkt
import msgspec

from ds4proto.testing import captures_dir
from ds4proto.trace import FrameRow, decode
from tests.spec import recordings as this
from tests.spec.proving import Fault

Rows = list[FrameRow]
Facts = dict[str, Any]
When = Callable[[FrameRow], bool]
Streams = dict[tuple[int, str], bytes]
"""Bytes by connection, from 0, and direction; ``a>b`` is from the side that dialled."""


def path_of(name: str) -> Path:
    """Return the capture called ``ds4t/v9_top2``."""
    path = captures_dir() / f"{name}.pcap"
    return path if path.exists() else path.with_suffix(".pcap.gz")


@cache
def _rows(name: str) -> tuple[FrameRow, ...]:
    if name.startswith("ds4d/"):
        return tuple(decode(str(path_of(name))))
    return tuple(decode(str(path_of(name)), payload="none"))


@cache
def _facts(name: str) -> str:
    return (captures_dir() / f"{name}.json").read_text("utf-8")


def rows(name: str) -> Rows:
    """Return the frames of a recording, in the order in which they ended."""
    return this.edited(list(_rows(name)))


def facts(name: str) -> Facts:
    """Return what its JSON tells of processes, options, exits and logs."""
    return this.told(json.loads(_facts(name)))


def log(name: str, role: str) -> list[str]:
    """Return the log of one rank of a DS4T recording."""
    lines: list[str] = facts(name)["roles"][role]["log"]
    return lines


def edited(found: Rows) -> Rows:
    """Return the frames as they are; faults stand in its place."""
    return found


def told(found: Facts) -> Facts:
    """Return the JSON as it is; faults stand in its place."""
    return found


def written(found: Streams) -> Streams:
    """Return the bytes as they are; faults stand in its place."""
    return found


class Segment(NamedTuple):
    """One TCP segment of a recording, or one datagram (``way`` empty).

    ``number`` is that of the connection, from 0, or of the address that sent it.
    """

    time: float
    number: int
    way: str
    flags: int
    seq: int
    ack: int
    data: bytes


@cache
def _segments(path: Path) -> tuple[Segment, ...]:
    numbers: dict[frozenset[tuple[bytes, int]], tuple[int, tuple[bytes, int]]] = {}
    found = []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        for time, data in dpkt.pcap.Reader(file):
            ip = dpkt.ethernet.Ethernet(data).data
            part = ip.data
            if isinstance(part, dpkt.udp.UDP):
                sender = int.from_bytes(ip.src, "big")
                found.append(Segment(float(time), sender, "", 0, 0, 0, part.data))
                continue
            ends = (ip.src, part.sport), (ip.dst, part.dport)
            both = frozenset(ends)
            if part.flags == dpkt.tcp.TH_SYN:
                numbers[both] = len(found), ends[0]
            number, dialler = numbers.setdefault(both, (len(found), ends[0]))
            way = "a>b" if ends[0] == dialler else "b>a"
            words = part.flags, part.seq, part.ack, bytes(part.data)
            found.append(Segment(float(time), number, way, *words))
    order = {
        number: i for i, number in enumerate(dict.fromkeys(s.number for s in found))
    }
    return tuple(one._replace(number=order[one.number]) for one in found)


def segments(name: str) -> list[Segment]:
    """Return the TCP segments of a recording, taken apart by dpkt and not by us."""
    return this.sent(list(_segments(path_of(name))))


def sent(found: list[Segment]) -> list[Segment]:
    """Return the segments as they are; faults stand in its place."""
    return found


def resent(change: Callable[[list[Segment]], list[Segment]]) -> Fault:
    """Alter the segments."""
    return _instead("sent", change)


def streams(name: str) -> Streams:
    """Return the bytes of each connection.

    For recordings over loopback, in which nothing was lost and nothing comes twice.
    """
    parts: defaultdict[tuple[int, str], dict[int, bytes]] = defaultdict(dict)
    for one in segments(name):
        if one.data:
            parts[one.number, one.way].setdefault(one.seq, one.data)
    found = {
        key: b"".join(part[1] for part in sorted(cut.items()))
        for key, cut in parts.items()
    }
    return this.written(found)


def of(found: Iterable[FrameRow], *types: str, src: str = "") -> Rows:
    """Return the frames of some types, from one side if that is given."""
    return [
        row
        for row in found
        if row.type in types and (not src or row.src_role.startswith(src))
    ]


@cache
def _behaviour() -> tuple[tuple[str, str, str], ...]:
    found, part = [], ""
    for line in (captures_dir() / "ds4d" / "behaviour.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("## "):
            part = line[3:].strip()
        elif line.startswith("| ") and part:
            found.append((part, cells[1], cells[2]))
    return tuple(found)


def behaviour(part: str, given: str) -> str:
    """Return what the builds of the DS4D recordings did with an input."""
    (found,) = [
        did for where, what, did in _behaviour() if (where, what) == (part, given)
    ]
    return this.noted(found)


def noted(found: str) -> str:
    """Return the words as they are; faults stand in its place."""
    return found


# faults


def _instead(name: str, change: Callable[[Any], Any]) -> Fault:
    def plant() -> AbstractContextManager[Any]:
        return patch.object(this, name, change)

    return plant


def altered(
    when: When, length: int | None = None, later: float = 0.0, **fields: Any
) -> Fault:
    """Give the frames that fit other fields, another length or a later time."""

    def change(found: Rows) -> Rows:
        replace = msgspec.structs.replace
        return [
            replace(
                row,
                fields={**row.fields, **fields},
                length=row.length if length is None else length,
                time=row.time + later,
            )
            if when(row)
            else row
            for row in found
        ]

    return _instead("edited", change)


def placed(when: When, **words: Any) -> Fault:
    """Put the frames that fit on another connection, or in another direction."""

    def change(found: Rows) -> Rows:
        replace = msgspec.structs.replace
        return [replace(row, **words) if when(row) else row for row in found]

    return _instead("edited", change)


def dropped(when: When) -> Fault:
    """Leave the frames out that fit."""
    return _instead("edited", lambda found: [row for row in found if not when(row)])


def moved(when: When, to: int) -> Fault:
    """Put the first frame that fits at another place."""

    def change(found: Rows) -> Rows:
        one = next((row for row in found if when(row)), None)
        if one is None:
            return found
        rest = [row for row in found if row is not one]
        rest.insert(to if to >= 0 else len(rest) + 1 + to, one)
        return rest

    return _instead("edited", change)


def doubled(when: When) -> Fault:
    """Give the frames that fit twice."""
    return _instead(
        "edited",
        lambda found: [row for one in found for row in [one] * (1 + when(one))],
    )


def renamed(when: When, name: str) -> Fault:
    """Call the frames that fit something else."""

    def change(found: Rows) -> Rows:
        replace = msgspec.structs.replace
        return [replace(row, type=name) if when(row) else row for row in found]

    return _instead("edited", change)


def retold(old: str, new: str) -> Fault:
    """Write other words into logs, options and events."""

    def change(found: Facts) -> Facts:
        changed: Facts = json.loads(json.dumps(found).replace(old, new))
        return changed

    return _instead("told", change)


def denoted(old: str, new: str) -> Fault:
    """Write other words into the table of behaviour."""
    return _instead("noted", lambda found: found.replace(old, new))


def rewritten(change: Callable[[bytes], bytes]) -> Fault:
    """Alter the bytes of every direction."""

    def act(found: Streams) -> Streams:
        return {key: change(data) for key, data in found.items()}

    return _instead("written", act)
