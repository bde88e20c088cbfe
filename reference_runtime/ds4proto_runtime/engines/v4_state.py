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
from ds4proto_runtime.engines.base import F32, Shape

COMPRESSOR, INDEXER = "compressor", "indexer"


def row_counts(cache: Any) -> tuple[int, int]:
    """Return the compressed and the indexer rows of a layer's cache."""
    counts = getattr(cache, "entry_count", {})
    return counts.get(COMPRESSOR, 0), counts.get(INDEXER, 0)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().float().contiguous().cpu().numpy().tobytes())


def export_layer(cache: Any, shape: Shape, layer: int, live: int) -> Iterator[Buf]:
    """Yield the tensors of one layer; ``live`` raw rows, oldest first."""
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
        if rows is not None and rows.shape[1]:
            yield _bytes(rows[0])
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
