"""What one pass through the layers is, and which of its joints are gates.

An engine runs a span: one token, one prefill chunk, or one draft block. At each joint
of a layer it asks its ``Gates`` to combine; whether that is a gate on the wire, two
partials added at home, or a swap of rows, the span and the schedule decide. One
process computes both partials and adds them in the same order, so that both ways give
the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ds4proto.link.plan import GLM_MODELS, Chunk, PlanOptions, chunk_gates
from ds4proto.link.schedule import GateKind, Schedule
from ds4proto.schema.ds4t_gates import ATTN, FFN, MAX_ROWS
from ds4proto_runtime.engines.base import F32

Mode = Literal["token", "chunk", "block"]
Partial = Callable[[int], F32]
"""Takes a rank, returns its partial ``[rows, n_embd]``."""
Rows = Callable[[slice], F32]
"""Takes rows of the span, returns the complete attention output of them."""


@dataclass(frozen=True, slots=True)
class Span:
    """One pass through the layers.

    Attributes
    ----------
    mode : {"token", "chunk", "block"}
    position : int
        Of the first row in the session.
    rows : int
    swap : tuple of int
        Rows a rank sends in each attention row swap of a layer; empty: none.
    head_split : bool
        GLM: the attention of the chunk is a sum over halves of the heads, by bulk.
    shared_rows : bool
        V4: each rank adds the shared expert for its own half of the rows (9.3).
    """

    mode: Mode
    position: int
    rows: int
    swap: tuple[int, ...] = ()
    head_split: bool = False
    shared_rows: bool = False

    def own_rows(self, rank: int) -> slice:
        """Return the rows of a rank's half; rank 0 has the odd one (DS4B-BULK)."""
        half = -(-self.rows // 2)
        return slice(0, half) if rank == 0 else slice(half, self.rows)


def chunk_span(
    chunk: Chunk, schedule: Schedule, options: PlanOptions, model_id: int
) -> Span:
    """Return the span of one prefill chunk, its swaps as the lockstep plan has them."""
    gates = list(chunk_gates(chunk, schedule, options, model_id=model_id))
    first = gates[0].layer if gates else 0
    parts = tuple(g.rows for g in gates if g.layer == first and g.gate == "ATTN")
    glm = model_id in GLM_MODELS
    return Span(
        "chunk",
        chunk.position,
        chunk.rows,
        swap=() if glm else parts,
        head_split=glm and bool(parts),
        shared_rows=not glm and chunk.rows >= options.split_min,
    )


class Gates(ABC):
    """The joints of the layers, for one rank or for one process alone.

    Attributes
    ----------
    span : Span
        The pass that runs; set by the runner before each.
    rank : int or None
        None computes both partials here.
    """

    rank: int | None = None

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._slots = frozenset(schedule.slots)
        self._ffn = frozenset(schedule.ffn_layers)
        self.span = Span("token", 0, 1)
        self.record: dict[int, F32] | None = None
        """Where the sums of a draft block are kept until its verdict."""

    def fires(self, layer: int, kind: GateKind) -> bool:
        """Tell whether this joint of the running span crosses the wire as a sum."""
        span = self.span
        if span.mode == "token":
            return 2 * layer + (ATTN if kind == "ATTN" else FFN) in self._slots
        if layer not in self._ffn:
            return False
        return kind == "FFN" or span.head_split

    def attention(self, layer: int, partial: Partial, rows: Rows) -> F32:
        """Combine the attention output of one layer.

        Parameters
        ----------
        layer : int
        partial : callable
            This rank's groups of all rows.
        rows : callable
            The complete output of some rows, for the row swap.
        """
        if self.fires(layer, "ATTN"):
            return self.sum(layer, "ATTN", partial)
        if self.span.swap and layer in self._ffn:
            return self.swapped(layer, rows)
        return rows(slice(0, self.span.rows))

    def experts(self, layer: int, partial: Partial) -> F32:
        """Combine the feed-forward output of one layer."""
        if self.fires(layer, "FFN"):
            total = self.sum(layer, "FFN", partial)
            if self.record is not None:
                self.record[layer] = total
            return total
        first: F32 = partial(0) + partial(1)
        return first

    @abstractmethod
    def sum(self, layer: int, kind: GateKind, partial: Partial) -> F32:
        """Return rank 0's partial plus rank 1's, in that order (DS4T-SPLIT)."""

    @abstractmethod
    def swapped(self, layer: int, rows: Rows) -> F32:
        """Return the output of all rows, each half computed by its rank."""

    def extra(self, layer: int, own: F32) -> F32:
        """Join one row past the schedule: the prediction block of GLM_MTP."""
        del layer
        return own


class SoloGates(Gates):
    """One process: both partials, the same order, no wire."""

    def sum(self, layer: int, kind: GateKind, partial: Partial) -> F32:
        """Return both partials added."""
        del layer, kind
        both: F32 = partial(0) + partial(1)
        return both

    def swapped(self, layer: int, rows: Rows) -> F32:
        """Return all rows, the halves computed apart as two ranks do."""
        del layer
        halves = [rows(self.span.own_rows(rank)) for rank in (0, 1)]
        return np.concatenate(halves)


class ReplayGates(Gates):
    """Runs a prefix of a block again from the sums of its gates, without the wire.

    A rank that keeps a prefix of a draft block needs the caches as if only those
    rows had run (VERIFY_COMMIT mode 2); the sums of the gates are the same rows.
    """

    def __init__(self, schedule: Schedule, sums: dict[int, F32], rank: int | None):
        super().__init__(schedule)
        self._sums = sums
        self.rank = rank

    def sum(self, layer: int, kind: GateKind, partial: Partial) -> F32:
        """Return the rows that the block's gate gave."""
        del kind, partial
        return self._sums[layer][: self.span.rows]

    def swapped(self, layer: int, rows: Rows) -> F32:  # pragma: no cover
        """Blocks swap no rows."""
        raise NotImplementedError


__all__ = ["MAX_ROWS", "Gates", "ReplayGates", "SoloGates", "Span", "chunk_span"]
