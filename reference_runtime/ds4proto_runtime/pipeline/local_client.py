"""The coordinator's requests to workers of the private dialect, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ds4proto.link.ds4d_events import LocalReply, TransportError
from ds4proto.link.ds4d_local import LocalClient
from ds4proto.link.ds4d_registry import WorkerEntry
from ds4proto.peer import PeerLost, SocketChannel
from ds4proto.schema.problem import Buf
from ds4proto_runtime.pipeline.line import SLICE_S, now
from ds4proto_runtime.pipeline.session import PipelineError
from ds4proto_runtime.pipeline.transfer import dial

if TYPE_CHECKING:
    from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator

PATIENCE_S = 600.0
"""Longest wait for an answer where the limits of the coordinator set none."""


class LocalRequests:
    """A connection to one worker's data port.

    Raises
    ------
    PipelineError
        It cannot be reached.
    """

    def __init__(self, owner: PipelineCoordinator, entry: WorkerEntry) -> None:
        self._owner, self.entry = owner, entry
        self._channel: SocketChannel = dial(owner, entry)
        self._client = LocalClient(limits=owner.limits)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def one(self, frame: list[Buf], *, more_s: float = 0.0) -> LocalReply:
        """Send a request and return its one answer.

        Raises
        ------
        PipelineError
            The connection broke, or the worker said no.
        """
        for reply in self.stream(frame, more_s=more_s):
            self._client.answered()
            if reply.name == "LOCAL_ANSWER" and reply.values["status"]:
                raise PipelineError(reply.values["message"] or "the worker refuses")
            return reply
        raise AssertionError("a request ends with an answer or an error")

    def stream(self, frame: list[Buf], *, more_s: float = 0.0) -> Iterator[LocalReply]:
        """Send a request and yield answers until ``done`` is called.

        Raises ``PipelineError`` where the connection breaks.
        """
        patience = self._owner.limits.result_s or PATIENCE_S
        self._client.ask(now(), patience + more_s)
        try:
            self._channel.send(frame, deadline=now() + self._owner.sockets.send_s)
        except PeerLost as error:
            self._client.failed(error.reason or error.kind, now())
        while True:
            for event in list(self._client.events()):
                if isinstance(event, TransportError):
                    raise PipelineError(event.fault.text)
                if isinstance(event, LocalReply):
                    yield event
            if self._client.state == "idle":
                return
            self._client.ask(now(), patience + more_s)
            self._read()

    def done(self) -> None:
        """Tell that the last reply of a stream was its end."""
        self._client.answered()

    def _read(self) -> None:
        due = self._client.deadline()
        while not self._client.closed:
            until = now() + SLICE_S if due is None else min(due, now() + SLICE_S)
            try:
                got = self._channel.recv_into(self._client.get_buffer(), deadline=until)
            except PeerLost as error:
                if error.kind != "timeout":
                    self._client.receive_data(None, now())
                    return
                if due is not None and now() >= due:
                    self._client.timeout(now())
                    return
                continue
            self._client.received(got, now())
            return


def key_words(owner: PipelineCoordinator, session: int, request: int) -> dict[str, int]:
    """Return the words that every request begins with."""
    return {
        "model_id": owner.model.model_id,
        "session": session,
        "request": request,
    }


def told(values: Mapping[str, Any]) -> tuple[int, float]:
    """Return KV bytes received and seconds waited, of a LOCAL_ANSWER."""
    return values["kv_bytes"], values["wait_usec"] / 1e6
