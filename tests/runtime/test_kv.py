"""Shards and saved sessions against the recorded ones, and every refusal in order."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from ds4proto_runtime import kv
from ds4proto_runtime.engines.base import EngineError, Session
from ds4proto_runtime.engines.toy import ToyEngine

from ds4proto.link.ds4d_texts import text
from ds4proto.schema import read
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.dsv4 import DSV4_FILE, DSVL_FILE
from ds4proto.testing import capture_path

RECORDED = capture_path("toy/pipeline_f32/session.dsv4")
TOKENS = [*range(10, 71), 42]


def evaluated(layers: range = range(8), tokens: list[int] = TOKENS) -> tuple:
    """Return an engine with a session of the recorded transcript, and its rows."""
    engine = ToyEngine(layers)
    session = engine.open()
    rows = None
    for at in range(0, len(tokens), 16):
        span = tokens[at : at + 16]
        rows = engine.run(session, engine.embed(span), span, at)
    return engine, session, rows


def shard(layers: range) -> bytearray:
    """Return the recorded shard of some layers."""
    saved = kv.judge_saved(RECORDED.read_bytes(), ToyEngine().shape)
    return bytearray(b"".join(kv.cut_shard(saved, layers)))


def put(data: bytearray, name: str, value: int) -> bytearray:
    at = offsets_of(DSVL_FILE.body, "upstream")[name]
    data[at : at + 4] = value.to_bytes(4, "little")
    return data


def test_a_whole_model_writes_the_recorded_file(tmp_path: Path) -> None:
    engine, session, rows = evaluated()
    path = tmp_path / "session.dsv4"
    size = kv.save_session(path, engine, session, engine.head(rows[-1]))
    assert size == 68172
    assert path.read_bytes() == RECORDED.read_bytes()


@pytest.mark.parametrize(
    "cuts", [(0, 8), (0, 3, 8), (0, 2, 5, 8), (0, 1, 2, 3, 4, 5, 6, 7, 8)]
)
def test_shards_of_any_split_join_to_the_recorded_file(cuts: tuple[int, ...]) -> None:
    whole = kv.judge_saved(RECORDED.read_bytes(), ToyEngine().shape)
    values = []
    for start, stop in itertools.pairwise(cuts):
        data = b"".join(kv.cut_shard(whole, range(start, stop)))
        engine = ToyEngine(range(start, stop))
        session = kv.load_shard(engine, data, TOKENS)
        again = b"".join(kv.shard_bytes(engine, session))
        assert again == data
        first = values[0] if values else None
        model = kv.model_facts(engine.shape)
        found = kv.read_shard(again, model, range(start, stop), engine.shape, first)
        values.append(found)
    assert b"".join(kv.join_shards(values, TOKENS, whole.logits)) == (
        RECORDED.read_bytes()
    )


def test_a_loaded_session_goes_on_with_the_same_bits() -> None:
    engine, session, _ = evaluated()
    loaded, logits = kv.load_session(RECORDED, engine)
    assert loaded.tokens == TOKENS
    assert (
        logits.argmax()
        == np.frombuffer(
            read(
                DSV4_FILE, memoryview(RECORDED.read_bytes()), dialect="upstream"
            ).values["logits"],
            np.float32,
        ).argmax()
    )
    for token in (43, 44, 45, 46, 47):
        at = len(session.tokens)
        one = engine.run(session, engine.embed([token]), [token], at)
        two = engine.run(loaded, engine.embed([token]), [token], at)
        assert np.array_equal(one.view(np.uint32), two.view(np.uint32))


REFUSALS = [
    ("version", 2, "FILE-DSVL-10"),
    ("magic", 7, "FILE-DSVL-10"),
    ("layer_start", 1, "FILE-DSVL-11"),
    ("layer_end", 5, "FILE-DSVL-11"),
    ("ctx", 257, "FILE-DSVL-12"),
    ("token_count", 61, "FILE-DSVL-12"),
    ("n_layers", 9, "FILE-DSVL-13"),
    ("head_dim", 8, "FILE-DSVL-13"),
    ("indexer_head_dim", 4, "FILE-DSVL-13"),
    ("raw_window", 9, "FILE-DSVL-14"),
    ("raw_live", 7, "FILE-DSVL-15"),
    ("comp_cap", 67, "FILE-DSVL-16"),
]


@pytest.mark.parametrize(("name", "value", "clause"), REFUSALS)
def test_a_shard_is_refused_with_the_readers_text(
    name: str, value: int, clause: str
) -> None:
    engine = ToyEngine(range(2, 5))
    with pytest.raises(EngineError) as caught:
        kv.load_shard(engine, put(shard(range(2, 5)), name, value), TOKENS)
    assert str(caught.value) == text(clause)


@pytest.mark.parametrize("first", range(len(REFUSALS)))
def test_the_first_fault_in_order_is_told(first: int) -> None:
    data = shard(range(2, 5))
    told: dict[str, int] = {}
    for name, value, _ in reversed(REFUSALS[first:]):
        told[name] = value
    for name, value in told.items():
        put(data, name, value)
    with pytest.raises(EngineError, match=text(REFUSALS[first][2])):
        kv.load_shard(ToyEngine(range(2, 5)), data, TOKENS)


@pytest.mark.parametrize(
    ("at", "clause"), [("n_comp", "FILE-DSVL-17"), ("n_index_comp", "FILE-DSVL-18")]
)
def test_row_counts_above_the_capacity_are_refused(at: str, clause: str) -> None:
    data = shard(range(2, 5))
    start = offsets_of(DSVL_FILE.body, "upstream")["raw_live"] + 4
    place = start if at == "n_comp" else start + 12
    data[place : place + 4] = (67).to_bytes(4, "little")
    with pytest.raises(EngineError, match=text(clause)):
        kv.load_shard(ToyEngine(range(2, 5)), data, TOKENS)


@pytest.mark.parametrize(
    ("cut", "clause"), [(-4, "FILE-DSVL-19"), (40, "FILE-DSVL-19"), (0, "FILE-DSVL-19")]
)
def test_a_short_shard_is_refused(cut: int, clause: str) -> None:
    with pytest.raises(EngineError, match=text(clause)):
        kv.load_shard(ToyEngine(range(2, 5)), shard(range(2, 5))[:cut], TOKENS)


def test_bytes_behind_the_last_tensor_are_refused() -> None:
    with pytest.raises(EngineError, match=text("FILE-DSVL-20")):
        kv.load_shard(ToyEngine(range(2, 5)), shard(range(2, 5)) + bytes(4), TOKENS)


def test_prefill_cap_and_raw_cap_of_another_writer_pass() -> None:
    data = put(put(shard(range(2, 5)), "prefill_cap", 999), "raw_cap", 999)
    session = kv.load_shard(ToyEngine(range(2, 5)), data, TOKENS)
    assert session.tokens == TOKENS


@pytest.mark.parametrize(
    ("name", "value", "clause"),
    [
        ("version", 4, "FILE-DSV4-06"),
        ("n_layers", 7, "FILE-DSV4-11"),
        ("ctx", 300, "FILE-DSV4-07"),
        ("raw_live", 3, "FILE-DSV4-07"),
    ],
)
def test_a_file_is_refused_before_anything_is_touched(
    name: str, value: int, clause: str
) -> None:
    data = bytearray(RECORDED.read_bytes())
    at = offsets_of(DSV4_FILE.body, "upstream")[name]
    data[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(EngineError) as caught:
        kv.judge_saved(data, ToyEngine().shape)
    wanted = {text(clause), text("FILE-DSV4-07")}
    assert str(caught.value) in wanted


def test_a_file_with_more_or_less_than_its_tensors_is_refused() -> None:
    data, shape = RECORDED.read_bytes(), ToyEngine().shape
    for wrong, clause in ((data[:-1], "-11"), (data + b"\0", "-12"), (b"", "-11")):
        with pytest.raises(EngineError) as caught:
            kv.judge_saved(wrong, shape)
        assert str(caught.value) == text(f"FILE-DSV4{clause}")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "session.dsv4"
    path.write_bytes(b"old")

    def parts():  # type: ignore[no-untyped-def]
        yield b"new"
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        kv.write_atomic(path, parts())
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["session.dsv4"]


def test_a_pipe_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    """A device that took the name of a session file would be gone for everybody."""
    path = tmp_path / "session.dsv4"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert kv.write_atomic(path, [b"DSV4", memoryview(b"more")]) == 8
        assert os.read(reader, 100) == b"DSV4more"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_broken_session_is_not_saved() -> None:
    engine = ToyEngine(range(2))
    with pytest.raises(EngineError, match="failed to save worker KV shard"):
        kv.shard_bytes(engine, Session(range(2), broken=True))
