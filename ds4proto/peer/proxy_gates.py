"""Gates in a data connection that passes by: told apart, changed, left out.

A gate's payload has no length on the wire. The width in the HELLO of the control
connection gives it for row and batch gates. A bulk gate lasts until the next header
whose number follows; its bytes are passed on at once, so that nobody waits for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ds4proto.link.ds4t_gate_headers import (
    GateHeader,
    GateShape,
    gate_spec,
    header_bytes,
    read_gate_header,
)
from ds4proto.peer.proxy_faults import Rule
from ds4proto.peer.proxy_places import field_place, store
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.problem import Buf

__all__ = ["GATE_MAGICS", "PAYLOAD", "GateEditor", "PairFacts"]

GATE_MAGICS: Final = tuple(m.to_bytes(4, "little") for m in (DS4T_MAGIC, DS4B_MAGIC))
PAYLOAD: Final = "payload"
"""The field that stands for the first byte of a gate's payload."""
_AHEAD: Final = 64
"""A number that is so far ahead of the last one is no gate's."""
_SPLIT: Final = -1
"""Payload bytes left of a bulk gate: until the next header."""


@dataclass(slots=True)
class PairFacts:
    """What the HELLO of a pair said; shared by its connections.

    Attributes
    ----------
    dialect : str
        Empty until a HELLO has passed by.
    vector_bytes : int
        Payload of a row gate.
    """

    dialect: str = ""
    vector_bytes: int = 0


class GateEditor:
    """Takes the bytes of one direction of a data connection, gives back what goes on.

    Parameters
    ----------
    facts : PairFacts
    rules : sequence of Rule
        ``drop`` and ``corrupt`` with the frames GATE_ROW, GATE_BATCH and GATE_BULK.
    draw : random.Random
        Seeded, for corrupted values.
    note : callable
        Told in words of what was done.
    """

    def __init__(
        self,
        facts: PairFacts,
        rules: Sequence[Rule],
        draw: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self._facts, self._rules = facts, rules
        self._draw, self._note = draw, note
        self._size = header_bytes(facts.dialect)
        self._held = bytearray()
        self._left = 0
        self._dropping = False
        self._spoil: Rule | None = None
        self._counts: dict[str, int] = {}
        self._last = {"row": 0, "batch": 0}
        self.lost = False
        """True once something came that is no gate; all is passed on from there."""

    def feed(self, data: Buf) -> list[Buf]:
        """Return what may go on after these bytes came."""
        view = memoryview(data).cast("B")
        out: list[Buf] = []
        while len(view) and not self.lost:
            if self._left > 0:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                self._payload(part, out)
            elif self._left == _SPLIT and not self._held:
                at = self._next_header(view)
                self._payload(view[:at], out)
                view = view[at:]
                if len(view):
                    self._held += view[: self._size]
                    view = view[self._size :]
            else:
                missing = self._size - len(self._held)
                self._held += view[:missing]
                view = view[missing:]
            if len(self._held) == self._size:
                self._header(out)
        if len(view):
            out.append(view)
        return out

    def rest(self) -> bytes:
        """Return what was held back when the stream ended."""
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def _payload(self, part: memoryview, out: list[Buf]) -> None:
        if self._dropping or not len(part):
            return
        if self._spoil is None:
            out.append(part)
            return
        changed = bytearray(part)
        old = changed[0]
        changed[0] = self._spoil.other(old, 8, self._draw)
        self._note(f"first byte of the payload {old} became {changed[0]}")
        self._spoil = None
        out.append(changed)

    def _next_header(self, view: memoryview) -> int:
        """Return where the next header begins, or may begin; else the length."""
        data, size = bytes(view), len(view)
        found = [size]
        for magic in GATE_MAGICS:
            at = data.find(magic)
            while at >= 0:
                whole = at + self._size <= size
                if not whole or self._follows(view[at : at + self._size]) is not None:
                    found.append(at)
                    break
                at = data.find(magic, at + 1)
        return min(found)

    def _follows(self, data: Buf) -> GateHeader | None:
        """Return a header if its number is one that can come now."""
        header = read_gate_header(data, self._facts.dialect)
        if header is None:
            return None
        last = self._last[_counter(header.shape)]
        return header if last < header.seq <= last + _AHEAD else None

    def _header(self, out: list[Buf]) -> None:
        header = self._follows(self._held)
        if header is None and self._left == _SPLIT:  # payload that looked like one
            data = memoryview(bytes(self._held))
            self._held.clear()
            at = 1 + self._next_header(data[1:])
            self._payload(data[:at], out)
            self._held += data[at:]
            return
        if header is None:
            self._note(
                "no gate header where one was due; bytes are passed on from here"
            )
            self.lost = True
            out.append(bytes(self._held))
            self._held.clear()
            return
        whole, self._held = self._held, bytearray()
        self._last[_counter(header.shape)] = header.seq
        self._left = self._length(header)
        self._dropping, self._spoil = False, None
        self._apply(header, whole)
        if not self._dropping:
            out.append(whole)

    def _length(self, header: GateHeader) -> int:
        if header.nbytes is not None:
            return header.nbytes
        if header.shape == "bulk":
            return _SPLIT
        rows = header.third if header.shape == "batch" else 1
        return rows * self._facts.vector_bytes

    def _apply(self, header: GateHeader, whole: bytearray) -> None:
        spec = gate_spec(header.shape, self._facts.dialect)
        count = self._counts[spec.name] = self._counts.get(spec.name, 0) + 1
        for rule in self._rules:
            if rule.frame != spec.name or not (rule.every or rule.nth == count):
                continue
            where = f"{spec.full_name} {count} (layer {header.layer}, seq {header.seq})"
            if rule.kind == "drop":
                self._dropping = True
                self._note(f"dropped {where}")
                return
            if rule.field == PAYLOAD:
                self._spoil = rule
                self._note(f"{where}: the payload is changed")
                continue
            place = field_place(spec, rule.field, self._facts.dialect)
            if place is None:
                self._note(f"{spec.full_name} has no field {rule.field!r}")
                continue
            old, new = store(whole, place, rule, self._draw)
            self._note(f"{where}: {rule.field} {old} became {new}")


def _counter(shape: GateShape) -> Literal["row", "batch"]:
    """Return which number a gate carries on; batch and bulk gates share one."""
    return "row" if shape == "row" else "batch"
