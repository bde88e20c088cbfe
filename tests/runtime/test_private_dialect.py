"""The private dialect: formats on the wire, and who refuses whom."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from ds4proto_runtime.cli.options import parse_options
from ds4proto_runtime.engines.base import F32, Engine
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.models import choose, open_engine
from ds4proto_runtime.pipeline.worker import PipelineWorker

from ds4proto.codec import get
from ds4proto.errors import WrongUsage
from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.link.ds4d_work_checks import judge_work, read_head
from ds4proto.peer import Recorder
from ds4proto.schema import frame, to_bytes
from ds4proto.schema.ds4d_private import FORMAT_IDS
from ds4proto.trace.decoder import decode
from tests.link.ds4d.build import work
from tests.runtime.cluster import LONG, PATIENCE, same_bits, wait_until
from tests.runtime.test_run import MODEL, distributed

PRIVATE = "ds4proto"
SLICES = (range(3), range(3, 6), range(6, 8))
Make = Callable[[range, bool], Engine]


def toy(layers: range, head: bool) -> Engine:
    return ToyEngine(layers, has_head=head)


def tiny_moe(layers: range, head: bool) -> Engine:
    return open_engine(choose("decoder", MODEL), layers, head=head, ctx=256)


class Chain:
    """The same slices in one process, with the codec between them."""

    def __init__(self, make: Make, name: str, *, back: bool) -> None:
        self.stages = [make(layers, layers.stop == 8) for layers in SLICES]
        self.sessions = [stage.open() for stage in self.stages]
        self.codec, self.back, self.pos = get(name), back, 0

    def wire(self, rows: F32) -> F32:
        encoded = self.codec.encode(np.ascontiguousarray(rows), rows=len(rows))
        found = self.codec.decode(encoded, values=rows.size, rows=len(rows))
        return np.asarray(found, np.float32).reshape(rows.shape)

    def feed(self, tokens: Sequence[int]) -> F32:
        """Evaluate one chunk on every stage; return the logits of its last token."""
        rows = self.stages[0].embed(tokens)
        for number, (stage, session) in enumerate(
            zip(self.stages, self.sessions, strict=True)
        ):
            rows = self.wire(rows) if number else rows
            rows = stage.run(session, rows, tokens, self.pos)
        self.pos += len(tokens)
        # without a head on the last worker its hidden state crosses the wire too
        return self.stages[-1].head((self.wire(rows) if self.back else rows)[-1])


@contextmanager
def running(*workers: PipelineWorker) -> Iterator[None]:
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)


@contextmanager
def route(
    make: Make,
    name: str,
    *,
    head_here: bool = False,
    recorder: Recorder | None = None,
) -> Iterator[PipelineCoordinator]:
    word = FORMAT_IDS[name]
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            PipelineCoordinator(
                make(SLICES[0], True),
                bits=word,
                dialect=PRIVATE,
                chunk=16,
            )
        )
        workers = [
            PipelineWorker(
                make(layers, layers.stop == 8 and not head_here),
                coordinator.address,
                dialect=PRIVATE,
                recorder=recorder if layers.stop == 6 else None,
            )
            for layers in SLICES[1:]
        ]
        stack.enter_context(running(*workers))
        coordinator.wait_route(PATIENCE)
        yield coordinator


@pytest.mark.parametrize("head_here", [False, True])
@pytest.mark.parametrize("name", list(FORMAT_IDS))
def test_formats_over_three_toy_stages(name: str, head_here: bool) -> None:
    chain = Chain(toy, name, back=head_here)
    with route(toy, name, head_here=head_here) as coordinator:
        session = coordinator.session(1)
        far = session.sync(LONG).logits
        for at in range(0, len(LONG), 16):
            near = chain.feed(LONG[at : at + 16])
        assert same_bits(far, near)
        for _ in range(3):
            token = int(near.argmax())
            near = chain.feed([token])
            assert same_bits(session.eval(token).logits, near)


def test_what_crosses_is_recorded_and_decoded_without_a_fault(tmp_path: Path) -> None:
    """Forwarded WORK on a connection without a HELLO settles the dialect too.

    The worker in the middle records: what comes to it, and what it forwards.
    """
    path = tmp_path / "private.pcapng"
    with (
        Recorder(path) as recorder,
        route(toy, "mxfp4", recorder=recorder) as coordinator,
    ):
        coordinator.session(1).sync(LONG[:20])
    rows = list(decode(str(path)))
    assert [p for row in rows for p in row.problems] == []
    works = [row for row in rows if row.type == "WORK"]
    assert {row.fields["input_hc_bits"] for row in works} == {0x105}
    # 64 values of MXFP4: 32 bytes of nibbles and 2 scales
    assert {row.fields["input_hc_bytes"] for row in works} == {16 * 34, 4 * 34}
    assert {row.fields["route_index"] for row in works} == {0, 1}
    assert {row.dialect for row in works} == {PRIVATE}


@pytest.mark.parametrize("name", ["int8", "mxfp4"])
def test_formats_over_three_stages_of_a_real_model(name: str) -> None:
    prompt = [9, 200, 37, 4, 151, 77, 9, 13, 180, 42, 5]
    chain = Chain(tiny_moe, name, back=False)
    with route(tiny_moe, name) as coordinator:
        session = coordinator.session(1)
        far, near = session.sync(prompt).logits, chain.feed(prompt)
        assert same_bits(far, near)
        for _ in range(4):
            token = int(near.argmax())
            far, near = session.eval(token).logits, chain.feed([token])
            assert same_bits(far, near)


# the sizes of the published byte table: two tensors of 2,048 values a token


@pytest.mark.parametrize(
    ("name", "both"),
    [
        ("bf16", 8192), ("int8", 4104), ("fp8", 4104), ("int4", 2056),
        ("mxfp8", 4224), ("mxfp4", 2176), ("nvfp4", 2312),
    ],
)  # fmt: skip
def test_bytes_of_a_row(name: str, both: int) -> None:
    model = ModelFacts(0, "Toy V4", 8, 2048, 256, 256, PRIVATE)
    assert 2 * model.hidden_bytes(1, FORMAT_IDS[name]) == both
    assert 2 * model.hidden_bytes(7, FORMAT_IDS[name]) == 7 * both


# who refuses whom

TOY = ModelFacts(0, "Toy V4", 8, 64, 256, 256)
OURS = ModelFacts(0, "Toy V4", 8, 64, 256, 256, PRIVATE)


def answer(coordinator: PipelineCoordinator, data: bytes) -> bytes:
    with closing(socket.create_connection(coordinator.address, 20)) as sock:
        sock.settimeout(20)
        sock.sendall(data)
        found = b""
        while part := sock.recv(4096):
            found += part
        return found


def error(words: str) -> bytes:
    return struct.pack(">III", 0x44533444, 2, len(words)) + words.encode()


def test_the_hello_of_the_dialect_byte_by_byte() -> None:
    wanted = (
        "44533444 00000001 00000036 00000000 00000002 00000002 00000007 00000001"
        "00000001 00000100 00000008 000015b3 00000006 64347078 0000007f 546f79205634"
    )
    hello = WorkerFacts(OURS, 2, 7, True).hello_frame(5555)
    assert hello == bytes.fromhex(wanted.replace(" ", ""))


def test_a_stock_coordinator_refuses_a_worker_of_the_dialect() -> None:
    log: list[str] = []
    hello = WorkerFacts(OURS, 2, 7, True).hello_frame(5555)
    with PipelineCoordinator(ToyEngine(range(2)), log=log.append) as coordinator:
        assert answer(coordinator, hello) == b""
        wait_until(lambda: any(PRIVATE in line for line in log), log)
        assert not coordinator.door.workers()
    assert log[0].startswith("bad HELLO from 127.0.0.1:")
    assert log[0].endswith(": invalid HELLO model name length 6")


@pytest.mark.parametrize(
    "hello",
    [
        WorkerFacts(TOY, 2, 7, True).hello_frame(5555),
        WorkerFacts(ModelFacts(0, "x" * 127, 8, 64, 256, 256), 2, 7, True).hello_frame(
            5555
        ),
        WorkerFacts(ModelFacts(0, "", 8, 64, 256, 256), 2, 7, True).hello_frame(5555),
        WorkerFacts(OURS, 2, 7, True).hello_frame(5555).replace(b"d4px", b"d4py"),
    ],
    ids=["stock", "long name", "no name", "other mark"],
)
def test_a_coordinator_of_the_dialect_refuses_others(hello: bytes) -> None:
    with PipelineCoordinator(ToyEngine(range(2)), dialect=PRIVATE) as coordinator:
        told = answer(coordinator, hello)
        assert told == error("worker does not speak dialect ds4proto")
        assert not coordinator.door.workers()


def test_a_stock_worker_tells_what_it_was_told() -> None:
    log: list[str] = []
    with PipelineCoordinator(ToyEngine(range(2)), dialect=PRIVATE) as coordinator:
        worker = PipelineWorker(
            ToyEngine(range(2, 8)), coordinator.address, log=log.append
        )
        with running(worker):
            wait_until(lambda: any("coordinator error" in line for line in log), log)
    assert "coordinator error: worker does not speak dialect ds4proto" in log


def test_a_worker_without_the_format_is_refused() -> None:
    values = {**WorkerFacts(OURS, 2, 7, True).hello(5555), "abilities": 0x7F & ~0x10}
    hello = to_bytes(frame("DS4D.HELLO", dialect=PRIVATE), values, dialect=PRIVATE)
    for name, told in (
        ("mxfp4", error("worker does not take wire format mxfp4")),
        ("int8", None),
    ):
        with PipelineCoordinator(
            ToyEngine(range(2)), dialect=PRIVATE, bits=FORMAT_IDS[name]
        ) as coordinator:
            if told is None:
                with closing(socket.create_connection(coordinator.address, 20)) as sock:
                    sock.sendall(hello)
                    assert str(coordinator.wait_route(20)).endswith("2:output")
            else:
                assert answer(coordinator, hello) == told


@pytest.mark.parametrize(
    ("model", "bits", "told"),
    [
        (TOY, 0x101, "invalid distributed activation width"),
        (TOY, 0x107, "invalid distributed activation width"),
        (OURS, 0x100, "invalid distributed activation width"),
        (OURS, 0x108, "invalid distributed activation width"),
        (OURS, 0x101, None),
        (OURS, 8, None),
        (TOY, 8, None),
    ],
)
def test_a_worker_judges_the_width(
    model: ModelFacts, bits: int, told: str | None
) -> None:
    size = 68 if bits >= 0x100 else 64
    body = memoryview(work(bits=bits, hidden=bytes(size)))[12:]
    head = read_head(WorkerFacts(model, 5, 7, True), len(body), body)
    fault = judge_work(head, body)
    assert (fault and fault.text) == told


@pytest.mark.parametrize(
    ("model", "flag", "told"),
    [
        (TOY, 0x100, "invalid distributed WORK flags"),
        (OURS, 0x100, None),
        (OURS, 0x200, "invalid distributed WORK flags"),
    ],
)
def test_the_flag_for_kv_belongs_to_the_dialect(
    model: ModelFacts, flag: int, told: str | None
) -> None:
    body = memoryview(work(flags=1 | 2 | flag))[12:]
    head = read_head(WorkerFacts(model, 5, 7, True), len(body), body)
    fault = judge_work(head, body)
    assert (fault and fault.text) == told


def test_a_row_of_another_size_is_refused() -> None:
    body = memoryview(work(bits=0x101, hidden=bytes(64)))[12:]
    head = read_head(WorkerFacts(OURS, 5, 7, True), len(body), body)
    fault = judge_work(head, body)
    assert fault is not None
    assert fault.text == "input hidden-state size does not match token span"


def test_a_coordinator_takes_no_format_outside_the_dialect() -> None:
    with pytest.raises(ValueError, match="width 0x105 is none of dialect upstream"):
        PipelineCoordinator(ToyEngine(range(2)), bits=0x105)


# the command line

COORDINATOR = "--role coordinator --layers 0:3 --listen 127.0.0.1 5000"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            f"{COORDINATOR} --wire-format int8",
            "--wire-format requires --dialect ds4proto",
        ),
        (
            "--role worker --layers 4:output --coordinator h 1 --dialect ds4proto"
            " --wire-format int8",
            "--wire-format requires --role coordinator",
        ),
        (
            f"{COORDINATOR} --dialect ds4proto --wire-format int8"
            " --dist-activation-bits 8",
            "give --wire-format or --dist-activation-bits, not both",
        ),
        (
            f"{COORDINATOR} --dialect ds4proto --wire-format int2",
            "invalid value for --wire-format: int2"
            " (choose int8, fp8, int4, mxfp8, mxfp4, nvfp4, bf16)",
        ),
        (
            "--dialect ds4proto",
            "--dialect requires --role coordinator or --role worker",
        ),
    ],
)
def test_wrong_command_lines(line: str, words: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parse_options(line.split())
    assert str(caught.value) == words


def test_three_processes_by_the_command_line() -> None:
    prompt = ["--dialect", "ds4proto", "-p", "1,2,3", "-n", "6", "--json"]
    chain = Chain(toy, "mxfp4", back=False)
    wanted = [int(chain.feed([1, 2, 3]).argmax())]
    while len(wanted) < 6:
        wanted.append(int(chain.feed(wanted[-1:]).argmax()))
    done = distributed(
        ("0:2", "3:5", "6:output"), "--wire-format", "mxfp4", model=prompt
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == wanted
