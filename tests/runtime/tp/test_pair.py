"""Two ranks against one process: the same bits, in every operation and dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.tp.errors import PairError, SyncRefused
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY, BatchItem, Image
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.link.plan import PlanOptions
from ds4proto.model.known import GLM_53_FLASH
from tests.runtime.tp.rig import options, pair, toy

LIVE = ("v7", "v9w", "v10", "v14")
V4 = ToyShape(n_layer=3, n_embd=32, n_vocab=64, gguf_bytes=7)
# GLM 5.2: the first layers are dense, then both kinds; streaming weights: FFN alone
GLM = ToyShape(n_layer=4, model_id=2, start=4, step=1, gates_per_token=4)
GLM_FFN = ToyShape(n_layer=4, model_id=2, start=5, step=2, gates_per_token=2)
# GLM 5.3 in small: FFN of layers 1..3, ATTN of layer 3 alone
MASKED = ToyShape(n_layer=4, model_id=3, gates_per_token=4, mask=(0b11101000, 0, 0))
PROMPT = [*range(32), 5, 3, 1]


class Both:
    """A leader and a single process that do the same; every result is compared."""

    def __init__(self, leader: TpLeader, shape: ToyShape, plan: PlanOptions) -> None:
        self.leader = leader
        self.solo = Runner(ToyTpEngine(shape), plan)

    def same(self, logits: F32 | None, hidden: F32 | None) -> F32:
        assert logits is not None
        assert hidden is not None
        expected = self.solo.engine.full(hidden)
        assert logits.tobytes() == expected.tobytes()
        return logits

    def create(self, ctx: int = 256) -> int:
        known = self.leader.create(ctx)
        self.solo.create(known, ctx)
        return known

    def sync(self, known: int, tokens: Sequence[int]) -> None:
        self.same(self.leader.sync(known, tokens), self.solo.sync(known, tokens))

    def eval(self, known: int, *tokens: int) -> None:
        for token in tokens:
            self.same(self.leader.eval(known, token), self.solo.eval(known, token))

    def batch(self, *items: tuple[int, int]) -> None:
        rows = self.solo.batch([BatchItem(*item) for item in items])
        for logits, hidden in zip(self.leader.batch(items), rows, strict=True):
            self.same(logits, hidden)

    def mixed(self, known: int, prompt: list[int], *items: tuple[int, int]) -> None:
        rows = self.solo.mixed(known, prompt, [BatchItem(*item) for item in items])
        found = self.leader.mixed(known, prompt, items)
        for logits, hidden in zip(found, rows, strict=True):
            self.same(logits, hidden)

    def verify(self, known: int, drafts: list[int], mode: int, count: int = 0) -> None:
        rows, last = self.leader.verify(known, drafts, lambda _: (mode, count))
        expected = self.solo.block(known, drafts)
        for logits, hidden in zip(rows, expected, strict=True):
            self.same(logits, hidden)
        after = self.solo.commit(mode, count)
        assert (last is None) == (after is None)
        if last is not None:
            self.same(last, after)

    def held(self, known: int) -> list[int]:
        mine = self.leader.rank.runner[known].tokens
        assert mine == self.solo[known].tokens
        return list(mine)


@pytest.mark.parametrize("dialect", LIVE)
def test_every_operation_gives_the_bits_of_one_process(dialect: str) -> None:
    settings = options(dialect=dialect)
    with pair(toy(V4), settings) as found:
        both = Both(found.leader, V4, settings.plan)
        a, b = both.create(), both.create()
        both.sync(a, PROMPT)  # 35 rows from position 0: row swap and FFN, both bulk
        both.sync(b, [1, 2, 3])  # from position 0 even three tokens are one chunk
        both.eval(a, 5, 6)
        both.sync(b, [1, 2, 3, 4, 5])  # two more behind a prefix: token by token
        both.sync(b, [1, 2, 3, 4, 5])  # nothing new
        both.batch((a, 7), (b, 8))
        both.verify(a, [1, 2, 3, 4, 5, 6, 7, 8], KEEP_ALL)
        both.eval(a, 9)
        both.verify(a, [4, 5, 6, 7], REPLAY, 2)
        both.verify(a, [4, 5], REPLAY, 0)
        both.verify(a, list(range(12)), KEEP_ALL)  # over 8 rows: bulk gates
        if dialect != "v7":
            both.verify(a, [4, 5, 6, 7, 8], KEEP_PREFIX, 3)
        both.eval(a, 9)
        both.mixed(b, [*both.held(b), 5, 6, 7, 8], (a, 3))
        found.leader.rewind(a, 4)
        both.solo.rewind(a, 4)
        assert len(both.held(a)) == 4
        both.eval(a, 9)
        found.leader.invalidate(a)
        both.solo.invalidate(a)
        both.sync(a, PROMPT)
        assert found.leader.destroy(a) == 0
        both.eval(b, 1)
    assert found.worker_error is None
    assert "tp worker: leader finished" in found.log


@pytest.mark.parametrize("shape", [GLM, GLM_FFN, MASKED], ids=["glm", "ffn", "mask"])
def test_glm_schedules_give_the_bits_of_one_process(shape: ToyShape) -> None:
    settings = options()
    with pair(toy(shape), settings) as found:
        both = Both(found.leader, shape, settings.plan)
        a = both.create()
        both.sync(a, [1, 2, 3])
        both.eval(a, 5, 6)
        both.sync(a, [*both.held(a), *range(30), *range(30), *range(10)])
        both.verify(a, [4, 5, 6], KEEP_PREFIX, 1)
        accepted, _ = found.leader.mtp(a, 3, 2)
        assert accepted == both.solo.mtp(a, 3, 2)
        both.eval(a, 9)
        row_gates = found.leader.rank.transport.link.row_seq - 1
    assert found.worker_error is None
    singles = 3 + 2 + len(accepted) + 1
    assert row_gates == singles * (shape.gates_per_token or 0)


def test_the_mask_of_glm_5_3_is_a_schedule_of_53_gates() -> None:
    gates = GLM_53_FLASH.gates
    shape = ToyShape(
        n_layer=45,
        model_id=3,
        start=gates.start,
        step=gates.step,
        gates_per_token=gates.gates_per_token,
        mask=gates.mask,
    )
    with pair(toy(shape)) as found:
        known = found.leader.create()
        found.leader.eval(known, 3)
        assert found.leader.rank.transport.link.row_seq - 1 == 53
    assert found.worker_error is None


def test_token_by_token_prefill_where_both_ranks_ask_for_it() -> None:
    settings = options(token_prefill=True)
    with pair(toy(V4), settings) as found:
        known = found.leader.create()
        found.leader.sync(known, [1, 2, 3])
        link = found.leader.rank.transport.link
        assert (link.row_seq - 1, link.batch_seq - 1) == (3 * 6, 0)
    assert found.worker_error is None


def test_the_gates_of_a_prefill_are_those_of_the_lockstep_plan() -> None:
    """35 tokens from position 0: rows 18 swapped, then 35."""
    seen: list[tuple[int, int]] = []
    with pair(toy(V4)) as found:
        transport: Any = found.leader.rank.transport
        bulk = transport.bulk

        def noted(layer: int, own: memoryview, peer: memoryview) -> None:
            seen.append((layer, own.nbytes // (4 * V4.n_embd)))
            bulk(layer, own, peer)

        transport.bulk = noted
        known = found.leader.create()
        found.leader.sync(known, PROMPT)
    assert seen == [(0, 18), (0, 35), (1, 18), (1, 35), (2, 18), (2, 35)]


def test_images_take_the_place_of_their_tokens() -> None:
    rows = np.linspace(-1, 1, 2 * V4.n_embd, dtype=np.float32)
    image = Image(1, 2, memoryview(rows.tobytes()))
    settings = options(dialect="v10")
    with pair(toy(V4), settings) as found:
        both = Both(found.leader, V4, settings.plan)
        a, b = both.create(), both.create()
        logits = found.leader.sync(a, [1, 0, 0, 4], images=[image])
        both.same(logits, both.solo.sync(a, [1, 0, 0, 4], [image]))
        plain = found.leader.sync(b, [1, 0, 0, 4])
        assert plain is not None
        assert logits is not None
        assert plain.tobytes() != logits.tobytes()
    assert found.worker_error is None


@pytest.mark.parametrize("side", ["leader", "worker"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_cancel_by_either_rank_stops_both_at_a_checkpoint(
    side: str, after: int
) -> None:
    settings = options(plan=PlanOptions(chunk=4))
    asked: list[int] = []

    def wish() -> bool:
        asked.append(1)
        return len(asked) > after

    with pair(
        toy(V4),
        settings,
        prepare=lambda worker: (
            setattr(worker, "wish", wish) if side == "worker" else None
        ),
    ) as found:
        known = found.leader.create()
        cancel = wish if side == "leader" else None
        assert found.leader.sync(known, list(range(16)), cancel=cancel) is None
        # START with 0 tokens, then one point after each chunk of 4
        gates = found.leader.rank.transport.link.batch_seq - 1
        assert gates == after * V4.n_layer
        assert found.leader.rank.runner[known].tokens == []
        asked.clear()
        if side == "leader":
            both = Both(found.leader, V4, settings.plan)
            both.solo.create(known, 256)
            both.sync(known, [1, 2, 3])
    assert found.worker_error is None


def test_a_context_is_bounded_and_the_pair_goes_on() -> None:
    with pair(toy(V4)) as found:
        known = found.leader.create(8)
        with pytest.raises(LocalProtocolError, match="1 to 7 tokens"):
            found.leader.sync(known, list(range(8)))
        found.leader.sync(known, list(range(7)))
        found.leader.eval(known, 1)
        with pytest.raises(Exception, match="full"):
            found.leader.eval(known, 1)
        other = found.leader.create(8)
        found.leader.eval(other, 1)
    assert found.worker_error is None


def test_a_session_that_the_worker_refuses_costs_nothing_else() -> None:
    with pair(toy(V4)) as found:
        found.leader.create(8)
        assert found.worker is not None
        found.worker.rank.pipe.machine._limits = options().control
        object.__setattr__(found.worker.rank.pipe.machine._judge, "_limits",
                           type(options().control)(sessions=1))  # fmt: skip
        with pytest.raises(SyncRefused, match=r"session create failed .*status 1"):
            found.leader.create(8)
        found.leader.eval(1, 3)
    assert found.worker_error is None


def test_the_hashes_of_both_ranks_are_equal_and_their_checksums_pair_up() -> None:
    settings = options(hash_every=1, checksums=True)
    with pair(toy(V4), settings) as found:
        known = found.leader.create()
        found.leader.sync(known, PROMPT)
        found.leader.eval(known, 3)
    sums = [line for line in found.log if ": sum " in line]
    assert len(sums) == 2 * (6 + 6)  # two bulk gates a layer, six row gates
    assert all(sums.count(line) == 2 for line in sums)
    sent = {
        (line.split()[1], line.split("rank ")[1][0]): line.rsplit(" ", 1)[1]
        for line in found.log
        if ": enqueue " in line
    }
    received = {
        (line.split()[1], line.split("rank ")[1][0]): line.rsplit(" ", 1)[1]
        for line in found.log
        if ": receive " in line
    }
    assert received
    for (gate, rank), word in received.items():
        assert word == sent[gate, "1" if rank == "0" else "0"]


def test_top2_stands_in_for_the_half_in_v9w() -> None:
    shape = ToyShape(features=0x8020, n_vocab=64)
    with pair(toy(shape), options(dialect="v9w")) as found:
        known = found.leader.create()
        logits = found.leader.eval(known, 3)
        solo = Runner(ToyTpEngine(shape))
        solo.create(known, 256)
        whole = solo.engine.full(solo.eval(known, 3))
    assert logits[:32].tobytes() == whole[:32].tobytes()
    kept = np.isfinite(logits[32:])
    assert kept.sum() == 2
    assert logits[32:][kept].tobytes() == whole[32:][kept].tobytes()
    assert int(np.argmax(logits)) == int(np.argmax(whole))


@pytest.mark.parametrize(
    ("dialect", "reason"),
    [
        ("v1", "one implicit session"),
        ("v15", "40-byte"),
        ("v99", "not in the register"),
    ],
)
def test_dialects_that_are_not_spoken_are_refused_with_the_reason(
    dialect: str, reason: str
) -> None:
    with pytest.raises(WrongUsage, match=reason):
        TpLeader(ToyTpEngine(V4, 0), options=options(dialect=dialect))


def test_another_model_is_refused_in_the_words_of_the_hello() -> None:
    """The text and its order of words are measured."""
    other = ToyShape(n_layer=3, n_embd=32, n_vocab=64, gguf_bytes=8)
    with (
        pytest.raises(PairError, match=r"tp hello: model mismatch \(peer gguf=8 id=0"),
        pair(lambda rank: ToyTpEngine(other if rank else V4, rank)),
    ):
        pass
