"""Vectors of saved sessions and shards against every reader that we have."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from ds4proto_runtime import kv
from ds4proto_runtime.engines.base import EngineError, Shape

from ds4proto import rule_vectors
from ds4proto.link import ds4d_shards
from ds4proto.model import KNOWN_MODELS, known
from ds4proto.rule_vectors import Row
from ds4proto.schema import container, dsv4
from ds4proto.schema.container import read_container
from ds4proto.schema.dsv4 import layer_tensors
from tests.spec.removing import without_check

FILE = rule_vectors.load("snapshot-files")
MODEL = FILE.base["model"]
FILES = {name: bytes.fromhex(FILE.base[name]) for name in ("session", "shard")}
READ = {"load": "session", "restore": "shard", "save": "shard"}


def edited(row: Row) -> bytes:
    data = bytearray(FILES[READ[row["judge"]]])
    for index, value in row.values.get("words", ()):
        data[4 * index : 4 * index + 4] = value.to_bytes(4, "little")
    del data[len(data) - row.values.get("cut", 0) :]
    return bytes(data) + bytes(row.values.get("add", 0))


def reader(row: Row) -> tuple[Shape, range]:
    own = {**MODEL, **row.values.get("reader", {})}
    first, last = own["layers"]
    names = (
        "n_layers", "vocab", "ctx", "prefill_cap", "raw_cap", "raw_window", "comp_cap",
        "head_dim", "indexer_head_dim",
    )  # fmt: skip
    words = {name: own[name] for name in names}
    shape = Shape(0, "small", 2, n_embd=2, hidden_values=2, ratios=(), **words)
    return replace(shape, ratios=tuple(own["ratios"])), range(first, last + 1)


def judged(row: Row) -> dict[str, Any]:
    """Return what our reader says, in the words of the file."""
    data, (shape, layers) = edited(row), reader(row)
    try:
        if row["judge"] == "load":
            kv.judge_saved(data, shape)
        elif row["judge"] == "restore":
            kv._judge_shard(shape, data, MODEL["token_count"], layers)
        else:
            kv.read_shard(data, kv.model_facts(shape), layers, shape, None)
    except EngineError as error:
        return {"refused": str(error)}
    except (KeyError, ValueError, IndexError) as error:
        return {"crashed": str(error)}
    return {"taken": True}


def laid_out(row: Row) -> dict[str, Any]:
    """Return words, arrays and tensors of a good file as our reader finds them."""
    data = FILES[row["file"]]
    found = read_container(data, ratios=MODEL["ratios"])
    assert found.problems == ()
    area = found.values["tensors"]
    flat = np.frombuffer(area, "<f4")
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in found.values.items()
        if name in row["values"]
    }
    tensors = [[t.layer, t.name, t.rows, t.width, t.offset] for t in found.tensors]
    steps = set(np.diff(flat).tolist())
    first = float(flat[0]) if steps == {1.0} else None
    return {"values": values, "tensors": tensors, "area": len(area), "first": first}


def glm(row: Row) -> dict[str, Any]:
    counts = [
        dsv4.glm_row_counts(row["token_count"], row["compact_cap"], layer)
        for layer in row["layers"]
    ]
    tensors = []
    for layer, (comp, index) in zip(row["layers"], counts, strict=True):
        values = {
            "raw_live": row["raw_live"],
            "layer_start": layer,
            "n_comp": (comp,),
            "n_index_comp": (index,),
        }
        found = layer_tensors(values, [0] * (layer + 1), "glm")
        tensors.append([[t.name, t.rows, t.width] for t in found])
    return {
        "n_comp": [comp for comp, _ in counts],
        "n_index_comp": [index for _, index in counts],
        "tensors": tensors,
    }


def ratios(row: Row) -> dict[str, Any]:
    (model,) = (m for m in KNOWN_MODELS if m.model_id == row["model_id"] and m.saved)
    assert model.saved is not None
    return {"ratios": [model.saved.ratio(layer) for layer in range(model.layers)]}


ASKED: Mapping[str, Callable[[Row], dict[str, Any]]] = {
    "load": judged,
    "restore": judged,
    "save": judged,
    "layout": laid_out,
    "glm": glm,
    "ratios": ratios,
}


def agrees(row: Row) -> bool:
    try:
        found = ASKED[row["judge"]](row)
    except (AssertionError, ValueError):
        return False
    told = {name: value for name, value in found.items() if name in row.values}
    return bool(told) and all(row[name] == value for name, value in told.items())


def test_every_row_comes_out() -> None:
    assert [row.name for row in FILE.rows if not agrees(row)] == []


# the same with one rule broken

Wrap = Callable[..., Any]


def wrapped(holder: Any, name: str, make: Callable[[Wrap], Wrap]) -> Any:
    return patch.object(holder, name, make(getattr(holder, name)))


def changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Read a container and alter what was found in it."""

    def make(real: Wrap) -> Wrap:
        def read(*words: Any, **more: Any) -> Any:
            reading = real(*words, **more)
            values = {**reading.values, **change(reading.values)}
            return reading._replace(values=values)

        return read

    return wrapped(container, "read", make)


def wants_own_cap(real: Wrap) -> Wrap:
    def session_fault(values: Any, model: Any, **more: Any) -> Any:
        if values["prefill_cap"] != MODEL["prefill_cap"]:
            return ds4d_shards._fault("FILE-DSV4-07")
        return real(values, model, **more)

    return session_fault


def wants_own_caps(real: Wrap) -> Wrap:
    def judge(shape: Shape, data: bytes, *more: Any) -> Any:
        if data[12:16] != MODEL["prefill_cap"].to_bytes(4, "little"):
            raise EngineError("KV shard does not fit current context")
        return real(shape, data, *more)

    return judge


def rows_first(real: Wrap) -> Wrap:
    def judge(shape: Shape, data: bytes, *more: Any) -> Any:
        if int.from_bytes(data[64:68], "little") > MODEL["comp_cap"]:
            raise EngineError("KV shard has invalid indexer row count")
        return real(shape, data, *more)

    return judge


def parts(change: Callable[[list[Any], Any], list[Any]]) -> Any:
    """Alter the tensors that a layer is said to have."""
    real = dsv4._deepseek

    def deepseek(v: Any, ratio: int, n_comp: int, n_index: int) -> list[Any]:
        found = real(v, ratio, n_comp, n_index)
        return change(found, (v, ratio, n_comp, n_index))

    return patch.dict(dsv4._FAMILIES, deepseek=deepseek)


def swap_counts(values: dict[str, Any]) -> dict[str, Any]:
    return {"n_comp": values["n_index_comp"], "n_index_comp": values["n_comp"]}


def swap_words(values: dict[str, Any]) -> dict[str, Any]:
    return {"ctx": values["comp_cap"], "comp_cap": values["ctx"]}


def always_compressed(found: list[Any], told: Any) -> list[Any]:
    v, ratio, n_comp, _ = told
    return found if ratio else [*found, ("compressed", n_comp, v["head_dim"])]


def always_indexed(found: list[Any], told: Any) -> list[Any]:
    v, ratio, _, n_index = told
    more = [("indexer", n_index, v["indexer_head_dim"])]
    return found if ratio == 4 else [*found, *more]


def shards(name: str) -> AbstractContextManager[Any]:
    return without_check(ds4d_shards, name)


def reading(name: str) -> AbstractContextManager[Any]:
    return without_check(kv, name)


def no_rule(*_words: Any) -> bool:
    return True


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "FILE-DSV4-01": lambda: shards("FILE-DSV4-06"),
    "FILE-DSV4-02": lambda: changed(swap_words),
    "FILE-DSV4-03": lambda: changed(swap_counts),
    "FILE-DSV4-05": lambda: patch.object(ds4d_shards, "raw_live_holds", no_rule),
    "FILE-DSV4-11": lambda: shards("problem"),
    "FILE-DSV4-12": lambda: shards("problem"),
    "FILE-DSV4-13": lambda: wrapped(kv, "session_fault", wants_own_cap),
    "FILE-DSV4-20": lambda: parts(lambda found, _: found[::-1]),
    "FILE-DSV4-22": lambda: parts(always_compressed),
    "FILE-DSV4-23": lambda: parts(always_indexed),
    "FILE-DSV4-25": lambda: patch.object(known.SavedShape, "ratio", lambda *_: 4),
    "FILE-DSV4-26": lambda: patch.object(dsv4, "GLM_INDEX", 64),
    "FILE-DSV4-27": lambda: patch.object(
        dsv4, "glm_row_counts", lambda count, _cap, _layer: (count, count)
    ),
    "FILE-DSVL-01": lambda: reading("FILE-DSVL-10"),
    "FILE-DSVL-02": lambda: changed(swap_words),
    "FILE-DSVL-03": lambda: changed(swap_counts),
    "FILE-DSVL-20": lambda: reading("problem"),
    "FILE-DSVL-21": lambda: wrapped(kv, "_judge_shard", wants_own_caps),
    "FILE-DSVL-22": lambda: wrapped(kv, "_judge_shard", rows_first),
}
CLAUSES = sorted({clause for row in FILE.rows for clause in row.clauses})


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_reader_without_the_rule_fails(clause: str) -> None:
    rows = [row for row in FILE.rows if clause in row.clauses]
    judges = {row["judge"] for row in rows}
    home = reading if judges == {"restore"} else shards
    fault = FAULTS.get(clause, lambda: home(clause))
    with fault():
        assert any(not agrees(row) for row in rows)
    assert all(agrees(row) for row in rows)


@pytest.mark.parametrize(
    ("counts", "told"),
    [((4, 4, 4, 0), []), ((4, 4, 4, 4), [("DSVL.n_index_comp", "0 in layer 3")])],
)
def test_the_row_counts_of_glm_are_judged_in_a_file(
    counts: tuple[int, ...], told: list[tuple[str, str]]
) -> None:
    header = [0x4C565344, 1, 32, 4, 8, 8, 4, 9, 78, 256, 256, 2, 3, 0]
    data = struct.pack("<18I", *header, *counts)
    values = 2 * 4 * (512 + 64) + 4 * 128 * (1 + (counts[3] > 0))
    found = read_container(data + bytes(4 * values), ratios=[0] * 78, family="glm")
    assert [(p.path, p.expected) for p in found.problems] == told
