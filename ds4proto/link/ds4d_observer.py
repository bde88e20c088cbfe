"""Both directions of one DS4D connection: control, forward or snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ds4proto.link.ds4d_answers import problem_in
from ds4proto.link.ds4d_context import Context
from ds4proto.link.ds4d_snapshots import FIRST_ID
from ds4proto.link.events import BEGAN_LATE, Direction, Event, FrameReceived
from ds4proto.link.framing import Framer, GapReason, OnUnknown
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.sink import SinkFactory
from ds4proto.link.table import Entry, adds_up, table_of
from ds4proto.schema.dialects import DEFAULT_DS4D
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.ds4d_private import DIALECT as PRIVATE_DIALECT
from ds4proto.schema.ds4d_private import FORMATS
from ds4proto.schema.ds4d_private_frames import PRIVATE_FRAMES
from ds4proto.schema.ds4d_work import KV_SPANS
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import Reading, read_body

_RIVALS = {
    "HELLO": ("local-decode", "ds4proto"),
    "WORK": ("fodelf",),
    "RESULT": ("fodelf",),
}
"""Dialects in which a frame that does not add up may be whole."""
_PRIVATE_TYPES = frozenset(spec.code for spec in PRIVATE_FRAMES)
"""Types that no other dialect has; their connections carry no HELLO."""
_WIDTH_FIELDS = ("input_hc_bits", "payload_bits")
_DIRECTIONS: tuple[Direction, Direction] = ("a>b", "b>a")
_HELLO_V3_TYPES = (11, 12, 13)
_TYPE_10 = 10
_TO_WORKER = frozenset({"WORK", "SNAPSHOT_SAVE_REQ", "SNAPSHOT_LOAD_BEGIN"}) | {
    "KV_CHECK",
    "KV_FETCH",
    "LOCAL_GENERATE",
}
_FROM_WORKER = frozenset({"HELLO", "RESULT", "SNAPSHOT_BEGIN", "SNAPSHOT_DONE"}) | {
    "LOCAL_ANSWER",
    "LOCAL_TOKENS",
}


class Ds4dObserver:
    """Watches a DS4D connection.

    Parameters
    ----------
    candidates : list of (str, str)
        Dialects that the first bytes allow, the likeliest first, each with what
        would settle it.
    sink, limits
        As for ``Framer``.
    settled : bool
        True reads under the first candidate whatever the frames say.
    complete : bool
        False searches for the first header: the capture began in mid-stream.
    late : bool
        True where earlier requests may not have been captured.

    Notes
    -----
    The end that sent HELLO is the worker; without one, WORK and the snapshot
    requests travel towards it, RESULT, BEGIN and DONE away from it.
    """

    protocol = "DS4D"

    def __init__(
        self,
        candidates: list[tuple[str, str]],
        *,
        sink: SinkFactory | None = None,
        limits: Limits = DEFAULT_LIMITS,
        settled: bool = False,
        complete: bool = True,
        late: bool = False,
    ) -> None:
        self._candidates = candidates
        self._settled = settled
        self._limits = limits
        self._context = Context()
        self._worker: Literal["a", "b"] | None = None
        self._sender_is: str | None = None
        self._seen_hello: set[Direction] = set()
        self._previous: dict[Direction, str | None] = {"a>b": None, "b>a": None}
        self._framers = {
            direction: Framer(
                "DS4D",
                dialect=candidates[0][0],
                direction=direction,
                sink=sink,
                limits=limits,
                auto_resync=True,
                on_frame=self._frame,
                on_unknown=self._unknown_in(direction),
                on_odd=self._odd,
                on_loss=self._context.forget,
            )
            for direction in _DIRECTIONS
        }
        if late or not complete:
            self._context.forget()
        if not complete:
            for framer in self._framers.values():
                framer.resync(0.0, BEGAN_LATE)

    @property
    def dialect(self) -> str:
        """Dialect that the frames are read under so far."""
        return self._candidates[0][0]

    @property
    def candidates(self) -> list[tuple[str, str]]:
        """Dialects still possible, each with what would settle it."""
        return list(self._candidates)

    def role_of(self, end: Literal["a", "b"]) -> str | None:
        """Return ``coordinator`` or ``worker``, or None while nothing shows it.

        The end that sends WORK is called a coordinator where the WORK is for the
        first hop of the route, else a worker that forwards.
        """
        if self._worker is None:
            return None
        return "worker" if end == self._worker else self._sender_is or "coordinator"

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""
        return iter(self._framers[direction].feed(data, now))

    def gap(
        self,
        direction: Direction,
        nbytes: int,
        now: float,
        reason: GapReason = "lost",
    ) -> Iterator[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        return iter(self._framers[direction].gap(nbytes, now, reason))

    def _frame(self, frame: FrameReceived) -> FrameReceived:
        name, direction = frame.spec.name, frame.direction
        problems = list(self._ends(frame))
        self._note_snapshot_id(frame)
        problems += self._context.judge(frame)
        self._previous[direction] = name
        if not problems:
            return frame
        return replace(frame, problems=frame.problems + tuple(problems))

    def _ends(self, frame: FrameReceived) -> Iterator[Problem]:
        """Learn which end is the worker; judge who may send what."""
        name, direction = frame.spec.name, frame.direction
        sender: Literal["a", "b"] = "a" if direction == "a>b" else "b"
        receiver: Literal["a", "b"] = "b" if direction == "a>b" else "a"
        if name == "HELLO":
            if direction in self._seen_hello and self._previous[direction] != "HELLO":
                yield problem_in(
                    frame,
                    "DS4D-HELLO-20",
                    "model_id",
                    "one HELLO, as the first frame of its connection",
                    "another one after other frames",
                    "the 1 June text repeats HELLO on an idle link",
                )
            self._seen_hello.add(direction)
            if self._worker is None:
                self._worker = sender
                self._sender_is = "coordinator"
        elif name in _TO_WORKER:
            if self._worker is None:
                self._worker = receiver
                first = frame.fields.get("route_index", 0) == 0
                self._sender_is = "coordinator" if first else "worker"
            elif self._worker == sender:
                yield self._wrong_way(frame, "DS4D-RESULT-03", "towards the worker")
        elif name in _FROM_WORKER:
            if self._worker is None:
                self._worker = sender
            elif self._worker != sender:
                yield self._wrong_way(frame, "DS4D-WORKER-02", "from the worker")

    def _wrong_way(self, frame: FrameReceived, clause: str, way: str) -> Problem:
        return Problem(
            clause,
            f"{frame.spec.name}.header.type",
            4,
            frame.stream_offset + 4,
            f"{frame.spec.name} {way} only",
            f"the direction {frame.direction}",
            "HELLO and WORK show which end is the worker",
        )

    def _note_snapshot_id(self, frame: FrameReceived) -> None:
        """Settle the dialect: a snapshot id below 2^63 marks the 1 June text."""
        if frame.spec.name not in ("SNAPSHOT_SAVE_REQ", "SNAPSHOT_LOAD_BEGIN"):
            return
        below = frame.fields.get("request", FIRST_ID) < FIRST_ID
        if below and self.dialect.rstrip("?") == DEFAULT_DS4D:
            self._settle("june1")
        elif not below:
            self._candidates = [
                c for c in self._candidates if c[0] != "june1" or self._settled
            ] or self._candidates

    def _unknown_in(self, direction: Direction) -> OnUnknown:
        def unknown(code: int, size: int) -> str | None:
            return self._unknown(direction, code, size)

        return unknown

    def _unknown(self, direction: Direction, code: int, size: int) -> str | None:
        """Find the dialect of a type that the present one does not have."""
        if self._settled:
            return None
        if code in _PRIVATE_TYPES:
            return self._settle(PRIVATE_DIALECT)
        if code in _HELLO_V3_TYPES and self._seen_hello:
            return self._settle("hello-v3")
        # type 10 has three meanings; only its place right behind HELLO tells one
        after_hello = self._previous[direction] == "HELLO"
        ipc = table_of("DS4D", "anyei", self._limits)[_TYPE_10]
        if code == _TYPE_10 and after_hello and size >= ipc.least:
            return self._settle("anyei")
        return None

    def _odd(self, entry: Entry, body: memoryview, reading: Reading) -> str | None:
        """Find the dialect of a frame that the present one cannot read whole."""
        if not self._settled and _is_private(entry, body, reading):
            return self._settle(PRIVATE_DIALECT)
        if self._settled or (reading.whole and entry.spec.name != "HELLO"):
            return None
        code = entry.spec.code
        if code is None or adds_up(entry, body, len(body)):
            return None
        for rival in _RIVALS.get(entry.spec.name, ()):
            there = table_of("DS4D", rival, self._limits)[code]
            fits = rival != self.dialect.rstrip("?") and len(body) >= there.least
            if fits and adds_up(there, body, len(body)):
                return self._settle(rival)
        return None

    def _settle(self, dialect: str) -> str:
        entry = find_dialect(dialect)
        rest = [c for c in self._candidates if c[0] != dialect]
        self._candidates = [(dialect, entry.settles), *rest][:1]
        for framer in self._framers.values():
            if framer.dialect != dialect:
                framer.set_dialect(dialect)
        return dialect


def _is_private(entry: Entry, body: memoryview, reading: Reading) -> bool:
    """Tell whether a frame names a format or asks for KV, and is sound so."""
    v = reading.values
    formats = any(v.get(name) in FORMATS for name in _WIDTH_FIELDS)
    if not formats and not (entry.spec.name == "WORK" and v.get("flags", 0) & KV_SPANS):
        return False
    return not read_body(entry.spec, body, dialect=PRIVATE_DIALECT).problems


def settled_candidates(dialect: str) -> list[tuple[str, str]]:
    """Return the candidate list of a dialect that the caller chose."""
    return [(dialect, find_dialect(dialect).settles)]
