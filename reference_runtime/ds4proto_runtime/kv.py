"""Shards and saved sessions: what an engine's caches are in files and on the wire.

A shard (DSVL) is the KV of one slice, a saved session (DSV4) that of the whole model.
Layouts and sizes come from ``ds4proto.schema.dsv4``; nothing here knows an offset.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from operator import gt
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_shards import (
    AGREED,
    DSV4_VERSION,
    DSVL_VERSION,
    raw_live_holds,
    session_fault,
    shard_fault,
)
from ds4proto.link.ds4d_texts import text
from ds4proto.schema import build, read
from ds4proto.schema.dsv4 import (
    DSV4_FILE,
    DSV4_MAGIC,
    DSVL_FILE,
    DSVL_MAGIC,
    Tensor,
    layer_tensors,
    tensor_area_problem,
)
from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import F32, Engine, EngineError, Session, Shape

DIALECT: Final = "upstream"
Values = Mapping[str, Any]


class Saved(NamedTuple):
    """A saved session, read and judged.

    Attributes
    ----------
    values : mapping
        Header, ``tokens``, ``n_comp`` and ``n_index_comp``.
    logits : F32
        ``[vocab]``, those of the last token.
    tensors : tuple of Tensor
    area : memoryview
        The tensor area, not copied.
    """

    values: Values
    logits: F32
    tensors: tuple[Tensor, ...]
    area: memoryview


def size_of(parts: Iterable[Buf]) -> int:
    """Return the bytes of some buffers together."""
    return sum(memoryview(part).nbytes for part in parts)


def model_facts(shape: Shape, dialect: str = "upstream") -> ModelFacts:
    """Return what the wire needs to know of an engine's model."""
    return ModelFacts(
        shape.model_id,
        shape.model_name,
        shape.n_layers,
        shape.hidden_values,
        shape.vocab,
        shape.ctx,
        dialect,
    )


def _words(shape: Shape, token_count: int) -> dict[str, int]:
    return {
        "ctx": shape.ctx,
        "prefill_cap": shape.prefill_cap,
        "raw_cap": shape.raw_cap,
        "raw_window": shape.raw_window,
        "comp_cap": shape.comp_cap,
        "token_count": token_count,
        "n_layers": shape.n_layers,
        "head_dim": shape.head_dim,
        "indexer_head_dim": shape.indexer_head_dim,
        "raw_live": shape.raw_live(token_count),
    }


def shard_bytes(
    engine: Engine, session: Session, layers: range | None = None
) -> list[Buf]:
    """Return the DSVL shard of a session's slice (FILE-DSVL-01 to -04).

    Parameters
    ----------
    layers : range, optional
        A part of the session's layers; all of them by default.

    Raises
    ------
    EngineError
        If the session is broken or the engine exports another size than its model
        calls for.
    """
    if session.broken:
        raise EngineError("failed to save worker KV shard")
    own = session.layers if layers is None else layers
    rows = [engine.kv_rows(session, layer) for layer in own]
    values: dict[str, Any] = {
        "magic": DSVL_MAGIC,
        "version": DSVL_VERSION,
        **_words(engine.shape, len(session.tokens)),
        "layer_start": own.start,
        "layer_end": own.stop - 1,
        "n_comp": tuple(comp for comp, _ in rows),
        "n_index_comp": tuple(index for _, index in rows),
        "tensors": b"",
    }
    tensors: list[Buf] = [
        part for layer in own for part in engine.kv_export(session, layer)
    ]
    due = layer_tensors(values, engine.shape.ratios)
    wanted = due[-1].offset + due[-1].nbytes if due else 0
    if size_of(tensors) != wanted:
        raise EngineError(
            f"the engine exports {size_of(tensors)} bytes for layers"
            f" {own.start}:{own.stop - 1}, its model calls for {wanted}"
        )
    return [*build(DSVL_FILE, values, dialect=DIALECT), *tensors]


def load_shard(
    engine: Engine,
    data: Buf,
    tokens: Sequence[int],
    layers: range | None = None,
    into: Session | None = None,
) -> Session:
    """Return a session that holds a shard; nothing that exists is touched.

    The shard is judged whole before anything is restored, in the order of
    FILE-DSVL-10 to -20, so that the caller's old session is intact after a refusal.

    Parameters
    ----------
    tokens : sequence of int
        Transcript that goes with the shard.
    layers : range, optional
        The slice that is due; the engine's own by default.
    into : Session, optional
        A fresh session to fill, of at least these layers.

    Raises
    ------
    EngineError
        With the reader's text.
    """
    own = engine.layers if layers is None else layers
    values = _judge_shard(engine.shape, data, len(tokens), own)
    found = layer_tensors(values, engine.shape.ratios)
    session = open_slice(engine, own) if into is None else into
    _import(engine, session, own, values, found, values["tensors"], tokens)
    session.tokens[:] = tokens
    session.broken = False
    return session


def _judge_shard(shape: Shape, data: Buf, count: int, own: range) -> Values:
    view = memoryview(data).cast("B")
    reading = read(DSVL_FILE, view, dialect=DIALECT)
    v: Values = reading.values
    if "raw_live" not in v:
        raise EngineError(text("FILE-DSVL-19"))
    if v["magic"] != DSVL_MAGIC or v["version"] != DSVL_VERSION:
        raise EngineError(text("FILE-DSVL-10"))
    if (v["layer_start"], v["layer_end"]) != (own.start, own.stop - 1):
        raise EngineError(text("FILE-DSVL-11"))
    if v["ctx"] > shape.ctx or v["token_count"] != count or count >= shape.ctx:
        raise EngineError(text("FILE-DSVL-12"))
    same = ("n_layers", "head_dim", "indexer_head_dim")
    if any(v[name] != getattr(shape, name) for name in same):
        raise EngineError(text("FILE-DSVL-13"))
    if v["raw_window"] != shape.raw_window:
        raise EngineError(text("FILE-DSVL-14"))
    if not raw_live_holds(v):
        raise EngineError(text("FILE-DSVL-15"))
    if v["comp_cap"] > shape.comp_cap:
        raise EngineError(text("FILE-DSVL-16"))
    if "tensors" not in v:
        raise EngineError(text("FILE-DSVL-19"))
    room = [min(v["comp_cap"], _comp_room(shape, layer)) for layer in own]
    if any(map(gt, v["n_comp"], room)):
        raise EngineError(text("FILE-DSVL-17"))
    if any(map(gt, v["n_index_comp"], room)):
        raise EngineError(text("FILE-DSVL-18"))
    clauses = ("FILE-DSVL-19", "FILE-DSVL-20")
    problem = tensor_area_problem(v, layer_tensors(v, shape.ratios), clauses)
    if problem is not None:
        raise EngineError(text(problem.clause))
    return v


def _comp_room(shape: Shape, layer: int) -> int:
    """Return how many compressed rows a layer can hold (FILE-DSVL-17)."""
    ratio = shape.ratios[layer]
    return shape.ctx // ratio + 2 if ratio else 0


def open_slice(engine: Engine, layers: range) -> Session:
    """Return an empty session over a part of an engine's layers."""
    if layers == engine.layers:
        return engine.open()
    if layers.start < engine.layers.start or layers.stop > engine.layers.stop:
        raise EngineError(
            f"the engine holds layers {engine.layers.start}:{engine.layers.stop - 1},"
            f" asked for {layers.start}:{layers.stop - 1}"
        )
    session = Session(layers)
    engine.reset(session)
    return session


def _import(
    engine: Engine,
    session: Session,
    layers: range,
    values: Values,
    tensors: Sequence[Tensor],
    area: Buf,
    tokens: Sequence[int],
) -> None:
    first = values.get("layer_start", 0)
    for layer in layers:
        arrays = [_array(area, tensor) for tensor in tensors if tensor.layer == layer]
        at = layer - first
        rows = (values["n_comp"][at], values["n_index_comp"][at])
        engine.kv_import(session, layer, tokens, rows, arrays)


def _array(area: Buf, tensor: Tensor) -> F32:
    count = tensor.rows * tensor.width
    flat = np.frombuffer(area, "<f4", count, tensor.offset)
    return flat.astype(np.float32, copy=False).reshape(tensor.rows, tensor.width)


# saved sessions


def read_shard(
    data: Buf, model: ModelFacts, layers: range, shape: Shape, first: Values | None
) -> Values:
    """Return the values of a shard that a worker sent, judged as saves are.

    Raises
    ------
    EngineError
        With the coordinator's text (FILE-DSVL-30 to -33, DS4D-SNAP-46).
    """
    reading = read(DSVL_FILE, memoryview(data).cast("B"), dialect=DIALECT)
    values = reading.values
    if "raw_live" not in values or "tensors" not in values:
        magic = values.get("magic", DSVL_MAGIC) == DSVL_MAGIC
        clause = "FILE-DSVL-33" if magic else "FILE-DSVL-30"
        raise EngineError(text(clause))
    fault = shard_fault(
        values,
        model,
        (layers.start, layers.stop - 1),
        first=first,
        ratios=shape.ratios,
    )
    if fault is not None:
        raise EngineError(fault.text)
    return values


def join_shards(
    shards: Sequence[Values], tokens: Sequence[int], logits: F32
) -> list[Buf]:
    """Return the DSV4 file of shards that cover the model in order.

    Only what all shards agree in goes into the header, so that the bytes do not
    depend on where the layers lived (FILE-DSV4-04).
    """
    values: dict[str, Any] = {
        "magic": DSV4_MAGIC,
        "version": DSV4_VERSION,
        **{name: shards[0][name] for name in AGREED},
        "vocab": len(logits),
        "tokens": tuple(tokens),
        "logits": np.ascontiguousarray(logits, "<f4").tobytes(),
        "n_comp": tuple(n for shard in shards for n in shard["n_comp"]),
        "n_index_comp": tuple(n for shard in shards for n in shard["n_index_comp"]),
        "tensors": b"",
    }
    parts = build(DSV4_FILE, values, dialect=DIALECT)
    return [*parts, *(shard["tensors"] for shard in shards)]


def judge_saved(data: Buf, shape: Shape) -> Saved:
    """Read a DSV4 file and judge all of it for one model and context.

    Raises
    ------
    EngineError
        With the coordinator's text (FILE-DSV4-06 to -12); nothing was restored.
    """
    reading = read(DSV4_FILE, memoryview(data).cast("B"), dialect=DIALECT)
    values = reading.values
    if "tensors" not in values:
        magic = values.get("magic", DSV4_MAGIC) == DSV4_MAGIC
        version = values.get("version", DSV4_VERSION) == DSV4_VERSION
        raise EngineError(text("FILE-DSV4-11" if magic and version else "FILE-DSV4-06"))
    fault = session_fault(values, model_facts(shape), ratios=shape.ratios)
    if fault is not None:
        raise EngineError(fault.text)
    logits = np.frombuffer(values["logits"], "<f4").astype(np.float32)
    tensors = tuple(layer_tensors(values, shape.ratios))
    return Saved(values, logits, tensors, memoryview(values["tensors"]).cast("B"))


def cut_shard(saved: Saved, layers: range) -> list[Buf]:
    """Return the DSVL shard of some layers of a saved session."""
    own = [tensor for tensor in saved.tensors if tensor.layer in layers]
    values: dict[str, Any] = {
        "magic": DSVL_MAGIC,
        "version": DSVL_VERSION,
        **{name: saved.values[name] for name in AGREED},
        "layer_start": layers.start,
        "layer_end": layers.stop - 1,
        "n_comp": saved.values["n_comp"][layers.start : layers.stop],
        "n_index_comp": saved.values["n_index_comp"][layers.start : layers.stop],
        "tensors": b"",
    }
    start = own[0].offset if own else 0
    end = own[-1].offset + own[-1].nbytes if own else 0
    return [*build(DSVL_FILE, values, dialect=DIALECT), saved.area[start:end]]


def save_session(path: Path, engine: Engine, session: Session, logits: F32) -> int:
    """Write the DSV4 file of a whole model in one process; return its bytes."""
    shard = read(
        DSVL_FILE, memoryview(b"".join(shard_bytes(engine, session))), dialect=DIALECT
    )
    return write_atomic(path, join_shards([shard.values], session.tokens, logits))


def load_session(path: Path, engine: Engine) -> tuple[Session, F32]:
    """Return the session of a DSV4 file and the logits of its last token."""
    saved = judge_saved(map_file(path), engine.shape)
    tokens = list(saved.values["tokens"])
    session = engine.open()
    _import(
        engine, session, engine.layers, saved.values, saved.tensors, saved.area, tokens
    )
    session.tokens[:] = tokens
    return session, saved.logits


def map_file(path: Path) -> memoryview:
    """Return a file's bytes, mapped where it is not empty."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def write_atomic(path: Path, parts: Iterable[Buf]) -> int:
    """Write a file that is whole under its name or not there (FILE-DSV4-14)."""
    path = path.absolute()
    if path.exists() and not path.is_file():  # a pipe or a device: no name to take
        with path.open("wb") as stream:
            return sum(stream.write(part) for part in parts)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    size = 0
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                size += file.write(part)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return size
