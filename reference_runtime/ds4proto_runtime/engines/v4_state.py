"""The caches of a DeepSeek V4 layer as tensors of a saved session, and back.

A compressor's state is two tensors (values, scores). Of its rows, the first ``r``
hold the tokens that wait for a full window, the next ``r`` the window before it (on
layers of ratio 4 only, whose windows overlap).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import F32, EngineError, Shape

COMPRESSOR, INDEXER = "compressor", "indexer"


def row_counts(cache: Any) -> tuple[int, int]:
    """Return the compressed and the indexer rows of a layer's cache."""
    counts = getattr(cache, "entry_count", {})
    return counts.get(COMPRESSOR, 0), counts.get(INDEXER, 0)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().float().contiguous().cpu().numpy().tobytes())


def export_layer(
    cache: Any, shape: Shape, layer: int, live: int, span: tuple[int, int] | None = None
) -> Iterator[Buf]:
    """Yield the tensors of one layer; ``live`` raw rows, oldest first.

    ``span`` limits the compressed and indexer rows to those of positions from, to.
    """
    if live:
        yield _bytes(cache.keys[0, 0, -live:])
    ratio = shape.ratios[layer]
    if not ratio:
        return
    parts = [(COMPRESSOR, shape.head_dim)]
    if ratio == 4:
        parts.append((INDEXER, shape.indexer_head_dim))
    for name, width in parts:
        rows = cache.compressed_kv[name]
        own = slice(None) if span is None else slice(span[0] // ratio, span[1] // ratio)
        if rows is not None and rows[:, own].shape[1]:
            yield _bytes(rows[0, own])
        for buffer, overlap in (("buffer_kv", "overlap_kv"), ("buffer_gate",) * 2):
            kept = getattr(cache, buffer)[name]
            before = getattr(cache, "overlap_gate" if "gate" in buffer else overlap, {})
            yield _bytes(_state(kept, before.get(name), ratio, width))


def _state(kept: Any, before: Any, ratio: int, width: int) -> torch.Tensor:
    twice = 2 if ratio == 4 else 1
    state = torch.zeros((twice * ratio, twice * width))
    if kept is not None and kept.shape[1]:
        state[: kept.shape[1]] = kept[0].cpu()
    if before is not None:
        state[ratio : 2 * ratio, :width] = before[0].cpu()
    return state


def import_layer(
    cache: Any,
    shape: Shape,
    layer: int,
    token_count: int,
    rows: tuple[int, int],
    tensors: Sequence[F32],
) -> None:
    """Fill a fresh cache of one layer; sizes were checked by the caller."""
    given = [torch.from_numpy(np.array(tensor, np.float32)) for tensor in tensors]
    raw = given[0][None, None]
    cache.lazy_initialization(raw, raw)
    cache.keys = raw
    cache.values = raw
    cache.cumulative_length = token_count
    ratio = shape.ratios[layer]
    if not ratio:
        return
    _fill(cache, COMPRESSOR, ratio, token_count, rows[0], given[1:4])
    if ratio == 4:
        _fill(cache, INDEXER, ratio, token_count, rows[1], given[4:7])


def extend_layer(
    cache: Any,
    fresh: Any,
    shape: Shape,
    layer: int,
    span: tuple[int, int],
    tensors: Sequence[F32],
) -> None:
    """Fill a fresh cache with what an older one holds and the tensors of a span.

    Raises
    ------
    EngineError
        The older one (None at position 0) holds other rows than its position calls
        for.
    """
    first, end = span
    given = list(tensors)
    given[0] = _joined(getattr(cache, "keys", None), given[0])[-shape.raw_live(end) :]
    ratio = shape.ratios[layer]
    counts = (0, 0)
    if ratio:
        held = getattr(cache, "compressed_kv", {COMPRESSOR: None, INDEXER: None})
        given[1] = _joined(held[COMPRESSOR], given[1])
        if ratio == 4:
            given[4] = _joined(held[INDEXER], given[4])
        counts = (len(given[1]), len(given[4]) if ratio == 4 else 0)
        if counts[0] != end // ratio:
            raise EngineError(
                f"layer {layer} holds {counts[0]} compressed rows behind position"
                f" {first}, {end // ratio} are due"
            )
    import_layer(fresh, shape, layer, end, counts, given)


def _joined(before: Any, rows: F32) -> F32:
    """Return rows of a cache, if there are any, with more behind them."""
    if before is None or not before.numel():
        return rows
    flat = before.reshape(-1, rows.shape[1]).detach().float().cpu().numpy()
    return np.concatenate((flat, rows))


def _fill(
    cache: Any,
    name: str,
    ratio: int,
    token_count: int,
    count: int,
    parts: Sequence[torch.Tensor],
) -> None:
    compressed, values, scores = parts
    waiting = token_count - count * ratio
    cache.compressed_kv[name] = compressed[None]
    cache.entry_count[name] = count
    cache.buffer_kv[name] = values[None, :waiting]
    cache.buffer_gate[name] = scores[None, :waiting]
    if ratio == 4 and count:
        width = compressed.shape[-1]
        cache.overlap_kv[name] = values[None, ratio : 2 * ratio, :width]
        cache.overlap_gate[name] = scores[None, ratio : 2 * ratio, :width]
