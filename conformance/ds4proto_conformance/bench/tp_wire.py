"""The two connections of a pair as cases see them: control frames, gates."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.peer.channel import SocketChannel
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto.schema.problem import Problem
from ds4proto.schema.registry import frame_of_code, read
from ds4proto.trace.rows import plain
from ds4proto_conformance.transcript import HEX_BYTES, MAX_FRAMES, Transcript
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import APART, MAX_FRAME, Ended, part

__all__ = [
    "ControlFrame",
    "ControlWire",
    "DataWire",
    "Gate",
    "TpTranscript",
    "gate_bytes",
]

HEADER: Final = struct.Struct("<III")
GATE: Final = struct.Struct("<IHHQ")
_MOMENT: Final = 0.02
"""Seconds in which a peer reads what has just been sent."""
Kind = Literal["row", "batch", "bulk"]


class TpTranscript(Transcript):
    """What crossed, noted frame by frame: a gate cannot be read without the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self.left_out = 0

    def add(
        self, on: str, sender: str, kind: str, data: bytes, fields: Any = None
    ) -> None:
        """Note one frame."""
        if len(self.rows) >= MAX_FRAMES:
            self.left_out += 1
            return
        row = {"on": on, "from": sender, "type": kind, "length": len(data)}
        if fields:
            shown = fields.items()
            row["fields"] = {
                k: plain(v) for k, v in shown if not isinstance(v, memoryview)
            }
        self.rows.append({**row, "hex": data[:HEX_BYTES].hex()})

    def frames(self, dialect: str) -> list[dict[str, Any]]:
        """Return what crossed, as a report holds it."""
        del dialect
        more = [{"type": f"{self.left_out} more frames"}] if self.left_out else []
        return self.rows + more


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """One whole control frame of the peer."""

    name: str
    code: int
    values: dict[str, Any]
    body: bytes
    problems: tuple[Problem, ...] = ()

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def __str__(self) -> str:
        shown = {k: v for k, v in self.values.items() if isinstance(v, int)}
        return f"{self.name} of {len(self.body)} bytes {shown or ''}".strip()


@dataclass(slots=True)
class Gate:
    """What the peer sent for one gate."""

    magic: int
    layer: int
    third: int
    seq: int
    payload: bytes = field(repr=False)


def gate_bytes(kind: Kind, layer: int, third: int, seq: int, /, **lies: int) -> bytes:
    """Return a gate header, wrong where `lies` say so."""
    words = {
        "magic": DS4T_MAGIC if kind == "row" else DS4B_MAGIC,
        "layer": layer,
        "third": BULK_TAG if kind == "bulk" else third,
        "seq": seq,
        **lies,
    }
    return GATE.pack(words["magic"], words["layer"], words["third"], words["seq"])


class _Wire:
    """What both share."""

    name = ""

    def __init__(
        self,
        channel: SocketChannel,
        log: TpTranscript,
        patience: float,
        wait: Callable[[str], None] = lambda _what: None,
    ) -> None:
        self.channel = channel
        self._wait = wait
        self.log = log
        self.patience = patience
        self.ended: Ended | None = None

    def send(self, data: bytes, kind: str = "bytes", fields: Any = None) -> None:
        """Send bytes as they are; a peer that has gone shows when one reads."""
        self.log.add(self.name, "tester", kind, data, fields)
        self.push(data)

    def push(self, data: bytes) -> None:
        """Send bytes without a note."""
        try:
            self.channel.send([data], deadline=SYSTEM_CLOCK.now() + self.patience)
        except PeerLost:
            return

    def push_apart(self, data: bytes, size: int) -> None:
        """Send bytes without a note in pieces of one size, so that none is joined."""
        for at in range(0, len(data), size):
            self.push(data[at : at + size])
            if at < APART * size:
                part(self.channel, self.patience)

    def half_close(self) -> None:
        """End our direction."""
        self.log.add(self.name, "tester", "end of stream", b"")
        self.channel.shutdown_send()

    def close(self) -> None:
        """End the connection."""
        self.channel.close()

    def _end(self, how: Literal["closed", "reset", "cut"]) -> Ended:
        if self.ended is None:
            self.ended = Ended(how)
            self.log.add(self.name, "peer", f"end of stream ({how})", b"")
        return self.ended


class ControlWire(_Wire):
    """The control connection.

    Attributes
    ----------
    last : ControlFrame or None
        The newest frame of the peer.
    """

    name = "control"

    def __init__(
        self,
        channel: SocketChannel,
        log: TpTranscript,
        patience: float,
        dialect: str,
        wait: Callable[[str], None] = lambda _what: None,
    ) -> None:
        super().__init__(channel, log, patience, wait)
        self.dialect = dialect
        self.last: ControlFrame | None = None
        self._buffer = bytearray()

    def send_pieces(self, data: bytes, size: int, kind: str) -> None:
        """Send bytes in pieces of one size; nothing may come behind the first.

        Raises
        ------
        Deviation
            The peer did not wait for the rest.
        """
        self.log.add(self.name, "tester", f"{kind} in pieces", data)
        self.push_apart(data[:size], size)
        early = self.quiet(_MOMENT)
        if early is not None:
            raise Deviation(
                "DS4T-CTRL-11", "nothing before the frame is whole", str(early)
            )
        self.push_apart(data[size:], size)

    def take(self, size: int, patience: float | None = None) -> bytes | Ended:
        """Return exactly some bytes, or what came instead."""
        self._wait(f"{size} bytes on the control connection")
        wait = self.patience if patience is None else patience
        short = self._fill(size, SYSTEM_CLOCK.now() + wait)
        if short is not None:
            return short
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def next(self, patience: float | None = None) -> ControlFrame | Ended:
        """Return the next frame, or what came instead of one."""
        self._wait("a frame on the control connection")
        wait = self.patience if patience is None else patience
        deadline = SYSTEM_CLOCK.now() + wait
        short = self._fill(HEADER.size, deadline)
        if short is not None:
            return short
        magic, code, size = HEADER.unpack_from(self._buffer)
        if magic != DS4T_MAGIC or size > MAX_FRAME:
            head = bytes(self._buffer[: HEADER.size])
            self._buffer.clear()
            raise Deviation(
                "DS4T-CTRL-10",
                f"a control header: DS4T, type, at most {MAX_FRAME} bytes",
                head.hex(" "),
            )
        short = self._fill(HEADER.size + size, deadline)
        if short is not None:
            return short
        whole = bytes(self._buffer[: HEADER.size + size])
        del self._buffer[: HEADER.size + size]
        found = self.last = self._read(code, whole)
        self.log.add(self.name, "peer", f"DS4T.{found.name}", whole, found.values)
        return found

    def _read(self, code: int, whole: bytes) -> ControlFrame:
        spec = frame_of_code("DS4T", code, dialect=self.dialect)
        body = whole[HEADER.size :]
        if spec is None:
            return ControlFrame(f"type {code}", code, {}, body)
        reading = read(spec, whole, dialect=self.dialect)
        return ControlFrame(
            spec.name, code, dict(reading.values), body, reading.problems
        )

    def quiet(self, seconds: float) -> ControlFrame | Ended | None:
        """Return what comes within some seconds, None for nothing."""
        found = self.next(seconds)
        silent = isinstance(found, Ended) and found.how == "silence"
        return None if silent else found

    def frame(self, name: str, clause: str, what: str = "") -> ControlFrame:
        """Return the next frame, which has to be of this type.

        Raises
        ------
        Deviation
            Something else came, or its words are wrong.
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
        if isinstance(found, ControlFrame) or found.how == "silence":
            raise Deviation(clause, f"{what}, without a frame", str(found))
        return found

    def _fill(self, size: int, deadline: float) -> Ended | None:
        while len(self._buffer) < size:
            if self.ended is not None:
                return self.ended
            piece = bytearray(1 << 16)
            try:
                got = self.channel.recv_into(piece, deadline=deadline)
            except PeerLost as error:
                if error.kind == "timeout":
                    return Ended("silence", f"{len(self._buffer)} bytes of a frame")
                return self._end("reset")
            if not got:
                return self._end("cut" if self._buffer else "closed")
            self._buffer += piece[:got]
        return None


class DataWire(_Wire):
    """The data connection."""

    name = "data"

    def gate(self, size: int, patience: float | None = None) -> Gate | Ended:
        """Return the peer's next gate, whose payload has so many bytes."""
        return self.exchange(b"", size, patience)

    def exchange(
        self, own: bytes, size: int, patience: float | None = None
    ) -> Gate | Ended:
        """Send a gate and read the peer's, both at once."""
        if own:
            self.log.add(self.name, "tester", "gate", own)
        return self.take(GATE.size + size, own, patience)

    def take(
        self, size: int, own: bytes = b"", patience: float | None = None
    ) -> Gate | Ended:
        """Read one gate of so many bytes, header included."""
        self._wait(f"a gate of {size} bytes on the data connection")
        wait = self.patience if patience is None else patience
        into = bytearray(size)
        before = self.channel.received
        try:
            self.channel.exchange(
                [own] if own else [], into, deadline=SYSTEM_CLOCK.now() + wait
            )
        except PeerLost as error:
            got = self.channel.received - before
            if error.kind == "timeout":
                return Ended("silence", f"{got} of {size} bytes of a gate")
            if error.kind == "reset":
                return self._end("reset")
            return self._end("cut" if got else "closed")
        magic, layer, third, seq = GATE.unpack_from(into)
        self.log.add(
            self.name, "peer", "gate", bytes(into),
            {"layer": layer, "third": third, "seq": seq},
        )  # fmt: skip
        return Gate(magic, layer, third, seq, bytes(into[GATE.size :]))

    def take_payload(self, size: int) -> bytes | Ended:
        """Read the payload of a gate whose header has been read."""
        self._wait(f"{size} bytes of a gate")
        into = bytearray(size)
        try:
            self.channel.exchange([], into, deadline=SYSTEM_CLOCK.now() + self.patience)
        except PeerLost as error:
            if error.kind == "timeout":
                return Ended("silence", f"{size} bytes of a gate are due")
            return self._end("reset" if error.kind == "reset" else "cut")
        return bytes(into)
