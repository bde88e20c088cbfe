"""Group the segments of a batch by the flow they belong to."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ds4proto.pcap.decap import select
from ds4proto.pcap.types import TcpColumns
from ds4proto.trace.tcp_events import I64

FlowKey: TypeAlias = tuple[int, int, int, int, int, int]
"""Version, source (high, low), destination (high, low), both ports in one number."""
Flow: TypeAlias = I64

_PEELED = 8  # so many flows are picked one at a time before sorting takes over
_COLUMNS = ("version", "src_hi", "src_lo", "dst_hi", "dst_lo", "ports")


def reverse(key: FlowKey) -> FlowKey:
    """Return the key of the opposite direction."""
    version, src_hi, src_lo, dst_hi, dst_lo, ports = key
    return version, dst_hi, dst_lo, src_hi, src_lo, (ports & 0xFFFF) << 16 | ports >> 16


def group(columns: TcpColumns) -> dict[FlowKey, Flow]:
    """Return the indices of each flow's segments, ascending; flows by appearance.

    A batch mostly holds a handful of flows: those are picked out by comparison. What
    is left is sorted.
    """
    flows: dict[FlowKey, Flow] = {}
    left: I64 | None = None
    rest = columns
    for _ in range(_PEELED):
        key = _key(rest, 0)
        same = rest.ports == key[5]
        for name, value in zip(_COLUMNS[1:5], key[1:5], strict=True):
            same &= getattr(rest, name) == np.uint64(value)
        same &= rest.version == key[0]
        mine = np.flatnonzero(same)
        flows[key] = mine if left is None else left[mine]
        if mine.size == len(rest):
            return flows
        others = np.flatnonzero(~same)
        left = others if left is None else left[others]
        rest = select(columns, left)
    _sort(rest, left, flows)
    return flows


def _key(columns: TcpColumns, place: int) -> FlowKey:
    return (
        int(columns.version[place]),
        int(columns.src_hi[place]),
        int(columns.src_lo[place]),
        int(columns.dst_hi[place]),
        int(columns.dst_lo[place]),
        int(columns.ports[place]),
    )


def _sort(rest: TcpColumns, left: I64 | None, flows: dict[FlowKey, Flow]) -> None:
    columns = [getattr(rest, name) for name in _COLUMNS]
    order = np.lexsort(columns)
    changes = np.zeros(order.size, np.bool_)
    changes[0] = True
    for column in columns:
        ordered = column[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    pieces = np.split(order, np.flatnonzero(changes)[1:])
    for piece in sorted(pieces, key=lambda one: int(one[0])):
        flows[_key(rest, int(piece[0]))] = piece if left is None else left[piece]
