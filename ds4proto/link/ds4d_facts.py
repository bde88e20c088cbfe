"""Who an endpoint is: the model's numbers, a worker's slice, what HELLO must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ds4proto.link.ds4d_limits import MAX_NAME
from ds4proto.link.ds4d_texts import cut
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.registry import to_bytes


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Numbers of a model that both sides of a route share.

    Parameters
    ----------
    model_id : int
    model_name : str
        As HELLO carries it, at most 127 bytes.
    n_layers : int
        Executable layers.
    hidden_values : int
        f32 values of one token's hidden state, all streams together.
    vocab : int
        Tokens of the vocabulary; one logit each.
    ctx : int
        Context of this endpoint in tokens; 0 for unset.
    """

    model_id: int
    model_name: str
    n_layers: int
    hidden_values: int
    vocab: int
    ctx: int

    @property
    def logits_bytes(self) -> int:
        """Bytes of one LOGITS payload."""
        return 4 * self.vocab

    def hidden_bytes(self, n_tokens: int, bits: int) -> int:
        """Return the bytes of ``n_tokens`` rows at a wire width."""
        return n_tokens * self.hidden_values * (bits or 32) // 8


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker: its model, its slice (inclusive) and what it can return.

    ``prefill_cap`` is the largest span its engine takes at once, in tokens; None
    leaves that to the engine.
    """

    model: ModelFacts
    layer_start: int
    layer_end: int
    has_output: bool
    quant_bits: int = 2
    has_hidden: bool = True
    prefill_cap: int | None = None

    def hello(self, listen_port: int) -> Mapping[str, Any]:
        """Return the values of this worker's HELLO (DS4D-HELLO-20 to -27)."""
        return {
            "model_id": self.model.model_id,
            "quant_bits": self.quant_bits,
            "layer_start": self.layer_start,
            "layer_end": self.layer_end,
            "has_output": int(self.has_output),
            "has_hidden": int(self.has_hidden),
            "ctx_size": self.model.ctx,
            "n_layers": self.model.n_layers,
            "listen_port": listen_port,
            "model_name": cut(self.model.model_name, MAX_NAME).decode(
                "utf-8", "surrogateescape"
            ),
        }

    def hello_frame(self, listen_port: int, *, dialect: str = "upstream") -> bytes:
        """Return the whole HELLO frame."""
        return to_bytes(HELLO, self.hello(listen_port), dialect=dialect)
