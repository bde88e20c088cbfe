"""The decoder engine on a small trained model: text, slices, ranks, KV."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from ds4proto_runtime.engines.base import F32, EngineError, Session
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.tokenizer import Tokenizer

MODEL = Path(__file__).parents[2] / "data" / "tiny-moe-3m-q8_0.gguf"
PROMPT = "The people of the United States"
# greedy ids that the model's own notes give, checked there against a second program
CONTINUATION = [15, 355, 558, 493, 407, 416, 644, 352, 261, 558, 493, 269]


@pytest.fixture(scope="module")
def whole() -> DecoderEngine:
    return DecoderEngine(MODEL, ctx=256)


def _greedy(
    engines: list[DecoderEngine], prompt: list[int], count: int
) -> tuple[list[int], F32]:
    sessions = [engine.open() for engine in engines]
    found: list[int] = []
    span, pos = list(prompt), 0
    while True:
        hidden = engines[0].embed(span)
        for engine, session in zip(engines, sessions, strict=True):
            hidden = engine.run(session, hidden, span, pos)
        logits = engines[-1].head(hidden[-1])
        pos += len(span)
        span = [int(np.argmax(logits))]
        found += span
        if len(found) == count:
            return found, logits


def test_tokenizer_and_greedy_text(whole: DecoderEngine) -> None:
    tokenizer = Tokenizer(whole.weights.metadata)
    ids = tokenizer.encode(PROMPT)
    assert tokenizer.decode(ids) == PROMPT
    found, _ = _greedy([whole], ids, len(CONTINUATION))
    assert found == CONTINUATION
    assert tokenizer.decode(found) == (
        ". The United States has been made by the United States of"
    )


@pytest.mark.parametrize("cuts", [(4,), (1, 6), (2, 4, 6), (1, 2, 3, 4, 5, 6, 7)])
def test_sliced_equals_unsliced(whole: DecoderEngine, cuts: tuple[int, ...]) -> None:
    prompt = [53, 259, 572, 269, 261, 558, 493]
    bounds = (0, *cuts, 8)
    parts = [
        DecoderEngine(MODEL, range(a, b), ctx=256, has_head=b == 8)
        for a, b in itertools.pairwise(bounds)
    ]
    expected, logits = _greedy([whole], prompt, 16)
    found, sliced = _greedy(parts, prompt, 16)
    assert found == expected
    assert sliced.tobytes() == logits.tobytes()


def test_two_ranks_give_the_bits_of_one_process(whole: DecoderEngine) -> None:
    prompt = [53, 259, 572, 269, 261, 558, 493]
    ranks = [DecoderEngine(MODEL, ctx=256, rank=rank) for rank in (0, 1)]
    hidden = _two_ranks(ranks, prompt)
    session = whole.open()
    expected = whole.run(session, whole.embed(prompt), prompt, 0)
    assert hidden.tobytes() == expected.tobytes()
    halves = [ranks[rank].head(hidden[-1]) for rank in (0, 1)]
    joined = np.concatenate(halves)
    assert joined.tobytes() == whole.head(expected[-1]).tobytes()


def _two_ranks(ranks: list[DecoderEngine], tokens: list[int]) -> F32:
    """Run rank 1 in a thread; each gate adds rank 0's partial and rank 1's."""
    import threading

    posted: list[dict[tuple[int, str], F32]] = [{}, {}]
    meet = threading.Barrier(2, timeout=60)
    out: list[F32] = [np.empty(0, np.float32)] * 2

    def run(rank: int) -> None:
        def gate(layer: int, kind: str, own: F32) -> F32:
            posted[rank][layer, kind] = own
            meet.wait()
            total: F32 = posted[0][layer, kind] + posted[1][layer, kind]
            meet.wait()
            return total

        engine = ranks[rank]
        out[rank] = engine.run(engine.open(), engine.embed(tokens), tokens, 0, gate)

    other = threading.Thread(target=run, args=(1,))
    other.start()
    run(0)
    other.join(60)
    assert out[0].tobytes() == out[1].tobytes()
    return out[0]


def test_exported_rows_continue_the_session(whole: DecoderEngine) -> None:
    prompt = [53, 259, 572]
    first, second = whole.open(), whole.open()
    whole.run(first, whole.embed(prompt), prompt, 0)
    for layer in whole.layers:
        data = b"".join(bytes(part) for part in whole.kv_export(first, layer))
        assert len(data) == 4 * len(prompt) * whole.shape.head_dim
        rows = np.frombuffer(data, np.float32).reshape(len(prompt), -1)
        whole.kv_import(second, layer, prompt, (0, 0), [rows])
    second.tokens.extend(prompt)
    assert _step(whole, first) == _step(whole, second)


def test_a_rewound_session_forgets(whole: DecoderEngine) -> None:
    session = whole.open()
    whole.run(session, whole.embed([53, 259]), [53, 259], 0)
    expected = _step(whole, session)
    whole.truncate(session, 2)
    assert _step(whole, session) == expected


def _step(engine: DecoderEngine, session: Session) -> bytes:
    out = engine.run(session, engine.embed([7]), [7], len(session.tokens))
    return out.tobytes()


def test_only_the_slice_is_loaded() -> None:
    part = DecoderEngine(MODEL, range(2, 4), ctx=64, has_head=False)
    with pytest.raises(EngineError, match="does not start at layer 0"):
        part.embed([1])
    with pytest.raises(EngineError, match="does not own the output head"):
        part.head(np.zeros(part.shape.hidden_values, np.float32))
    with pytest.raises(EngineError, match="past final model layer 7"):
        DecoderEngine(MODEL, range(6, 9), ctx=64)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF" + bytes(4))
    with pytest.raises(EngineError, match="not a readable GGUF file"):
        DecoderEngine(path)
    with pytest.raises(FileNotFoundError):
        DecoderEngine(tmp_path / "absent.gguf")
