"""Workers in the middle of a route that forward, or relay, what they should not."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_frames import (
    CODE,
    HEADER_SIZE,
    RESULT_PART,
    RETURN_PART,
    ROUTE_PART,
    WORK_PART,
    unpack_header,
)
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.ds4d_work import WORK
from ds4proto_fuzz.mutants.fault import Fault
from ds4proto_fuzz.mutants.small_worker import Connection

__all__ = ["ROUTERS"]

_WORK, _RESULT = CODE[WORK], CODE[RESULT]


class Middle(Fault):
    """A worker with a next hop; nothing is wrong."""

    layers = (2, 4, False)


class DialsRefused(Middle):
    """The next hop of a WORK is dialled though the WORK is refused."""

    about = "dials the next hop of a route that it refuses"
    kind = "silent accept"

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Note the second record, if it reads."""
        connection.memory.pop("hop", None)
        if code == _WORK and len(body) >= WORK_PART.size:
            words = WORK_PART.read(body)
            at = WORK_PART.size + words["token_bytes"] + words["input_hc_bytes"]
            for _ in range(2):
                if at + ROUTE_PART.size > len(body):
                    return body
                record = ROUTE_PART.read(body, at)
                at += ROUTE_PART.size + record["host_len"]
            connection.memory["hop"] = record["port"]
        return body

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Dial it."""
        code, port = unpack_header(frame)[1], connection.memory.pop("hop", 0)
        if code == _RESULT and RESULT_PART.read(frame, HEADER_SIZE)["status"]:
            connection.memory["dialled"] = _dialled(port)
        return frame


def _dialled(port: int) -> socket.socket | None:
    """Return a connection to a port of this machine, if there is one."""
    if 1 < port < 1 << 16:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), timeout=1)
    return None


class DialsReturn(Middle):
    """The answer is to go to the address of the return record."""

    about = "dials the address of a return record, which has to be empty"
    kind = "silent accept"

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Dial it."""
        if code == _WORK and len(body) >= WORK_PART.size + RETURN_PART.size:
            port = RETURN_PART.read(body, len(body) - RETURN_PART.size)["port"]
            connection.memory["return"] = _dialled(port)
        return body


class RelaysAny(Middle):
    """The answer of the next hop is taken for whatever request is oldest."""

    about = "relays a RESULT of another request"
    kind = "silent accept"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        forwarder: Any = Forwarder
        own = forwarder._fault

        def lenient(self: Any, words: dict[str, int], size: int) -> Any:
            if self._pending:
                words = {**words, "request": self._pending[0].request}
            return own(self, words, size)

        forwarder._fault = lenient


class ForwardsOwn(Middle):
    """The forwarded WORK names the worker's own layers."""

    about = "forwards its own layers instead of those of the next hop"
    kind = "wrong answer"

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Put them in."""
        if connection.kind != "forward" or unpack_header(frame)[1] != _WORK:
            return frame
        words = WORK_PART.read(frame, HEADER_SIZE)
        words |= {"layer_start": self.layers[0], "layer_end": self.layers[1]}
        end = HEADER_SIZE + WORK_PART.size
        return frame[:HEADER_SIZE] + WORK_PART.build(words) + frame[end:]


class WaitsForNext(Middle):
    """While the answer of a next hop arrives, nobody else is served."""

    about = "reads the RESULT of a next hop to its end before it serves anybody else"
    kind = "hang"

    def from_next(self, connection: Connection, data: bytes) -> bytes:
        """Wait for the rest."""
        connection.sock.settimeout(None)
        while len(data) < HEADER_SIZE or len(data) < HEADER_SIZE + min(
            unpack_header(data)[2], 1 << 20
        ):
            more = connection.sock.recv(1 << 16)
            if not more:
                break
            data += more
        return data


class ReservesRelayed(Middle):
    """Memory for what a next hop announces, before it is there."""

    about = "reserves the announced size of a next hop's RESULT before it comes"
    kind = "over-allocation"

    def from_next(self, connection: Connection, data: bytes) -> bytes:
        """Reserve it."""
        if len(data) >= HEADER_SIZE:
            connection.memory["body"] = bytearray(unpack_header(data)[2])
        return data


class CrashNextEnds(Middle):
    """A next hop that ends the connection ends the process."""

    about = "an end of the next hop's connection inside a frame is not foreseen"
    kind = "crash"

    def from_next(self, connection: Connection, data: bytes) -> bytes:
        """Count what is missing."""
        connection.raw += data
        while len(connection.raw) >= HEADER_SIZE:
            size = HEADER_SIZE + unpack_header(connection.raw)[2]
            if len(connection.raw) < size:
                break
            del connection.raw[:size]
        return data

    def end_forward(self, connection: Connection) -> None:
        """Fail."""
        if connection.raw:
            raise EOFError(f"{len(connection.raw)} bytes of a RESULT")
        super().end_forward(connection)


class LeaksForwards(Middle):
    """A connection to a next hop is ended, and its descriptor stays."""

    about = "leaves a descriptor behind for every connection to a next hop"
    kind = "leak"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        self._kept: list[socket.socket] = []

    def end_forward(self, connection: Connection) -> None:
        """Keep another descriptor of it."""
        kept = connection.sock.dup()
        with contextlib.suppress(OSError):
            kept.shutdown(socket.SHUT_RDWR)
        self._kept.append(kept)
        super().end_forward(connection)


ROUTERS: Final[dict[str, type[Fault]]] = {
    "middle": Middle,
    "dials-refused": DialsRefused,
    "dials-return": DialsReturn,
    "relays-any": RelaysAny,
    "forwards-own-layers": ForwardsOwn,
    "waits-for-next": WaitsForNext,
    "reserves-relayed": ReservesRelayed,
    "crash-next-ends": CrashNextEnds,
    "leaks-forwards": LeaksForwards,
}
