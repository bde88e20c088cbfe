"""One direction of the gate stream: headers without lengths, cut into frames."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.events import (
    BEGAN_LATE,
    Direction,
    Ended,
    Event,
    FrameReceived,
    Skipped,
    Violation,
)
from ds4proto.link.framing import GapReason
from ds4proto.link.gate_form import MAGICS, Due, Form, Header
from ds4proto.link.gate_payload import PATH, Gate
from ds4proto.link.gate_rules import cut_short, judge, no_header, too_long, unequal
from ds4proto.link.gate_search import GateSearch, later_gate
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.pair import TpPair
from ds4proto.link.sink import SinkFactory
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import frame, read_body

_MAGIC = 4
_UNKNOWN_STRIDE = 4
_EMPTY = memoryview(b"")


class GateStream:
    """Cuts one direction of a data connection into gates.

    Parameters
    ----------
    pair : TpPair
        Row width, schedule, plan, and what the other direction showed.
    direction : {"a>b", "b>a"}
    sink, limits
        As for ``Framer``.
    dialect : str or None
        Read under this dialect whatever the hello said.
    complete : bool
        False where the capture began in mid-stream.
    """

    def __init__(
        self,
        pair: TpPair,
        direction: Direction,
        *,
        sink: SinkFactory | None = None,
        limits: Limits = DEFAULT_LIMITS,
        dialect: str | None = None,
        complete: bool = True,
    ) -> None:
        self._pair = pair
        self._direction: Direction = direction
        self._sink = sink
        self._limits = limits
        self._dialect = dialect
        self._form = Form(dialect or pair.dialect or "v14")
        self._due = Due() if complete else Due.unknown()
        self._held = b""
        self._offset = 0  # stream offset of the first byte not yet consumed
        self._gate: Gate | None = None
        self._lost: tuple[int, str] | None = None  # start, reason
        self._last: tuple[str, int] | None = None
        self._ended = False
        if not complete:
            self._lost = (0, BEGAN_LATE)

    def feed(self, data: Buf | None, now: float) -> list[Event]:
        """Take bytes; None is the end of the stream."""
        out: list[Event] = []
        if data is None:
            self._end(now, out)
            return out
        view = memoryview(data).cast("B")
        if self._held:
            view = memoryview(self._held + view)
            self._held = b""
        rest = self._run(view, now, out, ended=False)
        self._held = bytes(rest)
        return out

    def gap(self, nbytes: int, now: float, reason: GapReason = "lost") -> list[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        out: list[Event] = []
        if nbytes <= 0:
            return out
        held, self._held = memoryview(self._held), b""
        gate = self._gate
        word = "gap" if reason == "lost" else "not captured"
        if self._lost is None and gate is not None:
            end = gate.got + len(held) + nbytes
            if gate.early_stands(end):
                held = self._run(held, now, out, ended=False)
                gate = self._gate
        if self._lost is None and gate is not None:
            end = gate.got + len(held) + nbytes
            if gate.want is None or end <= gate.want:
                gate.take(held)
                gate.gap(nbytes)
                gate.scan = max(gate.scan, -(-end // gate.stride) * gate.stride)
                if gate.prefer is not None and gate.prefer < end:
                    gate.prefer = None  # what stands there was not seen
                self._offset += len(held) + nbytes
                self._run(_EMPTY, now, out, ended=False)
                return out
        start = self._offset if gate is None else gate.start
        if self._lost is not None:
            start = self._lost[0]
            if self._offset > start or held:
                word = self._lost[1]
        self._drop_gate()
        self._offset += len(held) + nbytes
        self._lost = (start, word)
        return out

    # -- the three states ----------------------------------------------------------

    def _run(
        self, view: memoryview, now: float, out: list[Event], *, ended: bool
    ) -> memoryview:
        """Go through ``view``; return what could not be used yet."""
        at = 0
        while True:
            gate = self._gate
            if self._lost is not None:
                step = self._scan(view, at, now, out, ended=ended)
            elif gate is None:
                step = self._begin(view, at, now, out)
            elif gate.want is not None:
                step = self._certain(gate, gate.want, view, at, now, out)
            else:
                step = self._uncertain(gate, view, at, now, out)
            if step is None:
                return view[at:]
            self._offset += step - at
            at = step

    def _begin(
        self, view: memoryview, at: int, now: float, out: list[Event]
    ) -> int | None:
        """Read the next header, or a barrier byte."""
        if self._form.dialect != (self._dialect or self._pair.dialect or "v14"):
            self._form = Form(self._dialect or self._pair.dialect or "v14")
        form = self._form
        left = len(view) - at
        if not left:
            return None
        if self._pair.rdma and not self._may_be_magic(view, at):
            return self._barrier(view, at, now, out)
        if not self._may_be_magic(view, at):
            self._lose(_no_magic(view, at), now, out)
            return at + 1
        if left < form.size:
            return None
        header = form.read(view, at)
        if header is None or form.spec(header.name) is None:
            self._lose(bytes(view[at : at + form.size]), now, out)
            return at + 1
        self._open(header, view[at : at + form.size], now, out)
        return at + (form.size if self._lost is None else 1)

    @staticmethod
    def _may_be_magic(view: memoryview, at: int) -> bool:
        head = bytes(view[at : at + _MAGIC])
        return any(magic.startswith(head) for magic in MAGICS)

    def _open(
        self,
        header: Header,
        raw: memoryview,
        now: float,
        out: list[Event],
    ) -> None:
        form, pair, due = self._form, self._pair, self._due
        declared = form.spec(header.name)
        if declared is None:
            return
        reading = read_body(
            declared, raw, dialect=form.dialect, stream_offset=self._offset
        )
        number = due.number(header)
        problems = reading.problems + tuple(
            judge(header, due, pair, declared, form.dialect, self._offset)
        )
        want, prefer = self._length(header, number)
        cap = self._limits.body("DS4B.GATE_BULK")
        if want is not None and want > cap:
            problem = too_long(header, declared, self._offset, form.size, cap, want)
            out.append(Violation(now, problem, True, self._direction))
            self._lost = (self._offset, "too long")
            return
        due.advance(header, jumps=pair.bulk_on_rdma)
        stride = pair.vector or _UNKNOWN_STRIDE
        self._gate = Gate(
            header,
            declared,
            reading.values,
            problems,
            self._offset,
            form.size,
            stride,
            want,
            prefer,
            stride if pair.vector else 0,
            number,
        )
        if self._sink is not None and want != 0:
            self._gate.sink = self._sink(
                declared, reading.values, PATH, want if want is not None else prefer
            )

    def _length(self, header: Header, number: int) -> tuple[int | None, int | None]:
        """Return the certain and the expected length of a payload."""
        pair = self._pair
        if header.nbytes is not None:
            return header.nbytes, None
        row = header.name == "DS4T.GATE_ROW"
        if not row and pair.bulk_on_rdma:
            return 0, None
        vector = pair.vector
        if vector is None:
            return None, None
        if row:
            return vector, None
        if header.name == "DS4B.GATE_BATCH":
            return header.word * vector, None
        rows = None
        if pair.lockstep is not None:
            rows = pair.lockstep.expected_rows(number, header.layer)
        return None, None if rows is None else rows * vector

    def _certain(
        self,
        gate: Gate,
        want: int,
        view: memoryview,
        at: int,
        now: float,
        out: list[Event],
    ) -> int | None:
        """Take payload up to a length that is certain."""
        took = min(len(view) - at, want - gate.got)
        piece = view[at : at + took]
        if not gate.got and took == want and gate.sink is None:
            self._finish(gate, piece, now, out)
            return at + took
        if took:
            gate.take(piece)
        if gate.got == want:
            self._finish(gate, None, now, out)
            return at + took
        return at + took if took else None

    def _uncertain(
        self, gate: Gate, view: memoryview, at: int, now: float, out: list[Event]
    ) -> int | None:
        """Take payload while the header behind it is looked for."""
        total = gate.got + len(view) - at
        form = self._form
        while gate.scan + form.size <= total:
            header = None
            if gate.scan >= gate.got:
                header = form.read(view, at + gate.scan - gate.got)
            fits = header is not None and self._due.fits(header, self._pair)
            settled = gate.weigh(fits=fits, magic=header is not None)
            if settled is not None:
                gate.want = settled
                gate.proven = fits or settled != gate.scan
                return at
            gate.scan += gate.stride
        if gate.missing and later_gate(view[at:], form, self._due, self._pair):
            # the gap hid the end of this gate, and perhaps more
            self._drop_gate()
            self._lost = (gate.start, "gap")
            return at
        free = gate.free(total)
        if total - free > self._limits.held:
            if gate.early is not None:
                gate.want, gate.proven = gate.early, True
            else:
                gate.prefer = None
            return at
        took = free - gate.got
        if took:
            gate.take(view[at : at + took])
        if gate.got > self._limits.body("DS4B.GATE_BULK"):
            self._too_long(gate, gate.got, now, out)
            return at + took
        return at + took if took else None

    # -- outcomes ------------------------------------------------------------------

    def _finish(
        self, gate: Gate, piece: memoryview | None, now: float, out: list[Event]
    ) -> None:
        length = gate.want or 0
        payload: memoryview | None = None
        if gate.sink is not None:
            gate.fields[PATH] = gate.sink.close()
        else:
            payload = piece
            if payload is None:
                payload = memoryview(gate.kept) if gate.kept else _EMPTY
            gate.fields[PATH] = payload
        self._gate = None
        self._last = (gate.spec.full_name, gate.start)
        problems = gate.problems + tuple(self._learn(gate, length))
        out.append(
            FrameReceived(
                now,
                gate.spec,
                self._form.dialect,
                gate.fields,
                payload,
                gate.start,
                gate.size + length,
                self._direction,
                problems,
                gate.missing,
            )
        )

    def _learn(self, gate: Gate, length: int) -> Iterator[Problem]:
        """Tell the pair what a gate showed; say where the two ranks differ."""
        pair = self._pair
        row = gate.header.name == "DS4T.GATE_ROW"
        if pair.vector is None:
            if row and gate.proven and length:
                pair.n_embd = length // _UNKNOWN_STRIDE
            return
        if row or pair.bulk_on_rdma or pair.lockstep is None:
            return
        rows = length // pair.vector
        other = pair.lockstep.confirmed(gate.due)
        if other is not None and other != rows:
            yield unequal(gate, other, rows)
        proven = gate.proven or gate.header.name == "DS4B.GATE_BATCH"
        layer = gate.header.layer
        pair.lockstep.confirm(gate.due, layer, rows, proven=proven)

    def _barrier(
        self, view: memoryview, at: int, now: float, out: list[Event]
    ) -> int | None:
        """Take one barrier byte of a pair that runs over RDMA."""
        try:
            spec = frame("DS4T.BARRIER", dialect=self._form.dialect)
        except KeyError:
            self._lose(_no_magic(view, at), now, out)
            return at + 1
        reading = read_body(
            spec,
            view[at : at + 1],
            dialect=self._form.dialect,
            stream_offset=self._offset,
        )
        out.append(
            FrameReceived(
                now,
                spec,
                self._form.dialect,
                reading.values,
                None,
                self._offset,
                1,
                self._direction,
                reading.problems,
            )
        )
        self._last = (spec.full_name, self._offset)
        return at + 1

    def _lose(self, head: bytes, now: float, out: list[Event]) -> None:
        """Lose the stream at bytes that are no gate header."""
        problem = no_header(head, self._offset)
        out.append(Violation(now, problem, True, self._direction))
        self._lost = (self._offset, "not a frame")

    def _too_long(self, gate: Gate, length: int, now: float, out: list[Event]) -> None:
        cap = self._limits.body("DS4B.GATE_BULK")
        problem = too_long(gate.header, gate.spec, gate.start, gate.size, cap, length)
        out.append(Violation(now, problem, True, self._direction))
        self._drop_gate()
        self._lost = (gate.start, "too long")

    def _scan(
        self,
        view: memoryview,
        at: int,
        now: float,
        out: list[Event],
        *,
        ended: bool,
    ) -> int | None:
        """Look for the next header after a loss."""
        if self._lost is None:
            return at
        search = GateSearch(
            self._form, self._due, self._pair, self._certain_length, self._limits.held
        )
        found, keep = search.find(bytes(view[at:]), ended=ended)
        if found is None:
            return at + keep if keep else None
        start, reason = self._lost
        stop = self._offset + found
        if stop > start:
            out.append(Skipped(now, start, stop - start, reason, self._direction))
        self._lost = None
        self._due.lose()
        return at + found

    def _certain_length(self, header: Header) -> int | None:
        return self._length(header, header.seq)[0]

    def _drop_gate(self) -> None:
        if self._gate is not None and self._gate.sink is not None:
            self._gate.sink.close()
        self._gate = None

    def _end(self, now: float, out: list[Event]) -> None:
        if self._ended:
            return
        held, self._held = memoryview(self._held), b""
        while True:
            gate = self._gate
            if gate is not None and gate.want is None and self._lost is None:
                if gate.prefer is None:
                    _, gate.prefer = self._length(gate.header, gate.due)
                gate.want = gate.at_end(gate.got + len(held))
                gate.proven = False
            before = self._offset
            held = self._run(held, now, out, ended=True)
            if self._offset == before:
                break
        self._ended = True
        end = self._offset + len(held)
        clean = self._lost is None and self._gate is None and not held
        if self._lost is not None:
            start, reason = self._lost
            if end > start:
                out.append(Skipped(now, start, end - start, reason, self._direction))
        elif not clean:
            self._truncated(held, end, now, out)
        out.append(Ended(now, end, clean, self._direction))

    def _truncated(
        self, held: memoryview, end: int, now: float, out: list[Event]
    ) -> None:
        gate = self._gate
        start = self._offset if gate is None else gate.start
        problem = cut_short(gate, start, end, len(held), self._form.size, self._last)
        self._drop_gate()
        out.append(Violation(now, problem, True, self._direction))
        out.append(Skipped(now, start, end - start, "truncated", self._direction))


def _no_magic(view: memoryview, at: int) -> bytes:
    """Return the bytes at ``at`` up to the first that fits no magic.

    What comes behind it may be at hand or not; a report must not depend on that.
    """
    for count in range(1, _MAGIC):
        head = bytes(view[at : at + count])
        if not any(magic.startswith(head) for magic in MAGICS):
            return head
    return bytes(view[at : at + _MAGIC])
