"""Recording what crosses the channels to a pcapng file, as if captured on the wire.

Packets are made up: addresses and ports are real, sequence numbers and segment borders
are not. The bytes, their order, and the ends and resets of connections are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final, Literal

from ds4proto.pcap import Endpoint, PcapngWriter, TcpConversation
from ds4proto.peer.api import Address, Buf
from ds4proto.peer.tap import Tap

_ISN_STEP: Final = 1 << 24
"""Between the initial numbers of connections, so that a reused port pair shows."""


class Recorder:
    """Writes every byte of the channels it is given to one pcapng file.

    Parameters
    ----------
    target
        Path or binary stream; each packet is written at once, so that a run that is
        broken off leaves a readable file.
    time_ns
        Wall clock for packet times, nanoseconds since the epoch.

    Raises
    ------
    ds4proto.pcap.CaptureWriteError
        Here, or out of the channel that is being recorded, if the file cannot be
        written.

    Notes
    -----
    Channels may be used from several threads; packets are written one at a time.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._writer = PcapngWriter(target)
        self._time_ns = time_ns
        self._lock = threading.Lock()
        self._open = True
        self._count = 0

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connection(self, local: Address, remote: Address, *, opened_by_us: bool) -> Tap:
        """Begin recording one connection; give the result to its channel."""
        ends = (local, remote) if opened_by_us else (remote, local)
        with self._lock:
            if not self._open:
                raise ValueError("the recorder is closed")
            isn = self._count * _ISN_STEP
            self._count += 1
            conversation = TcpConversation(
                self._writer,
                Endpoint(*ends[0]),
                Endpoint(*ends[1]),
                isn_a=isn + 1000,
                isn_b=isn + 2000,
            )
            conversation.open(self._time_ns())
        return _Tap(self, conversation, opened_by_us)

    def close(self) -> None:
        """Finish the file. Idempotent; what crosses later is not recorded."""
        with self._lock:
            self._open = False
            self._writer.close()

    def write(self, act: Callable[[int], None]) -> None:
        """Run `act` with the time of now, alone; nothing happens after `close`."""
        with self._lock:
            if self._open:
                act(self._time_ns())


class _Tap:
    """A connection being recorded. Buffers are written during the call."""

    def __init__(
        self, recorder: Recorder, conversation: TcpConversation, opened_by_us: bool
    ) -> None:
        self._recorder = recorder
        self._to = conversation
        self._out: Literal["a>b", "b>a"] = "a>b" if opened_by_us else "b>a"
        self._in: Literal["a>b", "b>a"] = "b>a" if opened_by_us else "a>b"
        self._ended: set[str] = set()
        self._gone = False

    def sent(self, bufs: Sequence[Buf], count: int) -> None:
        parts = []
        for buf in bufs:
            view = memoryview(buf).cast("B")[:count]
            count -= len(view)
            parts.append(view)
            if not count:
                break
        self._recorder.write(lambda now: self._to.data(now, self._out, parts))

    def received(self, data: memoryview) -> None:
        self._recorder.write(lambda now: self._to.data(now, self._in, data))

    def finished(self, *, sent_by_us: bool) -> None:
        side = self._out if sent_by_us else self._in
        if side not in self._ended and not self._gone:
            self._ended.add(side)
            self._recorder.write(lambda now: self._to.fin(now, side))

    def closed(self, *, reset: bool, by_us: bool) -> None:
        if self._gone:
            return
        if not reset:
            self.finished(sent_by_us=True)
        self._gone = True
        if reset:
            side = self._out if by_us else self._in
            self._recorder.write(lambda now: self._to.rst(now, side))
