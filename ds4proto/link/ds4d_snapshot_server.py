"""A worker's side of snapshots: the checks of save and load, and their frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_events import Fault
from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_frames import FIXED, TOKEN_BYTES, framed, read_tokens
from ds4proto.link.ds4d_limits import MESSAGE_BYTES, LinkLimits
from ds4proto.link.ds4d_sessions import SessionTable
from ds4proto.link.ds4d_texts import cut, text
from ds4proto.schema.ds4d_snapshot import (
    MAX_CHUNK,
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.problem import Buf

SAVE_PART: Final = FIXED[SNAPSHOT_SAVE_REQ]
BEGIN_PART: Final = FIXED[SNAPSHOT_BEGIN]
CHUNK_PART: Final = FIXED[SNAPSHOT_CHUNK]
DONE_PART: Final = FIXED[SNAPSHOT_DONE]
LOAD_PART: Final = FIXED[SNAPSHOT_LOAD_BEGIN]


@dataclass(slots=True)
class Load:
    """One load under way.

    Attributes
    ----------
    missing : int
        Shard bytes still to come.
    empty : int
        Empty chunks in a row.
    """

    words: Mapping[str, int]
    tokens: tuple[int, ...] = ()
    missing: int = 0
    empty: int = 0


def _refuse(clause: str) -> Fault:
    return Fault(clause, text(clause), "remote")


def _mine(facts: WorkerFacts, words: Mapping[str, int]) -> bool:
    return (
        words["model_id"] == facts.model.model_id
        and words["layer_start"] == facts.layer_start
        and words["layer_end"] == facts.layer_end
        and words["token_count"] <= facts.model.ctx
    )


# save


def judge_save(
    facts: WorkerFacts, sessions: SessionTable, words: Mapping[str, int] | None
) -> Fault | None:
    """Return what is wrong with a save request (SNAP 01 to 05, in order).

    ``words`` is None where the body had the wrong size.
    """
    if words is None:
        return _refuse("DS4D-SNAP-01")
    if not _mine(facts, words):
        return _refuse("DS4D-SNAP-02")
    session = sessions.get(words["session"])
    if session is None:
        return _refuse("DS4D-SNAP-03")
    if session.count != words["token_count"]:
        return _refuse("DS4D-SNAP-04")
    if session.hash != words["token_hash"]:
        return _refuse("DS4D-SNAP-05")
    return None


def begin_frame(words: Mapping[str, int], size: int) -> list[Buf]:
    """Return a SNAPSHOT_BEGIN that announces a shard (SNAP 54, 56)."""
    fixed = {
        **words,
        "token_count": 0,
        "payload_size": size,
        "status": 0,
        "token_bytes": 0,
        "message_bytes": 0,
    }
    return framed(SNAPSHOT_BEGIN, (BEGIN_PART.build(fixed),))


def refusing_begin(
    facts: WorkerFacts, words: Mapping[str, int] | None, reason: str
) -> list[Buf]:
    """Return a SNAPSHOT_BEGIN that refuses (SNAP 55)."""
    message = cut(reason, MESSAGE_BYTES)
    fixed = {
        "model_id": facts.model.model_id,
        "session": words["session"] if words else 0,
        "request": words["request"] if words else 0,
        "token_hash": 0,
        "token_count": 0,
        "layer_start": facts.layer_start,
        "layer_end": facts.layer_end,
        "payload_size": 0,
        "status": 1,
        "token_bytes": 0,
        "message_bytes": len(message),
    }
    return framed(SNAPSHOT_BEGIN, (BEGIN_PART.build(fixed), message))


def chunk_frame(request: int, pieces: Iterable[Buf]) -> list[Buf]:
    """Return one SNAPSHOT_CHUNK over some pieces of data."""
    data = list(pieces)
    fixed = {"request": request, "chunk_bytes": sum(map(len, data))}
    return framed(SNAPSHOT_CHUNK, (CHUNK_PART.build(fixed), *data))


def done_frame(request: int, reason: str = "") -> list[Buf]:
    """Return a SNAPSHOT_DONE; with a reason it is a refusal."""
    message = cut(reason, MESSAGE_BYTES)
    fixed = {
        "request": request,
        "status": int(bool(reason)),
        "message_bytes": len(message),
    }
    return framed(SNAPSHOT_DONE, (DONE_PART.build(fixed), message))


def full_chunks(pieces: Iterable[Buf], size: int) -> Iterator[list[Buf]]:
    """Cut pieces into chunks that are full but for the last (SNAP 57, 58).

    Raises
    ------
    ValueError
        If the pieces do not add up to ``size`` bytes.
    """
    part: list[Buf] = []
    room, left = MAX_CHUNK, size
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if len(view) > left:
            raise ValueError(f"shard: more than the {size} bytes that were announced")
        left -= len(view)
        while len(view):
            part.append(view[:room])
            taken = len(part[-1])
            view, room = view[taken:], room - taken
            if not room:
                yield part
                part, room = [], MAX_CHUNK
    if left:
        raise ValueError(f"shard: {left} of the announced {size} bytes are missing")
    if part:
        yield part


# load


def plan_load(facts: WorkerFacts, size: int, kept: memoryview) -> int:
    """Return how much of a LOAD_BEGIN body is worth keeping."""
    if size < LOAD_PART.size:
        return 0
    if len(kept) < LOAD_PART.size:
        return LOAD_PART.size
    fault = _judge_load_head(facts, LOAD_PART.read(kept), size)
    return size if fault is None else len(kept)


def _judge_load_head(
    facts: WorkerFacts, words: Mapping[str, int], size: int
) -> Fault | None:
    if (
        words["token_bytes"] != TOKEN_BYTES * words["token_count"]
        or words["message_bytes"] != 0
        or size != LOAD_PART.size + words["token_bytes"]
    ):
        return _refuse("DS4D-SNAP-12")
    if words["token_count"] > facts.model.ctx:
        return _refuse("DS4D-SNAP-13")
    return None


def judge_load(
    facts: WorkerFacts, limits: LinkLimits, size: int, body: memoryview
) -> tuple[Load, Fault | None]:
    """Return a load and what is wrong with it (SNAP 12 to 17, in order)."""
    load = Load(LOAD_PART.read(body))
    words = load.words
    load.missing = words["payload_size"]
    fault = _judge_load_head(facts, words, size)
    if fault is not None:
        return load, fault
    load.tokens = read_tokens(body, LOAD_PART.size, words["token_count"])
    if any(token >= facts.model.vocab for token in load.tokens):
        return load, _refuse("DS4D-SNAP-14")
    if token_hash(load.tokens) != words["token_hash"]:
        return load, _refuse("DS4D-SNAP-15")
    if not _mine(facts, words):
        return load, _refuse("DS4D-SNAP-16")
    if load.missing > limits.max_shard:
        return load, Fault("DS4D-SNAP-71", text("restore-memory"), "remote")
    return load, None


def plan_chunk(load: Load, size: int, kept: memoryview) -> int:
    """Return how much of a chunk's body is worth keeping."""
    if size < CHUNK_PART.size:
        return 0
    if len(kept) < CHUNK_PART.size:
        return CHUNK_PART.size
    sound = chunk_sound(load.words["request"], load.missing, size, kept)
    return size if sound else len(kept)


def chunk_sound(request: int, missing: int, size: int, body: memoryview) -> bool:
    """Tell whether the head of a chunk fits what is due (SNAP 20, 36)."""
    words = CHUNK_PART.read(body)
    data = size - CHUNK_PART.size
    return (
        words["request"] == request
        and words["chunk_bytes"] == data
        and data <= min(MAX_CHUNK, missing)
    )
