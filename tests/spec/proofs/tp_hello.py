"""The hello of a pair between dialects, on odd connections, and what it leaves out."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ds4proto_runtime.tp import rank
from ds4proto_runtime.tp.callers import Knocking
from ds4proto_runtime.tp.errors import PairError
from ds4proto_runtime.tp.rank import TpOptions
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.cli import run as command_line
from ds4proto.errors import ExitCode
from ds4proto.link import ds4t_hello
from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.link.plan import PlanOptions
from tests.link.ds4t import test_hello as hellos
from tests.link.ds4t.pair import settings
from tests.spec.tp_showing import altered, shows


def whole_first(own: Any, machine: HelloExchange, now: float) -> bool:
    if len(machine._got) < machine._size:
        return False
    return bool(own(machine, now))


@shows(
    (
        "DS4T-HELLO-32",
        "a rank that waits for its own size",
        altered(HelloExchange, "_judge_early", whole_first),
    ),
    (
        "DS4T-HELLO-33",
        "a rank that waits for its own size",
        altered(HelloExchange, "_judge_early", whole_first),
    ),
    (
        "DS4T-HELLO-33",
        "a probe of the own size",
        lambda: patch.object(ds4t_hello, "PROBE_BYTES", 64),
    ),
)
def hellos_of_two_sizes_end_with_the_version() -> None:
    for mine, theirs in (("v7", "v10"), ("v7", "v14"), ("v9w", "v10")):
        short, long = settings("tp-leader", mine), settings("tp-worker", theirs)
        found = hellos.outcome(HelloExchange(short), long.hello())
        assert found.text == (
            f"tp hello: protocol version {long.version} != {short.version}"
        )
        # the longer side has eight bytes to judge by, though the rest never comes
        found = hellos.outcome(HelloExchange(long), short.hello())
        assert found.text == (
            f"tp hello: protocol version {short.version} != {long.version}"
        )
    hellos.test_a_probe_sends_eighty_eight_bytes_and_asks_for_eight()
    assert (
        len(HelloExchange(settings("tp-leader", "v7"), probe=True).start(0.0)[0]) == 88
    )


def raises_on_end(own: Any, machine: HelloExchange, data: Any, now: float) -> None:
    if data is None:
        raise ConnectionResetError(104, "reset")
    own(machine, data, now)


@shows(
    (
        "DS4T-HELLO-34",
        "a reset is an error of its own",
        altered(HelloExchange, "receive_data", raises_on_end),
    )
)
def a_reset_during_the_hello_is_its_end() -> None:
    for sent in (0, 40):
        listener = socket.create_server(("127.0.0.1", 0))
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        listener.close()
        try:
            far.setblocking(False)
            client = Knocking(far, settings("tp-leader"), 5.0)
            near.recv(88)
            near.sendall(settings("tp-worker").hello()[:sent])
            linger = struct.pack("ii", 1, 0)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            near.close()  # with RST
            found = None
            for _ in range(100):
                select.select([far], [], [], 1.0)
                found = client.read()
                if found is not None:
                    break
            assert isinstance(found, PairFailed)
            assert found.text == "tp hello exchange failed"
            assert found.peer_lost
        finally:
            near.close()
            far.close()


@shows(
    (
        "DS4T-HELLO-36",
        "a failed hello is a success",
        lambda: patch.object(PairError, "exit_code", ExitCode.PASSED),
    )
)
def a_rank_whose_hello_fails_exits_with_another_status_than_0() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60.0)
    port = listener.getsockname()[1]

    def leader() -> None:
        with suppress(OSError):  # the worker may be gone before
            control, _ = listener.accept()
            with control:
                control.sendall(settings("tp-leader").hello())
                control.recv(88)

    thread = threading.Thread(target=leader, daemon=True)
    thread.start()
    words = ["run", "--tensor-parallel", "--role", "worker", "--coordinator"]
    try:
        with patch("sys.stderr"):
            status = command_line(
                [*words, "127.0.0.1", str(port), "--transport", "tcp"]
            )
    finally:
        listener.close()
        thread.join(60.0)
    assert status == ExitCode.FAILED


def with_plan(own: Any, role: Any, engine: Any, options: Any, rdma: Any) -> Any:
    found = own(role, engine, options, rdma)
    chunk = options.plan.chunk or int(os.environ.get("DS4_METAL_PREFILL_CHUNK", "0"))
    shape = replace(found.identity, quant_bits=found.identity.quant_bits + chunk)
    return replace(found, identity=shape)


@shows(
    (
        "DS4T-HELLO-42",
        "settings show in the hello",
        altered(rank, "settings_of", with_plan),
    )
)
def start_up_does_not_depend_on_what_the_hello_leaves_out() -> None:
    engine = ToyTpEngine(ToyShape(), 0)
    plain = rank.settings_of("tp-leader", engine, TpOptions(), None)
    for options in (
        TpOptions(plan=PlanOptions(chunk=8)),
        TpOptions(plan=PlanOptions(split_min=64, resume_min=9)),
        TpOptions(token_prefill=True, hash_every=4),
    ):
        other = rank.settings_of("tp-leader", engine, options, None)
        assert other.hello() == plain.hello()
    with patch.dict(os.environ, {"DS4_METAL_PREFILL_CHUNK": "8"}):
        assert rank.settings_of("tp-leader", engine, TpOptions(), None).hello() == (
            plain.hello()
        )
    worker = ToyTpEngine(ToyShape(), 1)
    theirs = rank.settings_of(
        "tp-worker", worker, TpOptions(plan=PlanOptions(chunk=16)), None
    )
    found = hellos.outcome(HelloExchange(plain), theirs.hello())
    assert isinstance(found, HelloAgreed)
