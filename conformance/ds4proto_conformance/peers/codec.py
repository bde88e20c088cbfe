"""A small codec command, and perhaps one fault in it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ds4proto.peer import PeerLost
from ds4proto.peer.api import Address, ChannelName
from ds4proto.peer.channel import SocketChannel
from ds4proto_conformance.peers.faults import Fault

__all__ = ["codec_session", "session_over"]

Transform = Callable[[str, Any, bytes], bytes]


class _Session:
    """The connections of a codec bench, to a thread."""

    def __init__(self, sock: socket.socket, thread: threading.Thread) -> None:
        self._channel = SocketChannel(sock, label="codec in a thread")
        self._thread = thread

    @property
    def address(self) -> Address | None:
        """Nowhere."""
        return None

    def channel(self, name: ChannelName, **_: Any) -> SocketChannel:
        """Return stdin and stdout."""
        del name
        return self._channel

    def accept(self, **_: Any) -> SocketChannel:
        """Refuse."""
        raise PeerLost("refused", phase="accepting", address="codec")

    def dial(self, port: int, **_: Any) -> SocketChannel:
        """Refuse."""
        raise PeerLost("refused", phase=f"dialling {port}", address="codec")

    def data_address(self) -> Address:
        """Nowhere."""
        return "127.0.0.1", 0

    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def output(self) -> str:
        """Return nothing."""
        return ""


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data


def _answer(request: bytes, fault: Fault) -> bytes:
    from ds4proto.codec import CodecError, get

    if fault.received is not None:
        request = fault.received(None, request)
    operation, name = request[0], request[1:16].rstrip(b"\0").decode()
    count, rows = (int.from_bytes(request[at : at + 4], "big") for at in (16, 20))
    data = request[24:]
    if operation == 0:
        return b"\0small codec"
    try:
        codec = get(name, path="numpy")
    except CodecError as error:
        return b"\1" + str(error).encode()
    hook: Any = fault.evaluate
    given: Any
    try:
        if operation == 1:
            given = np.frombuffer(data, "<f4").astype(np.float32)
            found = bytes(codec.encode(given, rows=rows))
        else:
            given = np.frombuffer(data, np.uint8)
            values = codec.decode(given, values=count, rows=rows)
            found = np.asarray(values, "<f4").tobytes()
    except CodecError as error:
        return b"\2" + str(error).encode()
    what = f"{'encode' if operation == 1 else 'decode'} {name}"
    return b"\0" + (hook(what, (given, found, rows)) if hook else found)


def _serve(sock: socket.socket, fault: Fault) -> None:
    with contextlib.suppress(OSError), np.errstate(all="ignore"), sock:
        while True:
            size = int.from_bytes(_read(sock, 4), "big")
            answer = _answer(_read(sock, size), fault)
            sock.sendall(len(answer).to_bytes(4, "big") + answer)


@contextlib.contextmanager
def codec_session(fault: Fault) -> Iterator[Any]:
    """Run a small codec in a thread while the block lasts."""
    with session_over(lambda sock: _serve(sock, fault)) as session:
        yield session


@contextlib.contextmanager
def session_over(
    serve: Callable[[socket.socket], None], stop: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Run something that has a codec's stdin and stdout, while the block lasts."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs,), daemon=True)
    thread.start()
    session = _Session(ours, thread)
    try:
        yield session
    finally:
        session.channel("control").close()
        stop()
        thread.join(5.0)
