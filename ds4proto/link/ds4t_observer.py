"""Both directions of the control connection of a TP pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ds4proto.link.ds4t_context import COMMANDS, Context
from ds4proto.link.ds4t_hello_reader import (
    MAGIC_BYTES,
    ROLE_BYTES,
    Found,
    candidates_of,
    measure,
    names_role,
    version_of,
)
from ds4proto.link.events import (
    BEGAN_LATE,
    Direction,
    Ended,
    Event,
    FrameReceived,
    Skipped,
    Violation,
)
from ds4proto.link.framing import Framer, GapReason
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.pair import TpPair
from ds4proto.link.sink import SinkFactory
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4t_hello import HELLO, ROLE_CODES
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import frame_of_code, read

_DIRECTIONS: tuple[Direction, Direction] = ("a>b", "b>a")
_UPGRADES = {"v9": ("v9-late",), "v14": ("v14-odinlink", "v15")}
"""Dialects that a later frame type can show, where the hello leaves them open."""
_MIN_HEAD = 8
_CHECKPOINT_23 = 24


class _Side:
    """One direction: its hello, then its frames."""

    __slots__ = ("ended", "framer", "gapped", "head", "measured", "size")

    def __init__(self) -> None:
        self.head = bytearray()
        self.measured = _MIN_HEAD - 1
        self.size: int | None = None
        self.framer: Framer | None = None
        self.gapped = False
        self.ended = False


class ControlObserver:
    """Watches the control connection of a TP pair.

    Parameters
    ----------
    pair : TpPair
        Shared state; commands and hellos are told to it.
    sink, limits
        As for ``Framer``.
    dialect : str or None
        Read under this dialect whatever the hello says.
    complete : bool
        False where the capture began in mid-stream: a direction that does not begin
        with a hello is searched for frames.
    """

    protocol = "DS4T"

    def __init__(
        self,
        pair: TpPair,
        *,
        sink: SinkFactory | None = None,
        limits: Limits = DEFAULT_LIMITS,
        dialect: str | None = None,
        complete: bool = True,
    ) -> None:
        self._pair = pair
        self._sink = sink
        self._limits = limits
        self._chosen = dialect
        self._context = Context()
        self._roles: dict[str, str] = {}
        self._candidates: list[tuple[str, str]] = []
        self._sides = {"a>b": _Side(), "b>a": _Side()}
        self._complete = complete
        pair.attach_control()
        if not complete:
            self._context.forget()

    @property
    def dialect(self) -> str:
        """Dialect that the frames are read under so far."""
        if self._chosen is not None:
            return self._chosen
        for side in self._sides.values():
            if side.framer is not None:
                return side.framer.dialect
        return self._candidates[0][0] if self._candidates else "v14?"

    @property
    def candidates(self) -> list[tuple[str, str]]:
        """Dialects still possible, each with what would settle it."""
        return list(self._candidates) or [(self.dialect, "a hello")]

    def role_of(self, end: Literal["a", "b"]) -> str | None:
        """Return ``tp-leader`` or ``tp-worker`` as the hello says, else None."""
        return self._roles.get(end)

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""
        side = self._sides[direction]
        if side.framer is not None:
            found = side.framer.feed(data, now)
        elif data is None:
            found = self._hello(direction, side, now, ended=True)
            if side.framer is not None:
                found += side.framer.feed(None, now)
        else:
            side.head += data
            found = self._hello(direction, side, now, ended=False)
        if data is None and not side.ended:
            side.ended = True
            if all(other.ended for other in self._sides.values()):
                self._pair.control_ended()
        return iter(found)

    def gap(
        self,
        direction: Direction,
        nbytes: int,
        now: float,
        reason: GapReason = "lost",
    ) -> Iterator[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""
        side = self._sides[direction]
        found: list[Event] = []
        if side.framer is None:
            # the hello is lost: look for frames behind the gap
            held = bytes(side.head)
            side.head.clear()
            self._start(direction, self._chosen or self.dialect, 0, lost="gap")
            found += side.framer.feed(held, now) if side.framer is not None else []
        if side.framer is not None:
            found += side.framer.gap(nbytes, now, reason)
        return iter(found)

    def _hello(
        self, direction: Direction, side: _Side, now: float, *, ended: bool
    ) -> list[Event]:
        head = side.head
        if not self._complete:
            if len(head) < ROLE_BYTES and not ended:
                return []
            if not names_role(head):
                return self._middle(direction, side, now)
        if not MAGIC_BYTES.startswith(head[: len(MAGIC_BYTES)]):
            if len(head) < len(MAGIC_BYTES) and not ended:
                return []  # all four bytes tell a big-endian peer from a stranger
            return self._no_hello(direction, side, now)
        size = self._measure(direction, side, ended=ended)
        if size is not None and len(head) >= size:
            return self._greet(direction, side, size, now)
        if ended and head:
            return self._short_hello(direction, side, now)
        return [Ended(now, 0, True, direction)] if ended else []

    def _middle(self, direction: Direction, side: _Side, now: float) -> list[Event]:
        """Look for frames where the capture began behind the hello."""
        held = bytes(side.head)
        side.head.clear()
        dialect = self._chosen or self._pair.dialect or "v14"
        framer = self._start(direction, dialect, 0, lost=BEGAN_LATE)
        return framer.feed(held, now)

    def _measure(self, direction: Direction, side: _Side, *, ended: bool) -> int | None:
        """Return the size of a hello as soon as its bytes tell, however they came."""
        head = side.head
        other = self._sides["b>a" if direction == "a>b" else "a>b"].size
        while side.measured < len(head):
            side.measured += 1
            part = head[: side.measured]
            size = measure(part, ended=False, other_size=other)
            if size is not None and len(part) >= size:
                return size
        if ended and len(head) >= _MIN_HEAD:
            return measure(head, ended=True, other_size=other)
        return None

    def _greet(
        self, direction: Direction, side: _Side, size: int, now: float
    ) -> list[Event]:
        """Read a whole hello and go on with the frames behind it."""
        hello = bytes(side.head[:size])
        rest = bytes(side.head[size:])
        side.head.clear()
        side.size = size
        found = Found(size, _of_size(candidates_of(hello), size))
        dialect = self._chosen or found.candidates[0][0]
        reading = read(HELLO, hello, dialect=dialect)
        frame = FrameReceived(
            now, HELLO, dialect, reading.values, None, 0, size, direction,
            reading.problems,
        )  # fmt: skip
        end = "a" if direction == "a>b" else "b"
        fields = reading.values
        for role, code in ROLE_CODES.items():
            if fields.get("role") == code:
                self._roles[end] = role
        if reading.whole:
            problems = tuple(self._context.greeting(frame))
            frame = replace(frame, problems=frame.problems + problems)
            self._pair.greet(end, dialect, fields)
        if not self._candidates or fields.get("role") == ROLE_CODES["tp-leader"]:
            self._candidates = found.candidates
        framer = self._start(direction, dialect, size)
        return [frame, *(framer.feed(rest, now) if rest else ())]

    def _start(
        self, direction: Direction, dialect: str, offset: int, *, lost: str = ""
    ) -> Framer:
        def unknown(code: int, size: int) -> str | None:
            return self._unknown(code, size)

        framer = Framer(
            "DS4T",
            dialect=dialect,
            direction=direction,
            sink=self._sink,
            limits=self._limits,
            auto_resync=True,
            stream_offset=offset,
            on_frame=self._frame,
            on_unknown=unknown,
            on_loss=self._context.forget,
        )
        if lost:
            framer.resync(0.0, lost)
        self._sides[direction].framer = framer
        return framer

    def _no_hello(self, direction: Direction, side: _Side, now: float) -> list[Event]:
        """Say what stands in the place of the hello, then look for frames."""
        word = bytes(side.head[: len(MAGIC_BYTES)])
        swapped = word == MAGIC_BYTES[::-1]
        problem = Problem(
            "DS4T-DIALECT-09" if swapped else "DS4T-HELLO-02",
            "HELLO.magic",
            0,
            0,
            MAGIC_BYTES.hex(),
            word.hex(),
            "a big-endian peer" if swapped else "another program, or no ds4 rank",
            fatal=True,
        )
        held = bytes(side.head)
        side.head.clear()
        framer = self._start(direction, self.dialect, 0, lost="not a frame")
        return [Violation(now, problem, True, direction), *framer.feed(held, now)]

    def _short_hello(
        self, direction: Direction, side: _Side, now: float
    ) -> list[Event]:
        head = side.head
        sizes = {
            d.hello_size
            for d in dialects_of("DS4T")
            if len(head) >= _MIN_HEAD and d.version == version_of(head)
        }
        due = " or ".join(str(s) for s in sorted(sizes - {None}, key=str)) or "56 to 96"
        problem = Problem(
            "DS4T-HELLO-01",
            "HELLO",
            len(head),
            len(head),
            f"{due} bytes of hello",
            f"{len(head)}, then the end of the stream",
            "no frame came before it",
            fatal=True,
        )
        length = len(head)
        head.clear()
        return [
            Violation(now, problem, True, direction),
            Skipped(now, 0, length, "truncated", direction),
            Ended(now, length, False, direction),
        ]

    def _unknown(self, code: int, size: int) -> str | None:
        """Find the dialect that a frame type shows, where the hello left it open."""
        if self._chosen is not None:
            return None
        for rival in _UPGRADES.get(self.dialect.rstrip("?"), ()):
            spec = frame_of_code("DS4T", code, dialect=rival)
            if spec is None or size < spec.fixed_size(rival):
                continue
            settles = find_dialect(rival).settles
            self._candidates = [(rival, settles)]
            self._pair.dialect = rival
            for side in self._sides.values():
                if side.framer is not None and side.framer.dialect != rival:
                    side.framer.set_dialect(rival)
            return rival
        return None

    def _frame(self, frame: FrameReceived) -> FrameReceived:
        end = "a" if frame.direction == "a>b" else "b"
        name, role = frame.spec.name, self._roles.get(end)
        leads = role == "tp-leader" or (role is None and name in COMMANDS)
        problems = []
        if role is not None and role not in frame.spec.sender:
            problems.append(self._wrong_way(frame, role))
        problems += self._context.judge(frame, end, leads=leads)
        if leads and not any(p.fatal for p in frame.problems):
            self._pair.command(name, frame.fields)
        if name == "RDMA_INFO":
            self._pair.rdma_info.add(end)
        if not problems:
            return frame
        return replace(frame, problems=frame.problems + tuple(problems))

    def _wrong_way(self, frame: FrameReceived, role: str) -> Problem:
        return Problem(
            "DS4T-CTRL-25",
            f"{frame.spec.name}.header.type",
            4,
            frame.stream_offset + 4,
            f"a frame that a {role} sends",
            f"{frame.spec.name}, which {' or '.join(frame.spec.sender)} sends",
        )


def _of_size(candidates: list[tuple[str, str]], size: int) -> list[tuple[str, str]]:
    """Prefer a dialect whose hello is as long as the one that was seen."""
    first = find_dialect(candidates[0][0])
    if first.hello_size in (size, None):
        return candidates
    wanted = first.version or 0
    fitting = [d for d in dialects_of("DS4T") if d.hello_size == size]
    if not fitting:
        return candidates
    nearest = min(fitting, key=lambda d: abs((d.version or 0) - wanted))
    settles = f"a register entry for version {wanted} with {size} bytes"
    return [(f"{nearest.name}?", settles)]
