"""Workers that read or write frames wrongly."""

from __future__ import annotations

import socket
from typing import Any, Final

from ds4proto.link.ds4d_events import Close
from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto_conformance.mutants.tools import ERROR_CODE, frame_bytes, frames_in, only
from ds4proto_conformance.peers.faults import Fault

MAGIC: Final = b"DS4D"


def _split_header(connection: Any, data: bytes) -> bytes:
    """Take it that a header comes in one piece."""
    if len(data) < HEADER_SIZE and not connection.memory.get("inside"):
        connection.sock.shutdown(socket.SHUT_RDWR)
        return b""
    return data


def _split_body(connection: Any, data: bytes) -> bytes:
    """Take it that a body comes with its header."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return data
    missing = HEADER_SIZE + unpack_header(data)[2] - len(data)
    if 0 < missing < 1 << 20:
        connection.memory["skip"] = missing
        return data + bytes(missing)
    return data


def _swallow(connection: Any, data: bytes) -> bytes:
    skip = connection.memory.pop("skip", 0)
    if skip:
        if len(data) < skip:
            connection.memory["skip"] = skip - len(data)
        data = data[skip:]
    return _split_body(connection, data) if data else b""


def _first_only(_connection: Any, data: bytes) -> bytes:
    """Keep the first frame of each read."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return data
    return data[: HEADER_SIZE + unpack_header(data)[2]]


def _any_magic(_connection: Any, data: bytes) -> bytes:
    return MAGIC + data[4:] if len(data) >= HEADER_SIZE else data


def _resync(_connection: Any, data: bytes) -> bytes:
    at = data.find(MAGIC)
    return data[at:] if at > 0 else data


def _ignore_unknown(_connection: Any, code: int, _body: bytes) -> bytes | None:
    return b"" if code == 0 or code > 9 else None


def _ignore_results(_connection: Any, code: int, _body: bytes) -> bytes | None:
    return b"" if code in (1, 4, 6, 7, 8) else None


def _keep_open(_peer: Any, connection: Any, event: Any) -> bool:
    if not isinstance(event, Close) or "unsupported" not in event.reason:
        return False
    from ds4proto.link.ds4d_worker import WorkerLink

    if isinstance(connection.machine, WorkerLink):
        connection.machine._closed = False
        connection.machine.state = "open"
    return True


def _answer_error(connection: Any, code: int, _body: bytes) -> bytes | None:
    if code == ERROR_CODE:
        connection.sock.sendall(frame_bytes(ERROR_CODE, b"understood"))
    return None


def _padded_end(connection: Any, data: bytes) -> bytes:
    connection.memory["seen"] = connection.memory.get("seen", b"") + data
    return data


def _cut(header: bool) -> Any:
    """Answer a frame that was cut short, as if it had been too short."""

    def event(_peer: Any, connection: Any, event: Any) -> bool:
        if connection is None or not isinstance(event, Close):
            return False
        seen = connection.memory.get("seen", b"")
        inside = event.reason == "end of stream inside a frame"
        if inside and (len(seen) < HEADER_SIZE) == header:
            connection.sock.sendall(frame_bytes(ERROR_CODE, b"cut short"))
        return False

    return event


class _Impatient:
    """Close at the end of the stream without answering what was read."""

    def __call__(self, connection: Any, data: bytes) -> bytes:
        import select

        if not data:
            return data
        ready, _, _ = select.select([connection.sock], [], [], 0.02)
        if ready and connection.sock.recv(1, 2) == b"":  # MSG_PEEK
            connection.sock.shutdown(socket.SHUT_RDWR)
            return b""
        return data


def _fault(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", "framing", about, **hooks)


MUTANTS: Final = (
    _fault(
        "frames-padded",
        "puts four bytes behind every RESULT",
        out=only(4, lambda f: [f + bytes(4)]),
    ),
    _fault("split-header", "wants a header in one piece", received=_split_header),
    _fault("split-body", "wants a body with its header", received=_swallow),
    _fault(
        "coalesced-dropped", "keeps the first frame of a segment", received=_first_only
    ),
    _fault("magic-ignored", "takes any magic", received=_any_magic),
    _fault("resyncs", "looks for the next magic behind garbage", received=_resync),
    _fault(
        "unknown-ignored",
        "passes over types that it does not know",
        received=frames_in(_ignore_unknown),
    ),
    _fault(
        "result-accepted",
        "passes over frames of workers",
        received=frames_in(_ignore_results),
    ),
    _fault("error-keeps-open", "goes on behind its own ERROR", event=_keep_open),
    _fault(
        "error-inner-header",
        "puts a length before the text of ERROR",
        out=only(
            ERROR_CODE,
            lambda f: [
                frame_bytes(ERROR_CODE, (len(f) - 12).to_bytes(4, "big") + f[12:])
            ],
        ),
    ),
    _fault("error-answered", "answers ERROR", received=frames_in(_answer_error)),
    _fault(
        "cut-header-answered",
        "answers a header that was cut short",
        received=_padded_end,
        event=_cut(True),
    ),
    _fault(
        "cut-body-answered",
        "answers a body that was cut short",
        received=_padded_end,
        event=_cut(False),
    ),
    _fault(
        "half-close-drops",
        "drops answers when the peer half-closes",
        received=_Impatient(),
    ),
)
