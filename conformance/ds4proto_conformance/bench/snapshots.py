"""Saves and loads of a worker's shard, as cases ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ds4proto.link.ds4d_frames import FIXED, framed, pack_tokens
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_CHUNK,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto_conformance.bench.answers import refusal
from ds4proto_conformance.bench.work import chain
from ds4proto_conformance.verdicts import Deviation, Unsupported
from ds4proto_conformance.wire import Frame, Wire

if TYPE_CHECKING:
    from ds4proto_conformance.bench.worker import WorkerBench

__all__ = ["Snapshots"]

MAX_SHARD = 64 << 20
_CANNOT = "not supported"
"""In a refusal: the peer has no snapshots at all."""


class Snapshots:
    """Snapshot frames over one connection of a worker.

    Attributes
    ----------
    wire : Wire
    request : int
        Id of the next transfer, from the range of snapshots.
    """

    def __init__(self, peer: WorkerBench, wire: Wire | None = None) -> None:
        self.peer = peer
        self.wire = wire or peer.dial("snapshot")
        self.request = peer.rng.randrange(1 << 63, 1 << 64)

    def filled(self, count: int = 3) -> tuple[int, tuple[int, ...]]:
        """Return a session that holds some tokens, and the tokens."""
        session, tokens = self.peer.session(), self.peer.tokens(count)
        work = self.peer.make(tokens, session=session)
        self.peer.answer(self.peer.send(work)).served()
        return session, tokens

    def words(self, session: int, tokens: Sequence[int], **lies: int) -> dict[str, int]:
        """Return the ten words that a save and a load begin with."""
        f = self.peer.facts
        words = {
            "model_id": f.model_id,
            "session": session,
            "request": self.request,
            "token_hash": chain(tokens),
            "token_count": len(tokens),
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
        }
        return {**words, **lies}

    # save

    def ask(self, session: int, tokens: Sequence[int], **lies: int) -> Frame:
        """Ask for a shard; return the SNAPSHOT_BEGIN."""
        words = self.words(session, tokens, **lies)
        body = FIXED[SNAPSHOT_SAVE_REQ].build(words)
        self.wire.send(b"".join(map(bytes, framed(SNAPSHOT_SAVE_REQ, (body,)))))
        return self.wire.frame("SNAPSHOT_BEGIN", "DS4D-SNAP-54")

    def save(self, session: int, tokens: Sequence[int], **lies: int) -> bytes:
        """Return the shard of a session.

        Raises
        ------
        Deviation
            It was refused, or the transfer is not as the clauses say.
        Unsupported
            The refusal is sound and says that snapshots are not supported.
        """
        begin = self.ask(session, tokens, **lies)
        if begin["status"]:
            if _CANNOT in begin.message:
                self.refused(begin, "DS4D-SNAP-55", session)
                raise Unsupported(f"a save: {begin.message}")
            raise Deviation("DS4D-SNAP-54", "the shard", str(begin))
        due = self.words(session, tokens, **lies)
        for name in (
            "model_id",
            "session",
            "request",
            "token_hash",
            "layer_start",
            "layer_end",
        ):
            if begin[name] != due[name]:
                raise Deviation("DS4D-SNAP-54", f"{name} {due[name]}", str(begin[name]))
        size = begin["payload_size"]
        if not 0 < size <= MAX_SHARD:
            raise Deviation("DS4D-SNAP-54", "the size of a shard", f"{size} bytes")
        shard = b""
        while len(shard) < size:
            chunk = self.wire.frame("SNAPSHOT_CHUNK", "DS4D-SNAP-58")
            data = bytes(chunk["data"])
            self._chunk(chunk, size - len(shard))
            shard += data
        self.done("DS4D-SNAP-58")
        return shard

    def _chunk(self, chunk: Frame, missing: int) -> None:
        size = len(chunk["data"])
        if chunk["request"] != self.request:
            raise Deviation(
                "DS4D-SNAP-52", f"request {self.request}", str(chunk["request"])
            )
        if size > missing:
            raise Deviation("DS4D-SNAP-58", f"at most {missing} bytes", f"{size} bytes")
        if size < min(missing, 8 << 20):
            raise Deviation(
                "DS4D-SNAP-57",
                "full chunks but for the last",
                f"{size} bytes, {missing} were missing",
            )

    def refused(self, begin: Frame, clause: str, session: int | None = None) -> None:
        """Take it that a save was refused for the reason that a clause gives."""
        if not begin["status"]:
            raise Deviation(clause, "the save to be refused", str(begin))
        refusal(self.peer, begin.message, clause)
        f = self.peer.facts
        due: dict[str, Any] = {
            "status": 1,
            "payload_size": 0,
            "token_hash": 0,
            "token_count": 0,
            "token_bytes": 0,
            "model_id": f.model_id,
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
        }
        if session is not None:
            due |= {"session": session, "request": self.request}
        for name, value in due.items():
            if begin[name] != value:
                raise Deviation("DS4D-SNAP-55", f"{name} {value}", str(begin[name]))

    # load

    def begin_load(
        self, session: int, tokens: Sequence[int], size: int, **lies: int
    ) -> None:
        """Send the head of a load."""
        words = {
            **self.words(session, tokens),
            "payload_size": size,
            "status": 0,
            "token_bytes": 4 * len(tokens),
            "message_bytes": 0,
            **lies,
        }
        parts = (FIXED[SNAPSHOT_LOAD_BEGIN].build(words), pack_tokens(tokens))
        self.wire.send(b"".join(map(bytes, framed(SNAPSHOT_LOAD_BEGIN, parts))))

    def chunk(self, data: bytes, *, cut: int | None = None, **lies: int) -> None:
        """Send one chunk, or its first ``cut`` bytes."""
        words = {"request": self.request, "chunk_bytes": len(data), **lies}
        parts = (FIXED[SNAPSHOT_CHUNK].build(words), data)
        self.wire.send(b"".join(map(bytes, framed(SNAPSHOT_CHUNK, parts)))[:cut])

    def load(
        self,
        session: int,
        tokens: Sequence[int],
        shard: bytes,
        *,
        pieces: int = 1 << 20,
    ) -> None:
        """Load a shard, and take it that the worker accepts it."""
        self.begin_load(session, tokens, len(shard))
        for at in range(0, len(shard), pieces):
            self.chunk(shard[at : at + pieces])
        self.done("DS4D-SNAP-22")

    def done(self, clause: str) -> Frame:
        """Return the SNAPSHOT_DONE of a success."""
        done = self.wire.frame("SNAPSHOT_DONE", clause)
        if done["status"]:
            raise Deviation(clause, "success", str(done))
        if done["request"] != self.request:
            raise Deviation(
                "DS4D-SNAP-53", f"request {self.request}", str(done["request"])
            )
        return done

    def load_refused(self, clause: str) -> Frame:
        """Take it that a load was refused for the reason that a clause gives."""
        done = self.wire.frame("SNAPSHOT_DONE", clause)
        if not done["status"]:
            raise Deviation(clause, "the load to be refused", str(done))
        if clause != "DS4D-SNAP-21":  # the engine's own words
            refusal(self.peer, done.message, clause)
        if done["request"] != self.request:
            raise Deviation(
                "DS4D-SNAP-53", f"request {self.request}", str(done["request"])
            )
        return done

    def serves(self, session: int, tokens: Sequence[int], clause: str) -> bytes:
        """Take it that the session goes on behind these tokens; return the payload."""
        hidden = bytes(self.peer.facts.hidden_bytes(1, 32))
        work = self.peer.make(
            (7,),
            pos0=len(tokens),
            prefix=tokens,
            reset=False,
            session=session,
            hidden=hidden if self.peer.facts.layer_start else b"",
        )
        return self.peer.answer(self.peer.send(work)).served(clause).payload
