"""The recorded requests of real peers, replayed against our machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ds4proto import clauses
from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.schema import frame_of_code, read
from tests.link.ds4d import toy
from tests.link.ds4d.host import Host
from tests.link.ds4d.streams import PROBES

DIFFERENCES = {
    "load token_count > ctx": (
        "DS4D-SNAP-13",
        [
            {
                "type": 8,
                "body_bytes": 64,
                "request_id": 9223372036854775809,
                "status": 1,
                "message": "snapshot token count exceeds worker context size",
            }
        ],
        "closed",
    ),
    "payload_bytes 0 and a bad first token: stream desync": (
        "DS4D-SNAP-68",
        [
            {
                "type": 8,
                "body_bytes": 65,
                "request_id": 9223372036854775809,
                "status": 1,
                "message": "snapshot token id is outside the model vocabulary",
            },
            {
                "type": 6,
                "body_bytes": 60,
                "status": 0,
                "token_count": 0,
                "payload_bytes": 36304,
                "message": "",
                "request_id": 9223372036854775808,
                "session_id": 132,
            },
            {
                "type": 7,
                "body_bytes": 36316,
                "chunk_bytes": 36304,
                "request_id": 9223372036854775808,
            },
            {
                "type": 8,
                "body_bytes": 16,
                "request_id": 9223372036854775808,
                "status": 0,
                "message": "",
            },
        ],
        "open",
    ),
}
"""Answers of ours that differ, each with the clause that gives the reason."""


def probes(name: str) -> list[dict[str, Any]]:
    text = (PROBES / f"{name}_probes.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)["probes"]
    return found


def frames(data: bytes) -> Iterator[dict[str, Any]]:
    """Decode what was sent with the schema, under the recorded names."""
    at = 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        code = int.from_bytes(data[at + 4 : at + 8], "big")
        spec = frame_of_code("DS4D", code, dialect="upstream")
        assert spec is not None
        reading = read(spec, data[at : at + size], dialect="upstream")
        assert not reading.problems, reading.problems
        values = dict(reading.values)
        yield {
            **values,
            "type": code,
            "body_bytes": size - 12,
            "request_id": values.get("request"),
            "session_id": values.get("session"),
            "result_hash": f"{values.get('result_hash', 0):016x}",
            "message": _message(values),
            "payload_bytes": values.get("payload_bytes", values.get("payload_size")),
        }
        at += size


def _message(values: dict[str, Any]) -> Any:
    if values.get("status") and "payload" in values:
        return bytes(values["payload"]).decode()
    return values.get("message", values.get("text"))


def check(probe: dict[str, Any], wrote: bytes, closed: bool) -> None:
    wanted, end = probe["expect"], probe["end"]
    if probe["name"] in DIFFERENCES:
        clause, wanted, end = DIFFERENCES[probe["name"]]
        assert clauses.get(clause).id == clause
    found = list(frames(wrote))
    assert len(found) == len(wanted), [f["message"] for f in found]
    for ours, theirs in zip(found, wanted, strict=True):
        assert {key: ours[key] for key in theirs} == theirs
    assert closed == (end == "closed")


def split(data: bytes, step: int) -> Iterator[bytes]:
    for at in range(0, len(data), step):
        yield data[at : at + step]


@pytest.mark.parametrize("step", [1 << 30, 997, 1])
@pytest.mark.parametrize(
    ("name", "slice_"),
    [("worker_work", (5, 7, True)), ("worker_snapshot", (5, 7, False))],
)
def test_a_worker_answers_the_recorded_requests(
    name: str, slice_: tuple[int, int, bool], step: int
) -> None:
    start, end, head = slice_
    host = Host(toy.facts(start, end, head=head))
    cases = probes(name)
    assert len(cases) == {"worker_work": 72, "worker_snapshot": 31}[name]
    for probe in cases:
        link = host.open()
        for piece in split(bytes.fromhex(probe["send"]), step):
            if link in host.closed:
                break
            host.give(link, piece)
        try:
            check(probe, bytes(host.wrote[link]), link in host.closed)
        except AssertionError as error:
            raise AssertionError(f"{probe['name']}: {error}") from error


@pytest.mark.parametrize("step", [1 << 30, 7, 1])
@pytest.mark.parametrize(
    "probe", probes("coordinator_hello"), ids=lambda probe: probe["name"]
)
def test_a_coordinator_judges_the_recorded_hellos(
    probe: dict[str, Any], step: int
) -> None:
    registration = Registration(Expected(0, "Toy V4", 8, 256), now=0.0)
    wrote, closed = bytearray(), False
    for piece in split(bytes.fromhex(probe["send"]), step):
        registration.receive_data(piece, 0.0)
        for event in registration.events():
            if isinstance(event, Transmit):
                wrote += b"".join(event.buffers)
            closed = closed or isinstance(event, Close)
    check(probe, bytes(wrote), closed)


def test_the_shard_of_the_recorded_worker_is_reproduced() -> None:
    host = Host(toy.facts(5, 7, head=False))
    link = host.open()
    first, second = probes("worker_snapshot")[:2]
    host.give(link, bytes.fromhex(first["send"]))
    host.wrote.clear()
    host.give(link, bytes.fromhex(second["send"]))
    begin, chunk, done = frames(bytes(host.wrote[link]))
    assert bytes(chunk["data"]) == (PROBES / "toy_shard_5_7.dsvl").read_bytes()
    assert (begin["payload_bytes"], done["status"]) == (36304, 0)
