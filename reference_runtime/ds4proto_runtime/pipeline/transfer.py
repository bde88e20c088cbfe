"""The coordinator's snapshot connections: fetch a shard, push a shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4proto.link.ds4d_events import (
    ShardData,
    ShardStarted,
    SnapshotDone,
    SnapshotFailed,
    Transmit,
)
from ds4proto.link.ds4d_intake import fresh_pages
from ds4proto.link.ds4d_snapshot_client import LoadClient, SaveClient, ShardKey
from ds4proto.link.ds4d_snapshot_server import full_chunks
from ds4proto.peer import PeerLost, SocketChannel
from ds4proto.schema.problem import Buf
from ds4proto_runtime import kv
from ds4proto_runtime.pipeline.dialling import connect, dial_reason
from ds4proto_runtime.pipeline.line import SLICE_S, now

if TYPE_CHECKING:
    from ds4proto.link.ds4d_registry import WorkerEntry
    from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator

Client = SaveClient | LoadClient


def fetch(owner: PipelineCoordinator, entry: WorkerEntry, key: ShardKey) -> Buf:
    """Return the shard of one worker.

    Raises
    ------
    PipelineError
        With ds4's text.
    """
    channel = dial(owner, entry)
    client = SaveClient(key, now=now(), limits=owner.limits)
    store: Buf = b""
    at = 0
    try:
        while True:
            for event in client.events():
                if isinstance(event, Transmit):
                    _send(owner, channel, client, event.buffers)
                elif isinstance(event, ShardStarted):
                    store = memoryview(fresh_pages(event.size))
                elif isinstance(event, ShardData) and isinstance(store, memoryview):
                    store[at : at + len(event.data)] = event.data
                    at += len(event.data)
                elif isinstance(event, SnapshotDone):
                    return store
                elif isinstance(event, SnapshotFailed):
                    raise _error(event)
            _read(channel, client)
    finally:
        channel.close()


def push(
    owner: PipelineCoordinator,
    entry: WorkerEntry,
    key: ShardKey,
    tokens: Sequence[int],
    parts: Sequence[Buf],
) -> None:
    """Give a shard to one worker and wait until it has restored it.

    Raises
    ------
    PipelineError
        With ds4's text.
    """
    channel = dial(owner, entry)
    size = kv.size_of(parts)
    client = LoadClient(key, tokens, size, now=now(), limits=owner.limits)
    try:
        for event in client.events():
            if isinstance(event, Transmit):
                _send(owner, channel, client, event.buffers)
        for pieces in full_chunks(parts, size):
            if client.state != "sending":
                break
            whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            _send(owner, channel, client, client.chunks(whole, now()))
        while True:
            for event in client.events():
                if isinstance(event, SnapshotDone):
                    return
                if isinstance(event, SnapshotFailed):
                    raise _error(event)
            _read(channel, client)
    finally:
        channel.close()


def _error(event: SnapshotFailed) -> Exception:
    from ds4proto_runtime.pipeline.session import PipelineError

    return PipelineError(event.fault.text)


def dial(owner: PipelineCoordinator, entry: WorkerEntry) -> SocketChannel:
    """Connect to a worker's data port; raises ``PipelineError``."""
    from ds4proto_runtime.pipeline.session import PipelineError

    try:
        return connect(
            entry.host,
            entry.port,
            owner.sockets,
            recorder=owner.recorder,
            log=owner.log,
            phase="dialling a worker's data port",
        )
    except (PeerLost, OSError) as error:
        raise PipelineError(dial_reason(entry.host, entry.port, error)[0]) from None


def _send(
    owner: PipelineCoordinator,
    channel: SocketChannel,
    client: Client,
    buffers: Sequence[Buf],
) -> None:
    try:
        channel.send(buffers, deadline=now() + owner.sockets.send_s)
    except PeerLost as error:
        if isinstance(client, LoadClient):
            client.stopped(now())  # a refusal that the peer sent is still read
        else:
            client.failed(error.reason or error.kind, now())


def _read(channel: SocketChannel, client: Client) -> None:
    due = client.deadline()
    until = now() + SLICE_S if due is None else min(due, now() + SLICE_S)
    try:
        got = channel.recv_into(client.get_buffer(), deadline=until)
    except PeerLost as error:
        if error.kind != "timeout":
            client.receive_data(None, now())
        elif due is not None and now() >= due:
            client.timeout(now())
        return
    client.received(got, now())
