"""Whole pairs over simulated queue pairs: the text and the bits of a run over TCP."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.rank import TpOptions
from ds4proto_runtime.tp.script import Script
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine
from ds4proto_runtime.tp.worker import TpWorker
from ds4proto_runtime.transport.options import NoRdmaError, RdmaOptions
from ds4proto_runtime.transport.rdma import RdmaTransport
from ds4proto_runtime.transport.sim import SimDevice, SimProvider
from ds4proto_runtime.transport.sim_live import LiveFabric

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.ds4t_limits import ControlLimits, GateLimits
from tests.runtime.transport.rig import table

PATIENCE = 180.0
TOY = ToyShape(n_layer=2, n_embd=64, n_vocab=32)
LONG = ToyShape(n_layer=512, n_embd=64, n_vocab=32)
"""Many narrow layers: a batch region of 1 MiB, so that prompts cross by RDMA too."""
SCRIPT = (
    "create;create;sync:1:1-6;sync:2:1-5;eval:1:5,6;batch:1=9,2=3;"
    "verify:1:8,9,10:full;eval:1:4;verify:1:1-8:prefix=3;verify:1:2,3:replay=1;"
    "eval:1:6;rewind:1:4;sync:1:1-4,9,9;destroy:2"
)


@dataclass
class Outcome:
    lines: list[str] = field(default_factory=list)
    logs: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    errors: list[BaseException | None] = field(default_factory=lambda: [None, None])

    def sums(self, rank: int) -> list[str]:
        return [t for t in self.logs[rank] if ": sum " in t]


def run(
    script: str = SCRIPT,
    shape: ToyShape = TOY,
    *,
    dialect: str = "v14",
    transports: tuple[Any, Any] = ("tcp", "tcp"),
    devices: tuple[bool, bool] = (True, True),
    qp: Any = None,
    **words: Any,
) -> Outcome:
    fabric = LiveFabric()
    found = Outcome()

    def provider(rank: int) -> RdmaTransport:
        listed = [SimDevice(fabric, f"rxe{rank}", table(f"192.0.2.{rank + 1}"))]
        options = RdmaOptions(transports[rank], qp_type=qp, **words)
        simulated = SimProvider(listed if devices[rank] else [])
        return RdmaTransport(simulated, options, say=found.logs[rank].append)

    def options(rank: int) -> TpOptions:
        return TpOptions(
            dialect=dialect,
            transport=transports[rank],
            gates=GateLimits(idle=40.0, total=50.0, bulk_total=50.0),
            control=ControlLimits(stall=40.0, answer=50.0, verdict=50.0),
            hash_every=1,
            dial_seconds=2.0,  # the leader listens before its worker starts
            accept_seconds=50.0,
            hello_seconds=40.0,
            idle_seconds=50.0,
        )

    def work(address: tuple[str, int]) -> None:
        say = found.logs[1].append
        try:
            engine = ToyTpEngine(shape, 1)
            with TpWorker(
                engine, *address, options(1), rdma=provider(1), say=say
            ) as worker:
                worker.serve()
        except Ds4ProtoError as error:
            found.errors[1] = error

    thread: threading.Thread | None = None
    try:
        leader = TpLeader(
            ToyTpEngine(shape, 0),
            options=options(0),
            rdma=provider(0),
            say=found.logs[0].append,
        )
        with leader:
            thread = threading.Thread(target=work, args=(leader.address,), daemon=True)
            thread.start()
            leader.accept()
            Script(leader, found.lines.append).run(script)
    except Ds4ProtoError as error:
        found.errors[0] = error
    if thread is not None:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the worker hangs"
    return found


BOTH_RDMA = ("rdma", "rdma")


@pytest.mark.parametrize("qp", ["UC", "RC"])
@pytest.mark.parametrize("dialect", ["v10", "v14"])
def test_the_same_bits_as_over_tcp(dialect: str, qp: Any) -> None:
    tcp = run(dialect=dialect)
    rdma = run(dialect=dialect, transports=BOTH_RDMA, qp=qp)
    assert rdma.errors == tcp.errors == [None, None]
    assert rdma.lines == tcp.lines
    assert len(tcp.lines) > 10
    assert rdma.sums(0) == rdma.sums(1) == tcp.sums(0)
    assert len(tcp.sums(0)) > 40
    assert any(f"rdma up: transport {qp}" in t for t in rdma.logs[0])


@pytest.mark.parametrize("dialect", ["v7", "v9w"])
def test_dialects_without_a_barrier_byte(dialect: str) -> None:
    script = "create;sync:1:1-6;eval:1:5,6,7;rewind:1:6;eval:1:1"
    tcp, rdma = (
        run(script, dialect=dialect, transports=t) for t in (("tcp", "tcp"), BOTH_RDMA)
    )
    assert rdma.errors == [None, None]
    assert rdma.lines == tcp.lines
    assert rdma.sums(0) == rdma.sums(1) == tcp.sums(0)


def test_prompts_cross_the_queue_pair_where_the_region_is_large() -> None:
    script = "create;sync:1:1-4;eval:1:5;verify:1:1,2:full;eval:1:6"
    tcp, rdma = (run(script, LONG, transports=t) for t in (("tcp", "tcp"), BOTH_RDMA))
    assert rdma.errors == [None, None]
    assert rdma.lines == tcp.lines
    assert rdma.sums(0) == rdma.sums(1) == tcp.sums(0)


@pytest.mark.parametrize("first", ["auto", "tcp", "rdma"])
@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
def test_who_uses_what(first: str, mine: bool, theirs: bool) -> None:
    """The leader's option against both devices; the worker leaves it to ``auto``."""
    found = run(
        "create;eval:1:5",
        transports=(first, "auto"),
        devices=(mine, theirs),
        qp="RC",
    )
    text = str(found.errors[0] or "")
    over_rdma = any("transport=rdma" in t for t in found.logs[0])
    if first == "rdma" and not mine:
        assert isinstance(found.errors[0], NoRdmaError)
        assert "no device" in text
    elif first == "rdma" and not theirs:
        assert "but the peer side has no active device" in text
    else:
        assert not text
        assert over_rdma is (first != "tcp" and mine and theirs)
        if first == "auto" and not over_rdma:
            assert any("using tcp" in t for t in found.logs[0])
