"""A model whose hidden state crosses some boundaries through a codec.

The slices, the codecs and the rows are those of the pipeline: what is measured here
is what the wire would do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ds4proto import codec
from ds4proto.codec.base import Codec
from ds4proto_runtime.engines.base import F32, Engine, Session


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a hidden state.

    Attributes
    ----------
    name : str
        As given on the command line.
    label : str
        As shown in tables.
    codec : Codec
    """

    name: str
    label: str
    codec: Codec

    def through(self, hidden: F32) -> F32:
        """Return ``[n, values]`` as it comes out of the other end."""
        rows, width = hidden.shape
        wire = self.codec.encode(np.ascontiguousarray(hidden).reshape(-1), rows=rows)
        back: F32 = self.codec.decode(wire, values=rows * width, rows=rows)
        return np.asarray(back, np.float32).reshape(rows, width)

    def row_bytes(self, width: int) -> int:
        """Return the bytes of one token's ``width`` values."""
        return self.codec.wire_bytes(width, rows=1)


LABELS = {
    "f32": "ds4 32 bit",
    "f16": "ds4 16 bit",
    "e4m3": "ds4 8 bit (unscaled)",
    "bf16": "BF16",
    "int8": "INT8, scale a token",
    "fp8": "FP8, scale a token",
    "int4": "INT4, scale a token",
    "mxfp8": "MXFP8",
    "mxfp4": "MXFP4",
    "nvfp4": "NVFP4, token scale",
}
REFERENCE = "f32"


def format_of(name: str) -> Format:
    """Return the format called ``name``.

    Raises
    ------
    CodecError
        If there is no such codec; the message lists the known ones.
    """
    return Format(name, LABELS.get(name, name), codec.get(name))


def boundaries(n_layers: int, count: int) -> tuple[int, ...]:
    """Return the first layers of the slices behind ``count`` boundaries.

    Boundaries lie as evenly as whole layers allow: for 30 layers 15; 8, 15, 22; and
    4, 8, 11, 15, 19, 22, 26.

    Raises
    ------
    ValueError
        If there are more boundaries than places for them.
    """
    if not 0 <= count < n_layers:
        raise ValueError(
            f"{count} boundaries do not fit a model of {n_layers} layers; give at"
            f" most {n_layers - 1}"
        )
    return tuple(round(n_layers * part / (count + 1)) for part in range(1, count + 1))


Watch = Callable[[int, F32, F32], None]
"""Called at each boundary with its number, the hidden state before and behind."""


class SlicedModel:
    """One engine run as a chain of slices.

    Parameters
    ----------
    engine : Engine
        All layers of the model.
    cuts : sequence of int
        First layer of each slice but the first.
    wire : Format
        What the boundaries do.
    """

    def __init__(self, engine: Engine, cuts: Sequence[int], wire: Format) -> None:
        self.engine = engine
        self.wire = wire
        edges = (0, *cuts, engine.shape.n_layers)
        self._slices = [range(start, stop) for start, stop in itertools.pairwise(edges)]
        self.watch: Watch | None = None

    def open(self) -> list[Session]:
        """Return one empty session a slice."""
        return [self.engine.open(layers) for layers in self._slices]

    def first(self, tokens: Sequence[int]) -> F32:
        """Return the hidden state that a whole text sends over the first boundary.

        It has crossed nothing yet, so that all formats share it.
        """
        session = self.engine.open(self._slices[0])
        return self.engine.run(session, self.engine.embed(tokens), tokens, 0)

    def run(
        self,
        sessions: list[Session],
        tokens: Sequence[int],
        pos: int,
        first: F32 | None = None,
    ) -> F32:
        """Return the last hidden state of a span, ``[n, values]``.

        ``first`` is what `first` returned for these tokens, where it is known.
        """
        hidden = self.engine.embed(tokens) if first is None else first
        for index, session in enumerate(sessions):
            if index == 0 and first is not None:
                continue
            if index:
                sent = hidden
                hidden = self.wire.through(sent)
                if self.watch is not None:
                    self.watch(index - 1, sent, hidden)
            hidden = self.engine.run(session, hidden, tokens, pos)
        return hidden
