"""What a gate header looks like, and which one is due next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import NamedTuple

from ds4proto.link.pair import TpPair
from ds4proto.schema.declare import FrameSpec, fields_of
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.ds4t import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import (
    BULK_TAG,
    FFN,
    LOGITS_LAYER,
    MAX_ROWS,
    V15_KINDS,
    WAVE_TAG,
)
from ds4proto.schema.fast import struct_of
from ds4proto.schema.registry import frames

MAGICS = (DS4T_MAGIC.to_bytes(4, "little"), DS4B_MAGIC.to_bytes(4, "little"))
COMMON = b"4SD"
"""What both magics share behind their first byte."""
MAX_WAVES = 64
"""Waves that one v9w header may stand for."""
FAR = 1 << 20
"""How far ahead of the due number a header may be after a loss."""
NEVER = 1 << 48
"""A number that no connection reaches; bounds the first one of a mid-stream start."""


class Header(NamedTuple):
    """The words of one gate header.

    ``word`` is the gate kind of a row gate, the rows of a batch gate, the tag of a
    bulk gate; ``nbytes`` the payload length where the dialect sends one.
    """

    name: str
    layer: int
    word: int
    seq: int
    nbytes: int | None


class Form:
    """Reads the gate headers of one dialect.

    Attributes
    ----------
    dialect : str
    size : int
        Bytes of a header.
    """

    __slots__ = ("_specs", "_struct", "_v15", "dialect", "size")

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self._specs = _gate_specs(dialect.rstrip("?"))
        row = self._specs["DS4T.GATE_ROW"]
        self._struct: Struct = struct_of(row.body, dialect.rstrip("?"))
        self.size = self._struct.size
        self._v15 = len(fields_of(row.body, dialect.rstrip("?"))) > 5

    def spec(self, name: str) -> FrameSpec | None:
        """Return the declaration of a gate, None where the dialect has none."""
        return self._specs.get(name)

    @property
    def counted(self) -> bool:
        """Whether the headers say how long their payload is."""
        return self.size > 16

    def read(self, data: bytes | bytearray | memoryview, at: int) -> Header | None:
        """Return the header at ``at``, None where none can be; the bytes are there."""
        words = self._struct.unpack_from(data, at)
        if words[0] not in (DS4T_MAGIC, DS4B_MAGIC):
            return None
        if self._v15:
            _, kind, layer, third, _, seq, nbytes = words
            name = V15_KINDS.get(kind)
            if name is None or words[0] != DS4T_MAGIC:
                return None
            return Header(name, layer, third, seq, nbytes)
        _, layer, word, seq = words[:4]
        nbytes = words[4] if len(words) > 4 else None
        if words[0] == DS4T_MAGIC:
            return Header("DS4T.GATE_ROW", layer, word, seq, nbytes)
        if word in (BULK_TAG, WAVE_TAG):
            return Header("DS4B.GATE_BULK", layer, word, seq, nbytes)
        if not 1 <= word <= MAX_ROWS:
            return None  # neither a tag nor a number of rows
        return Header("DS4B.GATE_BATCH", layer, word, seq, nbytes)


@cache
def _gate_specs(dialect: str) -> dict[str, FrameSpec]:
    found = {
        spec.full_name: spec
        for spec in frames(dialect=dialect)
        if spec.name.startswith("GATE_")
    }
    line: str | None = dialect
    while not found and line is not None:
        line = find_dialect(line).base
        found = _gate_specs(line or "v14")
    return found


@dataclass(slots=True)
class Due:
    """The sequence numbers that the next gates of one direction should have.

    Attributes
    ----------
    row, batch : int
        Next row and batch sequence numbers; counted, not copied from headers, so
        that a wrong number is a problem of its own gate only.
    row_sure, batch_sure : bool
        False after a loss: the counter is at least that far, and the next header of
        its kind sets it.
    reach : int
        How far ahead a number may be where it is not sure.
    """

    row: int = 1
    batch: int = 1
    row_sure: bool = True
    batch_sure: bool = True
    reach: int = FAR

    @classmethod
    def unknown(cls) -> Due:
        """Return the state of a capture that begins in mid-stream."""
        return cls(1, 1, False, False, NEVER)

    @property
    def blind(self) -> bool:
        """Whether nothing at all is known, as in mid-stream."""
        return self.reach == NEVER and not (self.row_sure or self.batch_sure)

    def lose(self) -> None:
        """Bytes were lost, and gates perhaps with them."""
        self.row_sure = self.batch_sure = False

    def sure(self, header: Header) -> bool:
        """Tell whether the number of a header's kind is known."""
        row = header.name == "DS4T.GATE_ROW"
        return self.row_sure if row else self.batch_sure

    def number(self, header: Header) -> int:
        """Return the number that a gate of the header's kind has by count."""
        if not self.sure(header):
            return header.seq
        return self.row if header.name == "DS4T.GATE_ROW" else self.batch

    def fits(self, header: Header, pair: TpPair, *, far: bool = False) -> bool:
        """Tell whether a header is one that is due now (or, ``far``, later)."""
        reach = self.reach if far or not self.sure(header) else 0
        if header.name == "DS4T.GATE_ROW":
            if not self.row <= header.seq <= self.row + reach or header.word > FFN:
                return False
            return header.layer == _layer_of(header, pair)
        if header.layer == LOGITS_LAYER:
            return True
        if header.word == WAVE_TAG:
            reach = max(reach, MAX_WAVES)
        if not self.batch <= header.seq <= self.batch + reach:
            return False
        hello = pair.hello
        # one past the last layer is the prediction block of a speculating GLM
        return hello is None or header.layer <= hello["n_layer"]

    def advance(self, header: Header, *, jumps: bool) -> None:
        """Take a gate; the numbers behind a loss start from what it says.

        ``jumps`` is True where a header may stand for several numbers: a wave group
        counts all its waves, an unlisted block its layers.
        """
        if header.name == "DS4T.GATE_ROW":
            self.row = self.row + 1 if self.row_sure else header.seq + 1
            self.row_sure = True
        elif header.layer != LOGITS_LAYER:
            jumps = jumps or header.word == WAVE_TAG
            ahead = header.seq - self.batch
            if not self.batch_sure or (jumps and 0 < ahead <= FAR):
                self.batch = header.seq + 1
            else:
                self.batch += 1
            self.batch_sure = True


def _layer_of(header: Header, pair: TpPair) -> int:
    """Return the layer that the schedule has for a row gate's number."""
    if pair.schedule is None:
        return header.layer
    slot = pair.schedule.slot_of(header.seq)
    if slot is None or slot % 2 != header.word:
        return -1
    return slot // 2
