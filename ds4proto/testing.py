"""Public fixtures: captures, vectors, loopback pairs, a fake clock, peer processes.

Nothing here needs pytest. `check_transport` checks any implementation of
`ds4proto.peer.Channel`, ours or yours.
"""

from __future__ import annotations

import array
import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ds4proto.peer.api import Buf, Channel, Clock, Poller
from ds4proto.peer.channel import SocketChannel
from ds4proto.peer.clock import SYSTEM_CLOCK
from ds4proto.peer.connect import listen, set_buffers
from ds4proto.peer.errors import PeerLost
from ds4proto.peer.process import PeerProcess, spawn

__all__ = [
    "FakeClock",
    "FixtureMissingError",
    "capture_path",
    "captures_dir",
    "check_transport",
    "loopback_pair",
    "spawn_peer",
    "vector_path",
    "vectors_dir",
]

PATIENCE: Final = 60.0
"""Seconds that any step of `check_transport` may take; a pass takes milliseconds."""
_UNDER_WAY_MS: Final = 100
"""How long a kernel with much to do may carry bytes over the loopback interface."""


class FixtureMissingError(FileNotFoundError):
    """A capture or vector file that this installation does not have."""


class FakeClock:
    """A clock that moves only when told, or when somebody waits in vain.

    A wait that finds nothing ready lets its whole time pass, so a test of a 10-minute
    deadline takes a tenth of a second and depends on no machine's speed. For one
    thread: with two, use the system clock.

    Attributes
    ----------
    slept : list of float
        Every sleep and every wait in vain, seconds.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self.slept: list[float] = []

    def now(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass, and note it."""
        self.slept.append(seconds)
        self._now += seconds

    def wait(self, poller: Poller, seconds: float) -> list[tuple[int, int]]:
        """Return what is ready; if nothing is, all of `seconds` pass."""
        ready = poller.poll(0) or poller.poll(_UNDER_WAY_MS)
        if not ready:
            self.sleep(seconds)
        return ready


def _root() -> Path:
    return Path(__file__).resolve().parent


def captures_dir() -> Path:
    """Return the folder of captures: the repository's, else the package's own.

    Raises
    ------
    FixtureMissingError
        Neither is there.
    """
    return _first(
        _root().parent / "conformance" / "captures",
        _root() / "data" / "captures",
        what="captures",
    )


def vectors_dir() -> Path:
    """Return the folder of codec and hash vectors, which the package carries.

    Raises
    ------
    FixtureMissingError
        The installation lacks it.
    """
    return _first(_root() / "codec" / "vectors", what="vectors")


def capture_path(name: str) -> Path:
    """Return the path of one capture, e.g. ``"ds4d/a_s2_decode_f32.pcap"``."""
    return _first(captures_dir() / name, what=f"capture {name}")


def vector_path(name: str) -> Path:
    """Return the path of one vector file."""
    return _first(vectors_dir() / name, what=f"vector file {name}")


def _first(*paths: Path, what: str) -> Path:
    for path in paths:
        if path.exists():
            return path
    tried = ", ".join(str(path) for path in paths)
    raise FixtureMissingError(f"{what} not found; looked at {tried}. Next: use a clone")


def loopback_pair(
    *, buffers: int | None = None, clock: Clock = SYSTEM_CLOCK, host: str = "127.0.0.1"
) -> tuple[SocketChannel, SocketChannel]:
    """Return two connected TCP channels on the loopback interface.

    Parameters
    ----------
    buffers
        Send and receive buffer of both sockets in bytes (the kernel rounds up); small
        ones make partial sends and deadlocks visible.
    """
    with listen(host, 0, buffers=buffers, clock=clock) as listener:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        set_buffers(sock, buffers)
        sock.connect(listener.address)
        theirs = listener.accept(deadline=clock.now() + PATIENCE)
    return SocketChannel(sock, clock=clock), theirs


@contextlib.contextmanager
def spawn_peer(argv: Sequence[str], **options: Any) -> Iterator[PeerProcess]:
    """Start a process as `ds4proto.peer.spawn` does and end it on leaving."""
    process = spawn(argv, **options)
    try:
        yield process
    finally:
        process.end()


PairMaker = Callable[[], tuple[Channel, Channel]]


def check_transport(make_pair: PairMaker, *, small: PairMaker | None = None) -> None:
    """Check that an implementation of `Channel` keeps its promises.

    Parameters
    ----------
    make_pair
        Returns two connected channels on the system clock, fresh ones at every call.
    small
        The same with small buffers; without it the checks that need them use
        `make_pair`.

    Raises
    ------
    AssertionError
        Says which promise was broken.
    """
    tight = small or make_pair
    _with(make_pair, _check_order)
    _with(tight, _check_partial_sends)
    _with(make_pair, _check_deadlines)
    _with(tight, _check_send_deadline)
    _with(make_pair, _check_half_close)
    _with(make_pair, _check_end_in_the_middle)
    _with(make_pair, _check_reset)
    _with(tight, _check_exchange)
    _with(make_pair, _check_exchange_end)
    _with(make_pair, _check_idle)
    _with(make_pair, _check_close)


def _with(make: PairMaker, check: Callable[[Channel, Channel], None]) -> None:
    a, b = make()
    try:
        check(a, b)
    finally:
        a.close()
        b.close()


def _soon() -> float:
    return SYSTEM_CLOCK.now() + PATIENCE


def _pattern(size: int, seed: int) -> bytes:
    """Bytes in which a shift or a lost block shows."""
    word = bytes((i * 167 + seed * 31 + (i >> 8) * 13) & 0xFF for i in range(4096 + 7))
    return (word * (size // len(word) + 1))[:size]


def _beside(work: Callable[[], None]) -> Callable[[], None]:
    """Run `work` in a thread; the result joins it and passes its error on."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(PATIENCE)
        _require(not thread.is_alive(), "the other side is stuck")
        if errors:
            raise errors[0]

    return join


def _require(kept: bool, promise: str) -> None:
    # Not an assert statement: python -O would make every check pass.
    if not kept:
        raise AssertionError(promise)


def _lost(kind: str, act: Callable[[], object], promise: str) -> PeerLost:
    error: PeerLost | None = None
    try:
        act()
    except PeerLost as caught:
        error = caught
    if error is None:
        raise AssertionError(f"{promise}: nothing was raised")
    _require(error.kind == kind, f"{promise}: lost as {error.kind}, not {kind}")
    return error


def _arrived(channel: Channel) -> None:
    """Wait until something can be read, which a short deadline must not do."""
    select.select([channel.fileno()], [], [], PATIENCE)


def _check_order(a: Channel, b: Channel) -> None:
    parts: list[Buf] = [b"one", bytearray(b""), memoryview(b"two"), b"three"]
    a.send(parts, deadline=_soon())
    b.send([b"back"], deadline=_soon())
    got = bytearray(11)
    b.recv_exact(got, deadline=_soon())
    _require(got == b"onetwothree", f"buffers arrive in order: got {bytes(got)!r}")
    back = bytearray(4)
    a.recv_exact(back, deadline=_soon())
    _require(back == b"back", "both directions carry bytes")
    _require((a.sent, a.received) == (11, 4), "bytes are counted")
    _require((b.sent, b.received) == (4, 11), "bytes are counted")
    wide = array.array("I", range(6))
    view: Any = memoryview(wide)
    a.send([view], deadline=_soon())
    exact = bytearray(len(wide) * wide.itemsize)
    b.recv_exact(exact, deadline=_soon())
    _require(exact == wide.tobytes(), "views of wider items are sent as bytes")


def _check_partial_sends(a: Channel, b: Channel) -> None:
    whole = _pattern(4 << 20, 1)
    parts = [memoryview(whole)[i : i + 1500] for i in range(0, len(whole), 1500)]
    kept = list(parts)
    join = _beside(lambda: a.send(parts, deadline=_soon()))
    got = bytearray(len(whole))
    b.recv_exact(got, deadline=_soon())
    join()
    _require(got == whole, "a large send of many buffers arrives whole and in order")
    _require(parts == kept, "the caller's list of buffers is left as it was")


def _check_deadlines(a: Channel, b: Channel) -> None:
    past = SYSTEM_CLOCK.now() - 1
    error = _lost(
        "timeout", lambda: a.recv_into(bytearray(1), deadline=past), "deadline"
    )
    _require(error.exit_code == 3, "a lost peer is exit code 3")
    b.send([b"xy"], deadline=_soon())
    _arrived(a)
    near = SYSTEM_CLOCK.now() + 0.05
    three = bytearray(3)
    error = _lost(
        "timeout", lambda: a.recv_exact(three, deadline=near), "a read that is short"
    )
    _require(error.partial == 2, "the error counts what came")
    b.send([b"z"], deadline=_soon())
    one = bytearray(4)
    _require(
        a.recv_into(one, deadline=_soon()) == 1, "a channel outlives a missed deadline"
    )


def _check_send_deadline(a: Channel, b: Channel) -> None:
    b.phase = "never reading"
    near = SYSTEM_CLOCK.now() + 0.05
    block = bytes(64 << 20)
    _lost("timeout", lambda: a.send([block], deadline=near), "a peer that never reads")
    _require(0 < a.sent < len(block), "the error comes in the middle of the send")


def _check_half_close(a: Channel, b: Channel) -> None:
    a.send([b"last"], deadline=_soon())
    a.shutdown_send()
    got = bytearray(16)
    _require(
        b.recv_into(got, deadline=_soon()) == 4, "bytes before a half-close arrive"
    )
    for _ in range(2):
        _require(
            b.recv_into(got, deadline=_soon()) == 0, "then the stream ends, and stays"
        )
    b.send([b"still"], deadline=_soon())
    _require(a.recv_into(got, deadline=_soon()) == 5, "the other direction stays open")


def _check_end_in_the_middle(a: Channel, b: Channel) -> None:
    a.send([b"abc"], deadline=_soon())
    a.close()
    error = _lost(
        "closed", lambda: b.recv_exact(bytearray(8), deadline=_soon()), "a cut read"
    )
    _require(error.partial == 3, "the error counts what came")


def _check_reset(a: Channel, b: Channel) -> None:
    a.close(reset=True)
    b.phase = "waiting for a reply"
    error = _lost(
        "reset", lambda: b.recv_into(bytearray(1), deadline=_soon()), "a reset"
    )
    _require("waiting for a reply" in str(error), "the error names the phase")


def _check_exchange(a: Channel, b: Channel) -> None:
    size = 3 << 20
    there, back = _pattern(size, 2), _pattern(size, 3)
    got_a, got_b = bytearray(size), bytearray(size)

    def other() -> None:
        b.exchange([b"hdr!", back], memoryview(got_b), deadline=_soon(), idle=PATIENCE)

    join = _beside(other)
    head = bytearray(4)
    a.exchange([there], head, deadline=_soon())
    a.recv_exact(got_a, deadline=_soon())
    join()
    _require(head == b"hdr!", "an exchange fills its view from the first byte")
    _require(got_a == back, "an exchange carries both directions at once")
    _require(got_b == there, "an exchange carries both directions at once")


def _check_exchange_end(a: Channel, b: Channel) -> None:
    b.send([b"ab"], deadline=_soon())
    b.shutdown_send()
    error = _lost(
        "closed",
        lambda: a.exchange([b"x"], bytearray(5), deadline=_soon()),
        "an exchange whose peer ends",
    )
    _require(error.partial == 2, "the error counts what came")


def _check_idle(a: Channel, b: Channel) -> None:
    b.send([b"ab"], deadline=_soon())
    _arrived(a)
    error = _lost(
        "timeout",
        lambda: a.exchange([b"x"], bytearray(5), deadline=_soon(), idle=0.05),
        "an exchange that stands still",
    )
    _require(error.partial == 2, "the error counts what came")
    _require(SYSTEM_CLOCK.now() < _soon(), "idle ends it long before the deadline")


def _check_close(a: Channel, b: Channel) -> None:
    _require(select.select([a.fileno()], [], [], 0)[0] == [], "nothing to read yet")
    a.close()
    a.close()
    _require(a.fileno() == -1, "a closed channel has no descriptor")
    _lost("closed", lambda: a.send([b"x"], deadline=_soon()), "a send after close")
    _require(b.recv_into(bytearray(1), deadline=_soon()) == 0, "the peer sees an end")
