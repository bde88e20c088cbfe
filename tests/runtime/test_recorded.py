"""Our peers, given the recorded commands, send the recorded frames.

What may differ: the session id, ports, and the microseconds of telemetry.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.testing import capture_path
from ds4proto.trace.decoder import decode
from tests.runtime.cluster import Cluster, cluster

TIMES = ("eval_usec", "downstream_wait_usec", "forward_send_usec")
Flows = dict[tuple[str, str], list[Any]]


def flows(sources: Iterable[tuple[Path, str | None]]) -> Flows:
    """Return the frames of each pair of roles in order.

    A source with a role keeps only the frames that go to or come from it.
    """
    found: Flows = defaultdict(list)
    for path, only in sources:
        for row in decode(str(path)):
            key = (row.src_role, row.dst_role)
            if only is None or only in key:
                found[key].append(plain(row))
    return dict(found)


def plain(row: Any) -> dict[str, Any]:
    fields = {
        k: v for k, v in row.fields.items() if k not in ("session", "listen_port")
    }
    fields["telemetry"] = [
        {k: v for k, v in record.items() if k not in TIMES}
        for record in fields.get("telemetry", ())
    ]
    fields["route"] = [
        {k: v for k, v in record.items() if k != "port"}
        for record in fields.get("route", ())
    ]
    digest = None if row.payload is None else row.payload.hash
    return {"type": row.type, "length": row.length, **fields, "digest": digest}


def carry_out(commands: list[Any], found: Cluster, folder: Path) -> None:
    session = found.coordinator.session(7)
    for entry in commands:
        if isinstance(entry, str):
            assert entry == "RESTART w2"
            restart(found)
            continue
        command, answer = entry
        name, *words = command.split()
        if name == "sync":
            session.sync([int(word) for word in words])
        elif name == "eval":
            session.eval(int(words[0]))
        elif name == "save":
            session.save(folder / words[0])
        elif name == "load":
            session.load(folder / words[0])
        if "len=" in answer:
            assert f"len={len(session.tokens)}" in answer.split(), command


def restart(found: Cluster) -> None:
    """Kill the last worker and start it again, as the recording did."""
    found.restart("5:output")
    found.wait_registered("5:output", 2)
    found.wait_registered("2:4", 2)
    found.route()


@pytest.mark.parametrize(
    ("name", "last", "bits"),
    [
        ("pipeline_f32", "5:output", 32),
        ("pipeline_f16", "5:output", 16),
        ("pipeline_e4m3_hidden", "5:7", 8),
        ("worker_restart_rebuild", "5:output", 32),
    ],
)
def test_the_recorded_commands_give_the_recorded_frames(
    name: str, last: str, bits: int, tmp_path: Path
) -> None:
    manifest = json.loads(capture_path(f"toy/{name}/manifest.json").read_text())
    ours, theirs = tmp_path / "coordinator.pcapng", tmp_path / "worker.pcapng"
    words = {"2:4": ("--record", str(theirs))}
    with cluster("0:1", "2:4", last, bits=bits, record=ours, words=words) as found:
        carry_out(manifest["commands"], found, tmp_path)
    recorded = flows([(capture_path(f"toy/{name}/trace.pcap"), None)])
    forwarded = {
        k: v for k, v in flows([(theirs, None)]).items() if "coordinator" not in k
    }
    seen = flows([(ours, None)]) | forwarded
    for pair, rows in recorded.items():
        assert [row["type"] for row in seen[pair]] == [row["type"] for row in rows], (
            pair
        )
        for mine, other in zip(seen[pair], rows, strict=True):
            assert mine == other, pair
    assert set(seen) == set(recorded)
    frames = sum(len(rows) for rows in recorded.values())
    assert frames == sum(
        len(stream["frames"])
        for connection in manifest["connections"]
        for stream in connection["streams"]
    )
    if name == "pipeline_f32":
        saved = (tmp_path / "session.dsv4").read_bytes()
        assert saved == capture_path("toy/pipeline_f32/session.dsv4").read_bytes()
