"""Frames of a byte stream, as a worker has to read them."""

from __future__ import annotations

import struct
from typing import Any

from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended, Frame


def header(code: int, size: int, magic: bytes = b"DS4D") -> bytes:
    """Return a frame header."""
    return magic + struct.pack(">II", code, size)


@case(
    "worker/framing/split-header",
    clauses=("DS4D-FRAME-06",),
    role="worker",
    category="framing",
    params={"first": (1, 3, 4, 7, 11), "bits": (32, 16, 8)},
    mutants=("split-header",),
    smoke=True,
)
def split_header(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A header that arrives in two pieces is read as one."""
    work = peer.make(2, bits=p["bits"])
    peer.data.send_pieces(work.frame(), (p["first"], 12 - p["first"], 1 << 20))
    peer.answer(work).served("DS4D-FRAME-06")


@case(
    "worker/framing/split-body",
    clauses=("DS4D-FRAME-06", "DS4D-FRAME-03"),
    role="worker",
    category="framing",
    params={"cut": (12, 13, 92, 95), "tokens": (1, 3), "bits": (32, 8)},
    mutants=("split-body",),
)
def split_body(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A body that arrives later than its header, or in pieces, is read whole."""
    work = peer.make(p["tokens"], bits=p["bits"])
    peer.data.send_pieces(work.frame(), (p["cut"], 40, 1 << 20))
    peer.answer(work).served("DS4D-FRAME-03")


@case(
    "worker/framing/byte-by-byte",
    clauses=("DS4D-FRAME-06", "DS4D-FRAME-05"),
    role="worker",
    category="framing",
    mutants=("frames-padded",),
)
def byte_by_byte(peer: WorkerBench) -> None:
    """Two WORK frames that arrive one byte at a time are served in order."""
    works = [peer.make(1, bits=8), peer.make(1, bits=8)]
    for work in works:
        peer.data.send_pieces(work.frame(), (1,))
    for work in works:
        peer.answer(work).served("DS4D-FRAME-06")


@case(
    "worker/framing/coalesced",
    clauses=("DS4D-FRAME-06", "DS4D-RESULT-27"),
    role="worker",
    category="framing",
    params={"count": (2, 3, 5), "bits": (32, 8)},
    mutants=("coalesced-dropped",),
)
def coalesced(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Several frames in one segment are all read, and answered in order."""
    works = [peer.make(1, bits=p["bits"]) for _ in range(p["count"])]
    peer.data.send(b"".join(work.frame() for work in works))
    for work in works:
        peer.answer(work).served("DS4D-RESULT-27")


@case(
    "worker/framing/bad-magic",
    clauses=("DS4D-FRAME-01",),
    role="worker",
    category="framing",
    params={"magic": (b"DS4T", b"D4SD", b"\xa5\xa5\xa5\xa5", b"GET ")},
    mutants=("magic-ignored",),
    smoke=True,
)
def bad_magic(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Another magic ends the connection without any frame."""
    frame = peer.make(1).frame()
    peer.data.send(p["magic"] + frame[4:])
    peer.data.closed("DS4D-FRAME-01", "the connection to close without a frame")


@case(
    "worker/framing/no-resync",
    clauses=("DS4D-FRAME-01",),
    role="worker",
    category="framing",
    mutants=("resyncs",),
)
def no_resync(peer: WorkerBench) -> None:
    """A receiver does not search for the next magic behind garbage."""
    peer.data.send(b"\xa5" * 24 + peer.make(1).frame())
    peer.data.closed("DS4D-FRAME-01", "a close, no answer to the frame behind garbage")


@case(
    "worker/framing/unknown-type",
    clauses=("DS4D-WORKER-02", "DS4D-FRAME-02"),
    role="worker",
    category="framing",
    params={"code": (0, 99, 0xFFFFFFFF), "size": (0, 16, 3000)},
    mutants=("unknown-ignored",),
)
def unknown_type(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A type that nobody defined is answered by ERROR and a close."""
    peer.data.send(header(p["code"], p["size"]) + bytes(p["size"]))
    expect_error(peer)


@case(
    "worker/framing/error-closes",
    clauses=("DS4D-ERROR-02", "DS4D-WORKER-02"),
    role="worker",
    category="framing",
    mutants=("error-keeps-open",),
)
def error_closes(peer: WorkerBench) -> None:
    """Behind its own ERROR a worker closes: a WORK sent along is not served."""
    peer.data.send(header(99, 4) + b"abcd" + peer.make(1).frame())
    expect_error(peer)


@case(
    "worker/framing/wrong-direction",
    clauses=("DS4D-WORKER-02", "DS4D-FRAME-02"),
    role="worker",
    category="framing",
    params={"code": (1, 4, 6, 7, 8)},
    mutants=("result-accepted",),
)
def wrong_direction(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Frames that only workers send, and chunks outside a load, are unsupported."""
    peer.data.send(header(p["code"], 64) + bytes(64))
    expect_error(peer)


@case(
    "worker/framing/error-text",
    clauses=("DS4D-WORKER-02", "DS4D-ERROR-01"),
    role="worker",
    category="framing",
    mutants=("error-inner-header",),
)
def error_text(peer: WorkerBench) -> None:
    """The ERROR body is its text alone, as the clause words it."""
    peer.data.send(header(42, 0))
    frame = peer.data.frame("ERROR", "DS4D-WORKER-02")
    due = b"unsupported distributed worker frame"
    if frame.body == due:
        return
    if due in frame.body or b"\0" in frame.body:
        raise Deviation("DS4D-ERROR-01", f"the body {due!r}", repr(frame.body))
    peer.concept(f"refused in other words: {frame.body!r}")


@case(
    "worker/framing/error-received",
    clauses=("DS4D-ERROR-03", "DS4D-ERROR-04"),
    role="worker",
    category="framing",
    params={"size": (0, 4, 511, 512, 4000)},
    mutants=("error-answered",),
)
def error_received(peer: WorkerBench, p: dict[str, Any]) -> None:
    """An ERROR of any length ends the connection without an answer."""
    peer.data.send(header(2, p["size"]) + b"x" * p["size"])
    peer.data.closed("DS4D-ERROR-03", "a close without a frame")


@case(
    "worker/framing/cut-header",
    clauses=("DS4D-FRAME-07",),
    role="worker",
    category="framing",
    params={"size": (1, 4, 11)},
    mutants=("cut-header-answered",),
)
def cut_header(peer: WorkerBench, p: dict[str, Any]) -> None:
    """An end of stream inside a header ends the connection without an answer."""
    peer.data.send(peer.make(1).frame()[: p["size"]])
    peer.data.half_close()
    peer.data.closed("DS4D-FRAME-07", "a close without a frame")


@case(
    "worker/framing/cut-body",
    clauses=("DS4D-FRAME-07", "DS4D-FRAME-03"),
    role="worker",
    category="framing",
    params={"keep": (12, 60, 92, 120)},
    mutants=("cut-body-answered",),
)
def cut_body(peer: WorkerBench, p: dict[str, Any]) -> None:
    """An end of stream inside a body ends the connection without an answer."""
    peer.data.send(peer.make(1).frame()[: p["keep"]])
    peer.data.half_close()
    peer.data.closed("DS4D-FRAME-07", "a close without a frame")


@case(
    "worker/framing/answer-after-cut",
    clauses=("DS4D-FRAME-07", "DS4D-WORKER-04"),
    role="worker",
    category="framing",
    mutants=("cut-body-answered",),
)
def answer_after_cut(peer: WorkerBench) -> None:
    """A whole WORK in front of a cut one is still answered."""
    work = peer.make(1)
    peer.data.send(work.frame() + peer.make(1).frame()[:50])
    peer.data.half_close()
    answer = peer.answer(work)
    if isinstance(answer.seen, Ended):
        raise Deviation(
            "DS4D-WORKER-04", "the WORK in front to be answered", str(answer.seen)
        )
    answer.served("DS4D-WORKER-04")
    peer.data.closed("DS4D-FRAME-07")


@case(
    "worker/framing/half-close",
    clauses=("DS4D-WORKER-04",),
    role="worker",
    category="framing",
    params={"count": (1, 3)},
    mutants=("half-close-drops",),
)
def half_close(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A client that half-closes gets every answer, then the end of the stream."""
    works = [peer.make(1) for _ in range(p["count"])]
    peer.data.send(b"".join(work.frame() for work in works))
    peer.data.half_close()
    for work in works:
        peer.answer(work).served("DS4D-WORKER-04")
    peer.data.closed("DS4D-WORKER-04", "the end of the stream behind the answers")


@case(
    "worker/framing/waits-for-the-rest",
    clauses=("DS4D-FRAME-03",),
    role="worker",
    category="framing",
    params={"keep": (11, 91, -1)},
    mutants=("split-header", "split-body"),
)
def waits(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Nothing is answered before the last byte of a frame has come."""
    work = peer.make(2)
    frame = work.frame()
    peer.data.send(frame[: p["keep"]])
    early = peer.data.quiet(peer.quiet)
    if early is not None:
        raise Deviation(
            "DS4D-FRAME-03", "nothing before the frame is whole", str(early)
        )
    peer.data.send(frame[p["keep"] :])
    peer.answer(work).served("DS4D-FRAME-03")


def expect_error(peer: WorkerBench) -> None:
    """Take it that ERROR comes, then the end of the connection."""
    found = peer.data.next()
    if isinstance(found, Ended) and found.how != "silence":
        peer.concept(f"ended the connection without ERROR: {found}")
        return
    if not isinstance(found, Frame) or found.name != "ERROR":
        raise Deviation("DS4D-WORKER-02", "an ERROR frame, then a close", str(found))
    peer.data.closed("DS4D-ERROR-02", "the connection to close behind ERROR")
