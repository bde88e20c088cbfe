"""Heat maps by layer and token: skew of the two ranks' gates, size of what crosses.

Columns are tokens (or requests); when they are too many, neighbours are joined, so
that a map stays of one size however long the run is.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ds4proto.trace.names import find_column
from ds4proto.trace.rows import FrameRow

__all__ = ["COLUMNS", "ActivationRange", "GateSkew", "HeatMap"]

COLUMNS: Final = 256
"""Columns of a map at most."""
ROWS: Final = 512
_OPEN: Final = 8192
_LAST: Final = 1 << 30
Key = tuple[int, ...]
F64 = npt.NDArray[np.float64]


def _zeros() -> F64:
    return np.zeros(COLUMNS)


@dataclass(slots=True)
class _Line:
    """The cells of one row of a map."""

    label: str
    total: F64 = field(default_factory=_zeros)
    peak: F64 = field(default_factory=_zeros)
    count: F64 = field(default_factory=_zeros)

    def add(self, at: int, value: float) -> None:
        self.total[at] += value
        self.count[at] += 1
        if abs(value) > abs(self.peak[at]):
            self.peak[at] = value

    def halve(self) -> None:
        rest = np.zeros(COLUMNS // 2)
        one, two = self.peak[0::2], self.peak[1::2]
        peak = np.where(np.abs(one) >= np.abs(two), one, two)
        self.peak = np.concatenate([peak, rest])
        self.total = np.concatenate([self.total[0::2] + self.total[1::2], rest])
        self.count = np.concatenate([self.count[0::2] + self.count[1::2], rest])

    def cells(self, columns: int) -> list[list[float] | None]:
        found: list[list[float] | None] = []
        for at in range(columns):
            n = int(self.count[at])
            mean, peak = self.total[at] / max(n, 1), self.peak[at]
            found.append([_short(mean), _short(peak), n] if n else None)
        return found


def _short(value: float) -> float:
    return float(f"{value:.6g}")


class HeatMap:
    """Cells by row (layer and gate) and column (token): mean, extreme and count.

    Parameters
    ----------
    name : str
        ``gate skew``, ``activation range``.
    unit : str
        Of the values; empty for plain numbers.
    column : str
        What a column is: ``token``, ``request``.
    """

    def __init__(self, name: str, unit: str, column: str) -> None:
        self.name, self.unit, self.column = name, unit, column
        self.join = 1  # tokens of one column
        self.left_out = 0
        self._lines: dict[Key, _Line] = {}
        self._columns = 0

    def add(self, key: Key, label: str, column: int, value: float) -> None:
        """Take one value; rows are sorted by `key` and called `label`."""
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= ROWS:
                self.left_out += 1
                return
            line = self._lines[key] = _Line(label)
        while column // self.join >= COLUMNS:
            for other in self._lines.values():
                other.halve()
            self.join *= 2
            self._columns = (self._columns + 1) // 2
        at = max(column, 0) // self.join
        self._columns = max(self._columns, at + 1)
        line.add(at, value)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def document(self, run: int) -> dict[str, Any]:
        """Return the map as plain values: [mean, extreme, count], null without any."""
        keys = sorted(self._lines)
        return {
            "run": run,
            "name": self.name,
            "unit": self.unit,
            "column": self.column,
            "columns": self._columns,
            "join": self.join,
            "labels": [self._lines[key].label for key in keys],
            "cells": [self._lines[key].cells(self._columns) for key in keys],
            "left_out": self.left_out,
        }


class _Places:
    """Where a gate stands in a map: its row, and the token that it belongs to.

    Row gates count on through a run, so that their number tells the token. Batch and
    bulk gates of one layer are counted as they come.
    """

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, int, str]] = Counter()

    def of(self, row: FrameRow, gates_per_token: int | None) -> tuple[Key, str, int]:
        f = row.fields
        layer = int(f.get("layer", 0))
        if row.type == "GATE_ROW":
            gate, seq = int(f.get("gate", 0)), max(int(f.get("seq", 1)) - 1, 0)
            column = find_column("ds4t.gate_row.gate")
            word = column.name_of(row, gate) if column is not None else ""
            token = seq // gates_per_token if gates_per_token else seq
            return (0, layer, gate), f"{layer} {word or gate}", token
        kind = row.type.removeprefix("GATE_").lower()
        way = row.type, layer, row.direction
        nth = self._seen[way]
        self._seen[way] += 1
        return (1 if kind == "batch" else 2, layer), f"{layer} {kind}", nth


class GateSkew:
    """How long after one rank's gate the other rank's gate of the same number came.

    Positive where the leader's came later. As seen at the place of capture: the time
    that a gate travels is in it.
    """

    def __init__(self) -> None:
        self.map = HeatMap("gate skew", "ms", "token")
        self._open: OrderedDict[tuple[str, int, int], tuple[str, float]] = OrderedDict()
        self._places = _Places()

    def add(self, row: FrameRow, gates_per_token: int | None) -> int:
        """Take a gate; return by how much the gates that wait for the other changed."""
        f = row.fields
        if "seq" not in f or "layer" not in f:
            return 0
        place, label, token = self._places.of(row, gates_per_token)
        key = row.type, int(f["seq"]), int(f["layer"])
        other = self._open.pop(key, None)
        if other is None or other[0] == row.direction:
            self._open[key] = row.direction, row.time
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
                return 0
            return 1 if other is None else 0
        later = (row.time - other[1]) * 1e3
        self.map.add(place, label, token, later if row.src_role == "leader" else -later)
        return -1


class ActivationRange:
    """The largest magnitude of what crosses: hidden states by hop, partials by gate."""

    def __init__(self) -> None:
        self.map = HeatMap("activation range", "", "request")
        self._requests: OrderedDict[int, int] = OrderedDict()
        self._next = 0
        self._places = _Places()

    def add(self, row: FrameRow, gates_per_token: int | None) -> None:
        """Take a row with a payload of numbers."""
        payload, f = row.payload, row.fields
        if payload is None or payload.low is None or payload.high is None:
            return
        value = max(abs(payload.low), abs(payload.high))
        if row.type.startswith("GATE"):
            self.map.column = "token"
            self.map.add(*self._places.of(row, gates_per_token), value)
        elif row.type == "WORK":
            layer = int(f["layer_start"])
            label = f"into layer {layer}"
            self.map.add((layer, 0), label, self._request(row), value)
        elif row.type == "RESULT":
            kind = find_column("ds4d.result.result_kind")
            number = int(f.get("result_kind", 0))
            word = kind.name_of(row, number) if kind is not None else ""
            label = (word or "result").lower().replace("_", " ")
            self.map.add((_LAST, number), label, self._request(row), value)

    def _request(self, row: FrameRow) -> int:
        number = int(row.fields["request"])
        known = self._requests.get(number)
        if known is None:
            known = self._requests[number] = self._next
            self._next += 1
            if len(self._requests) > _OPEN:
                self._requests.popitem(last=False)
        return known
