"""Saving and loading over a route in memory: who is asked what, in which order."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ds4proto_runtime import kv
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline import transfer
from ds4proto_runtime.pipeline.session import PipelineError, PipelineSession

from ds4proto.link import ds4d_shards, ds4d_snapshot_server
from ds4proto.link.ds4d_limits import DEFAULT
from ds4proto.link.ds4d_registry import Registry
from ds4proto.link.ds4d_route import build_route
from ds4proto.link.ds4d_shards import AGREED
from ds4proto.link.ds4d_snapshot_server import full_chunks
from ds4proto.schema import read
from ds4proto.schema.dsv4 import DSVL_FILE
from ds4proto.testing import capture_path
from tests.link.ds4d import toy
from tests.link.ds4d.host import Host
from tests.spec.proving import proof
from tests.spec.removing import without_check

RECORDED = capture_path("toy/pipeline_f32/session.dsv4").read_bytes()
TOKENS = [*range(10, 71), 42]
MIB8 = 8_388_608


class Wire:
    """A snapshot connection to a worker in memory; notes what is done with it."""

    def __init__(self, host: Host, log: list[str], name: str) -> None:
        self._host, self._log, self._name = host, log, name
        self._link = host.open()
        self._log.append(f"dial {name}")

    def send(self, buffers: Any, *, deadline: float) -> None:
        assert deadline > 0
        data = b"".join(map(bytes, buffers))
        self._log.append(f"type {int.from_bytes(data[4:8], 'big')} to {self._name}")
        self._host.give(self._link, data)

    def recv_into(self, buffer: Any, *, deadline: float) -> int:
        assert deadline > 0
        if self._log[-1] != f"read {self._name}":
            self._log.append(f"read {self._name}")
        wrote = self._host.wrote[self._link]
        size = min(len(buffer), len(wrote))
        buffer[:size] = wrote[:size]
        del wrote[:size]
        return size

    def close(self) -> None:
        self._log.append(f"close {self._name}")


class Rig:
    """A coordinator of layers 0:1 and workers 2:4 and 5:7, all in memory."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.hosts: dict[str, Host] = {}
        registry = Registry()
        for number, (start, end) in enumerate(((2, 4), (5, 7))):
            facts = toy.facts(start, end, head=end == 7)
            name = f"10.0.0.{number + 1}"
            self.hosts[name] = Host(facts)
            registry.register(facts.hello(7000), name)
        engine = ToyEngine(range(2))
        model = kv.model_facts(engine.shape)
        route = build_route((0, 1), registry.workers(), 8, coordinator_has_head=True)
        owner: Any = SimpleNamespace(
            engine=engine,
            layers=range(2),
            bits=32,
            profile="strict",
            model=model,
            limits=DEFAULT,
            route_lock=nullcontext(),
            door=SimpleNamespace(route=lambda: route, wait=lambda _s: route),
            sockets=SimpleNamespace(send_s=60.0),
        )
        self.session = PipelineSession(owner, seed=1)
        self.saved = kv.judge_saved(RECORDED, engine.shape)

    def dial(self, _owner: Any, entry: Any) -> Wire:
        return Wire(self.hosts[entry.host], self.log, entry.host)

    def load(self) -> None:
        with patch.object(transfer, "dial", self.dial):
            self.session.restore(self.saved, TOKENS)

    def save(self) -> bytes:
        with patch.object(transfer, "dial", self.dial):
            return b"".join(map(bytes, self.session.saved()))


# order and connections


def workers_first(self: PipelineSession) -> Any:
    found = real_shards(self)
    return [*found[1:], found[0]]


real_shards = PipelineSession.shards


@proof(
    "DS4D-SNAP-61",
    "the own slice at the end",
    patch.object(PipelineSession, "shards", workers_first),
)
def a_save_takes_the_own_slice_and_then_the_workers_in_route_order() -> None:
    rig = Rig()
    rig.load()
    rig.log.clear()
    with patch.object(transfer, "dial", rig.dial):
        order = [layers for layers, _ in rig.session.shards()]
    assert order == [range(2), range(2, 5), range(5, 8)]
    asked = [line for line in rig.log if line.startswith("type 5")]
    assert asked == ["type 5 to 10.0.0.1", "type 5 to 10.0.0.2"]


def kept_open() -> AbstractContextManager[Any]:
    return patch.object(Wire, "close", lambda _self: None)


@proof("DS4D-SNAP-60", "connections left open", kept_open)
def a_snapshot_connection_carries_one_transfer_and_is_closed() -> None:
    rig = Rig()
    rig.load()
    rig.save()
    for name in rig.hosts:
        own = [line for line in rig.log if line.endswith(name)]
        kinds = [line.partition(" ")[0] for line in own]
        assert kinds.count("dial") == kinds.count("close") == 2
        between = " ".join(kinds).split("dial")[1:]
        assert all(part.strip().endswith("close") for part in between)


def reads_early(owner: Any, channel: Wire, client: Any, buffers: Any) -> None:
    real_send(owner, channel, client, buffers)
    channel.recv_into(bytearray(0), deadline=1.0)


real_send = transfer._send


@proof(
    "DS4D-SNAP-62",
    "a look for the answer behind each frame",
    patch.object(transfer, "_send", reads_early),
)
def a_load_sends_everything_before_it_waits() -> None:
    rig = Rig()
    rig.load()
    for name in rig.hosts:
        own = [line.partition(" to ")[0] for line in rig.log if line.endswith(name)]
        assert own[1] == "type 9"
        assert own.index(f"read {name}") > max(
            at for at, line in enumerate(own) if line == "type 7"
        )


def huge(limit: int) -> AbstractContextManager[Any]:
    return patch.object(ds4d_snapshot_server, "MAX_CHUNK", limit)


@proof("DS4D-SNAP-57", "chunks of one byte more", lambda: huge(MIB8 + 1))
@proof("DS4D-SNAP-57", "chunks that are not full", lambda: huge(MIB8 - 1))
def chunks_are_full_and_never_above_8_mib() -> None:
    cut = [sum(map(len, p)) for p in full_chunks([bytes(5 << 20)] * 4, 20 << 20)]
    assert cut == [MIB8, MIB8, (20 << 20) - 2 * MIB8]
    head = (1 << 63).to_bytes(8, "big")
    for size, sound in ((MIB8, True), (MIB8 + 1, False)):
        body = memoryview(head + size.to_bytes(4, "big"))
        found = ds4d_snapshot_server.chunk_sound(1 << 63, 1 << 30, size + 12, body)
        assert found == sound


# what goes wrong


def forgetful(self: PipelineSession) -> Any:
    try:
        return real_shards(self)
    except PipelineError:
        self._transcript.forget()
        raise


@proof(
    "DS4D-SNAP-47",
    "a session given up over a failed save",
    patch.object(PipelineSession, "shards", forgetful),
)
def a_failed_save_is_told_once_and_disturbs_nothing() -> None:
    rig = Rig()
    rig.load()
    rig.log.clear()
    worker = rig.hosts["10.0.0.2"].worker
    number = rig.session.transcript.session_id
    known = worker.sessions.get(number)
    assert known is not None
    known.count += 1
    told = ""
    try:
        rig.save()
    except PipelineError as error:
        told = str(error)
    known.count -= 1
    assert told == "worker snapshot token count mismatch"
    asked = [line for line in rig.log if line.startswith("type")]
    assert asked == ["type 5 to 10.0.0.1", "type 5 to 10.0.0.2"]
    assert rig.session.checkpoint == len(TOKENS)
    span = rig.session.transcript.eval_span(7)
    assert (span.pos0, span.reset) == (len(TOKENS), False)
    assert rig.save() == RECORDED


def shard(**changes: int) -> bytes:
    data = bytearray(b"".join(map(bytes, kv.cut_shard(Rig().saved, range(2, 5)))))
    for name, value in changes.items():
        at = 4 * (2 + AGREED.index(name)) if name != "raw_live" else 52
        data[at : at + 4] = value.to_bytes(4, "little")
    return bytes(data)


@proof(
    "DS4D-SNAP-46",
    "the check left out",
    lambda: without_check(ds4d_shards, "DS4D-SNAP-46"),
)
def shards_of_different_layouts_are_not_joined() -> None:
    shape = ToyEngine(range(2)).shape
    model = kv.model_facts(shape)
    first = read(DSVL_FILE, memoryview(shard()), dialect="upstream").values
    kv.read_shard(shard(), model, range(2, 5), shape, first)
    for name in AGREED:
        other = {**first, name: first[name] + 1}
        told = ""
        try:
            kv.read_shard(shard(), model, range(2, 5), shape, other)
        except EngineError as error:
            told = str(error)
        assert told == "distributed KV shards use different layouts", name


def early_save(self: PipelineSession) -> Any:
    self._owner.route_lock = nullcontext()
    return real_shards(self)


@proof(
    "DS4D-WORKER-08",
    "a save that does not wait for its turn",
    patch.object(PipelineSession, "shards", early_save),
)
def a_save_waits_until_the_request_before_it_is_answered() -> None:
    rig = Rig()
    rig.load()
    rig.log.clear()
    inside: list[int] = []

    class Lock:
        """Stands for the route: held while a request runs."""

        def __enter__(self) -> None:
            inside.append(len(rig.log))

        def __exit__(self, *_: object) -> None:
            inside.append(len(rig.log))

    owner: Any = rig.session._owner
    owner.route_lock = Lock()
    rig.save()
    assert inside == [0, len(rig.log)]
