"""Who an endpoint is: the model's numbers, a worker's slice, what HELLO must say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ds4proto.link.ds4d_limits import MAX_NAME, U32
from ds4proto.link.ds4d_texts import cut
from ds4proto.schema.declare import Limit
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_private import ALL_FORMATS, FORMATS, LOCAL_DECODE
from ds4proto.schema.ds4d_private import DIALECT as PRIVATE_DIALECT
from ds4proto.schema.ds4d_work import PRIVATE_WIDTH_LIMIT, WIDTH_LIMIT
from ds4proto.schema.registry import to_bytes


@cache
def row_bytes(word: int, values: int) -> int:
    """Return the bytes of one row of hidden state under a width word.

    Parameters
    ----------
    word : int
        32, 16, 8, 0 for 32, or a format of the private dialect (DS4D-OURS-05).
    values : int
        f32 values of the row; a whole payload may be given at a stock width.
    """
    if word not in FORMATS:
        return values * (word or 32) // 8
    from ds4proto.codec import get

    return get(FORMATS[word], path="numpy").wire_bytes(values)


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
    dialect : {"upstream", "ds4proto"}
        What this endpoint speaks.
    """

    model_id: int
    model_name: str
    n_layers: int
    hidden_values: int
    vocab: int
    ctx: int
    dialect: str = "upstream"

    @property
    def private(self) -> bool:
        """Whether this endpoint speaks the private dialect."""
        return self.dialect == PRIVATE_DIALECT

    @property
    def widths(self) -> Limit:
        """Width words that WORK and RESULT may carry."""
        return PRIVATE_WIDTH_LIMIT if self.private else WIDTH_LIMIT

    @property
    def logits_bytes(self) -> int:
        """Bytes of one LOGITS payload."""
        return 4 * self.vocab

    @property
    def most_tokens(self) -> int:
        """Tokens of one WORK at most: their f32 rows fit a 32-bit length (WORK-42)."""
        return U32 // (4 * max(1, self.hidden_values))

    def hidden_bytes(self, n_tokens: int, bits: int) -> int:
        """Return the bytes of ``n_tokens`` rows under a width word."""
        return n_tokens * row_bytes(bits, self.hidden_values)

    def largest_hidden(self, n_tokens: int) -> int:
        """Return the bytes that ``n_tokens`` rows take at most in this dialect."""
        words = FORMATS if self.private else ()
        return max(self.hidden_bytes(n_tokens, word) for word in (32, *words))


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker: its model, its slice (inclusive) and what it can return.

    ``prefill_cap`` is the largest span its engine takes at once, in tokens; None
    leaves that to the engine. ``local_decode`` tells of the whole model (private
    dialect).
    """

    model: ModelFacts
    layer_start: int
    layer_end: int
    has_output: bool
    quant_bits: int = 2
    has_hidden: bool = True
    prefill_cap: int | None = None
    local_decode: bool = False

    def hello(self, listen_port: int) -> Mapping[str, Any]:
        """Return the values of this worker's HELLO (DS4D-HELLO-20 to -27)."""
        own = {"abilities": ALL_FORMATS | LOCAL_DECODE} if self.local_decode else {}
        return {
            **own,
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

    def hello_frame(self, listen_port: int, *, dialect: str | None = None) -> bytes:
        """Return the whole HELLO frame, by default in the endpoint's dialect."""
        return to_bytes(
            HELLO, self.hello(listen_port), dialect=dialect or self.model.dialect
        )
