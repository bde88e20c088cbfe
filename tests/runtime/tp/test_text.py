"""Text from two ranks equals the text of one process; batches and drafts too."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.engines.tokenizer import Tokenizer
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.generate import (
    Stream,
    decode_round,
    load_tokens,
    propose,
    run_streams,
    save_tokens,
    speculate,
    verdict_on,
)
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.torch_engines import TorchRank
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY
from tests.runtime.tp.rig import MODEL, options, pair, processes, toy

PROMPT = "The people of the United States"
# greedy ids that the model's own notes give, checked there against a second program
CONTINUATION = [15, 355, 558, 493, 407, 416, 644, 352, 261, 558, 493, 269]
CTX = 128


def _solo(engine: RankEngine, prompt: Sequence[int], count: int) -> list[int]:
    runner = Runner(engine)
    runner.create(1, CTX)
    hidden = runner.sync(1, prompt)
    made: list[int] = []
    while True:
        assert hidden is not None
        made.append(int(np.argmax(engine.full(hidden))))
        if len(made) == count:
            return made
        hidden = runner.eval(1, made[-1])


def _stream(leader: object, prompt: Sequence[int], count: int) -> Stream:
    known = leader.create(CTX)  # type: ignore[attr-defined]
    logits = leader.sync(known, prompt)  # type: ignore[attr-defined]
    return Stream(known, list(prompt), logits, count)


def _decoder(rank: int | None) -> RankEngine:
    return TorchRank.decoder(MODEL, rank, ctx=CTX)


def _v4(rank: int | None) -> RankEngine:
    return TorchRank.deepseek_v4(None, rank, ctx=CTX)


def test_the_decoder_says_on_two_ranks_what_its_notes_say() -> None:
    whole = TorchRank.decoder(MODEL, None, ctx=CTX)
    ids = Tokenizer(whole.metadata).encode(PROMPT)
    with pair(_decoder, options(ctx=CTX)) as found:
        stream = _stream(found.leader, ids, len(CONTINUATION))
        run_streams(found.leader, [stream], 2, None)
        drafted = _stream(found.leader, ids, len(CONTINUATION))
        speculate(found.leader, drafted, 6, CTX, None)
    assert found.worker_error is None
    assert stream.made == CONTINUATION
    assert drafted.made == CONTINUATION
    assert _solo(whole, ids, len(CONTINUATION)) == CONTINUATION


@pytest.mark.parametrize("engine_of", [_decoder, _v4], ids=["decoder", "deepseek_v4"])
def test_every_span_gives_the_bits_of_one_process(
    engine_of: Callable[[int | None], RankEngine],
) -> None:
    whole = engine_of(None)
    solo = Runner(whole)
    prompt = [int(t) for t in np.random.default_rng(3).integers(0, 256, 35)]
    with pair(engine_of, options(ctx=CTX)) as found:
        leader = found.leader
        known = leader.create(CTX)
        solo.create(known, CTX)

        def same(logits: F32 | None, hidden: F32 | None) -> None:
            assert logits is not None
            assert hidden is not None
            assert logits.tobytes() == whole.full(hidden).tobytes()

        same(leader.sync(known, prompt), solo.sync(known, prompt))
        same(leader.eval(known, 5), solo.eval(known, 5))
        for mode, count in ((KEEP_ALL, 0), (REPLAY, 2), (KEEP_PREFIX, 3)):
            drafts = [4, 5, 6, 7, 8]
            rows, last = leader.verify(
                known, drafts, lambda _, said=(mode, count): said
            )
            for logits, hidden in zip(rows, solo.block(known, drafts), strict=True):
                same(logits, hidden)
            after = solo.commit(mode, count)
            if last is not None:
                same(last, after)
            same(leader.eval(known, 9), solo.eval(known, 9))
        longer = [*solo[known].tokens, *range(20)]
        same(leader.sync(known, longer), solo.sync(known, longer))
        assert solo[known].tokens == leader.rank.runner[known].tokens
    assert found.worker_error is None


def test_a_deepseek_session_is_synced_again_after_a_rewind() -> None:
    with pair(_v4, options(ctx=CTX)) as found:
        known = found.leader.create(CTX)
        found.leader.sync(known, [1, 2, 3, 4, 5])
        found.leader.rewind(known, 3)
        with pytest.raises(ValueError, match="is not valid"):
            found.leader.eval(known, 1)
        found.leader.sync(known, [1, 2, 3, 4])
        found.leader.eval(known, 1)
    assert found.worker_error is None


@pytest.mark.parametrize("engine", ["decoder", "deepseek_v4"])
def test_two_processes_say_what_one_says(engine: str) -> None:
    model = ("-m", str(MODEL)) if engine == "decoder" else ("--engine", engine)
    prompt = PROMPT if engine == "decoder" else "1,2,3,4,5,6,7"
    words = (*model, "--ctx", str(CTX))
    lead = ("-p", prompt, "-n", "12", "--json")
    with processes(lead, (), *words, leader_first=False) as (leader, worker):
        assert (leader.end(), worker.end()) == (0, 0), leader.err + worker.err
    made = json.loads(leader.out)["tokens"]
    whole = _decoder(None) if engine == "decoder" else _v4(None)
    ids = (
        Tokenizer(whole.metadata).encode(PROMPT)  # type: ignore[attr-defined]
        if engine == "decoder"
        else [1, 2, 3, 4, 5, 6, 7]
    )
    assert made == _solo(whole, ids, 12)
    assert engine != "decoder" or made == CONTINUATION


def test_two_toy_processes_serve_many_sessions_save_and_restore(
    tmp_path: Path,
) -> None:
    prompts = ["1,2,3", "4,5,6,7", "9", "8,8", "3,1", "7"]
    file = tmp_path / "prompts"
    file.write_text("\n".join(prompts) + "\n", "utf-8")
    saved = tmp_path / "saved.json"
    lead = ("--prompt-file", str(file), "--batched-session", "6", "-n", "5", "--json",
            "--batch-from", "5", "--save", str(saved))  # fmt: skip
    with processes(lead) as (leader, worker):
        assert (leader.end(), worker.end()) == (0, 0)
    made = [json.loads(line)["tokens"] for line in leader.out.splitlines()]
    expected = [
        _solo(ToyTpEngine(), [int(t) for t in prompt.split(",")], 5)
        for prompt in prompts
    ]
    assert made == expected
    tokens = load_tokens(saved, 32)
    assert tokens == [1, 2, 3, *expected[0]]
    with processes(("--load", str(saved), "-n", "3", "--json")) as (leader, worker):
        assert (leader.end(), worker.end()) == (0, 0)
    assert json.loads(leader.out)["tokens"] == _solo(ToyTpEngine(), tokens, 3)
    assert not list(tmp_path.glob("*.part"))


class _Counted:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def eval(self, known: int, token: int) -> F32:
        del token
        self.calls.append(("eval", known))
        return np.zeros(4, np.float32)

    def batch(self, items: Sequence[tuple[int, int]]) -> list[F32]:
        self.calls.append(("batch", len(items)))
        return [np.zeros(4, np.float32)] * len(items)


@pytest.mark.parametrize(
    ("ready", "start", "calls"),
    [
        (4, 5, [("eval", 0), ("eval", 1), ("eval", 2), ("eval", 3)]),
        (5, 5, [("batch", 5)]),
        (2, 2, [("batch", 2)]),
        (1, 2, [("eval", 0)]),
        (1, 1, [("eval", 0)]),
        (6, None, [("eval", k) for k in range(6)]),
    ],
)
def test_batches_start_at_a_number_of_ready_sessions(
    ready: int, start: int | None, calls: list[tuple[str, int]]
) -> None:
    """CUDA V4.1 batches from five ready sessions up."""
    counted = _Counted()
    rows = decode_round(counted, [(k, 1) for k in range(ready)], start)
    assert len(rows) == ready
    assert counted.calls == calls


def test_drafts_come_from_what_followed_before() -> None:
    assert propose([1, 2, 3, 4, 2], 3) == [3, 4, 2]
    assert propose([1, 2, 3], 3) == []
    assert propose([], 3) == []


def _best(token: int) -> F32:
    row = np.zeros(8, np.float32)
    row[token] = 1
    return row


@pytest.mark.parametrize(
    ("answers", "prefix", "expected"),
    [
        ([1, 2, 3, 4], True, (KEEP_ALL, 0)),
        ([1, 2, 7, 4], True, (KEEP_PREFIX, 2)),
        ([1, 2, 7, 4], False, (REPLAY, 2)),
        ([7, 2, 3, 4], True, (REPLAY, 0)),
    ],
)
def test_the_greedy_verdict(
    answers: list[int], prefix: bool, expected: tuple[int, int]
) -> None:
    before, *rows = [_best(token) for token in answers]
    found = verdict_on([1, 2, 3, 4], before, [*rows, _best(0)], prefix_commit=prefix)
    assert found == expected


def test_five_accepted_of_six_are_replayed_not_kept() -> None:
    """At most four tokens of a block are kept as a prefix."""
    rows = [_best(token) for token in (2, 3, 4, 5, 7, 0)]
    found = verdict_on([1, 2, 3, 4, 5, 6], _best(1), rows, prefix_commit=True)
    assert found == (REPLAY, 5)


def test_speculation_gives_the_same_text_and_uses_all_verdicts() -> None:
    shape = ToyShape(n_layer=2, n_embd=16, n_vocab=8, seed=11)
    verdicts: set[int] = set()
    with pair(toy(shape), options(ctx=CTX)) as found:
        leader = found.leader
        real = leader.verify

        def verify(known: int, drafts: Sequence[int], judge: object) -> object:
            def noted(rows: list[F32]) -> tuple[int, int]:
                said: tuple[int, int] = judge(rows)  # type: ignore[operator]
                verdicts.add(said[0])
                return said

            return real(known, drafts, noted)

        leader.verify = verify  # type: ignore[assignment,method-assign]
        for first in range(8):
            stream = _stream(leader, [first, 1], 40)
            speculate(leader, stream, 6, CTX, None)
            assert len(stream.made) == 40
            leader.destroy(stream.known)
    assert found.worker_error is None
    assert verdicts == {KEEP_ALL, KEEP_PREFIX, REPLAY}


def test_saved_tokens_of_another_model_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    save_tokens(file, [1, 2, 31])
    assert load_tokens(file, 32) == [1, 2, 31]
    with pytest.raises(WrongUsage, match="another model"):
        load_tokens(file, 31)
    for text in ("{", '{"tokens":' + "[" * 99999):
        file.write_text(text, "utf-8")
        with pytest.raises(WrongUsage, match="no saved session"):
            load_tokens(file, 32)
