"""One rank of the RDMA lane: runs cases from standard input, one JSON line each.

A case names script, dialect, queue pair type and planted faults; the answer is what
the rank said. Starting Python and numpy is what costs time under emulation, so that
one process runs them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.rank import Rank, TpOptions
from ds4proto_runtime.tp.script import Script
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine
from ds4proto_runtime.tp.worker import TpWorker
from ds4proto_runtime.transport import rdma_gates, setup
from ds4proto_runtime.transport.options import RdmaOptions
from ds4proto_runtime.transport.pyverbs_provider import PyverbsProvider
from ds4proto_runtime.transport.rdma import RdmaTransport

from ds4proto.link.ds4t_limits import ControlLimits, GateLimits

Case = dict[str, Any]
_CONNECT = setup.SetUp._connect


def tell(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def transport_of(case: Case, role: str, say: Callable[[str], None]) -> RdmaTransport:
    return RdmaTransport(
        PyverbsProvider(),
        RdmaOptions(
            transport=case.get("transport", "rdma"),
            device=case.get("device", "rxe0" if role == "leader" else "rxe1"),
            gid_index=case.get("gid_index"),
            qp_type=case.get("qp"),
            overrides=case.get("overrides"),
        ),
        say=say,
    )


def options_of(case: Case) -> TpOptions:
    seconds = case.get("gate_seconds", 10.0)
    return TpOptions(
        dialect=case.get("dialect", "v14"),
        transport=case.get("transport", "rdma"),
        gates=GateLimits(idle=seconds, total=4 * seconds, bulk_total=60.0),
        control=ControlLimits(stall=10.0, answer=60.0, verdict=60.0),
        hash_every=1,
        dial_seconds=20.0,
        accept_seconds=60.0,
        hello_seconds=20.0,
        idle_seconds=60.0,
    )


class Plants:
    """What a case does to its own rank, as recorded peers did."""

    def __init__(self, case: Case) -> None:
        self._late = case.get("late_window", False)
        self._delay = case.get("first_gate_delay", 0.0)

    def __enter__(self) -> None:
        if self._late:

            def late(self: Any, event: Any) -> None:
                _CONNECT(self, replace(event, arm_window=False))

            setup.SetUp._connect = late  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        setup.SetUp._connect = _CONNECT  # type: ignore[method-assign]

    def settle(self, rank: Rank) -> None:
        """Plant what needs a rank that has come up."""
        if self._late and isinstance(rank.transport, rdma_gates.RdmaGates):
            rank.transport._hold = False
        if self._delay:
            delay = self._delay

            def slow(number: int) -> None:
                if number == 1:
                    time.sleep(delay)  # the fault itself: a rank that computes longer

            rank.gates.on_gate = slow


def patterns(case: Case, rank: Rank) -> None:
    """Exchange payloads of known bytes by bulk gate, and compare them."""
    mine = rank.settings.rank
    for number, nbytes in enumerate(case.get("patterns", ())):
        own, expected = (
            np.random.default_rng([number, side]).integers(0, 256, nbytes, np.uint8)
            for side in (mine, 1 - mine)
        )
        peer = np.zeros(nbytes, np.uint8)
        begun = time.monotonic()
        rank.transport.bulk(number % 8, memoryview(own.data), memoryview(peer.data))
        seconds = time.monotonic() - begun
        if not np.array_equal(peer, expected):
            raise AssertionError(f"{nbytes} bytes by bulk gate came out differently")
        rank.say(f"bulk {nbytes} bytes each way: {nbytes / seconds / 1e6:.1f} MB/s")


def lead(case: Case, log: list[str], lines: list[str]) -> None:
    engine = ToyTpEngine(ToyShape(**case.get("shape", {})), 0)
    plants = Plants(case)
    with plants:
        leader = TpLeader(
            engine,
            options=options_of(case),
            rdma=transport_of(case, "leader", log.append),
            say=log.append,
        )
        tell(port=leader.address[1])
        with leader:
            leader.accept()
            plants.settle(leader.rank)
            patterns(case, leader.rank)
            for step in case["script"].split(";"):
                if step.startswith("!"):
                    shell(step[1:])
                else:
                    Script(leader, lines.append).run(step)


def work(case: Case, log: list[str]) -> None:
    engine = ToyTpEngine(ToyShape(**case.get("shape", {})), 1)
    plants = Plants(case)
    with (
        plants,
        TpWorker(
            engine,
            "127.0.0.1",
            case["port"],
            options_of(case),
            rdma=transport_of(case, "worker", log.append),
            say=log.append,
        ) as worker,
    ):
        plants.settle(worker.rank)
        patterns(case, worker.rank)
        worker.serve()


def main(role: str) -> None:
    tell(ready=role)
    for line in sys.stdin:
        case = json.loads(line)
        case.update(case.pop(role, {}))
        log: list[str] = []
        lines: list[str] = []
        error = ""
        begun = time.monotonic()
        try:
            if role == "leader":
                lead(case, log, lines)
            else:
                work(case, log)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        seconds = round(time.monotonic() - begun, 3)
        tell(log=log, lines=lines, error=error, seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1])
