"""The lockstep plan: which gates a command of the leader causes (DS4T-PLAN).

Pure: session prefix and options in, gates out. Thresholds and chunk sizes are not on
the wire, so that a decoder takes the plan as a guess until headers confirm it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ds4proto.link.schedule import GateKind, GatePlace, Schedule, gate_of, seq_of
from ds4proto.schema.ds4t_gates import MAX_ROWS

LONG_CONTEXT = 4096
"""Contexts above this prefill in chunks of this size, smaller ones in one piece."""
PRO_CHUNK = 8192
PRO_MODEL = 1
RAW_WINDOW = 128
RAW_CAP = 8192
RAW_STEP = 256
GLM_MODELS = frozenset({2, 3})
GLM_EXACT_MAX = 64
"""GLM runs a new part of up to this many tokens one by one."""
GLM_HEAD_SPLIT_MIN = 64
SUBGATE_ROWS = 256

PlanKind = Literal["row", "batch", "bulk"]


class PlannedGate(NamedTuple):
    """One gate that a command causes on the data plane.

    Attributes
    ----------
    kind : {"row", "batch", "bulk"}
    layer : int
    gate : {"ATTN", "FFN"}
    rows : int
        Rows of n_embd values in its payload, the same both ways.
    """

    kind: PlanKind
    layer: int
    gate: GateKind
    rows: int


class Chunk(NamedTuple):
    """``rows`` tokens from ``position`` on, run through all layers together."""

    position: int
    rows: int


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What both ranks must have equal and no hello shows.

    Parameters
    ----------
    chunk : int or None
        Prefill chunk in tokens; None takes the default for the context, 0 or less
        means no limit.
    split_min : int
        Rows from which the first chunk swaps attention rows.
    resume_min : int
        A new part behind a prefix with fewer tokens goes token by token.
    odd_swap : bool
        True where an odd number of rows is swapped too, with a pad row.
    subgate_pipeline : bool
        True splits the swap of a multiple of 256 rows in two.
    head_split : bool
        GLM only: one more bulk gate a layer from 64 rows on.
    """

    chunk: int | None = None
    split_min: int = 32
    resume_min: int = 4
    odd_swap: bool = True
    subgate_pipeline: bool = False
    head_split: bool = True


class SyncPlan(NamedTuple):
    """What one SYNC does.

    Attributes
    ----------
    start : int
        Tokens of the prompt that the session holds already and keeps.
    chunks : tuple of Chunk
        Chunks in order; empty where the tokens run one by one.
    single_tokens : int
        New tokens that run one by one, each with a full set of row gates.
    """

    start: int
    chunks: tuple[Chunk, ...]
    single_tokens: int


def chunk_limit(context: int, options: PlanOptions, model_id: int = 0) -> int:
    """Return the largest chunk in tokens for a session of ``context`` tokens."""
    if options.chunk is not None:
        return min(options.chunk, context) if options.chunk > 0 else context
    if context > LONG_CONTEXT:
        return min(PRO_CHUNK if model_id == PRO_MODEL else LONG_CONTEXT, context)
    return context


def plan_sync(
    held: Sequence[int],
    prompt: Sequence[int],
    context: int,
    options: PlanOptions | None = None,
    *,
    model_id: int = 0,
) -> SyncPlan:
    """Return what a SYNC of ``prompt`` does in a session that holds ``held``.

    Parameters
    ----------
    held, prompt : sequence of int
        Token ids; ``held`` is empty where nothing is valid.
    context : int
        The context of SESSION_CREATE.
    options : PlanOptions, optional
    model_id : int
        As in the hello; GLM plans differ.
    """
    kept = kept_prefix(held, prompt)
    return plan_new(kept, len(prompt) - kept, context, options, model_id=model_id)


def kept_prefix(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Return the tokens that a SYNC keeps: all of the session's, or none."""
    kept = len(held)
    if kept > len(prompt) or tuple(prompt[:kept]) != tuple(held):
        return 0
    return kept


def plan_new(
    kept: int,
    new: int,
    context: int,
    options: PlanOptions | None = None,
    *,
    model_id: int = 0,
) -> SyncPlan:
    """Return what a SYNC of ``new`` tokens behind ``kept`` ones does."""
    options = options or PlanOptions()
    if not new:
        return SyncPlan(kept, (), 0)
    if model_id in GLM_MODELS:
        if new <= GLM_EXACT_MAX:
            return SyncPlan(kept, (), new)
        limit = min(LONG_CONTEXT, chunk_limit(context, options, model_id))
        return SyncPlan(kept, tuple(cut_chunks(kept, new, limit, limit)), 0)
    if kept and new < options.resume_min:
        return SyncPlan(kept, (), new)
    limit = max(1, chunk_limit(context, options, model_id))
    later = limit
    if kept:
        cap = -(-(RAW_WINDOW + limit) // RAW_STEP) * RAW_STEP
        later = max(1, min(limit, RAW_CAP, context, cap))
    return SyncPlan(kept, tuple(cut_chunks(kept, new, limit, later)), 0)


def cut_chunks(position: int, rows: int, limit: int, most: int) -> Iterator[Chunk]:
    """Yield the chunks of a new part.

    From position 0 every chunk is ``limit`` long, the last shorter; after a prefix
    the first chunk ends at the next multiple of ``limit`` and none exceeds ``most``.
    """
    while rows > 0:
        size = min(rows, most, limit - position % limit)
        yield Chunk(position, size)
        position += size
        rows -= size


def chunk_gates(
    chunk: Chunk,
    schedule: Schedule,
    options: PlanOptions | None = None,
    *,
    model_id: int = 0,
) -> Iterator[PlannedGate]:
    """Yield the bulk gates of one prefill chunk, layer by layer."""
    options = options or PlanOptions()
    rows = chunk.rows
    if model_id in GLM_MODELS:
        swap = options.head_split and rows >= GLM_HEAD_SPLIT_MIN
        halves: tuple[int, ...] = (rows,) if swap else ()
    else:
        swap = chunk.position == 0 and rows >= options.split_min
        swap = swap and (options.odd_swap or rows % 2 == 0)
        half = -(-rows // 2)
        halves = (half,) if swap else ()
        if swap and options.subgate_pipeline and rows % SUBGATE_ROWS == 0:
            halves = (half // 2, half // 2)
    for layer in schedule.ffn_layers:
        for part in halves:
            yield PlannedGate("bulk", layer, "ATTN", part)
        yield PlannedGate("bulk", layer, "FFN", rows)


def token_gates(schedule: Schedule) -> Iterator[PlannedGate]:
    """Yield the row gates of one decoded token."""
    for slot in schedule.slots:
        yield PlannedGate("row", slot // 2, "FFN" if slot % 2 else "ATTN", 1)


def sync_gates(
    plan: SyncPlan,
    schedule: Schedule,
    options: PlanOptions | None = None,
    *,
    model_id: int = 0,
) -> Iterator[PlannedGate]:
    """Yield every gate of a SYNC, in order."""
    for chunk in plan.chunks:
        yield from chunk_gates(chunk, schedule, options, model_id=model_id)
    for _ in range(plan.single_tokens):
        yield from token_gates(schedule)


def verify_gates(rows: int, schedule: Schedule) -> Iterator[PlannedGate]:
    """Yield the gates of a draft block: batch gates up to 8 rows, bulk gates above."""
    kind: PlanKind = "batch" if rows <= MAX_ROWS else "bulk"
    for layer in schedule.ffn_layers:
        yield PlannedGate(kind, layer, "FFN", rows)


__all__ = [
    "Chunk",
    "GatePlace",
    "PlanOptions",
    "PlannedGate",
    "Schedule",
    "SyncPlan",
    "chunk_gates",
    "chunk_limit",
    "cut_chunks",
    "gate_of",
    "kept_prefix",
    "plan_new",
    "plan_sync",
    "seq_of",
    "sync_gates",
    "token_gates",
    "verify_gates",
]
