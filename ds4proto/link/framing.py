"""Bytes in any split in, frames out: the incremental framer of one direction.

Whole frames in one buffer take the fast path of ``_whole_frames``; what is cut goes
through ``Assembly``; after a loss ``Search`` looks for the next header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ds4proto.link.assembly import STREAM_FROM, Assembly, surplus, through_sink
from ds4proto.link.events import (
    Direction,
    Ended,
    Event,
    FrameReceived,
    Skipped,
    Violation,
)
from ds4proto.link.framing_problems import FramingProblems
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.raw import RawStream
from ds4proto.link.search import HeaderForm, Search
from ds4proto.link.sink import SinkFactory
from ds4proto.link.table import Entry, direct_of, table_of
from ds4proto.schema.fast import Odd, struct_of
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import Reading, header_of, read_body

GapReason = Literal["lost", "not captured"]
OnFrame = Callable[[FrameReceived], FrameReceived]
OnUnknown = Callable[[int, int], str | None]
OnOdd = Callable[[Entry, memoryview, Reading], str | None]


class Framer:
    """One direction of a header-framed stream (DS4D, or DS4T control).

    Parameters
    ----------
    protocol : {"DS4D", "DS4T"}
    dialect : str
        Dialect to read under; ``set_dialect`` changes it between frames.
    direction : {"a>b", "b>a"}
        Copied into every event.
    sink : callable, optional
        Where bulk tails go, see ``ds4proto.link.sink``.
    limits : Limits
        Caps on announced lengths.
    auto_resync : bool
        True searches for the next header after a loss by itself; False stays lost
        until ``resync`` is called.
    stream_offset : int
        Offset of the first byte that will be fed.
    on_frame : callable, optional
        Called with each frame before it is handed out; returns it, with problems of
        its context added. It may call ``set_dialect``.
    on_unknown : callable, optional
        Called with type number and body length of a frame that the dialect does not
        have; may return the dialect to go on with.
    on_odd : callable, optional
        Called with entry, body and reading of a frame (up to 64 KiB) that has
        problems; may return the dialect to read it with.
    on_loss : callable, optional
        Called when frames may have been missed: what they said is not known.

    Notes
    -----
    The events depend on the bytes alone, never on how they were split. Every byte
    fed, or reported as a gap, ends up in exactly one ``FrameReceived.length`` or
    ``Skipped.length`` once the stream has ended.
    """

    def __init__(
        self,
        protocol: Literal["DS4D", "DS4T"],
        *,
        dialect: str,
        direction: Direction = "a>b",
        sink: SinkFactory | None = None,
        limits: Limits = DEFAULT_LIMITS,
        auto_resync: bool = False,
        stream_offset: int = 0,
        on_frame: OnFrame | None = None,
        on_unknown: OnUnknown | None = None,
        on_odd: OnOdd | None = None,
        on_loss: Callable[[], None] | None = None,
    ) -> None:
        self.protocol = protocol
        self.direction: Direction = direction
        self.limits = limits
        self.auto_resync = auto_resync
        self._sink = sink
        self._on_frame = on_frame
        self._on_unknown = on_unknown
        self._on_odd = on_odd
        self._on_loss = on_loss
        layout = header_of(protocol)
        self._header = struct_of(layout, "*")
        self._say = FramingProblems(protocol, layout, self._header.size, limits)
        self._magic = next(s.const or 0 for s in layout.fields if s.path == "magic")
        self._magic_bytes = self._header.pack(self._magic, 0, 0)[:4]
        self._offset = stream_offset  # of the next byte to come
        self._head = bytearray()
        self._body: Assembly | None = None
        self._raw: RawStream | None = None
        self._skip: tuple[int, int, str] | None = None  # start, end, reason
        self._search: Search | None = None
        self._lost: tuple[int, str] | None = None  # start, reason
        self._tail: bytearray | None = None  # what came since the loss, for ``resync``
        self._last: tuple[str, int] | None = None
        self._ended = False
        self.set_dialect(dialect)

    def set_dialect(self, dialect: str) -> None:
        """Read the frames from here on under another dialect."""
        self.dialect = dialect
        self._name = dialect.rstrip("?")
        self._table = table_of(self.protocol, dialect, self.limits)
        self._direct = direct_of(self._table, self._name, self._sink is not None)
        self._form = HeaderForm(
            self._header, self._magic_bytes, self._table, self.limits.held
        )

    @property
    def lost(self) -> bool:
        """True after a fatal violation, until a header was found again."""
        return self._lost is not None or self._search is not None

    @property
    def offset(self) -> int:
        """Stream offset of the next byte to come."""
        return self._offset

    @property
    def pending(self) -> int:
        """Bytes fed that no event accounts for yet."""
        start = self._pending_from()
        return 0 if start is None else self._offset - start

    @property
    def at_boundary(self) -> bool:
        """True between two frames."""
        return self._pending_from() is None

    def _pending_from(self) -> int | None:
        if self._search is not None:
            return self._search.start
        if self._lost is not None:
            return self._lost[0]
        if self._body is not None:
            return self._body.start
        if self._raw is not None:
            return self._raw.frame.stream_offset
        if self._skip is not None:
            return self._skip[0]
        return self._offset - len(self._head) if self._head else None

    def feed(self, data: Buf | None, now: float) -> list[Event]:
        """Take bytes; None is the end of the stream. Views are not kept after it."""
        out: list[Event] = []
        if data is None:
            self._end(now, out)
        else:
            self._run(memoryview(data).cast("B"), now, out)
        return out

    def gap(self, nbytes: int, now: float, reason: GapReason = "lost") -> list[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        out: list[Event] = []
        if nbytes <= 0:
            return out
        word = "gap" if reason == "lost" else "not captured"
        if self._body is not None and self._body.gap(nbytes):
            self._offset += nbytes
            if not self._body.left:
                self._finish_body(now, out)
        elif self._raw is not None and self._raw.gap(nbytes):
            self._offset += nbytes
            self._finish_raw(now, out)
        elif self._skip is not None and self._offset + nbytes <= self._skip[1]:
            self._offset += nbytes
            self._finish_skip(now, out)
        elif self._search is not None:
            self._offset += nbytes
            if self._search.end == self._search.start:
                self._search.reason = word
            self._search.break_at(nbytes)
        else:
            start = self._pending_from()
            start = self._offset if start is None else start
            self._drop_partial()
            self._offset += nbytes
            self._search = Search(start, self._offset, word)
            self._missed()
        return out

    def resync(self, now: float, reason: str = "not a frame") -> list[Event]:
        """Search for the next true header, from the point of the loss on.

        Also starts a search at a boundary, where a capture begins in mid-stream;
        `reason` is then said of the bytes before the header.
        """
        out: list[Event] = []
        if self._search is not None:
            return out
        if self._lost is not None:
            start, reason = self._lost
            held, self._tail = self._tail or bytearray(), None
            self._lost = None
            self._search = Search(start, self._offset - len(held), reason)
            self._offset -= len(held)
            self._run(memoryview(held), now, out)
        elif self._pending_from() is None:
            self._search = Search(self._offset, self._offset, reason)
        return out

    def _run(self, view: memoryview, now: float, out: list[Event]) -> None:
        at = 0
        while at < len(view):
            if self._body is not None:
                at += self._took(self._body.take(view[at:]))
                if not self._body.left:
                    self._finish_body(now, out)
            elif self._raw is not None:
                at += self._took(self._raw.take(view[at:]))
                self._finish_raw(now, out)
            elif self._skip is not None:
                at += self._took(min(self._skip[1] - self._offset, len(view) - at))
                self._finish_skip(now, out)
            elif self._search is not None:
                self._search.take(view[at:])
                self._took(len(view) - at)
                found = self._search.find(self._form, ended=False)
                if found is None:
                    return
                view, at = self._found(found, now, out), 0
            elif self._lost is not None:
                self._keep(view[at:])
                self._took(len(view) - at)
                return
            elif self._head:
                took = min(self._header.size - len(self._head), len(view) - at)
                self._head += view[at : at + took]
                at += self._took(took)
                if len(self._head) == self._header.size:
                    head, self._head = bytes(self._head), bytearray()
                    self._begin(head, now, out)
            else:
                at = self._whole_frames(view, at, now, out)

    def _keep(self, view: memoryview) -> None:
        """Keep what comes after a loss, up to the limit, for a later ``resync``."""
        if self._tail is not None:
            if len(self._tail) + len(view) > self.limits.held:
                self._tail = None
            else:
                self._tail += view

    def _took(self, count: int) -> int:
        self._offset += count
        return count

    def _whole_frames(
        self, view: memoryview, at: int, now: float, out: list[Event]
    ) -> int:
        """Take frames that lie whole in the buffer; return how far that went."""
        unpack, head = self._header.unpack_from, self._header.size
        magic_due, total, direct = self._magic, len(view), self._direct
        shift, on_frame = self._offset - at, self._on_frame
        name = start = None
        while total - at >= head:
            magic, code, size = unpack(view, at)
            found = direct.get(code)
            body = at + head
            end = body + size
            if magic != magic_due or found is None or size > found.most or end > total:
                if name is not None and start is not None:
                    self._last = (name, start)
                self._offset = shift + body
                self._begin(view[at:body], now, out)
                return body
            start = at + shift
            values: dict[str, Any] = {}
            try:
                values, stop = found.read(view, body, end)
                sound = stop == end and found.sound(values)
            except Odd:
                sound = False
            at = end
            self._offset = at + shift
            if not sound or found.streams:
                self._whole(found.entry, view[body:end], start, now, out)
                name = None  # ``_whole`` noted a later frame
                if self._direct is not direct:
                    return at
                continue
            payload = None if found.payload is None else values[found.payload]
            frame = FrameReceived(
                now,
                found.spec,
                self.dialect,
                values,
                payload,
                start,
                end - body + head,
                self.direction,
            )
            name = found.name
            if on_frame is None:
                out.append(frame)
            else:
                out.append(on_frame(frame))
                if self._direct is not direct:
                    self._last = (name, start)
                    return at
        if name is not None and start is not None:
            self._last = (name, start)
        if at < total:
            self._head += view[at:]
            self._offset += total - at
        return total

    def _whole(
        self, entry: Entry, body: memoryview, start: int, now: float, out: list[Event]
    ) -> None:
        entry, reading = self._read(entry, body, start)
        if entry.bulk and self._sink is not None:
            if len(body) > STREAM_FROM and surplus(entry, body) > self.limits.small:
                self._refuse(entry, start, len(body), now, out)
                return
            through_sink(entry, body, self._sink, reading)
        self._emit(entry, reading, start, len(body), now, out)

    def _read(
        self, entry: Entry, body: memoryview, start: int
    ) -> tuple[Entry, Reading]:
        name = entry.dialect
        reading = read_body(entry.spec, body, dialect=name, stream_offset=start)
        if not reading.problems or self._on_odd is None or len(body) > STREAM_FROM:
            return entry, reading
        dialect = self._on_odd(entry, body, reading)
        if dialect is None:
            return entry, reading
        self.set_dialect(dialect)
        code = entry.spec.code
        entry = entry if code is None else self._table.get(code, entry)
        name = entry.dialect
        return entry, read_body(entry.spec, body, dialect=name, stream_offset=start)

    def _begin(self, head: bytes | memoryview, now: float, out: list[Event]) -> None:
        """Judge a header that was just consumed, and prepare for its body."""
        magic, code, size = self._header.unpack(head)
        start = self._offset - self._header.size
        if magic != self._magic:
            problem = self._say.bad_magic(start, self._magic, magic)
            self._lose(problem, "not a frame", head, now, out)
            return
        entry = self._table.get(code)
        if entry is None and self._on_unknown is not None:
            dialect = self._on_unknown(code, size)
            if dialect is not None:
                self.set_dialect(dialect)
                entry = self._table.get(code)
        name = f"TYPE_{code}" if entry is None else entry.spec.name
        most = self.limits.unknown if entry is None else entry.most
        if size > most:
            problem = self._say.too_long(start, name, most, size)
            self._lose(problem, "too long", head, now, out)
        elif entry is None:
            problem = self._say.unknown(start, code, size, self._table, self.dialect)
            out.append(Violation(now, problem, False, self.direction))
            self._skip = (start, self._offset + size, "unknown type")
            self._finish_skip(now, out)
        else:
            try:
                self._body = Assembly(
                    entry, start, size, self._sink, self.limits.small, self._read
                )
            except OSError:  # the mapping's only error: no address space
                self._missed()
                problem = self._say.no_room(start, entry, size)
                out.append(Violation(now, problem, False, self.direction))
                self._skip = (start, self._offset + size, "too long")
            if size == 0:
                self._finish_body(now, out)

    def _finish_body(self, now: float, out: list[Event]) -> None:
        body, self._body = self._body, None
        if body is None:
            return
        if body.refused:
            body.abandon()
            self._refuse(body.entry, body.start, body.size, now, out)
            return
        reading = body.finish()
        self._emit(body.entry, reading, body.start, body.size, now, out, body.missing)

    def _finish_raw(self, now: float, out: list[Event]) -> None:
        if self._raw is not None and not self._raw.left:
            frame, self._raw = self._raw.finish(now), None
            out.append(frame if self._on_frame is None else self._on_frame(frame))

    def _finish_skip(self, now: float, out: list[Event]) -> None:
        if self._skip is not None and self._offset >= self._skip[1]:
            start, end, reason = self._skip
            self._skip = None
            out.append(Skipped(now, start, end - start, reason, self.direction))

    def _refuse(
        self, entry: Entry, start: int, size: int, now: float, out: list[Event]
    ) -> None:
        """Drop a frame whose end is known but which leaves too much to collect."""
        self._missed()
        problem = self._say.surplus(start, entry, size)
        length = self._header.size + size
        out.append(Violation(now, problem, False, self.direction))
        out.append(Skipped(now, start, length, "too long", self.direction))

    def _emit(
        self,
        entry: Entry,
        reading: Reading,
        start: int,
        size: int,
        now: float,
        out: list[Event],
        missing: int = 0,
    ) -> None:
        values, problems = reading
        spec = entry.spec
        if entry.dialect != self._name:
            retired = self._say.retired(start, entry, self.dialect)
            problems = (retired, *problems)
        payload = None if entry.payload is None else values.get(entry.payload)
        frame = FrameReceived(
            now,
            spec,
            self.dialect,
            values,
            payload if isinstance(payload, memoryview) else None,
            start,
            self._header.size + size,
            self.direction,
            problems,
            missing,
        )
        self._last = (spec.full_name, start)
        if spec.raw_follows is not None and reading.whole:
            nbytes = int(spec.raw_follows(values))
            if nbytes > self.limits.raw:
                problem = self._say.raw_too_long(start, entry, nbytes)
                out.append(frame)
                self._lose(problem, "too long", b"", now, out)
                return
            if nbytes:
                self._raw = RawStream(frame, nbytes, self._sink)
                return
        out.append(frame if self._on_frame is None else self._on_frame(frame))

    def _lose(
        self,
        problem: Problem,
        reason: str,
        head: bytes | memoryview,
        now: float,
        out: list[Event],
    ) -> None:
        """Lose the stream at ``head``, which was consumed and may hide a header."""
        self._missed()
        out.append(Violation(now, problem, True, self.direction))
        start = self._offset - len(head)
        if self.auto_resync:
            self._search = Search(start, min(start + 1, self._offset), reason)
            self._search.take(memoryview(head)[1:])
        else:
            self._lost = (start, reason)
            self._tail = bytearray(head[1:])

    def _missed(self) -> None:
        if self._on_loss is not None:
            self._on_loss()

    def _found(self, held: bytes, now: float, out: list[Event]) -> memoryview:
        """End a search; return the bytes from the found header on."""
        search, self._search = self._search, None
        if search is not None:
            self._skipped(search, search.at, now, out)
            self._offset = search.at
        return memoryview(held)

    def _skipped(self, search: Search, upto: int, now: float, out: list[Event]) -> None:
        if upto > search.start:
            length = upto - search.start
            out.append(
                Skipped(now, search.start, length, search.reason, self.direction)
            )

    def _drop_partial(self) -> None:
        """Forget the frame in progress; its bytes will be skipped."""
        if self._body is not None:
            self._body.abandon()
        if self._raw is not None:
            self._raw.abandon()
        self._body = self._raw = self._skip = self._lost = None
        self._head.clear()
        self._tail = None

    def _end(self, now: float, out: list[Event]) -> None:
        if self._ended:
            return
        if self._search is not None:
            found = self._search.find(self._form, ended=True)
            if found is not None:
                self._run(self._found(found, now, out), now, out)
                self._end(now, out)
                return
        clean = self.at_boundary
        if self._search is not None:
            self._skipped(self._search, self._offset, now, out)
            self._search = None
        elif self._lost is not None:
            start, reason = self._lost
            length = self._offset - start
            out.append(Skipped(now, start, length, reason, self.direction))
            self._lost = None
        elif (start_of_part := self._pending_from()) is not None:
            self._truncated(start_of_part, now, out)
        self._ended = True
        out.append(Ended(now, self._offset, clean, self.direction))

    def _truncated(self, start: int, now: float, out: list[Event]) -> None:
        """Say what the stream broke off in."""
        length = self._offset - start
        within = None
        if self._body is not None:
            body = self._body
            within = (body.entry.spec.name, body.size, body.have)
        elif self._raw is not None:
            raw = self._raw
            within = (f"{raw.frame.spec.name}.raw", raw.nbytes, raw.nbytes - raw.left)
        elif self._skip is not None:
            head = self._header.size
            within = ("unknown type", self._skip[1] - start - head, length - head)
        problem = self._say.cut(start, length, within, self._last)
        self._drop_partial()
        out.append(Violation(now, problem, True, self.direction))
        out.append(Skipped(now, start, length, "truncated", self.direction))
