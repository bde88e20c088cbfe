"""The engine's side of a worker: spans, shards and sessions, without a socket."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import IO, Any

from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_worker_events import (
    EvaluateWork,
    RestoreShard,
    SaveShard,
    ShardFailed,
    ShardRestored,
    ShardSaved,
    WorkEvaluated,
    WorkFailed,
)
from ds4proto.schema.problem import Buf
from ds4proto_runtime import kv
from ds4proto_runtime.engines.base import (
    BrokenSessionError,
    Engine,
    EngineError,
    Session,
)
from ds4proto_runtime.pipeline.activations import Decoded, pack, pack_late, unpack

Log = Callable[[str], None]
Job = EvaluateWork | SaveShard | RestoreShard


def worker_facts(
    engine: Engine,
    dialect: str = "upstream",
    layers: range | None = None,
    *,
    local_decode: bool = False,
) -> WorkerFacts:
    """Return what a worker announces and checks of its slice."""
    shape, own = engine.shape, engine.layers if layers is None else layers
    return WorkerFacts(
        kv.model_facts(shape, dialect),
        own.start,
        own.stop - 1,
        engine.has_head,
        shape.quant_bits,
        prefill_cap=shape.prefill_cap,
        local_decode=local_decode,
    )


class Spool:
    """A shard on its way in, in a file without a name."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 -- closed by close()
            prefix="ds4-dist-load"
        )

    def write(self, data: Buf) -> None:
        """Take the next bytes."""
        self._file.write(data)

    def data(self) -> memoryview:
        """Return all bytes, mapped."""
        self._file.flush()
        size = self._file.tell()
        if not size:
            return memoryview(b"")
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ)
        return memoryview(mapped)

    def close(self) -> None:
        """Throw the bytes away."""
        self._file.close()


class EngineRoom:
    """Sessions of one worker and the work on them; one job at a time.

    Parameters
    ----------
    profile : str
        Numeric profile of the 8-bit encoder.
    layers : range, optional
        The slice, where the engine holds more than that.

    Attributes
    ----------
    on_span : callable or None
        Told each evaluated span whose KV goes elsewhere too, and its session.
    """

    def __init__(
        self, engine: Engine, *, profile: str, log: Log, layers: range | None = None
    ) -> None:
        self.engine = engine
        self.layers = engine.layers if layers is None else layers
        self.on_span: Callable[[EvaluateWork, Session], None] | None = None
        self.decoded = Decoded(engine.shape.hidden_values, profile)
        self._profile = profile
        self._log = log
        self._sessions: dict[int, Session] = {}

    def session(self, number: int) -> Session:
        """Return a session, empty if it is new."""
        found = self._sessions.get(number)
        if found is None:
            found = kv.open_slice(self.engine, self.layers)
            self._sessions[number] = found
        return found

    def reset(self, number: int) -> None:
        """Empty a session."""
        self.engine.reset(self.session(number))

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Free sessions."""
        for number in numbers:
            self._sessions.pop(number, None)

    def do(self, job: Job, spool: Spool | None = None) -> Any:
        """Do one job and return the command that answers it."""
        if isinstance(job, EvaluateWork):
            return self._evaluate(job)
        if isinstance(job, SaveShard):
            return self._save(job)
        return self._restore(job, spool)

    def _evaluate(self, job: EvaluateWork) -> WorkEvaluated | WorkFailed:
        started = perf_counter()
        session = self.session(job.session)
        try:
            payload = self._span(job, session)
        except BrokenSessionError as error:
            session.broken = True
            return WorkFailed(str(error), touched=True)
        except EngineError as error:
            return WorkFailed(str(error))
        except Exception:  # whatever an engine raises, the connection lives on
            session.broken = True
            self._log(traceback.format_exc())
            return WorkFailed("layer-slice failed", touched=True)
        elapsed = perf_counter() - started
        if job.kv is not None and self.on_span is not None:
            self.on_span(job, session)
        return WorkEvaluated(payload, elapsed)

    def _span(self, job: EvaluateWork, session: Session) -> Buf:
        engine, width = self.engine, self.engine.shape.hidden_values
        if job.hidden is None:
            hidden = engine.embed(job.tokens)
        else:
            early = self.decoded.take(job.hidden)
            hidden = (
                unpack(job.hidden, job.bits, width, self._profile)
                if early is None
                else early
            )
        rows = engine.run(session, hidden, job.tokens, job.pos0)
        if job.want == "ack":
            return b""
        if job.want == "logits":
            return pack(engine.head(rows[-1]), 32)
        return pack_late(rows, job.bits, self._profile)

    def _save(self, job: SaveShard) -> ShardSaved | ShardFailed:
        try:
            parts = kv.shard_bytes(self.engine, self.session(job.session))
        except EngineError as error:
            return ShardFailed(str(error))
        return ShardSaved(parts, kv.size_of(parts))

    def _restore(
        self, job: RestoreShard, spool: Spool | None
    ) -> ShardRestored | ShardFailed:
        with contextlib.ExitStack() as stack:
            data: Buf = b""
            if spool is not None:
                stack.callback(spool.close)
                data = spool.data()
            try:
                restored = kv.load_shard(self.engine, data, job.tokens, self.layers)
            except EngineError as error:
                return ShardFailed(str(error))
            except Exception:
                self._log(traceback.format_exc())
                return ShardFailed(text("DS4D-SNAP-21"))
        self._sessions[job.session] = restored
        return ShardRestored()


__all__ = ["EngineRoom", "Job", "Spool", "worker_facts"]
