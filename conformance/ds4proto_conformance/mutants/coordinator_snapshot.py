"""Coordinators that carry out saves and loads wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link import ds4d_snapshot_client as client
from ds4proto.link.ds4d_events import SnapshotDone
from ds4proto.link.ds4d_frames import CODE, FIXED
from ds4proto.link.ds4d_snapshot_server import CHUNK_PART
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto_conformance.mutants.tools import Parts, edit, frame_bytes, frames_in
from ds4proto_conformance.peers.coordinator_saves import Transfers
from ds4proto_conformance.peers.faults import Fault, patched

BEGIN, CHUNK, DONE = (
    CODE[spec] for spec in (SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_DONE)
)
Patch = Callable[[], contextlib.AbstractContextManager[None]]


def _snapshots(change: Callable[[Any, int, bytes], bytes | None]) -> Any:
    """Return a hook for frames that come on connections of saves and loads."""
    alter = frames_in(change)

    def received(connection: Any, data: bytes) -> bytes:
        return alter(connection, data) if connection.kind == "snapshot" else data

    return received


def _awaits(state: str) -> Any:
    """Pass over frames that are not the awaited one."""
    code, part = client._AWAITED[state]

    def change(connection: Any, found: int, body: bytes) -> bytes | None:
        memory = connection.memory
        due = memory.get("due")
        now = "begin" if due is None else "chunks" if due > 0 else "done"
        if now == state and (found != code or len(body) < part.size):
            return b""
        if found == BEGIN and due is None:
            memory["due"] = FIXED[SNAPSHOT_BEGIN].read(body)["payload_size"]
        elif found == CHUNK and now == "chunks":
            memory["due"] -= len(body) - CHUNK_PART.size
        return None

    return _snapshots(change)


def _judging(*numbers: str) -> Patch:
    """Return a patch that passes over some checks of SNAPSHOT_BEGIN."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = client.SaveClient._judge_begin
        names = {f"DS4D-SNAP-{number}" for number in numbers}

        def judge(self: Any, frame: Any, words: Any) -> Any:
            fault = own(self, frame, words)
            return None if fault is not None and fault.clause in names else fault

        return patched((client.SaveClient, "_judge_begin", judge))

    return patch


def _sound_chunks() -> contextlib.AbstractContextManager[None]:
    """Take any chunk; bytes beyond the shard are dropped."""

    def sound(_request: int, _missing: int, _size: int, _body: Any) -> bool:
        return True

    def chunk(self: Any, frame: Any, now: float) -> None:
        data = frame.body[CHUNK_PART.size :][: self._missing - 1]
        self._missing -= len(data)
        self._heard = now

    return patched((client, "chunk_sound", sound), (client.SaveClient, "_chunk", chunk))


def _status_0(_connection: Any, code: int, body: bytes) -> bytes | None:
    if code != BEGIN:
        return None
    words = FIXED[SNAPSHOT_BEGIN].read(body)
    if not words["status"]:
        return None
    words |= {"status": 0, "payload_size": 9}
    return frame_bytes(BEGIN, FIXED[SNAPSHOT_BEGIN].build(words) + body[60:])


def _no_tokens_wanted(connection: Any, code: int, body: bytes) -> bytes | None:
    begun = code == BEGIN and FIXED[SNAPSHOT_BEGIN].read(body)["token_bytes"]
    return frame_bytes(99, b"") if begun and connection.kind == "snapshot" else None


def _empty_chunk(_connection: Any, code: int, body: bytes) -> bytes | None:
    return frame_bytes(99, b"") if code == CHUNK and len(body) == 12 else None


def _surplus(_connection: Any, code: int, body: bytes) -> bytes | None:
    if code != DONE:
        return None
    words = FIXED[SNAPSHOT_DONE].read(body)
    more = len(body) > FIXED[SNAPSHOT_DONE].size + words["message_bytes"]
    return b"" if more else None


def _ignores_end() -> contextlib.AbstractContextManager[None]:
    own = client._Client._item

    def item(self: Any, found: Any, now: float) -> None:
        if type(found).__name__ != "End":
            own(self, found, now)

    return patched((client._Client, "_item", item))


def _leaves() -> contextlib.AbstractContextManager[None]:
    own = client.SaveClient._chunk

    def chunk(self: Any, frame: Any, now: float) -> None:
        own(self, frame, now)
        if self.state == "done":
            self._move("completed")
            self._emit(SnapshotDone())

    return patched((client.SaveClient, "_chunk", chunk))


def _behind(kind: str, act: Callable[[Any, Any], None], *, failed: bool) -> Patch:
    """Return a patch that does something behind a transfer; ``act(entry, session)``."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = Transfers.run

        def run(self: Any, what: str, entry: Any, session: Any) -> bool:
            worked = own(self, what, entry, session)
            if what == kind and worked != failed:
                act(entry, session)
            return worked

        return patched((Transfers, "run", run))

    return patch


def _drops(entry: Any, _session: Any) -> None:
    with contextlib.suppress(OSError):
        entry.handle.sock.shutdown(2)


_OPEN: Final[list[Any]] = []
"""Handles that keep connections open behind their transfer; the last one only."""


def _keep(_self: Any, connection: Any, _event: Any) -> bool:
    if connection is not None and connection.kind == "snapshot":
        for before in _OPEN:
            before.close()
        _OPEN[:] = [connection.sock.dup()]
    return False


def _waits() -> contextlib.AbstractContextManager[None]:
    """Send nothing of the shard before an answer has come."""
    return patched((client.LoadClient, "chunks", lambda *_: []))


def _save(change: Callable[[Parts], bool | None]) -> Any:
    return edit(SNAPSHOT_SAVE_REQ, change)


def _load(change: Callable[[Parts], bool | None]) -> Any:
    return edit(SNAPSHOT_LOAD_BEGIN, change)


def _no_tokens(parts: Parts) -> None:
    parts.words["token_count"] = 0


def _as_work(parts: Parts) -> None:
    parts.words["request"] &= 0xFFFF


def _load_bare(parts: Parts) -> None:
    parts.words |= {"token_count": 0, "token_bytes": 0}
    parts.rest = b""


def _other_hash(parts: Parts) -> None:
    parts.words["token_hash"] ^= 1


def _other_request(parts: Parts) -> None:
    parts.words["request"] ^= 1


def _cut(parts: Parts) -> None:
    parts.rest = parts.rest[:-1]
    parts.words["chunk_bytes"] = len(parts.rest)


def _f(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "coordinator", "snapshot", about, **hooks)


MUTANTS: Final = (
    _f("save-asks-no-tokens", "asks for a shard of no tokens", out=_save(_no_tokens)),
    _f("save-counts-as-work", "numbers saves as WORK", out=_save(_as_work)),
    _f("save-stays-open", "keeps the connection behind a save", event=_keep),
    _f("begin-tokens-refused", "refuses tokens in SNAPSHOT_BEGIN",
       received=_snapshots(_no_tokens_wanted)),
    _f("empty-chunk-refused", "refuses chunks of no bytes",
       received=_snapshots(_empty_chunk)),
    _f("surplus-refused", "passes over a SNAPSHOT_DONE with surplus bytes",
       received=_snapshots(_surplus)),
    _f("waits-for-begin", "passes over frames before SNAPSHOT_BEGIN",
       received=_awaits("begin")),
    _f("waits-for-chunk", "passes over frames between chunks",
       received=_awaits("chunks")),
    _f("waits-for-done", "passes over frames before SNAPSHOT_DONE",
       received=_awaits("done")),
    _f("begin-sizes-unchecked", "takes any lengths of SNAPSHOT_BEGIN",
       patch=_judging("32")),
    _f("begin-words-unchecked", "takes the shard of any session",
       patch=_judging("34")),
    _f("begin-status-ignored", "takes a refused save for a granted one",
       received=_snapshots(_status_0)),
    _f("empty-shard-taken", "waits for a shard of no bytes", patch=_judging("41")),
    _f("chunk-words-unchecked", "takes any chunk", patch=_sound_chunks),
    _f("save-outwaits-the-gone", "waits for a worker that has gone",
       patch=_ignores_end),
    _f("save-leaves-before-done", "leaves with the last byte of a shard",
       patch=_leaves),
    _f("failed-save-replays", "begins anew behind a failed save",
       patch=_behind("save", lambda _e, s: s.forget(), failed=True)),
    _f("failed-save-drops-worker", "drops a worker that refuses a save",
       patch=_behind("save", _drops, failed=True)),
    _f("load-asks-no-tokens", "loads without tokens", out=_load(_load_bare)),
    _f("load-of-other-hash", "loads with another hash", out=_load(_other_hash)),
    _f("load-waits-early", "waits before it sends the shard", patch=_waits),
    _f("load-chunk-of-other-request", "sends chunks of another request",
       out=edit(SNAPSHOT_CHUNK, _other_request)),
    _f("load-cut", "leaves out the last byte of a shard",
       out=edit(SNAPSHOT_CHUNK, _cut)),
    _f("load-refusal-drops-worker", "drops a worker that refuses a load",
       patch=_behind("load", _drops, failed=True)),
)  # fmt: skip
