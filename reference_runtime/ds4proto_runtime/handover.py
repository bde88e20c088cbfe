"""What handing KV over costs, before anything runs: bytes, link time, latency."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ds4proto.schema.dsv4 import Tensor, layer_tensors
from ds4proto_runtime.engines.base import Shape

_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)(?:b(?:/s)?)?", re.I)


def quantity(words: str) -> float:
    """Return a number with an SI or binary prefix: ``1M``, ``26GB``, ``280MB/s``.

    Raises
    ------
    ValueError
        The text is none.
    """
    match = _SIZE.fullmatch(words.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(
            f"{words!r}: expected a number with k, M, G, T, Ki, Mi, Gi or Ti,"
            " such as 1M, 26GB, 280MB/s"
        )
    return float(match[1]) * _UNITS[match[2].lower()]


@dataclass(frozen=True, slots=True)
class Plan:
    """A prefill over a route whose KV goes to the one who decodes.

    Parameters
    ----------
    tokens : int
        Of the prompt.
    kv_bytes : float
        KV of all of them that has to move.
    chunk : int
        Tokens of a prefill chunk.
    link : float
        Bytes a second.
    width, streams : int
        Floats of one residual stream, and streams a token.
    bits : int
        Width of hidden state on the wire.
    compute_s : float or None
        Time of one chunk on the slowest stage, behind which a transfer can hide.
    """

    tokens: int
    kv_bytes: float
    chunk: int = 4096
    link: float = 280e6
    width: int = 4096
    streams: int = 1
    bits: int = 32
    compute_s: float | None = None

    @property
    def chunks(self) -> int:
        """Chunks of the prefill, the last one perhaps not full."""
        return -(-self.tokens // self.chunk)

    @property
    def kv_chunk(self) -> float:
        """KV bytes of a full chunk."""
        return self.kv_bytes * min(self.chunk, self.tokens) / self.tokens

    @property
    def activation_chunk(self) -> int:
        """Hidden state bytes of a full chunk on one hop."""
        return self.chunk * self.width * self.streams * self.bits // 8

    @property
    def kv_chunk_s(self) -> float:
        """Link time of a chunk's KV: what it adds where nothing hides it."""
        return self.kv_chunk / self.link

    @property
    def activation_chunk_s(self) -> float:
        """Link time of a chunk's hidden state."""
        return self.activation_chunk / self.link

    @property
    def visible_s(self) -> float | None:
        """What a chunk's transfer adds beyond the computation that hides it."""
        if self.compute_s is None:
            return None
        return max(0.0, self.kv_chunk_s + self.activation_chunk_s - self.compute_s)

    def as_dict(self) -> dict[str, Any]:
        """Return inputs and results, for JSON."""
        return {
            **asdict(self),
            "chunks": self.chunks,
            "kv_chunk_bytes": self.kv_chunk,
            "kv_chunk_s": self.kv_chunk_s,
            "activation_chunk_bytes": self.activation_chunk,
            "activation_chunk_s": self.activation_chunk_s,
            "visible_s": self.visible_s,
            "kv_total_s": self.kv_bytes / self.link,
        }

    def lines(self) -> list[str]:
        """Return the plan as lines to print."""
        mib = self.activation_chunk / 2**20
        found = [
            f"{self.tokens} tokens in {self.chunks} chunks of {self.chunk}",
            f"KV a chunk: {self.kv_chunk / 1e6:.1f} MB,"
            f" {self.kv_chunk_s:.2f} s on the link at {self.link / 1e6:.0f} MB/s:"
            " so much more a chunk when it is not hidden behind the next one",
            f"hidden state a chunk: {mib:.0f} MiB ({self.streams} x {self.width}"
            f" values a token at {self.bits} bits), {self.activation_chunk_s:.2f} s",
            f"all KV at once: {self.kv_bytes / 1e9:.1f} GB,"
            f" {self.kv_bytes / self.link:.1f} s",
        ]
        if self.visible_s is not None:
            found.append(
                f"behind {self.compute_s:.2f} s of computation a chunk:"
                f" {self.visible_s:.2f} s remain visible"
            )
        return found


def shard_size(shape: Shape, layers: Sequence[int], tokens: int) -> int:
    """Return the tensor bytes of some layers after ``tokens`` tokens.

    Compressed rows are taken as one every ``ratio`` tokens.
    """
    values: Mapping[str, Any] = {
        "head_dim": shape.head_dim,
        "indexer_head_dim": shape.indexer_head_dim,
        "raw_live": shape.raw_live(tokens),
        "n_comp": tuple(tokens // r if r else 0 for r in shape.ratios),
        "n_index_comp": tuple(tokens // r if r == 4 else 0 for r in shape.ratios),
    }
    tensors = layer_tensors(values, shape.ratios)
    return sum(tensor.nbytes for tensor in tensors if tensor.layer in layers)


def span_tensors(shape: Shape, pos: int, tokens: int) -> list[Tensor]:
    """Return what a span holds of every layer, in order (DS4D-OURS-11).

    The tensors of a saved session, with the rows of the span alone; compressor states
    are those behind it.
    """
    rows = [(pos + tokens) // r - pos // r if r else 0 for r in shape.ratios]
    values: Mapping[str, Any] = {
        "head_dim": shape.head_dim,
        "indexer_head_dim": shape.indexer_head_dim,
        "raw_live": min(tokens, shape.raw_window),
        "n_comp": tuple(rows),
        "n_index_comp": tuple(
            count if ratio == 4 else 0
            for count, ratio in zip(rows, shape.ratios, strict=True)
        ),
    }
    return layer_tensors(values, shape.ratios)


def span_size(shape: Shape, layers: Sequence[int], pos: int, tokens: int) -> int:
    """Return the bytes that a span takes for some layers (DS4D-OURS-11)."""
    found = span_tensors(shape, pos, tokens)
    return sum(tensor.nbytes for tensor in found if tensor.layer in layers)
