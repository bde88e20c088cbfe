"""Workers that reserve or keep what they should not."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any, Final

from ds4proto.link.ds4d_frames import (
    CODE,
    FIXED,
    HEADER_SIZE,
    RESULT_PART,
    unpack_header,
)
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_worker_events import EvaluateWork
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.ds4d_snapshot import SNAPSHOT_LOAD_BEGIN
from ds4proto_fuzz.mutants.fault import Fault
from ds4proto_fuzz.mutants.small_worker import Connection

__all__ = ["KEEPERS"]

_RESULT, _LOAD = CODE[RESULT], CODE[SNAPSHOT_LOAD_BEGIN]
_LOAD_PART: Final = FIXED[SNAPSHOT_LOAD_BEGIN]


class Allocates(Fault):
    """Memory for a body of the announced size, before it is there."""

    about = "reserves the announced size of a body before it comes"
    kind = "over-allocation"

    def on_header(self, connection: Connection, code: int, size: int) -> None:
        """Reserve it."""
        del code
        connection.memory["body"] = bytearray(size)


class AllocatesTokens(Fault):
    """Memory for as many tokens as a LOAD announces."""

    about = "reserves the tokens that a LOAD announces"
    kind = "over-allocation"

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Reserve them."""
        if code == _LOAD and len(body) >= _LOAD_PART.size:
            count = _LOAD_PART.read(body)["token_count"]
            connection.memory["tokens"] = bytearray(count)
        return body


class LeaksDescriptors(Fault):
    """A connection that ended inside a frame costs a descriptor for ever."""

    about = "leaves a descriptor behind for every connection that ended inside a frame"
    kind = "leak"

    def on_end(self, connection: Connection) -> None:
        """Leave one."""
        if connection.raw:
            os.open(os.devnull, os.O_RDONLY)


class LeaksFiles(Fault):
    """Each LOAD leaves its file open."""

    about = "leaves a file open for every LOAD"
    kind = "leak"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        self._files: list[Any] = []

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Open one."""
        del connection
        if code == _LOAD:
            self._files.append(tempfile.TemporaryFile())  # noqa: SIM115
        return body


class LeaksThreads(Fault):
    """Each data connection gets a thread that never ends."""

    about = "starts a thread for every data connection and never ends it"
    kind = "leak"

    def on_open(self, connection: Connection) -> None:
        """Start it."""
        del connection
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class LeaksRefused(Fault):
    """Every refused WORK is kept."""

    about = "keeps 64 KiB for every WORK that it refuses"
    kind = "leak"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        self._kept: list[bytes] = []

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Keep it."""
        del connection
        result = unpack_header(frame)[1] == _RESULT
        if result and RESULT_PART.read(frame, HEADER_SIZE)["status"]:
            self._kept.append(os.urandom(64 << 10))
        return frame


class UnboundedSessions(Fault):
    """Every session id costs memory, without a bound."""

    about = "keeps 64 KiB for every session id it hears, without a bound"
    kind = "leak"
    limits = LinkLimits(max_sessions=1 << 30)

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        self._caches: dict[int, bytes] = {}

    def payload(self, job: EvaluateWork) -> bytes:
        """Make one for a new session."""
        self._caches.setdefault(job.session, os.urandom(64 << 10))
        return super().payload(job)


KEEPERS: Final[dict[str, type[Fault]]] = {
    "allocates-body": Allocates,
    "allocates-tokens": AllocatesTokens,
    "leaks-descriptors": LeaksDescriptors,
    "leaks-files": LeaksFiles,
    "leaks-threads": LeaksThreads,
    "leaks-refused": LeaksRefused,
    "unbounded-sessions": UnboundedSessions,
}
