"""The one interface of the engines: embed, run a slice, head, KV in and out.

A hidden state is float32 ``[n_tokens, hidden_values]``; logits are float32
``[vocab]``. Engines compute in float32 and know nothing of sockets, widths or
routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ds4proto.errors import Ds4ProtoError
from ds4proto.schema.problem import Buf

F32 = npt.NDArray[np.float32]
GateKind = Literal["ATTN", "FFN"]
Gate = Callable[[int, GateKind, F32], F32]
"""Takes a layer, a gate kind and this rank's partial; returns the sum of both."""


class EngineError(Ds4ProtoError, ValueError):
    """A request that an engine cannot serve; its text is what the wire carries."""


class BrokenSessionError(EngineError):
    """The evaluation failed half way; the session must be reset before use."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What an engine's model is, for one context.

    Attributes
    ----------
    model_id, model_name, quant_bits
        As announced in HELLO.
    n_layers : int
    n_embd : int
        Width of one residual stream, in values.
    hidden_values : int
        Values per token on the wire (all streams).
    vocab : int
    ctx, prefill_cap : int
        Tokens of the context, and of the largest span in one call.
    raw_cap, raw_window, comp_cap, head_dim, indexer_head_dim : int
        Words of the saved session.
    ratios : tuple of int
        Compression ratio of each layer; 0 keeps raw rows only.
    n_experts : int
        Routed experts; 0 for a dense model.
    """

    model_id: int
    model_name: str
    quant_bits: int
    n_layers: int
    n_embd: int
    hidden_values: int
    vocab: int
    ctx: int
    prefill_cap: int
    raw_cap: int
    raw_window: int
    comp_cap: int
    head_dim: int
    indexer_head_dim: int
    ratios: tuple[int, ...]
    n_experts: int = 0

    def raw_live(self, token_count: int) -> int:
        """Return the raw rows that a saved session holds in each layer."""
        return min(token_count, self.raw_window)


@dataclass(slots=True)
class Session:
    """The state of one session in one slice; ``state`` belongs to the engine.

    Attributes
    ----------
    layers : range
        The slice.
    tokens : list of int
        Every token evaluated so far, in order.
    broken : bool
        True after a failure inside an evaluation.
    """

    layers: range
    tokens: list[int] = field(default_factory=list)
    broken: bool = False
    state: Any = None


class Engine(Protocol):
    """What the runtime asks of an engine."""

    shape: Shape
    layers: range
    """Layers whose weights are loaded."""

    has_head: bool

    def open(self, layers: range | None = None) -> Session:
        """Return an empty session over the engine's own layers, or some of them."""

    def embed(self, tokens: Sequence[int]) -> F32:
        """Return the hidden state in front of layer 0, ``[n, hidden_values]``."""

    def run(
        self,
        session: Session,
        hidden: F32,
        tokens: Sequence[int],
        pos0: int,
        gate: Gate | None = None,
    ) -> F32:
        """Run the slice over a span and return the hidden state behind it.

        Raises
        ------
        EngineError
            Before anything is evaluated; the session is as it was.
        BrokenSessionError
            Half way; the session answers nothing until it is reset.
        """

    def head(self, hidden: F32) -> F32:
        """Return the logits ``[vocab]`` of one token's hidden state."""

    def heads(self, hidden: F32) -> F32:
        """Return the logits ``[n, vocab]`` of several tokens at once.

        Their last bits may differ from `head`: a wider product sums in another order.
        """

    def reset(self, session: Session) -> None:
        """Empty the session."""

    def truncate(self, session: Session, pos: int) -> None:
        """Forget every token from ``pos`` on, where the engine can.

        Raises
        ------
        EngineError
            If the caches cannot be cut there.
        """

    def kv_rows(self, session: Session, layer: int) -> tuple[int, int]:
        """Return the compressed and indexer rows that a layer holds."""

    def kv_export(self, session: Session, layer: int) -> Iterable[Buf]:
        """Return a layer's tensors in the order of the saved session."""

    def kv_import(
        self,
        session: Session,
        layer: int,
        tokens: Sequence[int],
        rows: tuple[int, int],
        tensors: Sequence[F32],
    ) -> None:
        """Take a layer's tensors; the caller has checked their sizes."""


@runtime_checkable
class KvSpans(Protocol):
    """What an engine needs so that its KV can move span by span (DS4D-OURS-11)."""

    def kv_span(self, session: Session, layer: int, pos: int, count: int) -> Buf:
        """Return what a layer keeps of the last ``count`` tokens, ``pos`` being first.

        The tensors of ``kv_export`` with the rows of these tokens alone.
        """

    def kv_extend(
        self,
        session: Session,
        layer: int,
        pos: int,
        count: int,
        tensors: Sequence[F32],
    ) -> None:
        """Take such tensors behind ``pos`` tokens; at 0 the layer starts anew.

        The caller has checked their sizes, and lists the tokens.
        """


def check_span(
    shape: Shape, session: Session, count: int, pos0: int, *, layers: range
) -> None:
    """Refuse a span that the session cannot take (engine texts of WORK check 27).

    Raises
    ------
    EngineError
        With ds4's text; nothing has been touched.
    """
    if pos0 + count > shape.ctx:
        raise EngineError("layer-slice token span exceeds context")
    have = len(session.tokens)
    if pos0 != have:
        if session.broken or have == 0:
            raise EngineError(f"layer-slice session needs reset before pos {pos0}")
        raise EngineError(f"layer-slice KV position mismatch: have {have} want {pos0}")
    if session.broken and layers:
        raise EngineError(f"layer-slice session needs reset before pos {pos0}")
    if count > shape.prefill_cap:
        raise EngineError(
            f"layer-slice chunk {count} exceeds prefill cap {shape.prefill_cap}"
        )
