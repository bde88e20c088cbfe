"""Two whole ranks over loopback: what crosses which connection, in which order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock, patch

from ds4proto_runtime.tp import cli, environment, generate
from ds4proto_runtime.tp.gates import TcpGates
from ds4proto_runtime.tp.generate import Stream, speculate
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.options import parse_options
from ds4proto_runtime.tp.rank import TpOptions
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.link.ds4t_events import KEEP_ALL, REPLAY
from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_limits import ControlLimits, GateLimits
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.plan import PlanOptions
from ds4proto.preflight import rules, rules_tp
from tests.link.ds4t.captured import frames_of
from tests.preflight.plans import CUDA, checks
from tests.runtime.tp import rig
from tests.runtime.tp.rig import Relay, toy
from tests.runtime.tp.test_pair import GLM, V4, Both
from tests.spec.runs_ds4t import judged
from tests.spec.tp_showing import altered, shows

PROMPT = [*range(32), 5, 3, 1]
HELLO = 88
VEC = 4 * V4.n_embd


def options(**words: Any) -> TpOptions:
    """Limits that a busy machine keeps."""
    return rig.options(
        gates=GateLimits(idle=40.0, total=50.0, bulk_total=50.0),
        **{"control": ControlLimits(stall=40.0, answer=50.0, verdict=50.0), **words},
    )


@contextmanager
def pair(
    shape: ToyShape = V4, settings: TpOptions | None = None
) -> Iterator[tuple[Both, list[dict[str, bytearray]], rig.Pair]]:
    """A leader and a worker with a relay in between that keeps what crosses."""
    settings = settings or options()
    relays: list[Relay] = []

    def via(address: tuple[str, int]) -> tuple[str, int]:
        relays.append(Relay(address))
        return relays[0].address

    try:
        with rig.pair(toy(shape), settings, via=via) as found:
            yield Both(found.leader, shape, settings.plan), relays[0].streams, found
        assert found.worker_error is None, found.worker_error
    finally:
        relays[0].close()


def everything(both: Both) -> None:
    """Prefill in bulk and token by token, decode, batches, blocks, a mixed batch."""
    a, b = both.create(), both.create()
    both.sync(a, PROMPT)
    both.sync(b, [1, 2, 3])
    both.eval(a, 5, 6)
    both.sync(b, [1, 2, 3, 4, 5])
    both.batch((a, 7), (b, 8))
    both.verify(a, [1, 2, 3], KEEP_ALL)
    both.verify(a, [4, 5, 6, 7], REPLAY, 2)
    both.mixed(b, [*both.held(b), 5, 6, 7, 8], (a, 3))


def headers(data: bytes) -> list[tuple[bytes, int, int, int]]:
    """Cut a data stream of `everything` into gates by the lengths of its plan."""
    found, at = [], 0
    lengths = iter([18, 35] * V4.n_layer + [3] * V4.n_layer + [4] * V4.n_layer)
    while at < len(data):
        magic, layer, third, seq = struct.unpack_from("<4sHHQ", data, at)
        assert magic in (b"T4SD", b"B4SD"), (at, magic)
        rows = 1 if magic == b"T4SD" else third
        if third == 0x0B16:
            rows = next(lengths)
        found.append((magic, layer, third, seq))
        at += 16 + rows * VEC
    assert at == len(data)
    return found


def on_control(own: Any, gates: TcpGates, layer: int, kind: int) -> None:
    own(gates, layer, kind)
    if gates.link.row_seq == 3:
        gates._control.send(struct.pack("<4sHHQ", b"T4SD", layer, kind, 2))


def one_left_out(own: Any, link: GateLink, *words: Any) -> None:
    if link._settings.rank and link.row_seq == 2:
        link._check = False
        link.row_seq = 3
    own(link, *words)


def with_hash(own: Any, machine: WorkerControl, entries: list[Any]) -> list[Any]:
    word = struct.pack("<IIIQQ", 0x44533454, 6, 16, 1, 2)
    return [word, *own(machine, entries)]


@shows(
    ("DS4T-FLOW-02", "a gate on control", altered(TcpGates, "row", on_control)),
    (
        "DS4T-FLOW-03",
        "a rank that leaves a gate out",
        altered(GateLink, "begin_row", one_left_out),
    ),
    (
        "DS4T-HASH-02",
        "a hash in front of the logits",
        altered(WorkerControl, "_logits", with_hash),
    ),
)
def gates_cross_data_and_frames_cross_control() -> None:
    with pair(settings=options(hash_every=1)) as (both, streams, _):
        everything(both)
    control, data = streams
    types = set()
    for way in ("up", "down"):
        body = bytes(control[way][HELLO:])
        frames = frames_of(body)
        assert sum(len(frame) for _, frame in frames) == len(body)
        types |= {code for code, _ in frames}
    assert types == {1, 2, 5, 10, 11, 12, 13, 15, 16, 17, 22}
    mine, theirs = (headers(bytes(data[way])) for way in ("up", "down"))
    assert mine == theirs
    # nine tokens with a row gate a slot, two blocks, four chunks (one swaps its rows)
    assert len(mine) == 9 * 2 * V4.n_layer + 2 * V4.n_layer + 4 * V4.n_layer


def traced(own: Any, variables: Any, *words: Any, **more: Any) -> Any:
    found = own(variables, *words, **more)
    if variables:
        return replace(found, plan=PlanOptions(split_min=1 << 30))
    return found


@shows(
    (
        "DS4T-OPT-44",
        "a trace that changes the plan",
        altered(environment, "read_environment", traced),
    )
)
def logs_change_no_byte() -> None:
    crossed = []
    names = ("GATE_TRACE", "GATE_PROFILE", "BIG_GATE_DEBUG")
    for variables in (
        {},
        {f"DS4_TP_{name}": "1" for name in names} | {"DS4_GLM_TP_DEBUG": "1"},
    ):
        found = environment.read_environment(variables, "v14")
        assert found.trace == found.profile == bool(variables)
        words = options(plan=found.plan, checksums=found.trace)
        with pair(settings=words) as (both, streams, _):
            everything(both)
        crossed.append([{way: bytes(s[way]) for way in s} for s in streams])
    assert crossed[0] == crossed[1]


def half_a_head(own: Any, engine: ToyTpEngine, hidden: Any) -> Any:
    found = own(engine, hidden)
    if engine.rank == 0:
        found[len(found) // 2 :] = 0
    return found


@shows(
    (
        "DS4T-VERIFY-14",
        "half of the head",
        altered(ToyTpEngine, "full", half_a_head),
    )
)
def a_leader_computes_the_whole_head_of_a_block() -> None:
    with pair() as (both, streams, _):
        a = both.create()
        both.sync(a, [1, 2, 3])
        before = len(streams[0]["up"])
        both.verify(a, [1, 2, 3], KEEP_ALL)
        assert len(streams[0]["up"]) == before  # no LOGITS, no answer


def two_at_least(own: Any, runner: Runner, known: int, token: int, _limit: int) -> Any:
    return own(runner, known, token, 2)


@shows(
    (
        "DS4T-MTP-05",
        "the limit is not kept",
        altered(Runner, "mtp", two_at_least),
    )
)
def a_glm_cycle_keeps_to_its_limit() -> None:
    counts: dict[int, set[int]] = {1: set(), 2: set()}
    with pair(GLM) as (_, _, found):
        known = found.leader.create()
        found.leader.sync(known, PROMPT[:20])
        for number in range(24):
            limit = 1 + number % 2
            accepted, _ = found.leader.mtp(known, number % 32, limit)
            counts[limit].add(len(accepted))
    assert counts[1] == {1}
    assert counts[2] <= {1, 2}
    alone = Runner(ToyTpEngine(GLM), PlanOptions())
    alone.create(1, 256)
    alone.sync(1, PROMPT[:20])
    longest = [len(alone.mtp(1, n % 32, 1 + n % 2)) for n in range(24)]
    assert max(longest) in counts[2]


def no_wish(
    own: Any, leader: TpLeader, point: int, now: int, total: int, _: bool
) -> Any:
    return own(leader, point, now, total, False)


@shows(
    (
        "DS4T-FLOW-31",
        "a wish that is not said",
        altered(TpLeader, "_meet", no_wish),
    )
)
def a_prefill_is_stopped_by_the_word_of_a_checkpoint() -> None:
    with pair() as (both, streams, found):
        known = both.leader.create()
        assert found.leader.sync(known, PROMPT, cancel=lambda: True) is None
        assert found.leader.sync(known, PROMPT) is not None
    frames = frames_of(bytes(streams[0]["down"][HELLO:]))
    assert [code for code, _ in frames][:6] == [13, 1, 22, 22, 4, 1]
    assert frames[2][1][-4:] == bytes([1, 0, 0, 0])


def by_worker(_own: Any, leader: TpLeader, stream: Stream, drafts: list[int]) -> None:
    accepted, stream.logits = leader.mtp(stream.known, drafts[0], 2)
    stream.tokens += accepted
    stream.left -= len(accepted)


@shows(
    (
        "DS4T-FLOW-30",
        "drafts by both ranks",
        altered(generate, "_block", by_worker),
    )
)
def drafts_are_the_leaders_alone() -> None:
    with pair() as (both, streams, found):
        known = both.leader.create()
        prompt = [1, 2, 1, 2, 1, 2]
        logits = found.leader.sync(known, prompt)
        assert logits is not None
        before = len(streams[0]["down"])
        stream = Stream(known, list(prompt), logits, 12)
        speculate(found.leader, stream, 4, 256, None)
        codes = {code for code, _ in frames_of(bytes(streams[0]["down"][before:]))}
        assert {2, 11, 12} >= codes > {2}


def nothing(*_: Any) -> list[int]:
    return []


@shows(
    (
        "DS4T-FLOW-33",
        "saved tokens are not prefilled",
        altered(generate, "load_tokens", nothing),
    )
)
def a_saved_session_is_restored_by_a_sync() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "saved.json"
        generate.save_tokens(path, [5, 6, 7, 8])
        words = ["--role", "coordinator", "--listen", "127.0.0.1", "0"]
        wish = parse_options([*words, "--load", str(path), "-n", "0"])
        leader = MagicMock()
        leader.settings.identity.n_vocab = 32
        leader.settings.identity.model_id = 0
        env = environment.read_environment({}, "v14")
        with redirect_stdout(StringIO()):
            cli._generate(wish, env, leader, MagicMock(), [[9]])
        known = leader.create.return_value
        leader.sync.assert_called_once_with(known, [5, 6, 7, 8, 9])


def without_backends() -> Any:
    left = tuple(one for one in rules.CHECKS if one is not rules_tp.backends)
    return patch.object(rules, "CHECKS", left)


@shows(("DS4T-FLOW-34", "pictures on any back end", without_backends))
def pictures_do_not_go_with_cuda() -> None:
    text = CUDA.replace("--tensor-parallel", "--vision x.gguf --tensor-parallel")
    assert "backend.cuda-vision" in checks(judged(text), "error")
    assert "backend.cuda-vision" not in checks(judged(CUDA))


def another_session(own: Any, machine: WorkerControl, known: int, status: int) -> Any:
    return own(machine, known + 1, status)


@shows(
    (
        "DS4T-FLOW-40",
        "acks of another session",
        altered(WorkerControl, "_ack", another_session),
    ),
)
def a_worker_without_an_engine_lets_every_command_pass() -> None:
    shape = ToyShape(n_layer=2, n_embd=16, n_vocab=32, null=True)
    run: list[Callable[[TpLeader, int, int], Any]] = [
        lambda one, a, _: one.sync(a, PROMPT),
        lambda one, _, b: one.sync(b, [1, 2, 3]),
        lambda one, a, _: one.eval(a, 1),
        lambda one, a, b: one.batch([(a, 1), (b, 2)]),
        lambda one, a, _: one.verify(a, [1, 2], lambda _: (REPLAY, 1)),
        lambda one, a, _: one.verify(a, [1, 2], lambda _: (KEEP_ALL, 0)),
        lambda one, a, b: one.mixed(
            b, [*one.rank.runner[b].tokens, 1, 2, 3, 4], [(a, 1)]
        ),
        lambda one, a, _: one.rewind(a, 2),
        lambda one, a, _: one.eval(a, 1),
        lambda one, a, _: one.destroy(a),
    ]
    with pair(shape) as (both, _, found):
        a, b = both.leader.create(), both.leader.create()
        for command in run:
            command(found.leader, a, b)
