"""Frames in a stream that passes by: cut at their borders, changed, left out.

DS4D and the control connection of DS4T have lengths in their headers, so that borders
are known at once. Gates of DS4T have none (the last one's length shows only when the
next comes); `proxy_gates` tells them apart where a HELLO has passed by before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from ds4proto.peer.proxy_faults import Rule
from ds4proto.peer.proxy_gates import GATE_MAGICS, GateEditor, PairFacts
from ds4proto.peer.proxy_places import field_place, store
from ds4proto.printable import counted
from ds4proto.schema import build, frame_of_code, header_of, read
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4d import MAGIC as DS4D_MAGIC
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4t_hello import HELLO as TP_HELLO
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf, SchemaError
from ds4proto.schema.recognise import protocol_of
from ds4proto.schema.slab import VALUE

__all__ = ["FrameEditor", "Rewrite", "rewrite_port", "rewrite_route"]

_MOST: Final = 256 << 20
"""A frame beyond this is passed on as bytes, and so is the rest of the stream."""
_WORD: Final = 4
_MAGICS: Final = (DS4D_MAGIC.to_bytes(_WORD, "big"), *GATE_MAGICS)
_VERSIONS: Final = {d.version: d for d in reversed(dialects_of("DS4T")) if d.hello_size}
"""By version; the first listed of several, which is upstream's."""
Rewrite = Callable[[FrameSpec, bytearray], bytearray]


class FrameEditor:
    """Takes the bytes of one direction, gives back what is to be passed on.

    Parameters
    ----------
    rules : sequence of Rule
        Those of the kinds ``drop`` and ``corrupt`` that hold here.
    draw : random.Random
        Seeded, for corrupted values.
    rewrite : callable, optional
        Called with every whole frame; returns what goes on in its place.
    until_hello : bool
        Pass bytes on once the first frame has gone by.
    note : callable
        Told in words of what was done.
    pair : PairFacts
        What a tensor-parallel HELLO says is put here, and read on a connection that
        begins with a gate.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        draw: random.Random,
        *,
        rewrite: Rewrite | None,
        until_hello: bool,
        note: Callable[[str], None],
        pair: PairFacts | None = None,
    ) -> None:
        self._rules = rules
        self._draw = draw
        self._rewrite = rewrite
        self._until_hello = until_hello
        self._note = note
        self._held = bytearray()
        self._counts: dict[str, int] = {}
        self._protocol = ""
        self._dialect = ""
        self._raw = False
        self._first = True
        self._pair = PairFacts() if pair is None else pair
        self._gates: GateEditor | None = None

    @property
    def raw(self) -> bool:
        """Whether bytes are only passed on from here."""
        gates = self._gates
        return self._raw and not self._held and (gates is None or gates.lost)

    def feed(self, data: Buf) -> list[Buf]:
        """Return what may go on after these bytes came."""
        if self._gates is not None:
            return self._gates.feed(data)
        if self._raw:
            return [data]
        self._held += data
        out: list[Buf] = []
        while not self._raw:
            size = self._size()
            if size is None or len(self._held) < size:
                break
            if size:
                whole = self._passes(self._held[:size])
                del self._held[:size]
                if whole is not None:
                    out.append(whole)
        if self._raw and self._held:
            held = bytes(self._held)
            self._held.clear()
            out += [held] if self._gates is None else self._gates.feed(held)
        return out

    def rest(self) -> bytes:
        """Return what was held back when the stream ended."""
        if self._gates is not None:
            return self._gates.rest()
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def _size(self) -> int | None:
        """Return the bytes of the frame at hand; None while that is not known."""
        if self._first and not any(
            magic.startswith(bytes(self._held[:_WORD])) for magic in _MAGICS
        ):
            return self._give_up()  # foreign bytes are never held back
        if len(self._held) < _WORD:
            return None
        if self._first:
            return self._first_size()
        layout = header_of(self._protocol)
        form = struct_of(layout, "*")
        if len(self._held) < form.size:
            return None
        words = form.unpack_from(self._held)
        size = form.size + int(words[-1])
        if protocol_of(bytes(self._held[:_WORD])) != self._protocol or size > _MOST:
            return self._give_up()
        return size

    def _first_size(self) -> int | None:
        protocol = protocol_of(bytes(self._held[:_WORD]))
        if protocol == "DS4D":
            self._protocol, self._dialect = "DS4D", "upstream"
            self._first = False
            return self._size()
        if protocol != "DS4T":
            return self._give_up()
        if len(self._held) < 2 * _WORD:
            return None
        version = int.from_bytes(self._held[_WORD : 2 * _WORD], "little")
        known = _VERSIONS.get(version)
        # A gate has its layer there: once a pair has met, only its own version counts.
        other = self._pair.dialect and known and known.name != self._pair.dialect
        if known is None or other or not known.hello_size:
            return self._give_up()
        self._protocol, self._dialect = "DS4T", known.name
        return known.hello_size

    def _give_up(self) -> int:
        self._raw = True
        begins_a_gate = self._first and self._held.startswith(GATE_MAGICS)
        if begins_a_gate and self._rules and self._pair.vector_bytes:
            self._gates = GateEditor(self._pair, self._rules, self._draw, self._note)
        return 0

    def _spec(self, whole: bytearray) -> FrameSpec | None:
        if self._first:
            return TP_HELLO
        form = struct_of(header_of(self._protocol), "*")
        code = int(form.unpack_from(whole)[1])
        return frame_of_code(self._protocol, code, dialect=self._dialect)

    def _passes(self, whole: bytearray) -> bytearray | None:
        """Return the frame as it goes on, None where it is left out."""
        spec = self._spec(whole)
        if self._first and spec is TP_HELLO:
            self._greeted(whole)
        self._first = False
        if self._until_hello and not self._rules:
            self._raw = True
        if spec is None:
            return whole
        count = self._counts[spec.name] = self._counts.get(spec.name, 0) + 1
        if self._rewrite is not None:
            whole = self._rewrite(spec, whole)
        for rule in self._rules:
            if rule.frame != spec.name or not (rule.every or rule.nth == count):
                continue
            if rule.kind == "drop":
                self._note(
                    f"dropped {spec.full_name} {count} ({counted(len(whole), 'byte')})"
                )
                return None
            self._corrupt(rule, spec, whole, count)
        return whole

    def _greeted(self, whole: bytearray) -> None:
        """Keep what the gates of this pair will look like."""
        place = field_place(TP_HELLO, "n_embd", self._dialect)
        if place is not None:
            width = int(place[1].unpack_from(whole, place[0])[0])
            self._pair.dialect, self._pair.vector_bytes = self._dialect, VALUE * width

    def _corrupt(
        self, rule: Rule, spec: FrameSpec, whole: bytearray, count: int
    ) -> None:
        place = field_place(spec, rule.field, self._dialect)
        if place is None:
            self._note(f"{spec.full_name} has no field {rule.field!r}")
            return
        if len(whole) < place[0] + place[1].size:
            self._note(f"{spec.full_name} {count} is too short for {rule.field}")
            return
        old, new = store(whole, place, rule, self._draw)
        self._note(f"{spec.full_name} {count}: {rule.field} {old} became {new}")


def rewrite_port(whole: bytearray, port: int) -> int:
    """Write a listen port into a whole HELLO frame, and return the one it had."""
    place = field_place(HELLO, "listen_port", "upstream")
    assert place is not None
    at, form, _ = place
    if len(whole) < at + form.size:
        return 0
    old = int(form.unpack_from(whole, at)[0])
    form.pack_into(whole, at, port)
    return old


def rewrite_route(spec: FrameSpec, whole: bytearray, host: str) -> bytearray:
    """Return a WORK frame whose route names one host, under which all hops are met.

    A frame that cannot be read stays as it is.
    """
    reading = read(spec, whole, dialect="upstream")
    if not reading.whole:
        return whole
    values = dict(reading.values)
    values["route"] = [
        {**record, "host": host, "host_len": len(host)} for record in values["route"]
    ]
    values.pop("route_bytes", None)
    try:
        return bytearray(b"".join(build(spec, values, dialect="upstream")))
    except SchemaError:
        return whole
