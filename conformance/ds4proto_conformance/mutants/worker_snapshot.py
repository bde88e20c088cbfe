"""Workers that save or load wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link import ds4d_worker_snapshots
from ds4proto.link.ds4d_events import Close
from ds4proto.link.ds4d_frames import CODE, FIXED, unpack_header
from ds4proto.link.ds4d_snapshot_server import (
    CHUNK_PART,
    LOAD_PART,
    SAVE_PART,
    Load,
)
from ds4proto.link.ds4d_worker_events import RestoreShard, SaveShard
from ds4proto.schema.ds4d_snapshot import SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_DONE
from ds4proto_conformance.mutants.tools import Parts, edit, frame_bytes, frames_in
from ds4proto_conformance.peers.faults import Fault, patched

snapshots: Any = ds4d_worker_snapshots
_SAVE, _CHUNK, _LOAD = 5, 7, 9


def _words(spec: Any, failed: bool = False, **words: Callable[[int], int]) -> Any:
    def change(parts: Parts) -> None:
        if bool(parts.words.get("status", 0)) == failed:
            for name, value in words.items():
                parts.words[name] = value(parts.words[name])

    return edit(spec, change)


def _short(parts: Parts) -> None:
    parts.rest = parts.rest[:-5]
    parts.words["chunk_bytes"] -= 5


def _saving(change: Callable[[Any, SaveShard], None]) -> Any:
    def event(peer: Any, _connection: Any, event: Any) -> bool:
        if isinstance(event, SaveShard):
            change(peer, event)
        return False

    return event


def _empties(peer: Any, event: SaveShard) -> None:
    found = peer.machine.sessions.get(event.session)
    if found is not None:
        found.empty()


def _unstable(connection: Any, frame: bytes) -> list[bytes]:
    if unpack_header(frame)[1] != CODE[SNAPSHOT_CHUNK] or len(frame) < 60:
        return [frame]
    turn = connection.memory["turn"] = connection.memory.get("turn", 0) + 1
    return [frame[:-1] + bytes([frame[-1] ^ turn & 1])]


def _judge_save(
    change: Callable[[Any, Any, dict[str, int]], dict[str, int] | None],
) -> Any:
    """Alter the words of a save before they are judged."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = snapshots.judge_save

        def judge(facts: Any, sessions: Any, words: Any) -> Any:
            return own(
                facts, sessions, change(facts, sessions, words) if words else words
            )

        return patched((snapshots, "judge_save", judge))

    return patch


def _own_model(facts: Any, _s: Any, words: dict[str, int]) -> dict[str, int]:
    return {**words, "model_id": facts.model.model_id}


def _own_layers(facts: Any, _s: Any, words: dict[str, int]) -> dict[str, int]:
    return {**words, "layer_start": facts.layer_start, "layer_end": facts.layer_end}


def _own_count(_f: Any, sessions: Any, words: dict[str, int]) -> dict[str, int]:
    found = sessions.get(words["session"])
    return {**words, "token_count": found.count} if found else words


def _own_hash(_f: Any, sessions: Any, words: dict[str, int]) -> dict[str, int]:
    found = sessions.get(words["session"])
    return {**words, "token_hash": found.hash} if found else words


def _in_context(facts: Any, _s: Any, words: dict[str, int]) -> dict[str, int]:
    return {**words, "token_count": min(words["token_count"], facts.model.ctx)}


def _create_session() -> contextlib.AbstractContextManager[None]:
    own = snapshots.judge_save

    def judge(facts: Any, sessions: Any, words: Any) -> Any:
        if words and sessions.get(words["session"]) is None:
            sessions.create(words["session"])
        return own(facts, sessions, words)

    return patched((snapshots, "judge_save", judge))


def _hash_first() -> contextlib.AbstractContextManager[None]:
    own = snapshots.judge_save

    def judge(facts: Any, sessions: Any, words: Any) -> Any:
        found = own(facts, sessions, words)
        session = sessions.get(words["session"]) if words else None
        if found is not None and found.clause == "DS4D-SNAP-04":
            assert session is not None
            if session.hash != words["token_hash"]:
                return own(facts, sessions, {**words, "token_count": session.count})
        return found

    return patched((snapshots, "judge_save", judge))


def _any_size(_connection: Any, code: int, body: bytes) -> bytes | None:
    """Read a save of any size as one of 40 bytes."""
    if code != _SAVE or len(body) == SAVE_PART.size:
        return None
    return frame_bytes(_SAVE, (body + bytes(40))[:40])


def _load(**words: Any) -> Any:
    """Alter the words of an incoming load."""

    def change(_connection: Any, code: int, body: bytes) -> bytes | None:
        if code != _LOAD or len(body) < LOAD_PART.size:
            return None
        found = LOAD_PART.read(body)
        rest = body[LOAD_PART.size :]
        for name, value in words.items():
            found[name] = value(found, rest) if callable(value) else value
        return frame_bytes(_LOAD, LOAD_PART.build(found) + rest)

    return frames_in(change)


def _true_hash(_found: dict[str, int], rest: bytes) -> int:
    from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash

    tokens = [
        int.from_bytes(rest[i : i + 4], "big") for i in range(0, len(rest) - 3, 4)
    ]
    return token_hash(tokens, TOKEN_HASH_START)


def _tame_tokens(_connection: Any, code: int, body: bytes) -> bytes | None:
    if code != _LOAD or len(body) < LOAD_PART.size:
        return None
    found, rest = LOAD_PART.read(body), body[LOAD_PART.size :]
    rest = b"".join(
        rest[i : i + 4] if rest[i] == 0 else bytes(4) for i in range(0, len(rest), 4)
    )
    found["token_hash"] = _true_hash(found, rest)
    return frame_bytes(_LOAD, LOAD_PART.build(found) + rest)


def _leaves_tokens(_connection: Any, code: int, body: bytes) -> bytes | None:
    """Stop reading at a token that does not exist."""
    if code != _LOAD or len(body) < 64 or body[60] == 0:
        return None
    found, rest = LOAD_PART.read(body), body[LOAD_PART.size :]
    found.update(token_bytes=4, token_count=1)
    return frame_bytes(_LOAD, LOAD_PART.build(found) + rest[:4]) + rest[4:]


def _judge_status(connection: Any, code: int, body: bytes) -> bytes | None:
    if code == _LOAD and len(body) >= LOAD_PART.size:
        found = LOAD_PART.read(body)
        if found["status"]:
            return frame_bytes(99, b"")
    del connection
    return None


def _chunks(change: Callable[[Any, dict[str, int], bytes], bytes | None]) -> Any:
    """Alter incoming chunks."""

    def some(connection: Any, code: int, body: bytes) -> bytes | None:
        if code == _LOAD and len(body) >= LOAD_PART.size:
            words = LOAD_PART.read(body)
            connection.memory["load"] = Load(words, (), words["payload_size"])
        load = connection.memory.get("load")
        if code != _CHUNK or load is None or len(body) < CHUNK_PART.size:
            return None
        data = body[CHUNK_PART.size :]
        found = change(load, CHUNK_PART.read(body), data)
        load.missing -= len(data)
        return found

    return frames_in(some)


def _rebuilt(words: dict[str, int], data: bytes) -> bytes:
    return frame_bytes(
        _CHUNK, CHUNK_PART.build({**words, "chunk_bytes": len(data)}) + data
    )


def _empty_refused(_load: Any, _words: Any, data: bytes) -> bytes | None:
    return None if data else frame_bytes(99, b"")


def _others(connection: Any, code: int, body: bytes) -> bytes | None:
    if code == _LOAD:
        connection.memory["loading"] = len(body) > LOAD_PART.size
        return None
    return b"" if connection.memory.get("loading") and code != _CHUNK else None


def _last_words(when: Callable[[Any, str], bool]) -> Any:
    """Say SNAPSHOT_DONE where a close without an answer is due."""

    def event(_peer: Any, connection: Any, event: Any) -> bool:
        if isinstance(event, Close) and connection and when(connection, event.reason):
            words = {"request": 1, "status": 1, "message_bytes": 0}
            body = FIXED[SNAPSHOT_DONE].build(words)
            connection.sock.sendall(frame_bytes(8, body))
        return False

    return event


def _note_load(connection: Any, code: int, _body: bytes) -> bytes | None:
    connection.memory["loading"] = code == _LOAD
    return None


def _restoring(change: Callable[[Any, RestoreShard], None]) -> Any:
    def event(peer: Any, _connection: Any, event: Any) -> bool:
        if isinstance(event, RestoreShard):
            change(peer, event)
        return False

    return event


def _forget_hash() -> contextlib.AbstractContextManager[None]:
    own = snapshots.Snapshots._restored

    def restored(self: Any, job: Any, event: Any, now: float) -> None:
        session = self.worker.sessions.create(job.words["session"])
        before = session.hash, session.count
        own(self, job, event, now)
        session.hash, session.count = before

    return patched((snapshots.Snapshots, "_restored", restored))


def _restore_nothing() -> contextlib.AbstractContextManager[None]:
    from ds4proto_conformance.peers.engine import Engine

    def restore(self: Any, session: int, _shard: bytes, _tokens: Any) -> str:
        self.sessions[session] = []
        return ""

    return patched((Engine, "restore", restore))


def _append() -> contextlib.AbstractContextManager[None]:
    own = snapshots.Snapshots._restored

    def restored(self: Any, job: Any, event: Any, now: float) -> None:
        before = self.worker.sessions.get(job.words["session"])
        count = before.count if before is not None else 0
        own(self, job, event, now)
        self.worker.sessions.get(job.words["session"]).count += count

    return patched((snapshots.Snapshots, "_restored", restored))


def _refusal_empties() -> contextlib.AbstractContextManager[None]:
    own = snapshots.Snapshots._refuse_load

    def refuse(self: Any, load: Any, fault: Any, now: float) -> None:
        found = self.worker.sessions.get(load.words["session"])
        if found is not None:
            found.empty()
        own(self, load, fault, now)

    return patched((snapshots.Snapshots, "_refuse_load", refuse))


def _refusal_closes() -> contextlib.AbstractContextManager[None]:
    own = snapshots.Snapshots._refuse_load

    def refuse(self: Any, load: Any, fault: Any, now: float) -> None:
        own(self, load, fault, now)
        if not load.missing:
            self.abandon(fault.text, now)

    return patched((snapshots.Snapshots, "_refuse_load", refuse))


def _f(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", "snapshot", about, **hooks)


MUTANTS: Final = (
    _f(
        "save-chunk-other-id",
        "chunks under another id",
        out=_words(SNAPSHOT_CHUNK, request=lambda v: v ^ 1),
    ),
    _f("save-short", "sends less than it announced", out=edit(SNAPSHOT_CHUNK, _short)),
    _f(
        "save-hash-zero",
        "announces hash 0",
        out=_words(SNAPSHOT_BEGIN, token_hash=lambda _v: 0),
    ),
    _f("save-empties-session", "a save empties the session", event=_saving(_empties)),
    _f("save-unstable", "saves other bytes each time", out=_unstable),
    _f(
        "snapshot-id-high-bit",
        "sets the top bit of ids",
        out=_words(SNAPSHOT_BEGIN, request=lambda v: v | 1 << 63),
    ),
    _f(
        "save-size-unchecked", "takes a save of any size", received=frames_in(_any_size)
    ),
    _f("save-model-unchecked", "saves for any model", patch=_judge_save(_own_model)),
    _f("save-layers-unchecked", "saves any layers", patch=_judge_save(_own_layers)),
    _f(
        "save-context-unchecked",
        "does not compare with its context",
        patch=_judge_save(_in_context),
    ),
    _f("save-creates-session", "creates the session for a save", patch=_create_session),
    _f(
        "save-count-unchecked", "does not compare counts", patch=_judge_save(_own_count)
    ),
    _f("save-hash-unchecked", "does not compare hashes", patch=_judge_save(_own_hash)),
    _f("save-hash-first", "compares hashes before counts", patch=_hash_first),
    _f("load-forgets-hash", "keeps its old hash behind a load", patch=_forget_hash),
    _f("load-keeps-nothing", "says yes and restores nothing", patch=_restore_nothing),
    _f("load-appends", "adds a load to what was there", patch=_append),
    _f(
        "load-empty-chunk-refused",
        "refuses empty chunks",
        received=_chunks(_empty_refused),
    ),
    _f(
        "load-status-judged",
        "judges the status of a load",
        received=frames_in(_judge_status),
    ),
    _f(
        "load-short-answered",
        "answers a short load",
        received=frames_in(_note_load),
        event=_last_words(
            lambda c, _r: c.memory.get("loading", False) and c.machine.load is None
        ),
    ),
    _f(
        "load-token-bytes-unchecked",
        "does not compare token_bytes",
        received=_load(token_bytes=lambda _f, rest: len(rest)),
    ),
    _f(
        "load-message-unchecked",
        "takes a load with a message",
        received=_load(message_bytes=0),
    ),
    _f(
        "load-hash-unchecked",
        "does not hash a load's tokens",
        received=_load(token_hash=_true_hash),
    ),
    _f("load-refusal-closes", "closes behind every refusal", patch=_refusal_closes),
    _f("load-model-unchecked", "loads for any model", received=_load(model_id=0)),
    _f(
        "load-layers-unchecked",
        "loads any layers",
        received=_load(layer_start=5, layer_end=7),
    ),
    _f(
        "load-vocabulary-unchecked",
        "loads any token ids",
        received=frames_in(_tame_tokens),
    ),
    _f("load-anything", "takes any bytes for a shard", patch=_restore_nothing),
    _f(
        "load-refusal-empties",
        "a refused load empties the session",
        patch=_refusal_empties,
    ),
    _f(
        "load-leaves-tokens",
        "stops reading at a wrong token",
        received=frames_in(_leaves_tokens),
    ),
    _f(
        "chunk-id-unchecked",
        "takes chunks of any transfer",
        received=_chunks(
            lambda load, w, d: _rebuilt({**w, "request": load.words["request"]}, d)
        ),
    ),
    _f(
        "chunk-overflow",
        "cuts chunks that are too long",
        received=_chunks(
            lambda load, w, d: (
                _rebuilt(w, d[: load.missing]) if len(d) > load.missing else None
            )
        ),
    ),
    _f(
        "chunk-size-unchecked",
        "does not compare chunk_bytes",
        received=_chunks(lambda _l, w, d: _rebuilt(w, d)),
    ),
    _f(
        "load-skips-others",
        "passes over frames between chunks",
        received=frames_in(_others),
    ),
    _f(
        "load-break-answered",
        "says DONE behind a broken magic",
        event=_last_words(lambda _c, reason: "magic" in reason),
    ),
    _f(
        "load-end-answered",
        "says DONE behind an end of stream",
        event=_last_words(lambda _c, reason: "end of stream" in reason),
    ),
)
