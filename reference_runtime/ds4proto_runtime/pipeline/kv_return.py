"""What was decoded at the last worker goes back to every slice (DS4D-OURS-16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_local import local_frame
from ds4proto.link.ds4d_registry import WorkerEntry
from ds4proto.schema.ds4d_private_frames import KV_FETCH, KV_RETURN
from ds4proto.schema.problem import Buf
from ds4proto_runtime.pipeline.kv_spans import extend, span_frame
from ds4proto_runtime.pipeline.local_client import LocalRequests
from ds4proto_runtime.pipeline.session import PipelineError, PipelineSession

if TYPE_CHECKING:
    from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator

Key = Callable[[], dict[str, int]]


def hand_back(
    owner: PipelineCoordinator,
    session: PipelineSession,
    decoder: WorkerEntry,
    held: list[int],
    at: int,
    key: Key,
) -> int:
    """Bring every slice from ``at`` tokens to those that the decoder holds.

    Parameters
    ----------
    key : callable
        Returns the first words of a new request.

    Returns
    -------
    nbytes : int
        KV fetched from the decoding worker.

    Raises
    ------
    PipelineError, EngineError
        Some slices may have theirs already: begin with a reset then.
    """
    total, tail = 0, held[at:]
    with owner.route_lock:
        requests = LocalRequests(owner, decoder)
        try:
            data = _fetch(requests, key(), owner.layers, held, at)
            state = session.slice.state
            extend(owner.engine, state, owner.layers, at, len(tail), data)
            state.tokens.extend(tail)
            total += len(data)
            for entry in owner.door.route().workers:
                layers = range(entry.layer_start, entry.layer_end + 1)
                words = {
                    **key(),
                    "prefix_hash": token_hash(held[:at]),
                    "result_hash": token_hash(held),
                    "pos0": at,
                    "n_tokens": len(tail),
                }
                if entry is decoder:  # its rows lie there already
                    data = memoryview(b"")
                else:
                    data = _fetch(requests, key(), layers, held, at)
                total += len(data)
                frame = span_frame(words, layers, data, spec=KV_RETURN, tokens=tail)
                if entry is decoder:
                    requests.one(frame)
                else:
                    _push(owner, entry, frame)
        finally:
            requests.close()
        session.transcript.loaded(held)
    return total


def _fetch(
    requests: LocalRequests,
    key: dict[str, int],
    layers: range,
    held: list[int],
    at: int,
) -> memoryview:
    frame = local_frame(
        KV_FETCH,
        **key,
        layer_start=layers.start,
        layer_end=layers.stop - 1,
        pos0=at,
        n_tokens=len(held) - at,
    )
    values = requests.one(frame).values
    same = values.get("result_hash") == token_hash(held)
    if not same or tuple(values["tokens"]) != tuple(held[at:]):
        raise PipelineError("the worker returned KV of another transcript")
    return memoryview(values["payload"])


def _push(owner: PipelineCoordinator, entry: WorkerEntry, frame: list[Buf]) -> None:
    requests = LocalRequests(owner, entry)
    try:
        requests.one(frame)
    finally:
        requests.close()
