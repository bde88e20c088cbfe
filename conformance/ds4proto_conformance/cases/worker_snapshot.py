"""Snapshots of a worker: both flows, and every refusal."""

from __future__ import annotations

from typing import Any

from ds4proto_conformance.bench.snapshots import Snapshots
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended


def header(code: int, size: int) -> bytes:
    """Return a frame header."""
    return b"DS4D" + code.to_bytes(4, "big") + size.to_bytes(4, "big")


@case(
    "worker/snapshot/save",
    clauses=("DS4D-SNAP-54", "DS4D-SNAP-58", "DS4D-SNAP-52"),
    role="worker",
    category="snapshot",
    params={"tokens": (1, 5)},
    mutants=("save-chunk-other-id", "save-short", "save-hash-zero"),
    smoke=True,
)
def save(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A shard comes as BEGIN, chunks that add up, and DONE."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled(p["tokens"])
    snapshots.save(session, tokens)


@case(
    "worker/snapshot/save-changes-nothing",
    clauses=("DS4D-SNAP-54", "DS4D-SESS-06"),
    role="worker",
    category="snapshot",
    mutants=("save-empties-session", "save-unstable"),
)
def save_twice(peer: WorkerBench) -> None:
    """Two saves give the same shard, and the session goes on."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    first = snapshots.save(session, tokens)
    second = snapshots.save(session, tokens)
    if first != second:
        raise Deviation("DS4D-SNAP-54", "the same shard twice", "two shards")
    snapshots.serves(session, tokens, "DS4D-SNAP-54")


@case(
    "worker/snapshot/id-of-any-range",
    clauses=("DS4D-COORD-04",),
    role="worker",
    category="snapshot",
    params={"request": (1, 1 << 31, (1 << 64) - 1)},
    mutants=("snapshot-id-high-bit",),
)
def any_id(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A snapshot request id of any value is echoed."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    snapshots.request = p["request"]
    snapshots.save(session, tokens)


@case(
    "worker/snapshot/save-wrong-size",
    clauses=("DS4D-SNAP-01", "DS4D-SNAP-66"),
    role="worker",
    category="snapshot",
    params={"size": (0, 39, 41, 44, 3000)},
    mutants=("save-size-unchecked",),
)
def save_wrong_size(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A SAVE_REQ body of another size than 40 is refused with ids 0."""
    snapshots = Snapshots(peer)
    snapshots.wire.send(header(5, p["size"]) + bytes(p["size"]))
    begin = snapshots.wire.frame("SNAPSHOT_BEGIN", "DS4D-SNAP-01")
    snapshots.refused(begin, "DS4D-SNAP-01")
    if begin["session"] or begin["request"]:
        raise Deviation("DS4D-SNAP-01", "session and request 0", str(begin.values))
    peer.work(1, wire=snapshots.wire).served("DS4D-SNAP-66")


def _refused_save(name: str, clause: str, about: str, mutant: str, **lies: Any) -> None:
    def body(peer: WorkerBench) -> None:
        snapshots = Snapshots(peer)
        session, tokens = snapshots.filled()
        changed = {k: v(peer) if callable(v) else v for k, v in lies.items()}
        if changed.pop("unknown", False):
            session = peer.rng.randrange(1, 1 << 63)
        begin = snapshots.ask(session, tokens, **changed)
        snapshots.refused(begin, clause, session)
        peer.work(1, wire=snapshots.wire).served("DS4D-SNAP-66")

    body.__doc__ = about
    body.__qualname__ = f"refused_save_{name}"
    case(
        f"worker/snapshot/save-{name}",
        clauses=(clause, "DS4D-SNAP-55", "DS4D-SNAP-66"),
        role="worker",
        category="snapshot",
        mutants=(mutant,),
    )(body)


_refused_save(
    "other-model",
    "DS4D-SNAP-02",
    "A save for another model.",
    "save-model-unchecked",
    model_id=lambda p: p.facts.model_id + 1,
)
_refused_save(
    "other-layers",
    "DS4D-SNAP-02",
    "A save of other layers.",
    "save-layers-unchecked",
    layer_end=lambda p: p.facts.layer_end + 1,
)
_refused_save(
    "beyond-context",
    "DS4D-SNAP-02",
    "A save of more tokens than fit.",
    "save-context-unchecked",
    token_count=lambda p: p.facts.ctx + 1,
)
_refused_save(
    "unknown-session",
    "DS4D-SNAP-03",
    "A save of a session not held.",
    "save-creates-session",
    unknown=True,
)
_refused_save(
    "token-count",
    "DS4D-SNAP-04",
    "A save of another number of tokens.",
    "save-count-unchecked",
    token_count=4,
)
_refused_save(
    "token-hash",
    "DS4D-SNAP-05",
    "A save with another token hash.",
    "save-hash-unchecked",
    token_hash=5,
)


@case(
    "worker/snapshot/save-order",
    clauses=("DS4D-SNAP-02", "DS4D-SNAP-04", "DS4D-SNAP-05"),
    role="worker",
    category="snapshot",
    mutants=("save-hash-first",),
)
def save_order(peer: WorkerBench) -> None:
    """Of count and hash, the count is judged first."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    begin = snapshots.ask(session, tokens, token_count=9, token_hash=5)
    snapshots.refused(begin, "DS4D-SNAP-04", session)


@case(
    "worker/snapshot/load",
    clauses=("DS4D-SNAP-22", "DS4D-SESS-07", "DS4D-SNAP-64"),
    role="worker",
    category="snapshot",
    params={"into": ("same", "new"), "pieces": (1 << 20, 1000)},
    mutants=("load-forgets-hash", "load-keeps-nothing"),
    smoke=True,
)
def load(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A loaded shard makes a session that goes on as the saved one did."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled(4)
    shard = snapshots.save(session, tokens)
    due = snapshots.serves(session, tokens, "DS4D-SESS-06")
    if p["into"] == "new":
        session = peer.fresh_session()
    snapshots.load(session, tokens, shard, pieces=p["pieces"])
    found = snapshots.serves(session, tokens, "DS4D-SESS-07")
    if found != due:
        raise Deviation("DS4D-SNAP-22", "the answer of the saved session", "another")


@case(
    "worker/snapshot/load-replaces",
    clauses=("DS4D-SESS-07",),
    role="worker",
    category="snapshot",
    mutants=("load-appends",),
)
def load_replaces(peer: WorkerBench) -> None:
    """A load replaces what the session held."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled(2)
    shard = snapshots.save(session, tokens)
    other, more = snapshots.filled(5)
    snapshots.load(other, tokens, shard)
    snapshots.serves(other, tokens, "DS4D-SESS-07")
    assert more


@case(
    "worker/snapshot/empty-chunk",
    clauses=("DS4D-SNAP-59",),
    role="worker",
    category="snapshot",
    mutants=("load-empty-chunk-refused",),
)
def empty_chunk(peer: WorkerBench) -> None:
    """An empty chunk is accepted."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    shard = snapshots.save(session, tokens)
    snapshots.begin_load(session, tokens, len(shard))
    snapshots.chunk(b"")
    snapshots.chunk(shard)
    snapshots.done("DS4D-SNAP-59")


@case(
    "worker/snapshot/status-not-judged",
    clauses=("DS4D-SNAP-63",),
    role="worker",
    category="snapshot",
    mutants=("load-status-judged",),
)
def status(peer: WorkerBench) -> None:
    """The status word of LOAD_BEGIN means nothing."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    shard = snapshots.save(session, tokens)
    snapshots.begin_load(session, tokens, len(shard), status=7)
    snapshots.chunk(shard)
    snapshots.done("DS4D-SNAP-63")


@case(
    "worker/snapshot/load-short-head",
    clauses=("DS4D-SNAP-11",),
    role="worker",
    category="snapshot",
    params={"size": (0, 59)},
    mutants=("load-short-answered",),
)
def short_head(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A LOAD_BEGIN body below 60 bytes ends the connection without an answer."""
    snapshots = Snapshots(peer)
    snapshots.wire.send(header(9, p["size"]) + bytes(p["size"]))
    snapshots.wire.closed("DS4D-SNAP-11", "a close without an answer")


def _refused_load(
    name: str, clause: str, about: str, mutant: str, *, size: int, **lies: Any
) -> None:
    """Declare a refused load; with `size` 0 the connection stays open."""

    def body(peer: WorkerBench) -> None:
        snapshots = Snapshots(peer)
        session, tokens = snapshots.filled()
        changed = {k: v(peer) if callable(v) else v for k, v in lies.items()}
        tokens = changed.pop("tokens", tokens)
        snapshots.begin_load(session, tokens, size, **changed)
        snapshots.load_refused(clause)
        if size:
            snapshots.wire.closed("DS4D-SNAP-65", "a close: shard bytes are missing")
        else:
            peer.work(1, wire=snapshots.wire).served("DS4D-SNAP-65")

    body.__doc__ = about
    body.__qualname__ = f"refused_load_{name}"
    case(
        f"worker/snapshot/load-{name}",
        clauses=(clause, "DS4D-SNAP-65"),
        role="worker",
        category="snapshot",
        mutants=(mutant,),
    )(body)


_refused_load(
    "token-bytes",
    "DS4D-SNAP-12",
    "token_bytes that do not fit the count.",
    "load-token-bytes-unchecked",
    size=0,
    token_bytes=8,
)
_refused_load(
    "message",
    "DS4D-SNAP-12",
    "A load that brings a message.",
    "load-message-unchecked",
    size=0,
    message_bytes=1,
)
_refused_load(
    "token-hash",
    "DS4D-SNAP-15",
    "Tokens that do not hash to token_hash.",
    "load-hash-unchecked",
    size=100,
    token_hash=9,
)
_refused_load(
    "token-hash-empty",
    "DS4D-SNAP-15",
    "Refused with nothing missing.",
    "load-refusal-closes",
    size=0,
    token_hash=9,
)
_refused_load(
    "other-model",
    "DS4D-SNAP-16",
    "A load for another model.",
    "load-model-unchecked",
    size=12,
    model_id=lambda p: p.facts.model_id + 1,
)
_refused_load(
    "other-layers",
    "DS4D-SNAP-16",
    "A load of other layers.",
    "load-layers-unchecked",
    size=12,
    layer_start=lambda p: p.facts.layer_start + 1,
)
_refused_load(
    "outside-vocabulary",
    "DS4D-SNAP-14",
    "A token that does not exist.",
    "load-vocabulary-unchecked",
    size=100,
    tokens=(1, 0x7FFFFFFF, 2),
)
_refused_load(
    "not-a-shard",
    "DS4D-SNAP-21",
    "An empty shard is the engine's to refuse.",
    "load-anything",
    size=0,
)


@case(
    "worker/snapshot/refused-load-changes-nothing",
    clauses=("DS4D-SNAP-69",),
    role="worker",
    category="snapshot",
    mutants=("load-refusal-empties",),
)
def unchanged(peer: WorkerBench) -> None:
    """A load that is refused leaves the session as it was."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    snapshots.begin_load(session, tokens, 0, token_hash=9)
    snapshots.load_refused("DS4D-SNAP-15")
    snapshots.serves(session, tokens, "DS4D-SNAP-69")


@case(
    "worker/snapshot/body-consumed",
    clauses=("DS4D-SNAP-68",),
    role="worker",
    category="snapshot",
    params={"count": (2, 40)},
    mutants=("load-leaves-tokens",),
)
def consumed(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A load refused for its first token has still been read to its end."""
    snapshots = Snapshots(peer)
    tokens = (0x7FFFFFFF, *peer.tokens(p["count"]))
    snapshots.begin_load(peer.session(), tokens, 0)
    snapshots.load_refused("DS4D-SNAP-14")
    peer.work(1, wire=snapshots.wire).served("DS4D-SNAP-68")


def _bad_chunk(
    name: str, clause: str, about: str, mutant: str, size: int, data: int, **lies: Any
) -> None:
    def body(peer: WorkerBench) -> None:
        snapshots = Snapshots(peer)
        session, tokens = snapshots.filled()
        snapshots.begin_load(session, tokens, size)
        changed = dict(lies)
        if changed.pop("other_request", False):
            changed["request"] = snapshots.request ^ 1
        snapshots.chunk(bytes(data), **changed)
        snapshots.load_refused(clause)
        snapshots.wire.closed("DS4D-SNAP-65")

    body.__doc__ = about
    body.__qualname__ = f"bad_chunk_{name}"
    case(
        f"worker/snapshot/chunk-{name}",
        clauses=(clause, "DS4D-SNAP-65"),
        role="worker",
        category="snapshot",
        mutants=(mutant,),
    )(body)


_bad_chunk(
    "other-request",
    "DS4D-SNAP-20",
    "A chunk of another transfer.",
    "chunk-id-unchecked",
    100,
    50,
    other_request=True,
)
_bad_chunk(
    "too-long",
    "DS4D-SNAP-20",
    "A chunk longer than what is missing.",
    "chunk-overflow",
    100,
    101,
)
_bad_chunk(
    "size-field",
    "DS4D-SNAP-20",
    "chunk_bytes that is not the body less 12.",
    "chunk-size-unchecked",
    100,
    50,
    chunk_bytes=49,
)


@case(
    "worker/snapshot/other-frame-in-a-load",
    clauses=("DS4D-SNAP-19",),
    role="worker",
    category="snapshot",
    params={"code": (3, 5, 99), "size": (0, 11)},
    mutants=("load-skips-others",),
)
def other_frame(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Anything but a chunk where one is due ends the load with a refusal."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    snapshots.begin_load(session, tokens, 100)
    snapshots.wire.send(header(p["code"], p["size"]) + bytes(p["size"]))
    snapshots.load_refused("DS4D-SNAP-19")
    snapshots.wire.closed("DS4D-SNAP-65")


@case(
    "worker/snapshot/magic-in-a-load",
    clauses=("DS4D-SNAP-18", "DS4D-FRAME-01"),
    role="worker",
    category="snapshot",
    mutants=("load-break-answered",),
)
def magic(peer: WorkerBench) -> None:
    """A broken magic where a chunk is due ends the connection without DONE."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    snapshots.begin_load(session, tokens, 100)
    snapshots.wire.send(b"DS4X" + bytes(60))
    snapshots.wire.closed("DS4D-SNAP-18", "a close without SNAPSHOT_DONE")


@case(
    "worker/snapshot/end-in-a-load",
    clauses=("DS4D-SNAP-18", "DS4D-FRAME-07"),
    role="worker",
    category="snapshot",
    params={"cut": (0, 30)},
    mutants=("load-end-answered",),
)
def end(peer: WorkerBench, p: dict[str, Any]) -> None:
    """An end of stream inside a load ends the connection without DONE."""
    snapshots = Snapshots(peer)
    session, tokens = snapshots.filled()
    snapshots.begin_load(session, tokens, 100)
    if p["cut"]:
        snapshots.chunk(bytes(50), cut=p["cut"])
    snapshots.wire.half_close()
    found = snapshots.wire.next()
    if not isinstance(found, Ended) or found.how == "silence":
        raise Deviation("DS4D-SNAP-18", "a close without SNAPSHOT_DONE", str(found))
    snapshots.serves(session, tokens, "DS4D-SNAP-69")
