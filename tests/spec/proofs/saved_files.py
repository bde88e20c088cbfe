"""Saved sessions and shards as our engines and our coordinator write them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from ds4proto_runtime import kv
from ds4proto_runtime.engines import v4_state
from ds4proto_runtime.engines.toy import ToyEngine

from ds4proto.schema import read
from ds4proto.schema.dsv4 import DSVL_FILE
from tests.spec.proofs.snapshots import RECORDED, TOKENS, Rig, shard
from tests.spec.proving import proof


def backwards(shards: Any, tokens: Any, logits: Any) -> Any:
    return real_join(shards[::-1], tokens, logits)


real_join = kv.join_shards


@proof(
    "FILE-DSV4-04",
    "slices in the order in which they came",
    patch.object(kv, "join_shards", backwards),
)
def the_same_session_gives_the_same_file_whatever_the_route() -> None:
    rig = Rig()
    rig.load()
    assert rig.save() == RECORDED
    engine = ToyEngine(range(8))
    session = kv.load_shard(
        engine, b"".join(map(bytes, kv.cut_shard(rig.saved, range(8)))), TOKENS
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "one.dsv4"
        kv.save_session(path, engine, session, rig.saved.logits)
        assert path.read_bytes() == RECORDED


def by_slot(self: Any, session: Any, layer: int) -> Any:
    data = b"".join(map(bytes, real_export(self, session, layer)))
    size = 4 * self.shape.raw_live(len(session.tokens)) * self.shape.head_dim
    rows = np.frombuffer(data[:size], np.float32).reshape(-1, self.shape.head_dim)
    return [np.roll(rows, 3, axis=0).tobytes(), data[size:]]


real_export = ToyEngine.kv_export


@proof(
    "FILE-DSV4-21",
    "rows in the order of the ring",
    patch.object(ToyEngine, "kv_export", by_slot),
)
def raw_rows_are_written_oldest_first() -> None:
    engine = ToyEngine()
    session = engine.open()
    for at in range(0, len(TOKENS), 16):
        span = TOKENS[at : at + 16]
        engine.run(session, engine.embed(span), span, at)
    shards = [kv.shard_bytes(engine, session, range(n, n + 1)) for n in range(8)]
    for layer, parts in enumerate(shards):
        own = kv.cut_shard(Rig().saved, range(layer, layer + 1))
        assert b"".join(map(bytes, parts)) == b"".join(map(bytes, own)), layer


def other_words(shape: Any, token_count: int) -> dict[str, int]:
    return {**real_words(shape, token_count), "ctx": shape.ctx + 1}


real_words = kv._words


@proof(
    "FILE-DSVL-04",
    "a context of the worker's own",
    patch.object(kv, "_words", other_words),
)
def a_shard_has_the_context_and_capacities_of_the_coordinators_slice() -> None:
    engine = ToyEngine(range(2, 5))
    session = engine.open()
    span = TOKENS[:9]
    engine.run(session, np.zeros((9, 64), np.float32), span, 0)
    data = b"".join(map(bytes, kv.shard_bytes(engine, session)))
    found = read(DSVL_FILE, memoryview(data), dialect="upstream").values
    due = read(DSVL_FILE, memoryview(shard()), dialect="upstream").values
    names = ("ctx", "prefill_cap", "raw_cap", "raw_window", "comp_cap")
    assert {n: found[n] for n in names} == {n: due[n] for n in names}


@proof(
    "FILE-DSV4-24",
    "halves written as they lie",
    patch.object(v4_state, "_bytes", lambda t: bytes(t.contiguous().numpy().tobytes())),
)
def caches_of_half_precision_are_written_as_f32() -> None:
    rows = torch.tensor([[1.0, -0.5], [2.0, 65504.0]], dtype=torch.float16)
    cache = SimpleNamespace(keys=rows[None, None])
    shape: Any = SimpleNamespace(ratios=(0,))
    written = b"".join(map(bytes, v4_state.export_layer(cache, shape, 0, 2)))
    assert written == np.array([[1, -0.5], [2, 65504]], "<f4").tobytes()


def in_place(path: Path, parts: Any) -> int:
    with path.open("wb") as file:
        return sum(file.write(part) for part in parts)


@proof(
    "FILE-DSV4-14",
    "a file written under its own name",
    patch.object(kv, "write_atomic", in_place),
)
def a_file_stands_under_its_name_only_when_it_is_whole() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "session.dsv4"
        path.write_bytes(b"old")

        def parts() -> Any:
            yield b"new"
            assert path.read_bytes() == b"old"
            raise OSError("no space")

        with suppress(OSError):
            kv.write_atomic(path, parts())
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in Path(folder).iterdir()] == ["session.dsv4"]
        kv.write_atomic(path, [b"whole"])
        assert path.read_bytes() == b"whole"
