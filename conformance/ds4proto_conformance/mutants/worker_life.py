"""Workers whose HELLO, control connection or stamina is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.link.ds4d_worker_events import DropSessions
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto_conformance.mutants.tools import Parts, edit
from ds4proto_conformance.peers.faults import Fault


def _hello(change: Callable[[Parts], Any]) -> Any:
    return edit(HELLO, change)


def _add(**steps: int) -> Any:
    def change(parts: Parts) -> None:
        for name, step in steps.items():
            parts.words[name] += step

    return _hello(change)


def _padded(parts: Parts) -> None:
    parts.rest += b"\0"
    parts.words["model_name_len"] += 1


def _twice(_connection: Any, frame: bytes) -> list[bytes]:
    return [frame, frame] if unpack_header(frame)[1] == 1 else [frame]


def _deaf(connection: Any, data: bytes) -> bytes:
    return b"" if connection.kind == "control" else data


def _drop(_peer: Any, _connection: Any, event: Any) -> bool:
    return isinstance(event, DropSessions)


def _keep_sessions() -> Any:
    from ds4proto.link.ds4d_sessions import SessionTable
    from ds4proto_conformance.peers.faults import patched

    return patched((SessionTable, "clear", lambda _self: ()))


def _no_redial(only_error: bool) -> Any:
    def event(peer: Any, connection: Any, event: Any) -> bool:
        if isinstance(event, Close) and connection is not None:
            ends = connection.kind == "control"
            if ends and (not only_error or "ERROR" in event.reason):
                peer.redial = 1e9
        return False

    return event


def _one_at_a_time(connection: Any, data: bytes) -> bytes:
    """Serve the connection that came first until it ends."""
    first = _FIRST.get("connection")
    if first is None or first.ending is not None or first.sock.fileno() < 0:
        _FIRST["connection"] = connection
        return data
    return data if first is connection else b""


_FIRST: dict[str, Any] = {}


def _eight(peer: Any, connection: Any, event: Any) -> bool:
    crowd = isinstance(event, Transmit) and len(peer._connections) > 9
    if crowd and connection is not None:
        peer.end(connection)
    return crowd


def _dies_of_reset(connection: Any, error: OSError) -> None:
    if connection.kind == "data":
        raise error


def _dies_of_length(_connection: Any, data: bytes) -> bytes:
    if len(data) >= HEADER_SIZE and data[:4] == b"DS4D":
        size = unpack_header(data)[2]
        if size >= 1 << 30:
            raise MemoryError
    return data


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", category, about, **hooks)


MUTANTS: Final = (
    _f(
        "hello-end-exclusive",
        "handshake",
        "announces one layer too many",
        out=_add(layer_end=1),
    ),
    _f(
        "hello-output-range",
        "handshake",
        "announces the head on an early layer",
        out=_add(layer_end=-1),
    ),
    _f("hello-name-padded", "handshake", "ends its name with NUL", out=_hello(_padded)),
    _f("hello-quant-8", "handshake", "announces the label 8", out=_add(quant_bits=6)),
    _f(
        "hello-no-hidden",
        "handshake",
        "denies that it returns hidden state",
        out=_add(has_hidden=-1),
    ),
    _f("hello-port-off", "handshake", "announces port 0", out=_add(listen_port=-9)),
    _f("hello-twice", "handshake", "says HELLO twice", out=_twice),
    _f(
        "control-deaf",
        "state",
        "serves nothing on its control connection",
        received=_deaf,
    ),
    _f("no-redial", "liveness", "does not dial again", event=_no_redial(False)),
    _f(
        "no-redial-after-error",
        "liveness",
        "does not dial again after an ERROR",
        event=_no_redial(True),
    ),
    _f(
        "sessions-outlive-control",
        "state",
        "keeps sessions when control ends",
        patch=_keep_sessions,
        event=_drop,
    ),
    _f(
        "one-connection-at-a-time",
        "liveness",
        "serves one connection at a time",
        received=_one_at_a_time,
    ),
    _f("eight-connections", "liveness", "serves eight connections", event=_eight),
    _f(
        "dies-of-reset",
        "liveness",
        "ends when a client resets",
        broken=_dies_of_reset,
    ),
    _f(
        "dies-of-large-length",
        "limits",
        "reserves what a header announces",
        received=_dies_of_length,
    ),
)
