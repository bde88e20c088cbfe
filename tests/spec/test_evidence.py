"""What clauses name as their evidence is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ds4proto import clauses
from ds4proto.testing import captures_dir

PROBES = Path(__file__).parents[1] / "data" / "ds4d_probes"
WITHOUT_FILE = {"measurement", "log", "test", "vector"}
"""``vector`` names a row in words; the tests of vectors look for those by flag."""


@cache
def behaviours() -> frozenset[str]:
    """Return ``part: input`` of DS4D and the cases of DS4T."""
    found, part = set(), ""
    text = (captures_dir() / "ds4d" / "behaviour.md").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("## "):
            part = line[3:].strip()
        elif line.startswith("| ") and part:
            found.add(f"{part}: {line.split('|')[1].strip()}")
    table = (captures_dir() / "ds4t" / "behaviour.tsv").read_text("utf-8")
    found |= {line.partition("\t")[0] for line in table.splitlines()[1:]}
    return frozenset(found)


@cache
def probes() -> frozenset[str]:
    found = set()
    for path in PROBES.glob("*_probes.json"):
        for one in json.loads(path.read_text("utf-8"))["probes"]:
            found.add(f"{path.stem.removesuffix('_probes')}/{one['name']}")
    return frozenset(found)


@cache
def recordings(*folders: str) -> frozenset[str]:
    files = [p for name in folders for p in (captures_dir() / name).rglob("*.pcap*")]
    return frozenset(
        p.parent.name if p.name == "trace.pcap" else p.name.partition(".")[0]
        for p in files
    )


def is_there(kind: str, name: str) -> bool:
    if kind == "capture":
        return name in recordings("ds4d", "ds4t", "toy")
    if kind == "rdma-capture":
        return name in recordings("rdma")
    if kind == "probe":
        return name in probes()
    # a long input may be named by its beginning
    return kind == "behaviour" and any(row.startswith(name) for row in behaviours())


def named() -> Iterator[tuple[str, str, str]]:
    """Yield clause, kind and name of each piece of evidence."""
    for clause in clauses.load():
        for piece in filter(None, map(str.strip, clause.source.split(";"))):
            kind, _, name = piece.partition(" ")
            yield clause.id, kind, name


def test_what_clauses_name_is_there() -> None:
    missing = [
        (clause, kind, name)
        for clause, kind, name in named()
        if kind not in WITHOUT_FILE and not is_there(kind, name)
    ]
    assert missing == []
    kinds = [kind for _, kind, _ in named()]
    assert kinds.count("behaviour") > 50
    assert kinds.count("probe") > 100
    assert kinds.count("capture") > 500


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("capture", "v10_decode9"),
        ("rdma-capture", "v10_decode8"),
        ("probe", "worker_work/no such request"),
        ("behaviour", "worker/work: no such input"),
        ("rumour", "anything"),
    ],
)
def test_what_is_not_there_is_missed(kind: str, name: str) -> None:
    assert not is_there(kind, name)
