"""Mutated frames by the million: cheap, aimed at what a declaration says.

Hypothesis draws the sound frames to start from; what is done to them costs a few
microseconds. Every frame has an address (seed, form, number) and can be made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from ds4proto.emit.boundaries import boundary_values
from ds4proto.emit.faults import sizing_names
from ds4proto.schema.declare import FrameSpec, fields_of, offsets_of
from ds4proto.schema.registry import header_of
from ds4proto_fuzz.parsers.schemas import pool

__all__ = ["CHUNK", "Mutator"]

CHUNK: Final = 1000
"""Frames that share one state of the generator; an address names the chunk."""
WORDS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000)
TOPS: Final = (0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFC, 0xFFFFFFF0, 0x3FFFFFFF, 0x40000000)
LONGEST: Final = 1500


class Mutator:
    """Makes frames of one form that are sound but for a few bytes.

    Parameters
    ----------
    spec, dialect
        The form.
    """

    def __init__(self, spec: FrameSpec, dialect: str) -> None:
        self.spec = spec
        self.dialect = dialect
        frames = [frame for frame in pool()[spec, dialect] if len(frame) <= LONGEST]
        self._bases = frames or [b""]
        self._edits, self._lies = _edits(spec, dialect)
        self._order: Final = "big" if spec.protocol == "DS4D" else "little"

    def chunk(self, seed: int, number: int) -> Iterator[bytes]:
        """Yield the frames of one chunk."""
        rng = Random(f"{seed} {self.spec.full_name} {self.dialect} {number}")
        bases = self._bases
        for _ in range(CHUNK):
            data = bytearray(bases[rng.getrandbits(16) % len(bases)])
            for _ in range(1 + (rng.getrandbits(4) % 3)):
                self._mutate(data, rng)
            yield bytes(data)

    def _mutate(self, data: bytearray, rng: Random) -> None:
        kind = rng.getrandbits(4)
        if kind < 4 and self._edits:  # a field takes a value at the edge of its range
            at, value = self._edits[rng.getrandbits(24) % len(self._edits)]
            data[at : at + len(value)] = value
        elif kind < 7 and self._lies:  # a length or a count lies
            at, width = self._lies[rng.getrandbits(16) % len(self._lies)]
            data[at : at + width] = self._word(rng, width)
        elif not data:
            data += rng.randbytes(1 + rng.getrandbits(4))
        elif kind < 10:  # a word anywhere, in records and payloads too
            at = rng.getrandbits(24) % len(data) & ~3
            data[at : at + 4] = self._word(rng, 4)
        elif kind < 12:  # a byte
            data[rng.getrandbits(24) % len(data)] = rng.getrandbits(8)
        elif kind == 12:  # cut short
            del data[rng.getrandbits(24) % (len(data) + 1) :]
        elif kind == 13:  # stretched
            data += rng.randbytes(1 + rng.getrandbits(4))
        elif kind == 14:  # something taken out of the middle
            at = rng.getrandbits(24) % len(data)
            del data[at : at + 1 + rng.getrandbits(4)]
        else:  # the end of another frame behind the start of this one
            other = self._bases[rng.getrandbits(16) % len(self._bases)]
            at = rng.getrandbits(24) % (min(len(data), len(other)) + 1)
            data[at:] = other[at:]

    def _word(self, rng: Random, width: int) -> bytes:
        turn = rng.getrandbits(6)
        if turn < 24:
            value = WORDS[turn % len(WORDS)]
        elif turn < 40:
            value = TOPS[turn % len(TOPS)]
        elif turn < 52:
            value = rng.getrandbits(5)
        else:
            value = rng.getrandbits(8 * width)
        value &= (1 << 8 * width) - 1
        return value.to_bytes(width, "big" if self._order == "big" else "little")


def _edits(
    spec: FrameSpec, dialect: str
) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    """Return edge values by their places, and the places of lengths and counts."""
    edits: list[tuple[int, bytes]] = []
    lies: list[tuple[int, int]] = []
    if spec.header is not None:
        places = offsets_of(header_of(spec.protocol), "*")
        for field in header_of(spec.protocol).fields:
            lies.append((places[field.path], field.size))
    sizing = sizing_names(spec.body, dialect)
    places = offsets_of(spec.body, dialect)
    for field in fields_of(spec.body, dialect):
        at = spec.header_size + places[field.path]
        if field.path in sizing or field.auto is not None:
            lies.append((at, field.size))
        edits += [
            (at, bytes(field.type.build(value)))
            for value in boundary_values(field, dialect)
        ]
    return edits, lies
