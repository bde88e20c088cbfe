"""Recorded sessions replayed through our machines, byte for byte.

Telemetry times are the only bytes that are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ds4proto.link.ds4d_events import EvaluateLocal, LocalDone, ResetLocal, Transmit
from ds4proto.link.ds4d_frames import TELEMETRY_PART
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_registry import Registry
from ds4proto.link.ds4d_request import Request
from ds4proto.link.ds4d_route import build_route
from ds4proto.link.ds4d_session import PrefillSettings, Session
from ds4proto.link.ds4d_snapshot_client import LoadClient, SaveClient, ShardKey
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.schema import frame, read
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames
from tests.link.ds4d.host import Host
from tests.link.ds4d.streams import CAPTURES, streams

TOY = CAPTURES / "toy"
NAMES = [
    "pipeline_f32",
    "pipeline_f16",
    "pipeline_e4m3_hidden",
    "worker_restart_rebuild",
]
TIMES = ("eval_usec", "downstream_wait_usec", "forward_send_usec")
RESULT = frame("DS4D.RESULT", dialect="upstream")


@dataclass(frozen=True)
class Recorded:
    """One recorded frame."""

    time: int
    connection: int
    sender: str
    port: int
    type: int
    data: bytes


def recorded(name: str) -> tuple[dict[str, Any], list[Recorded]]:
    manifest = json.loads((TOY / name / "manifest.json").read_text())
    bytes_of = streams(TOY / name / "trace.pcap")
    found = []
    for connection in manifest["connections"]:
        for stream in connection["streams"]:
            data = bytes_of[stream["src_port"], stream["dst_port"]]
            assert len(data) == stream["bytes"]
            found += [
                Recorded(
                    when,
                    connection["id"],
                    stream["sender"],
                    stream["src_port"],
                    kind,
                    data[at : at + 12 + size],
                )
                for at, kind, size, when in stream["frames"]
            ]
    return manifest, sorted(found, key=lambda row: row.time)


def timeless(data: bytes | bytearray) -> bytes:
    """Return frames with the times of their telemetry set to 0."""
    out, at = bytearray(data), 0
    while at < len(out):
        size = int.from_bytes(out[at + 8 : at + 12], "big")
        if int.from_bytes(out[at + 4 : at + 8], "big") == RESULT.code:
            values = read(RESULT, bytes(out[at : at + 12 + size]), dialect="upstream")
            place = at + 52
            for record in values.values["telemetry"]:
                still = {**record, **dict.fromkeys(TIMES, 0)}
                out[place : place + 40] = TELEMETRY_PART.build(still)
                place += 40
        at += 12 + size
    return bytes(out)


# workers


def worker_of(name: str) -> Any:
    start, end = name.removeprefix("worker ").split(":")
    last = 7 if end == "output" else int(end)
    return toy.facts(int(start), last, head=end == "output")


@pytest.mark.parametrize("step", [1 << 20, 13])
@pytest.mark.parametrize("last", [False, True], ids=["middle", "last"])
@pytest.mark.parametrize("name", NAMES)
def test_a_worker_says_what_the_recorded_one_said(
    name: str, last: bool, step: int
) -> None:
    _, rows = recorded(name)
    senders = sorted({row.sender for row in rows if row.sender != "coordinator"})
    me = senders[last]
    if last and name == "worker_restart_rebuild":
        rows = [row for row in rows if row.connection != 2]  # the one that was killed
    host = Host(worker_of(me))
    machines: dict[int, Any] = {}
    wanted: dict[int, bytearray] = {}
    mine = {row.connection for row in rows if row.sender == me}
    dialled = {r.connection for r in rows if r.sender == me and r.type in (1, 3)}
    compared = 0
    for row in rows:
        if row.connection not in mine:
            continue
        if row.sender == me:
            if row.type == 1:
                _begin_control(host, machines, row)
            else:
                wanted.setdefault(row.connection, bytearray()).extend(row.data)
            continue
        if row.connection not in machines:
            if row.connection in dialled:
                forward = machines[row.connection] = host.dials.pop(0).forwarder
                forward.opened(0.0)
                host.settle(forward)
            else:
                machines[row.connection] = host.open("data")
        for at in range(0, len(row.data), step):
            host.give(machines[row.connection], row.data[at : at + step])
    for connection, data in wanted.items():
        found = host.wrote[machines[connection]]
        assert timeless(found) == timeless(data), f"connection {connection}"
        compared += len(list(frames(data)))
    assert compared >= 3


def _begin_control(host: Host, machines: dict[int, Any], row: Recorded) -> None:
    """Open a control connection; an older one ends with its forward connection."""
    for old in list(machines.values()):
        if type(old).__name__ == "Forwarder" and old not in host.closed:
            host.give(old, None)
    ((_, hello),) = frames(row.data)
    link = machines[row.connection] = host.open("control")
    assert b"".join(link.hello(hello["listen_port"])) == row.data


# coordinator


class Coordinator:
    """Runs the recorded commands against the recorded answers."""

    def __init__(self, name: str) -> None:
        self.manifest, self.rows = recorded(name)
        self.registry = Registry()
        self.local = toy.Slice(0, 1)
        self.session = Session(self._first_work()["session"])
        self.settings = PrefillSettings(
            prefill_cap=toy.PREFILL_CAP, bits=self.manifest["activation_bits"]
        )
        self.links: dict[Any, tuple[int, Iterator[Recorded]]] = {}
        self.sent: dict[int, bytearray] = {}
        self.kinds: list[int] = []
        self._hellos = iter([row for row in self.rows if row.type == 1])

    def _first_work(self) -> dict[str, Any]:
        for row in self.rows:
            if row.type == 3:
                return next(frames(row.data))[1]
        raise AssertionError("no WORK in the capture")

    def register(self, count: int) -> None:
        for row in [next(self._hellos) for _ in range(count)]:
            registration = Registration(Expected(0, "Toy V4", 8, 256), now=0.0)
            registration.receive_data(row.data, 0.0)
            (accepted,) = registration.events()
            link = WorkLink(toy.MODEL)
            answers = [
                r
                for r in self.rows
                if r.connection == row.connection and r.sender == row.sender
            ]
            self.links[link] = (row.connection, iter(answers[1:]))
            self.registry.register(accepted.hello, "127.0.0.1", link)

    def run(self, kind: Any, tokens: tuple[int, ...]) -> Any:
        workers = self.registry.workers()
        route = build_route((0, 1), workers, 8, coordinator_has_head=True)
        link = route.workers[0].handle
        connection, answers = self.links[link]
        request = Request(
            self.session, toy.MODEL, route, link, tokens, kind=kind,
            settings=self.settings,
        )  # fmt: skip
        end: Any = None
        while end is None:
            for event in request.events():
                if isinstance(event, ResetLocal):
                    self.local.reset()
                elif isinstance(event, EvaluateLocal):
                    rows = self.local.run(event.tokens, None)
                    wire = toy.pack(rows, self.settings.bits)
                    request.send(LocalDone(event.index, wire), 0.0)
                elif isinstance(event, Transmit):
                    stream = self.sent.setdefault(connection, bytearray())
                    for part in event.buffers:
                        stream += part
                else:
                    end = event if request.done else None
            if end is None:
                link.receive_data(next(answers).data, 0.0)
                for heard in link.events():
                    request.result(heard)
        return end

    def check(self) -> None:
        compared = 0
        for connection, found in self.sent.items():
            rows = [
                r.data
                for r in self.rows
                if r.connection == connection and r.sender == "coordinator"
            ]
            assert found == b"".join(rows)
            compared += len(rows)
        assert compared >= 6


@pytest.mark.parametrize("name", NAMES)
def test_a_coordinator_says_what_the_recorded_one_said(name: str) -> None:
    run = Coordinator(name)
    run.register(2)
    for command in run.manifest["commands"]:
        if isinstance(command, str):  # the last worker was restarted
            run.registry.remove(run.registry.workers())
            run.register(2)
            continue
        verb, *words = command[0].split()
        if verb == "load":
            run.session.loaded(run.session.transcript[:62])
            kept = tuple(run.session.transcript)
            run.local.reset()
            run.local.run(kept, None)
        elif verb != "save":
            tokens = tuple(map(int, words))
            done = run.run(verb, tokens)
            whole = tuple(run.session.transcript)
            assert f"len={len(whole)}" in command[1]
            _check_logits(run, done, whole)
    run.check()


def _check_logits(run: Coordinator, done: Any, whole: tuple[int, ...]) -> None:
    if run.settings.bits != 32:
        assert (done.kind == HIDDEN_STATE) == ("hidden" in run.manifest["scenario"])
        return
    wanted = toy.logits(toy.Slice(0, 7).run(whole, None)[-1])
    assert np.array_equal(np.frombuffer(done.payload, toy.F), wanted)


# snapshots


def test_the_recorded_save_and_load() -> None:
    _, rows = recorded("pipeline_f32")
    shards: dict[str, bytes] = {}
    for number in (3, 4, 5, 6):
        sent = [r for r in rows if r.connection == number and r.sender == "coordinator"]
        heard = [r for r in rows if r.connection == number and r not in sent]
        _, values = next(frames(sent[0].data))
        names = ShardKey.__dataclass_fields__
        key = ShardKey(**{name: values[name] for name in names})
        client: Any
        if number < 5:
            client = SaveClient(key, now=0.0)
        else:
            shard = shards[heard[0].sender]
            client = LoadClient(key, values["tokens"], len(shard), now=0.0)
        (first,) = client.events()
        written = b"".join(first.buffers)
        if number >= 5:
            written += b"".join(client.chunks(shard, 0.0))
        assert written == b"".join(row.data for row in sent)
        for row in heard:
            client.receive_data(row.data, 0.0)
        said = list(client.events())
        assert [type(e).__name__ for e in said][-2:] == ["SnapshotDone", "Close"]
        if number < 5:
            shards[heard[0].sender] = b"".join(bytes(e.data) for e in said[1:-2])
    for name, data in shards.items():
        facts = worker_of(name)
        kv = toy.Slice(facts.layer_start, facts.layer_end)
        assert kv.load(data, 62) is None
        assert kv.shard() == data
