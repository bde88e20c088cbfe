"""Workers with one planted fault each; what a fuzzer has to find."""

from __future__ import annotations

import math
import os
import struct
from typing import Any, ClassVar, Final

from ds4proto.link import ds4d_work_checks, ds4d_worker_queue
from ds4proto.link.ds4d_frames import (
    CODE,
    FIXED,
    HEADER_SIZE,
    RESULT_PART,
    WORK_PART,
    unpack_header,
)
from ds4proto.link.ds4d_worker_events import EvaluateWork
from ds4proto.schema.ds4d_result import RESULT
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
)
from ds4proto.schema.ds4d_work import WORK
from ds4proto_fuzz.mutants.fault import Fault
from ds4proto_fuzz.mutants.small_worker import MAGIC_BYTES, Connection
from ds4proto_fuzz.mutants.worker_memory import KEEPERS

__all__ = ["WORKERS"]

_WORK, _RESULT, _CHUNK, _DONE, _LOAD = map(
    CODE.__getitem__,
    (WORK, RESULT, SNAPSHOT_CHUNK, SNAPSHOT_DONE, SNAPSHOT_LOAD_BEGIN),
)
_DONE_PART: Final = FIXED[SNAPSHOT_DONE]


class Sound(Fault):
    """Nothing is wrong."""


class HangsOnPartial(Fault):
    """A frame that is not whole keeps everybody waiting."""

    about = "reads a frame to its end before it serves anybody else"
    kind = "hang"

    def on_header(self, connection: Connection, code: int, size: int) -> None:
        """Wait for the body, and for nothing else."""
        del code
        connection.sock.settimeout(None)
        while len(connection.raw) < HEADER_SIZE + min(size, 1 << 26):
            data = connection.sock.recv(1 << 16)
            if not data:
                break
            connection.raw += data


class CrashNoTokens(Fault):
    """A WORK without tokens ends the process."""

    about = "divides by the number of tokens"
    kind = "crash"

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Divide."""
        if code == _WORK and len(body) >= WORK_PART.size:
            words = WORK_PART.read(body)
            connection.memory["row"] = words["input_hc_bytes"] // words["n_tokens"]
        return body


class CrashRoute(Fault):
    """A route of very many records ends the process by a signal."""

    about = "aborts on a route of more than 65536 records"
    kind = "crash"

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Abort."""
        del connection
        whole = code == _WORK and len(body) >= WORK_PART.size
        if whole and WORK_PART.read(body)["route_count"] > 1 << 16:
            os.abort()
        return body


class CrashShort(Fault):
    """A frame cut short by the end of the stream ends the process."""

    about = "an end of stream inside a frame is not foreseen"
    kind = "crash"

    def on_end(self, connection: Connection) -> None:
        """Fail."""
        if connection.raw:
            raise EOFError(f"{len(connection.raw)} bytes of a frame")


class DesyncAfterLoad(Fault):
    """The tokens of a refused LOAD are read as the next frame."""

    about = "leaves the tokens of a refused LOAD in the stream"
    kind = "wrong answer"

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Note a refusal."""
        done = unpack_header(frame)[1] == _DONE
        if done and _DONE_PART.read(frame, HEADER_SIZE)["status"]:
            connection.memory["refused"] = True
        return frame

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Lose the frame behind it."""
        del code
        if connection.memory.pop("refused", False):
            connection.machine.receive_data(bytes(16), 0.0)
            return None
        return body


def _without(*clauses: str) -> None:
    """Leave checks of WORK out of the library's tables, for this process."""
    checks: Any = ds4d_work_checks
    for name in ("HEAD_CHECKS", "SIZE_CHECKS", "TOKEN_CHECKS", "ROUTE_CHECKS"):
        kept = tuple(c for c in getattr(checks, name) if c.clause not in clauses)
        setattr(checks, name, kept)


class _Skips(Fault):
    kind = "silent accept"
    clauses: ClassVar[tuple[str, ...]] = ()

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        _without(*self.clauses)


class AcceptsFlags(_Skips):
    """Unknown flags are taken."""

    about = "serves a WORK with unknown flags"
    clauses = ("DS4D-WORK-07",)


class AcceptsVocabulary(_Skips):
    """Tokens outside the vocabulary are taken."""

    about = "serves tokens outside the vocabulary"
    clauses = ("DS4D-WORK-14",)


class AcceptsContext(_Skips):
    """Spans behind the context are taken."""

    about = "serves a span behind the end of the context"
    clauses = ("DS4D-WORK-09",)
    prefill_cap = None


class AcceptsPrefix(Fault):
    """Any prefix hash is taken."""

    about = "serves a WORK whose prefix hash is not the session's"
    kind = "silent accept"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        queue: Any = ds4d_worker_queue
        own = queue.judge_session

        def lenient(session: Any, prefix: int, *rest: Any) -> Any:
            session.hash = prefix
            return own(session, prefix, *rest)

        queue.judge_session = lenient


class IgnoresMagic(Fault):
    """A wrong magic is stepped over."""

    about = "looks for the next frame behind a wrong magic"
    kind = "silent accept"

    def _bytes(self, connection: Connection, data: bytes) -> None:
        if not data.startswith(MAGIC_BYTES) and not connection.raw:
            at = data.find(MAGIC_BYTES)
            data = data[at:] if at >= 0 else b""
        super()._bytes(connection, data)


class WrongAfterRefusal(Fault):
    """The answer behind a refusal carries the refused request's id."""

    about = "answers with the id of the refused WORK before"
    kind = "wrong answer"

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Take the wrong id."""
        if unpack_header(frame)[1] != _RESULT:
            return frame
        words = RESULT_PART.read(frame, HEADER_SIZE)
        before = connection.memory.pop("refused", None)
        if words["status"]:
            connection.memory["refused"] = words["request"]
        elif before is not None:
            part = RESULT_PART.build({**words, "request": before})
            return frame[:HEADER_SIZE] + part + frame[HEADER_SIZE + len(part) :]
        return frame


class Poisoned(Fault):
    """A NaN reaches what other sessions get."""

    about = "a NaN in a payload spoils the answers of all sessions"
    kind = "wrong answer"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        self._sum = 0.0

    def payload(self, job: EvaluateWork) -> bytes:
        """Add it up."""
        data = super().payload(job)
        if job.hidden is not None and job.bits == 32:
            size = len(job.hidden) // 4
            self._sum += sum(struct.unpack(f"<{size}f", job.hidden))
        return bytes(len(data)) if math.isnan(self._sum) else data


class Starves(Fault):
    """After an unsupported frame nobody new is served."""

    about = "stops accepting connections after an unsupported frame"
    kind = "hang"

    def __init__(self, coordinator: tuple[str, int]) -> None:
        super().__init__(coordinator)
        self._over = False

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Note it."""
        del connection
        self._over = self._over or not 1 <= code <= _LOAD
        return body

    def accept(self) -> None:
        """Take no more."""
        if not self._over:
            super().accept()
        else:
            self._selector.unregister(self._listener)


class EmptyChunk(Fault):
    """An empty chunk is waited for for ever."""

    about = "an empty chunk of a shard is taken for the end and never answered"
    kind = "hang"

    def on_frame(self, connection: Connection, code: int, body: bytes) -> bytes | None:
        """Loop."""
        while code == _CHUNK and len(body) <= FIXED[SNAPSHOT_CHUNK].size:
            connection.sock.settimeout(None)
            if not connection.sock.recv(1):
                break
        return body


class ReusedRequest(Fault):
    """A request id that was seen before gets the old answer."""

    about = "answers a request id that it knows from a cache"
    kind = "wrong answer"

    def out(self, connection: Connection, frame: bytes) -> bytes:
        """Look it up."""
        if unpack_header(frame)[1] != _RESULT:
            return frame
        known = connection.memory.setdefault("answers", {})
        request = RESULT_PART.read(frame, HEADER_SIZE)["request"]
        found: bytes = known.setdefault(request, frame)
        return found


WORKERS: Final[dict[str, type[Fault]]] = {
    "none": Sound,
    **KEEPERS,
    "hangs-on-partial": HangsOnPartial,
    "crash-no-tokens": CrashNoTokens,
    "crash-route-count": CrashRoute,
    "crash-cut-frame": CrashShort,
    "desync-after-load": DesyncAfterLoad,
    "accepts-flags": AcceptsFlags,
    "accepts-vocabulary": AcceptsVocabulary,
    "accepts-context": AcceptsContext,
    "accepts-prefix": AcceptsPrefix,
    "ignores-magic": IgnoresMagic,
    "wrong-after-refusal": WrongAfterRefusal,
    "nan-poisons": Poisoned,
    "starves-newcomers": Starves,
    "hangs-on-empty-chunk": EmptyChunk,
    "reused-request": ReusedRequest,
}
