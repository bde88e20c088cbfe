"""A small coordinator on the library's machines, and its planted faults."""

from __future__ import annotations

import contextlib
import selectors
import socket
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link import ds4d_registration, ds4d_work_link
from ds4proto.link.ds4d_events import (
    Close,
    HelloAccepted,
    RemoteError,
    ResultReceived,
    Transmit,
)
from ds4proto.link.ds4d_frames import (
    HEADER_SIZE,
    RETURN_PART,
    ROUTE_PART,
    unpack_header,
)
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_work import INPUT_HC, OUTPUT_LOGITS, RESET_SESSION
from ds4proto_fuzz.mutants.small_worker import MODEL

__all__ = ["COORDINATORS"]

_FIRST: Final = 2
_TOKENS: Final = (5, 6, 7)
_LAST: Final = HELLO.header_size + offsets_of(HELLO.body, "upstream")["layer_end"]
_HOST: Final = b"127.0.0.1"
_ROUTE: Final = (
    ROUTE_PART.build({"host_len": len(_HOST), "port": 9, "layer_start": _FIRST,
                      "layer_end": 7, "flags": 1}) + _HOST
    + RETURN_PART.build({"kind": 1, "host_len": 0, "port": 0})
)  # fmt: skip
_WHOLE: Final = HELLO.header_size + HELLO.fixed_size("upstream")


@dataclass(eq=False, slots=True)
class _Hop:
    sock: socket.socket
    machine: Any
    request: int = 0
    body: bytearray = field(default_factory=bytearray)


class SmallCoordinator:
    """Registers workers and gives WORK to each that completes the route.

    Parameters
    ----------
    address : (str, int)
        Where to listen.
    """

    about: ClassVar[str] = "no fault at all"
    kind: ClassVar[str] = ""

    def __init__(self, address: tuple[str, int]) -> None:
        self._listener = socket.create_server(address, backlog=64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def received(self, hop: _Hop, data: bytes) -> bytes:
        """Return what the machine gets of some bytes."""
        del hop
        return data

    def run(self) -> None:
        """Serve until the process is ended."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                else:
                    self._readable(key.data)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.settimeout(5.0)
        f = MODEL
        expected = Expected(f.model_id, f.model_name, f.n_layers, f.ctx)
        hop = _Hop(sock, Registration(expected, now=0.0))
        self._selector.register(sock, selectors.EVENT_READ, hop)

    def _readable(self, hop: _Hop) -> None:
        try:
            data = hop.sock.recv(1 << 16)
        except OSError:
            data = b""
        if data:
            data = self.received(hop, data)
        hop.machine.receive_data(data or None, 0.0)
        self._settle(hop)
        if not data or hop.machine.closed:
            self._selector.unregister(hop.sock)
            hop.sock.close()

    def _settle(self, hop: _Hop) -> None:
        for event in hop.machine.events():
            if isinstance(event, Transmit):
                with contextlib.suppress(OSError):
                    hop.sock.sendall(b"".join(map(bytes, event.buffers)))
            elif isinstance(event, HelloAccepted):
                hello = event.hello
                if (hello["layer_start"], hello["layer_end"]) == (_FIRST, 7):
                    rest = hop.machine.trailing_data
                    hop.machine = WorkLink(MODEL, initial=rest)
                    self._work(hop)
                    return
            elif isinstance(event, ResultReceived | RemoteError):
                self._work(hop)
            elif isinstance(event, Close):
                return

    def _work(self, hop: _Hop) -> None:
        hop.request += 1
        words = {
            "model_id": 0, "session": 77, "request": hop.request, "pos0": 0,
            "prefix_hash": TOKEN_HASH_START, "result_hash": token_hash(_TOKENS),
            "n_tokens": len(_TOKENS), "layer_start": _FIRST, "layer_end": 7,
            "flags": INPUT_HC | OUTPUT_LOGITS | RESET_SESSION, "input_hc_bits": 32,
            "route_count": 1, "route_index": 0, "tokens": _TOKENS,
            "hidden": bytes(MODEL.hidden_bytes(len(_TOKENS), 32)), "route_blob": _ROUTE,
        }  # fmt: skip
        with contextlib.suppress(OSError):
            frame = hop.machine.work(words, 0.0)
            hop.sock.sendall(b"".join(map(bytes, frame)))


class Reserves(SmallCoordinator):
    """The size of a RESULT is reserved before it comes."""

    about = "reserves the announced size of a RESULT before it comes"
    kind = "over-allocation"

    def received(self, hop: _Hop, data: bytes) -> bytes:
        """Reserve it."""
        if isinstance(hop.machine, WorkLink) and len(data) >= HEADER_SIZE:
            hop.body = bytearray(unpack_header(data)[2])
        return data


class CrashManyLayers(SmallCoordinator):
    """A HELLO for very many layers ends the process."""

    about = "makes a table of as many layers as a HELLO names"
    kind = "crash"

    def received(self, hop: _Hop, data: bytes) -> bytes:
        """Make it."""
        if isinstance(hop.machine, Registration) and len(data) >= _WHOLE:
            last = int.from_bytes(data[_LAST : _LAST + 4], "big")
            if last > 1 << 16:
                raise MemoryError(f"{last} layers")
        return data


class WaitsForHello(SmallCoordinator):
    """A HELLO that is not whole keeps everybody waiting."""

    about = "reads a HELLO to its end before it serves anybody else"
    kind = "hang"

    def received(self, hop: _Hop, data: bytes) -> bytes:
        """Wait for the rest."""
        hop.sock.settimeout(None)
        while isinstance(hop.machine, Registration) and (
            len(data) < HEADER_SIZE or len(data) < HEADER_SIZE + unpack_header(data)[2]
        ):
            more = hop.sock.recv(1 << 16)
            if not more:
                break
            data += more
        return data


class AnyRange(SmallCoordinator):
    """Layers that do not exist are registered."""

    about = "registers a worker for layers that do not exist"
    kind = "silent accept"

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        module: Any = ds4d_registration
        module.CHECKS = tuple(c for c in module.CHECKS if c.clause != "DS4D-HELLO-12")


class AnyHash(SmallCoordinator):
    """A RESULT for other tokens is taken."""

    about = "takes a RESULT whose hash is another's"
    kind = "silent accept"

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        module: Any = ds4d_work_link
        own = module.judge_result

        def lenient(model: Any, asked: Any, words: Any) -> Any:
            found = own(model, asked, words)
            wrong = found is not None and found.clause == "DS4D-RESULT-08"
            return None if wrong else found

        module.judge_result = lenient


COORDINATORS: Final[dict[str, type[SmallCoordinator]]] = {
    "none": SmallCoordinator,
    "reserves-result": Reserves,
    "crash-many-layers": CrashManyLayers,
    "waits-for-hello": WaitsForHello,
    "accepts-range": AnyRange,
    "accepts-hash": AnyHash,
}
