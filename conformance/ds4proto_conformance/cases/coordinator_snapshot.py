"""Saves and loads as a coordinator has to carry them out, with workers that err.

A coordinator saves when its user asks for it. ``--drive-save`` and ``--drive-load`` say
how; one that is not made to do so is passed over.
"""

from __future__ import annotations

from typing import Any

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_frames import CODE
from ds4proto.schema.ds4d_hello import ERROR as ERROR_FRAME
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
)
from ds4proto_conformance.bench.coordinator import CoordinatorBench
from ds4proto_conformance.bench.coordinator_snapshots import SHARD, Transfer, transfer
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended

BEGIN, CHUNK, DONE, ERROR = (
    CODE[spec] for spec in (SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_DONE, ERROR_FRAME)
)


def same(clause: str, found: Any, **due: Any) -> None:
    """Compare words of a request."""
    for name, value in due.items():
        if found[name] != value:
            raise Deviation(clause, f"{name} {value}", str(found[name]))


@case(
    "coordinator/snapshot/save",
    clauses=("DS4D-SNAP-50", "DS4D-SNAP-60", "DS4D-COORD-03"),
    role="coordinator",
    category="snapshot",
    mutants=("save-asks-no-tokens", "save-counts-as-work", "save-stays-open"),
)
def save(peer: CoordinatorBench) -> None:
    """A save names the session and our layers, and ends behind SNAPSHOT_DONE."""
    moved = transfer(peer, "save")
    last = peer.facts.n_layers - 1
    first = peer.facts.layer_end + 1
    same("DS4D-SNAP-50", moved.asked, layer_start=first, layer_end=last)
    same("DS4D-SNAP-50", moved.asked, model_id=peer.facts.model_id)
    if not moved.asked["token_count"]:
        raise Deviation("DS4D-SNAP-50", "the tokens of the session", "0")
    if not moved.asked["request"] >> 63:
        found = str(moved.asked["request"])
        raise Deviation("DS4D-COORD-03", "a request id of 2^63 and up", found)
    moved.begin()
    moved.chunk(SHARD)
    moved.done()
    moved.over("DS4D-SNAP-60", "the connection of the save to close")


@case(
    "coordinator/snapshot/save-tolerates",
    clauses=("DS4D-SNAP-45",),
    role="coordinator",
    category="snapshot",
    mutants=("begin-tokens-refused", "empty-chunk-refused", "surplus-refused"),
)
def tolerates(peer: CoordinatorBench) -> None:
    """Tokens and a text in BEGIN, pieces of any size and surplus bytes are taken."""
    moved = transfer(peer, "save")
    moved.begin_with_tokens(b"as you wish")
    for piece in (b"", SHARD[:1], SHARD[1:9], SHARD[9:]):
        moved.chunk(piece)
    moved.waits("DS4D-SNAP-45", "the coordinator to wait for SNAPSHOT_DONE")
    moved.done(b"done", bytes(40))
    moved.over("DS4D-SNAP-45", "the save to end behind SNAPSHOT_DONE")


def refusal(
    name: str,
    number: str,
    about: str,
    mutant: str,
    say: Any,
    params: dict[str, tuple[Any, ...]] | None = None,
) -> None:
    """Declare a case in which the worker errs: this connection ends, nothing else."""
    clause = f"DS4D-SNAP-{number}"

    def one(peer: CoordinatorBench) -> None:
        judged(peer, None)

    def many(peer: CoordinatorBench, p: dict[str, Any]) -> None:
        judged(peer, p["what"])

    def judged(peer: CoordinatorBench, what: Any) -> None:
        moved = transfer(peer, "save")
        say(moved, what)
        moved.over(clause, "the save to fail and its connection to close")

    body = many if params else one
    body.__doc__ = about
    body.__qualname__ = f"snapshot_{name}"
    case(
        f"coordinator/snapshot/{name}",
        clauses=(clause, "DS4D-SNAP-47"),
        role="coordinator",
        category="snapshot",
        params=params,
        mutants=(mutant,),
    )(body)


def _other_begin(moved: Transfer, what: str) -> None:
    if what == "short":
        moved.raw(BEGIN, bytes(56))
    else:
        moved.raw({"chunk": CHUNK, "done": DONE, "error": ERROR}[what], bytes(60))


refusal("begin-other-frame", "31", "Anything but a whole SNAPSHOT_BEGIN fails a save.",
        "waits-for-begin", _other_begin,
        {"what": ("short", "chunk", "done", "error")})  # fmt: skip


def _begin_sizes(moved: Transfer, what: str) -> None:
    count = {"odd": 1, "tokens-cut": 1, "message-cut": 0}[what]
    moved.begin(
        token_count=count,
        token_bytes={"odd": 3, "tokens-cut": 4, "message-cut": 0}[what],
        message_bytes=9 if what == "message-cut" else 0,
        tail=bytes(3) if what == "odd" else b"",
    )


refusal("begin-sizes", "32", "Lengths of SNAPSHOT_BEGIN that do not fit fail a save.",
        "begin-sizes-unchecked", _begin_sizes,
        {"what": ("odd", "tokens-cut", "message-cut")})  # fmt: skip


def _begin_status(moved: Transfer, what: bytes) -> None:
    moved.begin(what, status=1, payload_size=0, message_bytes=len(what))


refusal("begin-status", "33", "A worker that refuses a save fails it.",
        "begin-status-ignored", _begin_status, {"what": (b"", b"no KV here")},
        )  # fmt: skip


def _begin_words(moved: Transfer, what: str) -> None:
    moved.begin(**{what: moved.asked[what] ^ 1})


refusal("begin-words", "34", "A SNAPSHOT_BEGIN of another shard fails a save.",
        "begin-words-unchecked", _begin_words,
        {"what": ("model_id", "session", "request", "token_hash", "layer_start",
                  "layer_end")})  # fmt: skip


def _other_chunk(moved: Transfer, what: str) -> None:
    moved.begin()
    if what == "short":
        moved.raw(CHUNK, bytes(8))
    else:
        moved.raw({"begin": BEGIN, "done": DONE}[what], bytes(60))


refusal("chunk-other-frame", "35", "Another frame where the shard is due fails a save.",
        "waits-for-chunk", _other_chunk, {"what": ("short", "begin", "done")},
        )  # fmt: skip


def _chunk_words(moved: Transfer, what: str) -> None:
    moved.begin()
    data = SHARD + b"x" if what == "surplus" else SHARD[:100]
    changes = {
        "request": {"request": moved.asked["request"] ^ 1},
        "size": {"chunk_bytes": 99},
        "surplus": {},
    }[what]
    moved.chunk(data, **changes)


refusal("chunk-words", "36", "A chunk of another request or size fails a save.",
        "chunk-words-unchecked", _chunk_words,
        {"what": ("request", "size", "surplus")})  # fmt: skip


def _other_done(moved: Transfer, what: str) -> None:
    moved.begin()
    moved.chunk(SHARD)
    if what == "short":
        moved.raw(DONE, bytes(12))
    else:
        moved.raw({"chunk": CHUNK, "error": ERROR}[what], bytes(60))


refusal("done-other-frame", "37", "Anything but SNAPSHOT_DONE at the end fails a save.",
        "waits-for-done", _other_done, {"what": ("short", "chunk", "error")},
        )  # fmt: skip
refusal("empty", "41", "A shard of no bytes fails a save.", "empty-shard-taken",
        lambda moved, _what: moved.begin(payload_size=0))  # fmt: skip


def _closes(moved: Transfer, what: str) -> None:
    if what != "begin":
        moved.begin()
        moved.chunk(SHARD if what == "done" else SHARD[:50])
    moved.wire.half_close()


refusal("closed", "42", "A worker that goes away in a save fails it.",
        "save-outwaits-the-gone", _closes, {"what": ("begin", "chunks", "done")},
        )  # fmt: skip


@case(
    "coordinator/snapshot/save-waits-for-done",
    clauses=("DS4D-SNAP-44",),
    role="coordinator",
    category="snapshot",
    mutants=("save-leaves-before-done",),
)
def waits_for_done(peer: CoordinatorBench) -> None:
    """With all bytes there a save still waits for SNAPSHOT_DONE."""
    moved = transfer(peer, "save")
    moved.begin()
    moved.chunk(SHARD)
    moved.waits("DS4D-SNAP-44", "the coordinator to wait for SNAPSHOT_DONE")


@case(
    "coordinator/snapshot/failed-save-leaves-all",
    clauses=("DS4D-SNAP-47",),
    role="coordinator",
    category="snapshot",
    mutants=("failed-save-replays", "failed-save-drops-worker"),
)
def undisturbed(peer: CoordinatorBench) -> None:
    """Behind a failed save the next step goes out as if nothing had happened."""
    moved = transfer(peer, "save")
    moved.begin(b"not now", status=1, payload_size=0, message_bytes=7)
    moved.goes_on()


@case(
    "coordinator/snapshot/load",
    clauses=("DS4D-SNAP-51", "DS4D-SNAP-62", "DS4D-SNAP-58", "DS4D-SNAP-52"),
    role="coordinator",
    category="snapshot",
    mutants=(
        "load-asks-no-tokens",
        "load-of-other-hash",
        "load-waits-early",
        "load-chunk-of-other-request",
        "load-cut",
    ),
)
def load(peer: CoordinatorBench) -> None:
    """A load sends its tokens and the whole shard before it waits for an answer."""
    moved = transfer(peer, "load")
    asked = moved.asked
    tokens = [int(token) & 0xFFFFFFFF for token in asked["tokens"]]
    same("DS4D-SNAP-51", asked, token_count=len(tokens), status=0, message_bytes=0)
    same("DS4D-SNAP-51", asked, token_hash=token_hash(tokens))
    if not asked["payload_size"]:
        raise Deviation("DS4D-SNAP-51", "the size of a shard", "0")
    missing = asked["payload_size"]
    while missing:
        found = moved.wire.next()
        if isinstance(found, Ended) or found.name != "SNAPSHOT_CHUNK":
            due = f"chunks, {missing} bytes are due"
            raise Deviation("DS4D-SNAP-62", due, str(found))
        same("DS4D-SNAP-52", found, request=asked["request"])
        size = len(found["data"])
        if not 0 < size <= missing:
            raise Deviation("DS4D-SNAP-58", f"up to {missing} bytes", f"{size} bytes")
        missing -= size
    moved.waits("DS4D-SNAP-62", "the coordinator to wait for SNAPSHOT_DONE")
    moved.done()
    moved.over("DS4D-SNAP-60", "the connection of the load to close")


@case(
    "coordinator/snapshot/load-refused",
    clauses=("DS4D-SNAP-40", "DS4D-SNAP-60"),
    role="coordinator",
    category="snapshot",
    mutants=("load-refusal-drops-worker",),
)
def load_refused(peer: CoordinatorBench) -> None:
    """A refused load costs its own connection, not the worker's."""
    moved = transfer(peer, "load")
    moved.done(b"failed to restore worker KV shard", status=1)
    ended = moved.wire.next()
    while not isinstance(ended, Ended):
        ended = moved.wire.next()
    found = moved.hop.wire.next()
    if isinstance(found, Ended) or found.name != "WORK":
        raise Deviation("DS4D-SNAP-40", "the route to stay as it is", str(found))
