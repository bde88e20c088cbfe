"""The toy engine: numpy float32, whose every byte is known.

Its arithmetic is that of the engine behind the recorded vectors: eight layers, four
streams of sixteen values, a raw window of eight rows, compressed rows on some
layers. Every operation is one float32 step, left to right, without fused
multiply-add, so that the results are the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import (
    F32,
    EngineError,
    Gate,
    Session,
    Shape,
    check_span,
)

LAYERS: Final = 8
STREAMS: Final = 4
WIDTH: Final = 16
HIDDEN: Final = STREAMS * WIDTH
VOCAB: Final = 256
HEAD_DIM: Final = 16
INDEX_DIM: Final = 8
WINDOW: Final = 8
RATIOS: Final = (0, 0, 4, 128, 4, 128, 4, 128)

_f = np.float32
_COLUMN = np.arange(HIDDEN)
_SIGN = np.where(_COLUMN % 2 == 1, _f(1), _f(-1)).astype(np.float32)
_HEAD = ((np.arange(VOCAB)[:, None] * 13 + _COLUMN[None, :] * 5) % 17 - 8).astype(
    np.float32
)


@dataclass(slots=True)
class _Layer:
    raw: list[F32] = field(default_factory=list)
    first: int = 0
    """Position of ``raw[0]``; rows older than the window are dropped."""
    compressed: list[F32] = field(default_factory=list)
    indexer: list[F32] = field(default_factory=list)


class ToyEngine:
    """The toy model's layers ``layers``.

    Parameters
    ----------
    layers : range
        The slice to serve.
    ctx, prefill_cap, raw_cap : int
        Tokens of the context, of one span, and rows of the raw ring.
    has_head : bool
        Whether this process owns the output head.
    null : bool
        True skips the arithmetic of the layers: for measuring the wire alone.
    """

    def __init__(
        self,
        layers: range = range(LAYERS),
        *,
        ctx: int = 256,
        prefill_cap: int = 16,
        raw_cap: int = 16,
        has_head: bool = True,
        null: bool = False,
    ) -> None:
        if layers.start < 0 or layers.stop > LAYERS or len(layers) == 0:
            raise EngineError(
                f"the toy model has layers 0:{LAYERS - 1},"
                f" asked for {layers.start}:{layers.stop - 1}"
            )
        self.layers = layers
        self.has_head = has_head
        self._null = null
        self.shape = Shape(
            model_id=0,
            model_name="Toy V4",
            quant_bits=2,
            n_layers=LAYERS,
            n_embd=WIDTH,
            hidden_values=HIDDEN,
            vocab=VOCAB,
            ctx=ctx,
            prefill_cap=prefill_cap,
            raw_cap=raw_cap,
            raw_window=WINDOW,
            comp_cap=ctx // 4 + 2,
            head_dim=HEAD_DIM,
            indexer_head_dim=INDEX_DIM,
            ratios=RATIOS,
        )

    def open(self, layers: range | None = None) -> Session:
        """Return an empty session over all own layers, or some of them."""
        session = Session(self.layers if layers is None else layers)
        self.reset(session)
        return session

    def reset(self, session: Session) -> None:
        """Empty the session."""
        session.tokens.clear()
        session.broken = False
        session.state = {layer: _Layer() for layer in session.layers}

    def embed(self, tokens: Sequence[int]) -> F32:
        """Return ``((31 t + 7 j) mod 97) / 97 - 1/2`` for each token and column."""
        ids = np.asarray(tokens, np.int64)[:, None]
        steps = ((ids * 31 + _COLUMN[None, :] * 7) % 97).astype(np.float32)
        return steps / _f(97.0) - _f(0.5)

    def run(
        self,
        session: Session,
        hidden: F32,
        tokens: Sequence[int],
        pos0: int,
        gate: Gate | None = None,
    ) -> F32:
        """Run the slice token by token."""
        if gate is not None:
            raise EngineError("the toy engine of the pipeline has no gates")
        check_span(self.shape, session, len(tokens), pos0, layers=self.layers)
        rows = np.array(hidden, np.float32, copy=True)
        if self._null:
            session.tokens.extend(tokens)
            return rows
        for index, token in enumerate(tokens):
            row = rows[index]
            for layer in session.layers:
                row = self._layer(session.state[layer], layer, pos0 + index, row)
            rows[index] = row
            session.tokens.append(token)
        return rows

    @staticmethod
    def _layer(state: _Layer, layer: int, pos: int, h: F32) -> F32:
        key = h[:HEAD_DIM] * _f(0.5) + h[::-1][:HEAD_DIM] * _f(0.25)
        state.raw.append(key)
        if len(state.raw) > WINDOW:
            del state.raw[0]
            state.first += 1
        total = _f(0)
        for offset, row in enumerate(state.raw):
            total = total + row[(state.first + offset) % HEAD_DIM]
        ratio = RATIOS[layer]
        if ratio:
            for index, row in enumerate(state.compressed):
                total = total + row[index % HEAD_DIM] * _f(0.125)
            if (pos + 1) % ratio == 0:
                state.compressed.append(key)
                if ratio == 4:
                    state.indexer.append(key[:INDEX_DIM] * _f(0.5))
        bump = _f((layer + 1) * (pos % 7 + 1)) / _f(64.0)
        return (h * _f(0.75) + total * _f(0.03125)) + bump * _SIGN

    def head(self, hidden: F32) -> F32:
        """Return the logits, each a sum of 64 products taken in column order."""
        logits = np.zeros(VOCAB, np.float32)
        for column in range(HIDDEN):
            logits = logits + (hidden[column] * _HEAD[:, column]) / _f(8.0)
        return logits

    def heads(self, hidden: F32) -> F32:
        """Return the logits of several tokens."""
        return np.stack([self.head(row) for row in hidden])

    def truncate(self, session: Session, pos: int) -> None:
        """Cut to 0 only: rows that left the window are gone."""
        if pos == len(session.tokens):
            return
        if pos != 0:
            raise EngineError("the toy engine rewinds to position 0 only")
        self.reset(session)

    def kv_rows(self, session: Session, layer: int) -> tuple[int, int]:
        """Return the compressed and indexer rows of a layer."""
        state = session.state[layer]
        return len(state.compressed), len(state.indexer)

    def kv_export(self, session: Session, layer: int) -> Iterable[Buf]:
        """Yield the tensors of a layer; compressor states are zero in this model."""
        live = self.shape.raw_live(len(session.tokens))
        return self._tensors(session.state[layer], layer, live, slice(None))

    def _tensors(
        self, state: _Layer, layer: int, live: int, rows: slice
    ) -> Iterable[Buf]:
        yield from (row.tobytes() for row in state.raw[len(state.raw) - live :])
        ratio = RATIOS[layer]
        if not ratio:
            return
        twice = 2 if ratio == 4 else 1
        yield from (row.tobytes() for row in state.compressed[rows])
        yield bytes(2 * twice * twice * HEAD_DIM * ratio * 4)
        if ratio == 4:
            yield from (row.tobytes() for row in state.indexer[rows])
            yield bytes(2 * twice * twice * INDEX_DIM * ratio * 4)

    def kv_import(
        self,
        session: Session,
        layer: int,
        tokens: Sequence[int],
        rows: tuple[int, int],
        tensors: Sequence[F32],
    ) -> None:
        """Take raw, compressed and indexer rows; states are not used."""
        state = _Layer()
        raw = tensors[0]
        state.raw = [np.array(row) for row in raw]
        state.first = len(tokens) - len(state.raw)
        if RATIOS[layer]:
            state.compressed = [np.array(row) for row in tensors[1][: rows[0]]]
        if RATIOS[layer] == 4:
            state.indexer = [np.array(row) for row in tensors[4][: rows[1]]]
        session.state[layer] = state

    def kv_span(self, session: Session, layer: int, pos: int, count: int) -> Buf:
        """Return what ``count`` tokens from ``pos`` on left in a layer."""
        ratio = RATIOS[layer] or 1
        rows = slice(pos // ratio, (pos + count) // ratio)
        state: _Layer = session.state[layer]
        return b"".join(self._tensors(state, layer, min(count, WINDOW), rows))

    def kv_extend(
        self,
        session: Session,
        layer: int,
        pos: int,
        count: int,
        tensors: Sequence[F32],
    ) -> None:
        """Add such rows to a layer."""
        if not pos:
            session.state[layer] = _Layer()
        state: _Layer = session.state[layer]
        state.raw = [*state.raw, *np.array(tensors[0])][-WINDOW:]
        state.first = pos + count - len(state.raw)
        if RATIOS[layer]:
            state.compressed += list(np.array(tensors[1]))
        if RATIOS[layer] == 4:
            state.indexer += list(np.array(tensors[4]))
