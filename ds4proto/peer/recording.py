"""Recording what crosses the channels to a pcapng file, as if captured on the wire.

Packets are made up (addresses and ports are real, sequence numbers start at a fixed
value), bytes and their order are not. The writer is the one of `ds4proto.pcap`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ds4proto.peer.api import Address, Buf
from ds4proto.peer.tap import Tap


class Conversation(Protocol):
    """One TCP connection as a capture writer takes it."""

    def data(self, from_opener: bool, data: Buf, time_ns: int) -> None:
        """Add bytes of one direction."""
        ...

    def end(self, from_opener: bool, time_ns: int) -> None:
        """Add a FIN of one direction."""
        ...

    def reset(self, from_opener: bool, time_ns: int) -> None:
        """Add a RST."""
        ...


class Writer(Protocol):
    """What a recorder needs of a capture writer."""

    def conversation(
        self, opener: Address, listener: Address, *, name: str, time_ns: int
    ) -> Conversation:
        """Begin a connection that `opener` dialled."""
        ...

    def close(self) -> None:
        """Finish the file."""
        ...


class Recorder:
    """Writes every byte of the channels it is given to one capture.

    Parameters
    ----------
    target
        Path of a pcapng file to make, or a writer.
    time_ns
        Wall clock for packet times, nanoseconds since the epoch.

    Notes
    -----
    Channels may be used from several threads; packets are written one at a time.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Writer,
        *,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        if isinstance(target, str | os.PathLike):
            target = _pcapng(Path(target))
        self._writer: Writer | None = target
        self._time_ns = time_ns
        self._lock = threading.Lock()

    def connection(
        self, local: Address, remote: Address, *, opened_by_us: bool, name: str = ""
    ) -> Tap:
        """Begin recording one connection; give the result to its channel."""
        opener, listener = (local, remote) if opened_by_us else (remote, local)
        with self._lock:
            if self._writer is None:
                raise ValueError("the recorder is closed")
            conversation = self._writer.conversation(
                opener, listener, name=name, time_ns=self._time_ns()
            )
        return _Tap(self, conversation, opened_by_us)

    def close(self) -> None:
        """Finish the file. Idempotent; bytes that come later are dropped."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(self, act: Callable[[int], None]) -> None:
        with self._lock:
            if self._writer is not None:
                act(self._time_ns())


class _Tap:
    """A connection being recorded. Buffers are written during the call."""

    def __init__(
        self, recorder: Recorder, conversation: Conversation, us: bool
    ) -> None:
        self._recorder = recorder
        self._to = conversation
        self._us = us
        self._ended = {True: False, False: False}
        self._gone = False

    def sent(self, bufs: Sequence[Buf], count: int) -> None:
        for buf in bufs:
            view = memoryview(buf).cast("B")[:count]
            count -= len(view)
            if len(view):
                self._data(self._us, view)
            if not count:
                return

    def received(self, data: memoryview) -> None:
        self._data(not self._us, data)

    def _data(self, from_opener: bool, view: memoryview) -> None:
        self._recorder._write(lambda now: self._to.data(from_opener, view, now))

    def finished(self, *, sent_by_us: bool) -> None:
        side = self._us if sent_by_us else not self._us
        if not self._ended[side] and not self._gone:
            self._ended[side] = True
            self._recorder._write(lambda now: self._to.end(side, now))

    def closed(self, *, reset: bool) -> None:
        if self._gone:
            return
        if not reset:
            self.finished(sent_by_us=True)
        self._gone = True
        if reset:
            self._recorder._write(lambda now: self._to.reset(self._us, now))


def _pcapng(path: Path) -> Writer:
    raise NotImplementedError(path)
