"""One DS4D connection of a case: frames out, frames in, everything noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.peer.channel import SocketChannel
from ds4proto.schema.ds4d_common import MAGIC
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import frame_of_code, read
from ds4proto_conformance.transcript import Line
from ds4proto_conformance.verdicts import Deviation

__all__ = ["APART", "MAX_FRAME", "Ended", "Frame", "Wire", "part"]

MAX_FRAME: Final = 64 << 20
"""Largest body that is taken from a peer under test."""
_READ: Final = 1 << 16
APART: Final = 8
"""Pieces that are kept apart; the rest follows at once."""
_PAUSE: Final = 0.002


@runtime_checkable
class Overseen(Protocol):
    """A channel that knows what the peer has read."""

    def wait_read(self, deadline: float) -> bool:
        """Wait until the peer has read all that was sent."""
        ...


def _speaks(first: bytes) -> str:
    """Say what a stream is that does not begin with a DS4D header."""
    if first[:4] == DS4T_MAGIC.to_bytes(4, "little"):
        return "the peer speaks DS4T: --role tp-worker or tp-leader"
    if first[:4] in (b"HTTP", b"GET ", b"POST"):
        return "the peer speaks HTTP: is that its other port?"
    return "the peer does not speak DS4D"


def part(channel: object, patience: float) -> None:
    """Keep the bytes sent so far apart from those that follow.

    In one process the peer is seen to read; over TCP nobody tells, so a pause has to
    do, and a peer that was slower reads two pieces as one.
    """
    if isinstance(channel, Overseen):
        channel.wait_read(SYSTEM_CLOCK.now() + patience)
    else:
        SYSTEM_CLOCK.sleep(_PAUSE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame that the peer sent.

    Attributes
    ----------
    name : str
        ``RESULT``; ``type N`` where the dialect has no such type.
    values : mapping
        Fields by wire name, as far as they could be read.
    """

    name: str
    code: int
    values: dict[str, Any]
    body: bytes
    problems: tuple[Problem, ...] = ()

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    @property
    def message(self) -> str:
        """Text that the frame carries."""
        if self.name == "RESULT" and self.values.get("status"):
            return bytes(self.values["payload"]).decode("utf-8", "replace")
        if self.name == "ERROR":
            return self.body.decode("utf-8", "replace")
        return str(self.values.get("message", ""))

    def __str__(self) -> str:
        if self.name == "RESULT":
            status, kind = self.values.get("status"), self.values.get("result_kind")
            text = f" {self.message!r}" if status else ""
            return f"RESULT status {status} kind {kind}{text}"
        text = f" {self.message!r}" if self.message else ""
        return f"{self.name} of {len(self.body)} bytes{text}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What came instead of a frame."""

    how: Literal["closed", "reset", "silence", "cut"]
    detail: str = ""

    def __str__(self) -> str:
        words = {
            "closed": "the connection closed",
            "reset": "the connection was reset",
            "silence": "silence",
            "cut": "the connection ended inside a frame",
        }[self.how]
        return f"{words} ({self.detail})" if self.detail else words


class Wire:
    """One connection, frame by frame.

    Parameters
    ----------
    patience : float
        Seconds that an answer may take.
    wait : callable, optional
        Told what is about to be waited for; may end the case, see `Budget.wait`.
    """

    def __init__(
        self,
        channel: SocketChannel,
        line: Line,
        *,
        dialect: str,
        patience: float,
        wait: Callable[[str], None] | None = None,
    ) -> None:
        self.channel = channel
        self.line = line
        self._wait = wait
        self.dialect = dialect
        self.patience = patience
        self.ended: Ended | None = None
        self._buffer = bytearray()
        self._write_failed = ""

    # out

    def send(self, *parts: Buf) -> None:
        """Send bytes as they are; a peer that has gone shows when one reads."""
        data = b"".join(bytes(part) for part in parts)
        now = SYSTEM_CLOCK.now()
        self.line.note(False, now, data)
        try:
            self.channel.send([data], deadline=now + self.patience)
        except PeerLost as error:
            self._write_failed = error.kind

    def send_pieces(self, data: bytes, sizes: Sequence[int]) -> None:
        """Send bytes in pieces; the last size is repeated."""
        at = 0
        step = 0
        while at < len(data):
            size = max(1, sizes[min(step, len(sizes) - 1)])
            self.send(data[at : at + size])
            if step < APART:  # else pieces may be read as one
                part(self.channel, self.patience)
            at, step = at + size, step + 1

    def half_close(self) -> None:
        """End our direction; the peer may still answer."""
        self.line.note(False, SYSTEM_CLOCK.now(), b"")
        self.channel.shutdown_send()

    def close(self, *, reset: bool = False) -> None:
        """End the connection."""
        if not self.channel.closed:
            self.line.note(False, SYSTEM_CLOCK.now(), b"")
        self.channel.close(reset=reset)

    # in

    def next(self, *, patience: float | None = None) -> Frame | Ended:
        """Return the next frame, or what came instead of one."""
        if self._wait is not None:
            self._wait(f"a frame on {self.line.name!r}")
        wait = self.patience if patience is None else patience
        deadline = SYSTEM_CLOCK.now() + wait
        short = self._fill(HEADER_SIZE, deadline)
        if short is not None:
            return short
        magic, code, size = unpack_header(self._buffer)
        if magic != MAGIC:
            first = bytes(self._buffer[:HEADER_SIZE])
            self._buffer.clear()
            raise Deviation(
                "DS4D-FRAME-01",
                "every frame to begin with DS4D",
                f"{first.hex()} ({first!r}): {_speaks(first)}",
            )
        if size > MAX_FRAME:
            raise Deviation(
                "DS4D-FRAME-03",
                f"a frame of at most {MAX_FRAME} bytes",
                f"type {code} announces {size} bytes",
            )
        short = self._fill(HEADER_SIZE + size, deadline)
        if short is not None:
            return short
        whole = bytes(self._buffer[: HEADER_SIZE + size])
        del self._buffer[: HEADER_SIZE + size]
        return self._read(code, whole)

    def _read(self, code: int, whole: bytes) -> Frame:
        spec = frame_of_code("DS4D", code, dialect=self.dialect)
        body = whole[HEADER_SIZE:]
        if spec is None:
            return Frame(f"type {code}", code, {}, body)
        reading = read(spec, whole, dialect=self.dialect)
        return Frame(spec.name, code, dict(reading.values), body, reading.problems)

    def quiet(self, seconds: float) -> Frame | Ended | None:
        """Return what comes within some seconds, None for nothing."""
        found = self.next(patience=seconds)
        silent = isinstance(found, Ended) and found.how == "silence"
        return None if silent else found

    def _fill(self, size: int, deadline: float) -> Ended | None:
        while len(self._buffer) < size:
            if self.ended is not None:
                return self.ended
            piece = bytearray(_READ)
            try:
                got = self.channel.recv_into(piece, deadline=deadline)
            except PeerLost as error:
                if error.kind == "timeout":
                    waited = f"{len(self._buffer)} bytes of a frame"
                    return Ended("silence", waited if self._buffer else "")
                return self._end("reset")
            if not got:
                return self._end("cut" if self._buffer else "closed")
            self._buffer += piece[:got]
            self.line.note(True, SYSTEM_CLOCK.now(), bytes(piece[:got]))
        return None

    def _end(self, how: Literal["closed", "reset", "cut"]) -> Ended:
        self.line.note(True, SYSTEM_CLOCK.now(), b"")
        self.ended = Ended(how, self._write_failed)
        return self.ended

    # what is expected

    def frame(self, name: str, clause: str, what: str = "") -> Frame:
        """Return the next frame, which has to be of this type.

        Raises
        ------
        Deviation
            Something else came.
        """
        found = self.next()
        if isinstance(found, Ended) or found.name != name:
            raise Deviation(clause, what or f"a {name} frame", str(found))
        for problem in found.problems:
            raise Deviation(problem.clause, problem.expected, problem.found)
        return found

    def closed(self, clause: str, what: str = "the connection to close") -> Ended:
        """Take it that nothing but an end follows.

        Raises
        ------
        Deviation
            A frame came, or the connection stayed open.
        """
        found = self.next()
        if isinstance(found, Frame) or found.how == "silence":
            raise Deviation(clause, what, str(found))
        return found

    @property
    def open(self) -> bool:
        """Whether the peer has not ended the connection, as far as was read."""
        return self.ended is None and not self.channel.closed
