"""Figures of models, widths and codecs against the tables that we keep of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ds4proto import codec, rule_vectors
from ds4proto.codec import widths
from ds4proto.codec.base import CodecError
from ds4proto.codec.widths import activation_codec
from ds4proto.link import ds4d_facts
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.model import known
from ds4proto.rule_vectors import Row

FILE = rule_vectors.load("sizes")


def model(row: Row) -> dict[str, Any]:
    (found,) = (
        m for m in known.KNOWN_MODELS if m.in_ds4d and m.model_id == row["model_id"]
    )
    facts = ModelFacts(
        found.model_id,
        found.name,
        found.layers,
        found.hidden_values,
        found.vocabulary,
        0,
    )
    return {
        "name": facts.model_name,
        "layers": facts.n_layers,
        "hidden_values": facts.hidden_values,
        "vocabulary": facts.vocab,
        "most_tokens": facts.most_tokens,
    }


def width(row: Row) -> dict[str, Any]:
    try:
        return {"codec": activation_codec(row["bits"]).name}
    except CodecError:
        return {"codec": None}


def token(row: Row) -> dict[str, Any]:
    count = row["values"]
    used = codec.get(row["codec"], path="numpy")
    wire = used.encode(np.zeros(count, np.float32))
    size = used.wire_bytes(count)
    assert len(bytes(wire)) == size
    return {"bytes": row["tensors"] * size}


ASKED: dict[str, Callable[[Row], dict[str, Any]]] = {
    "model": model,
    "width": width,
    "token": token,
}


def agrees(row: Row) -> bool:
    try:
        found = ASKED[row["ask"]](row)
    except (AssertionError, ValueError):
        return False
    return all(row[name] == value for name, value in found.items())


def test_every_row_comes_out() -> None:
    assert [row.name for row in FILE.rows if not agrees(row)] == []


@contextmanager
def models(**changes: Any) -> Iterator[None]:
    other = tuple(replace(m, **changes) for m in known.KNOWN_MODELS)
    with patch.object(known, "KNOWN_MODELS", other):
        yield


def one_byte_more(name: str) -> AbstractContextManager[Any]:
    used = type(codec.get(name, path="numpy"))
    real = used.wire_bytes
    return patch.object(
        used, "wire_bytes", lambda self, values, rows=1: real(self, values, rows) + 1
    )


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "DS4D-HELLO-22": lambda: models(name="deepseek-v4"),
    "CODEC-SIZE-05": lambda: models(streams=1),
    "DS4D-WORK-42": lambda: patch.object(ds4d_facts, "U32", 1 << 31),
    "CODEC-SIZE-02": lambda: patch.object(widths, "DEFAULT_BITS", 16),
    "CODEC-ROW-07": lambda: one_byte_more("int8"),
    "CODEC-ROW-09": lambda: one_byte_more("int8"),
}
CLAUSES = sorted({clause for row in FILE.rows for clause in row.clauses})


@pytest.mark.parametrize("clause", CLAUSES)
def test_other_figures_fail(clause: str) -> None:
    rows = [row for row in FILE.rows if clause in row.clauses]
    with FAULTS[clause]():
        assert any(not agrees(row) for row in rows)
    assert all(agrees(row) for row in rows)
