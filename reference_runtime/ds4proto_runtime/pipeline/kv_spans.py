"""KV on its way span by span: out of an engine, over a connection, into another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ds4proto.link.ds4d_local import local_frame
from ds4proto.link.ds4d_texts import text
from ds4proto.peer import PeerLost, Recorder, SocketChannel
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_private_frames import KV_INCREMENT
from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import Engine, EngineError, KvSpans, Session
from ds4proto_runtime.handover import span_tensors
from ds4proto_runtime.pipeline.dialling import connect
from ds4proto_runtime.pipeline.line import SLICE_S, now
from ds4proto_runtime.pipeline.settings import SocketSettings

DEPTH: Final = 4
"""Spans that may wait for the wire; more hold the evaluation up."""
Log = Callable[[str], None]


def spans_of(engine: Engine) -> KvSpans:
    """Return the engine as one whose KV moves in spans.

    Raises
    ------
    EngineError
        Its KV does not.
    """
    if not isinstance(engine, KvSpans):
        raise EngineError(
            f"the KV of model {engine.shape.model_name!r} does not move in spans:"
            " use --local-decode on the coordinator alone"
        )
    return engine


def export(
    engine: Engine, session: Session, layers: range, pos: int, count: int
) -> bytes:
    """Return what the last ``count`` tokens added to some layers."""
    spans = spans_of(engine)
    return b"".join(spans.kv_span(session, layer, pos, count) for layer in layers)


def extend(
    engine: Engine, session: Session, layers: range, pos: int, count: int, data: Buf
) -> None:
    """Add the KV of a span to some layers of a session; its tokens are not listed.

    Raises
    ------
    EngineError
        The size is not that of the span; nothing has been touched.
    """
    spans, size = spans_of(engine), memoryview(data).nbytes
    parts = [t for t in span_tensors(engine.shape, pos, count) if t.layer in layers]
    due = sum(part.nbytes for part in parts)
    if size != due:
        raise EngineError(text("DS4D-OURS-11", size, due))
    first = parts[0].offset if parts else 0
    whole = np.frombuffer(data, np.float32)
    for layer in layers:
        arrays = []
        for part in parts:
            if part.layer == layer:
                at = (part.offset - first) // 4
                rows = whole[at : at + part.nbytes // 4]
                arrays.append(rows.reshape(part.rows, part.width))
        spans.kv_extend(session, layer, pos, count, arrays)


def span_frame(
    words: dict[str, int],
    layers: range,
    payload: Buf,
    *,
    spec: FrameSpec = KV_INCREMENT,
    tokens: Sequence[int] = (),
) -> list[Buf]:
    """Return a KV_INCREMENT or KV_RETURN; ``words`` hold key, hashes and span."""
    return local_frame(
        spec,
        **words,
        layer_start=layers.start,
        layer_end=layers.stop - 1,
        tokens=tuple(tokens),
        payload=memoryview(payload).cast("B"),
    )


class KvSender:
    """Sends spans to one worker on a connection of its own, beside the evaluation.

    A connection that breaks is said once and dialled again for the next span; the
    receiver finds the gap by its hashes.
    """

    def __init__(
        self,
        address: tuple[str, int],
        sockets: SocketSettings,
        *,
        recorder: Recorder | None,
        log: Log,
    ) -> None:
        self._address, self._sockets = address, sockets
        self._recorder, self._log = recorder, log
        self._queue: queue.Queue[list[Buf] | None] = queue.Queue(DEPTH)
        self._stop = threading.Event()
        self._channel: SocketChannel | None = None
        self.nbytes = 0
        self._thread = threading.Thread(target=self._run, name="kv", daemon=True)
        self._thread.start()

    def put(self, frame: list[Buf], nbytes: int) -> None:
        """Queue a frame; waits while too many are on their way."""
        self.nbytes += nbytes
        try:
            self._queue.put(frame, timeout=self._sockets.send_s)
        except queue.Full:
            self._log(f"KV for {self._name} is dropped: nothing leaves any more")

    def close(self) -> None:
        """End the connection; what is queued is sent first, within limits."""
        self._stop.set()
        self._thread.join(SLICE_S)
        if self._channel is not None:
            self._channel.close()

    @property
    def _name(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    def _run(self) -> None:
        while not self._stop.is_set() or not self._queue.empty():
            try:
                frame = self._queue.get(timeout=SLICE_S / 4)
            except queue.Empty:
                continue
            if frame is not None:
                self._send(frame)

    def _send(self, frame: list[Buf]) -> None:
        try:
            if self._channel is None:
                self._channel = self._dial()
            self._channel.send(frame, deadline=now() + self._sockets.send_s)
        except (PeerLost, OSError) as error:
            self._log(f"KV for {self._name} is lost: {error}")
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def _dial(self) -> SocketChannel:
        return connect(
            *self._address,
            self._sockets,
            recorder=self._recorder,
            log=self._log,
            alive=lambda: not self._stop.is_set(),
            phase="dialling the decoding worker",
        )
