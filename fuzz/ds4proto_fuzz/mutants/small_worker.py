"""A small worker on the library's machines: one thread, and hooks for a fault."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_worker import Worker
from ds4proto.link.ds4d_worker_events import (
    DropSessions,
    EvaluateWork,
    LoadAborted,
    LoadData,
    LoadStarted,
    OpenForward,
    RestoreShard,
    SaveShard,
    ShardFailed,
    ShardRestored,
    ShardSaved,
    WorkEvaluated,
)
from ds4proto.schema.ds4d_common import HEADER, MAGIC
from ds4proto.schema.fast import struct_of

__all__ = ["Connection", "SmallWorker"]

MODEL: Final = ModelFacts(0, "Toy V4", 8, 64, 256, 256)
_HEAD: Final = struct_of(HEADER, "upstream")
SHARD: Final = b"SHRD" + bytes(124)
_TICK: Final = 0.2
MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")


@dataclass(eq=False, slots=True)
class Connection:
    """One connection; ``memory`` is a fault's own."""

    sock: socket.socket
    machine: Any
    kind: str
    raw: bytearray = field(default_factory=bytearray)
    shard: bytearray = field(default_factory=bytearray)
    announced: bool = False
    skip: int = 0
    memory: dict[str, Any] = field(default_factory=dict)


class SmallWorker:
    """One worker; a fault overrides the hooks.

    Parameters
    ----------
    coordinator : (str, int)
        Where to dial.
    """

    layers = (5, 7, True)
    """First and last layer, and whether the head is there."""
    limits = LinkLimits()
    prefill_cap: int | None = 16
    redial = 0.02

    def __init__(self, coordinator: tuple[str, int]) -> None:
        self.machine = Worker(
            WorkerFacts(MODEL, *self.layers, prefill_cap=self.prefill_cap),
            limits=self.limits,
        )
        self._coordinator = coordinator
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Any, Connection] = {}

    # hooks

    def on_open(self, connection: Connection) -> None:
        """Take note of a new data connection."""

    def on_header(self, connection: Connection, code: int, size: int) -> None:
        """Take note of what a frame announces."""

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Take a whole frame; the machine gets the body that is returned."""
        del connection, code
        return body

    def on_end(self, connection: Connection) -> None:
        """Take note that the other side has ended its direction."""

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Return what is written instead of a frame."""
        del connection
        return frame

    def on_route(self, connection: Connection | None, event: OpenForward) -> None:
        """Dial the next hop; a moment is all that it may take."""
        del connection
        forwarder = event.forwarder
        try:
            sock = socket.create_connection((event.host, event.port), timeout=5)
        except OSError as error:
            forwarder.failed(error.strerror or str(error), 0.0)
        else:
            self._add(sock, "forward", forwarder)
            forwarder.opened(0.0)
        self.machine.wake(forwarder)

    def payload(self, job: EvaluateWork) -> bytes:
        """Return what a WORK asks for."""
        if job.want == "ack":
            return b""
        seen = zlib.crc32(repr(job.tokens).encode() + bytes(job.hidden or b""))
        if job.want == "logits":
            return struct.pack("<I", seen) * MODEL.vocab
        size = MODEL.hidden_bytes(len(job.tokens), job.bits)
        return (struct.pack("<I", seen) * size)[:size]

    def from_next(self, connection: Connection, data: bytes) -> bytes:
        """Return what the machine gets of some bytes of the next hop."""
        del connection
        return data

    def end_forward(self, connection: Connection) -> None:
        """Close the connection to the next hop."""
        self.forget(connection)

    # life

    def run(self) -> None:
        """Serve until the process is ended."""
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        redial_at = 0.0
        while True:
            kinds = {c.kind for c in self._connections.values()}
            if "control" not in kinds and time.monotonic() >= redial_at:
                redial_at = time.monotonic() + self.redial
                self._dial()
            for key, _ in self._selector.select(_TICK if "control" in kinds else 0.02):
                if key.data is None:
                    self.accept()
                elif key.data.machine in self._connections:
                    self._readable(key.data)

    def _dial(self) -> None:
        try:
            sock = socket.create_connection(self._coordinator, timeout=5)
        except OSError:
            return
        connection = self._add(sock, "control")
        port = self._listener.getsockname()[1]
        self._write(connection, b"".join(map(bytes, connection.machine.hello(port))))

    def accept(self) -> None:
        """Take a connection that waits."""
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            self.on_open(self._add(sock, "data"))

    def _add(self, sock: socket.socket, kind: Any, machine: Any = None) -> Connection:
        sock.settimeout(5.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        machine = machine or self.machine.open(kind, 0.0)
        made = self._connections[machine] = Connection(sock, machine, kind)
        self._selector.register(sock, selectors.EVENT_READ, made)
        return made

    def forget(self, connection: Connection) -> None:
        """Close a connection."""
        if self._connections.pop(connection.machine, None) is None:
            return
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _readable(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(1 << 16)
        except OSError:
            data = b""
        if data:
            self._bytes(connection, data)
        else:
            if connection.kind != "forward":
                self.on_end(connection)
            if not connection.machine.closed:
                connection.machine.receive_data(None, 0.0)
        self._settle(connection.machine)
        if not data or connection.machine.closed:
            self.forget(connection)

    def _bytes(self, connection: Connection, data: bytes) -> None:
        """Follow the frames of the stream for the hooks, then feed the machine."""
        if connection.kind == "forward":
            data = self.from_next(connection, data)
            if not connection.machine.closed:
                connection.machine.receive_data(data, 0.0)
            return
        raw = connection.raw
        raw += data
        while not connection.machine.closed:
            if len(raw) < HEADER_SIZE:
                if raw and bytes(raw[:4]) != MAGIC_BYTES[: len(raw)]:
                    self._feed(connection, bytes(raw))
                break
            magic, code, size = unpack_header(raw)
            if magic != MAGIC or size > 1 << 26:
                self.on_header(connection, code, size)
                self._feed(connection, bytes(raw))
                raw.clear()
                break
            if not connection.announced:
                connection.announced = True
                self.on_header(connection, code, size)
            if len(raw) < HEADER_SIZE + size:
                break
            body = self.on_frame(
                connection, code, bytes(raw[HEADER_SIZE : HEADER_SIZE + size])
            )
            del raw[: HEADER_SIZE + size]
            connection.announced = False
            if body is not None:
                self._feed(connection, _HEAD.pack(magic, code, len(body)) + body)

    def _feed(self, connection: Connection, data: bytes) -> None:
        if not connection.machine.closed:
            connection.machine.receive_data(data, 0.0)
            self._settle(connection.machine)

    def _settle(self, *machines: Any) -> None:
        todo = list(machines)
        while todo:
            for machine in todo:
                connection = self._connections.get(machine)
                for event in machine.events():
                    self.take(machine, connection, event)
            todo = list(self.machine.woken())

    def take(self, machine: Any, connection: Connection | None, event: Any) -> None:
        """Carry out what a machine wants."""
        if isinstance(event, Transmit):
            if connection is not None:
                self._write(connection, b"".join(map(bytes, event.buffers)))
        elif isinstance(event, EvaluateWork):
            machine.send(WorkEvaluated(self.payload(event)), 0.0)
        elif isinstance(event, LoadStarted | LoadAborted):
            if connection is not None:
                connection.shard.clear()
        elif isinstance(event, LoadData):
            if connection is not None:
                connection.shard += event.data
        elif isinstance(event, SaveShard):
            machine.send(ShardSaved([SHARD], len(SHARD)), 0.0)
        elif isinstance(event, RestoreShard):
            sound = connection is not None and connection.shard == SHARD
            words = text("DS4D-SNAP-21")
            machine.send(ShardRestored() if sound else ShardFailed(words), 0.0)
        elif isinstance(event, OpenForward):
            self.on_route(connection, event)
        elif isinstance(event, Close) and connection is not None:
            if connection.kind == "forward":
                self.end_forward(connection)
            else:
                self.forget(connection)
        elif isinstance(event, DropSessions):
            return

    def _write(self, connection: Connection, frame: bytes) -> None:
        with contextlib.suppress(OSError):
            connection.sock.sendall(self.out(connection, frame))
