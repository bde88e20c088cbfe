"""What a rank asks of an engine under tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ds4proto.link.ds4t_events import Image
from ds4proto.link.ds4t_identity import Identity
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.tp.spans import Gates


class RankEngine(Protocol):
    """One rank's share of a model, or the whole of it (``rank`` None).

    Every rank holds all that is replicated: embedding, norms, router, KV.

    Attributes
    ----------
    identity : Identity
        The hello words, the gate schedule among them.
    vocabulary_split : bool
        Each rank computes half of the logits (LOGITS frames).
    rank : int or None
    vision : bool
        Takes image embeddings.
    """

    identity: Identity
    vocabulary_split: bool
    rank: int | None
    vision: bool

    def open(self, ctx: int) -> Any:
        """Return the state of an empty session.

        Raises
        ------
        EngineError
            If the engine has no memory for such a context.
        """

    def run(
        self,
        state: Any,
        tokens: Sequence[int],
        gates: Gates,
        images: Sequence[Image] = (),
    ) -> F32:
        """Run ``gates.span`` through all layers and return its hidden rows."""

    def half(self, hidden: F32, rank: int) -> F32:
        """Return one half of the logits of one hidden row, float32."""

    def full(self, hidden: F32) -> F32:
        """Return all logits of one hidden row: both halves, taken apart."""

    def mark(self, state: Any) -> Any:
        """Return what ``back`` needs to undo everything that follows."""

    def back(self, state: Any, mark: Any) -> None:
        """Return to a mark."""

    def cut(self, state: Any, position: int) -> bool:
        """Forget every token from ``position`` on.

        Returns
        -------
        bool
            False where the caches cannot be cut there; the state is then empty.
        """

    def draft(self, state: Any, hidden: F32, token: int, gates: Gates) -> int:
        """Return the token that the prediction block proposes after ``token``."""
