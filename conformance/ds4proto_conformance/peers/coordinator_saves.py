"""Saves and loads of a small coordinator, each on a connection of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_events import ShardData, SnapshotDone, Transmit
from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_session import Session
from ds4proto.link.ds4d_snapshot_client import LoadClient, SaveClient, ShardKey
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.net import Net
from ds4proto_conformance.peers.worker import Connection

__all__ = ["Transfers"]

LIMIT: Final = 20.0
"""Seconds without a frame after which a transfer is given up."""
TICK: Final = 0.02
SHARD: Final = bytes(range(256)) * 12
"""What is loaded where nothing has been saved."""
_now = time.monotonic


class Transfers:
    """One transfer after the other; the coordinator waits for each.

    Attributes
    ----------
    shard : bytes
        The shard saved last.
    """

    def __init__(
        self, net: Net, model_id: int, fault: Fault, stop: threading.Event
    ) -> None:
        self._net, self._model_id = net, model_id
        self._fault, self._stop = fault, stop
        self._limits = LinkLimits(result_s=LIMIT)
        self.shard = SHARD

    def run(self, kind: str, entry: Any, session: Session) -> bool:
        """Carry out a ``save`` or a ``load`` with one worker; tell whether it worked.

        Parameters
        ----------
        entry
            The worker's entry of the registry.
        """
        tokens = session.transcript
        key = ShardKey(
            self._model_id,
            session.session_id,
            session.next_snapshot_request(),
            token_hash(tokens),
            len(tokens),
            entry.layer_start,
            entry.layer_end,
        )
        client: SaveClient | LoadClient
        if kind == "save":
            client = SaveClient(key, now=_now(), limits=self._limits)
        else:
            size = len(self.shard)
            client = LoadClient(key, tokens, size, now=_now(), limits=self._limits)
        try:
            sock = self._net.dial(entry.host, entry.port)
        except OSError:
            return False
        with sock:
            return self._over(Connection(sock, client, "snapshot"))

    def _over(self, connection: Connection) -> bool:
        client = connection.machine
        connection.sock.settimeout(TICK)
        got = b""
        self._write_first(connection)
        while True:
            for event in client.events():
                if isinstance(event, ShardData):
                    got += bytes(event.data)
                elif isinstance(event, SnapshotDone):
                    self.shard = got or self.shard
                    if self._fault.event is not None:
                        self._fault.event(self, connection, event)
                    return True
            if client.state == "over" or self._stop.is_set():
                return False
            self._read(connection)

    def _write_first(self, connection: Connection) -> None:
        client = connection.machine
        for event in client.events():
            if isinstance(event, Transmit):
                self._write(connection, event.buffers)
        if isinstance(client, LoadClient):
            self._write(connection, client.chunks(self.shard, _now()))

    def _write(self, connection: Connection, buffers: Any) -> None:
        data = b"".join(map(bytes, buffers))
        while data:
            size = HEADER_SIZE + unpack_header(data)[2]
            frame, data = data[:size], data[size:]
            frames = [frame]
            if self._fault.out is not None:
                frames = self._fault.out(connection, frame)
            for piece in frames:
                with contextlib.suppress(OSError):
                    connection.sock.sendall(piece)

    def _read(self, connection: Connection) -> None:
        client = connection.machine
        try:
            data = connection.sock.recv(1 << 16)
        except TimeoutError:
            due = client.deadline()
            if due is not None and _now() >= due:
                client.timeout(_now())
            return
        except OSError as error:
            client.failed(str(error), _now())
            return
        if data and self._fault.received is not None:
            data = self._fault.received(connection, data)
            if not data:
                return
        client.receive_data(data or None, _now())
        if not data and client.state != "over":
            self._stop.wait(TICK)  # a planted fault outwaits the end of the stream
