"""Text by temperature from two ranks: that of one process, whatever runs beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from ds4proto_runtime.pipeline.generation import Sampler
from ds4proto_runtime.tp.cli import run_tensor_parallel
from ds4proto_runtime.tp.options import parse_options
from ds4proto_runtime.tp.runner import Runner
from ds4proto_runtime.tp.toy import ToyTpEngine

from ds4proto.errors import WrongUsage
from tests.runtime.tp.rig import processes

LEADER = "--role coordinator --listen 127.0.0.1 5000"


def alone(prompt: Sequence[int], count: int, sampler: Sampler) -> list[int]:
    engine = ToyTpEngine()
    runner = Runner(engine)
    runner.create(1, 256)
    hidden = runner.sync(1, prompt)
    made: list[int] = []
    while True:
        assert hidden is not None
        made.append(sampler.pick(engine.full(hidden)))
        if len(made) == count:
            return made
        hidden = runner.eval(1, made[-1])


def test_each_session_samples_from_a_seed_of_its_own(tmp_path: Path) -> None:
    prompts = [[1, 2, 3], [1, 2, 3], [7, 8]]
    path = tmp_path / "prompts"
    path.write_text("".join(",".join(map(str, p)) + "\n" for p in prompts))
    words = ["--prompt-file", str(path), "-n", "12", "--temp", "0.9", "--seed", "5"]
    with processes([*words, "--batched-session", "2", "--json"]) as (leader, worker):
        assert leader.end() == 0, leader.err
        assert worker.end() == 0, worker.err
    found = [json.loads(line) for line in leader.out.splitlines()]
    wanted = [alone(p, 12, Sampler(0.9, 5 + at)) for at, p in enumerate(prompts)]
    assert [each["tokens"] for each in found] == wanted
    greedy = alone(prompts[0], 12, Sampler(0.0, 0))
    assert len({tuple(tokens) for tokens in (*wanted, greedy)}) == 4
    assert "ds4-tp: prefill: 8 tokens in" in leader.err
    assert "ds4-tp: decode: 33 steps in" in leader.err
    assert all(each["decode_tokens_per_s"] > 0 for each in found)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--temp -1", "invalid value for --temp: -1"),
        ("--temp hot", "invalid value for --temp: hot"),
        ("--seed x", "invalid value for --seed: x"),
        ("--temp 0.5 --draft 4", "--draft checks the greatest logit"),
    ],
)
def test_wrong_words_are_refused(words: str, told: str) -> None:
    with pytest.raises(WrongUsage, match=told):
        parse_options(f"{LEADER} {words}".split())


def test_half_of_the_logits_is_nothing_to_sample_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DS4_TP_GREEDY_TOP2", "1")
    options = parse_options(f"{LEADER} --dialect v9w --temp 0.5 -p 1,2".split())
    with pytest.raises(WrongUsage, match="DS4_TP_GREEDY_TOP2"):
        run_tensor_parallel(options)
