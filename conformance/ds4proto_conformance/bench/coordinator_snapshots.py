"""We play a worker whose shard a coordinator saves or loads."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_frames import FIXED, framed, pack_tokens
from ds4proto.peer import SYSTEM_CLOCK, PeerLost
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_CHUNK,
    SNAPSHOT_DONE,
)
from ds4proto_conformance.cases.coordinator_result import start
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Frame, Wire

if TYPE_CHECKING:
    from ds4proto_conformance.bench.coordinator import CoordinatorBench, Hop

__all__ = ["SHARD", "Transfer", "transfer"]

Kind = Literal["save", "load"]
SHARD: Final = b"a shard that nobody looks into " * 40
_GLANCE: Final = 0.02
_REQUEST: Final[dict[Kind, str]] = {
    "save": "SNAPSHOT_SAVE_REQ",
    "load": "SNAPSHOT_LOAD_BEGIN",
}


def transfer(peer: CoordinatorBench, kind: Kind) -> Transfer:
    """Make the coordinator save or load; return the transfer, its request read.

    Its other requests are answered meanwhile.

    Raises
    ------
    NotApplicable
        It does not, and nothing was told that would make it.
    Deviation
        The connection begins with another frame.
    """
    hop = start(peer)
    hop.answer(hop.work())  # so that there is something to save
    ask = getattr(peer.connections, "ask", None)
    mover = peer.movers.get(kind)
    vain = f"the coordinator does not {kind} by itself: use --drive-{kind}"
    if ask is not None:
        ask(kind)
    elif mover is not None:
        mover.start()
    elif peer.moves_nothing:
        raise NotApplicable(vain)
    told = peer.settings
    wait = told.connect if mover is not None else told.patience
    end = SYSTEM_CLOCK.now() + told.wait(wait)
    while SYSTEM_CLOCK.now() < end:
        with contextlib.suppress(PeerLost):
            wire = peer.accept("snapshot", patience=_GLANCE)
            return Transfer(peer, hop, wire, kind)
        found = hop.wire.quiet(_GLANCE)
        if isinstance(found, Frame) and found.name == "WORK":
            hop.answer(found)
        elif found is not None:
            raise Deviation("DS4D-SNAP-60", f"a connection for the {kind}", str(found))
    if ask is not None or mover is not None:
        raise Deviation("DS4D-SNAP-60", f"a connection for the {kind}", "none came")
    peer.moves_nothing = True
    raise NotApplicable(vain)


class Transfer:
    """One save or load, as the worker's side sees it.

    Attributes
    ----------
    hop : Hop
        The connection on which WORK comes.
    asked : Frame
        SNAPSHOT_SAVE_REQ or SNAPSHOT_LOAD_BEGIN.
    """

    def __init__(
        self, peer: CoordinatorBench, hop: Hop, wire: Wire, kind: Kind
    ) -> None:
        self.peer, self.hop, self.wire = peer, hop, wire
        clause = "DS4D-SNAP-50" if kind == "save" else "DS4D-SNAP-51"
        self.asked = wire.frame(_REQUEST[kind], clause)

    # what we send

    def _frame(self, spec: FrameSpec, words: dict[str, Any], tail: bytes) -> None:
        part = FIXED[spec].build(words)
        self.wire.send(b"".join(map(bytes, framed(spec, (part, tail)))))

    def begin(self, tail: bytes = b"", **changes: Any) -> None:
        """Send SNAPSHOT_BEGIN: a shard follows, but for the changes."""
        names = ("model_id", "session", "request", "token_hash")
        words = {name: self.asked[name] for name in (*names, "token_count")}
        words |= {name: self.asked[name] for name in ("layer_start", "layer_end")}
        words |= {"payload_size": len(SHARD), "status": 0}
        words |= {"token_count": 0, "token_bytes": 0, "message_bytes": 0, **changes}
        self._frame(SNAPSHOT_BEGIN, words, tail)

    def begin_with_tokens(self, message: bytes) -> None:
        """Send SNAPSHOT_BEGIN with as many tokens as were asked for, and a text."""
        count = self.asked["token_count"]
        tokens = bytes(pack_tokens(range(count)))
        words = {"token_count": count, "token_bytes": len(tokens)}
        self.begin(tokens + message, message_bytes=len(message), **words)

    def chunk(self, data: bytes, **changes: Any) -> None:
        """Send SNAPSHOT_CHUNK."""
        words = {"request": self.asked["request"], "chunk_bytes": len(data), **changes}
        self._frame(SNAPSHOT_CHUNK, words, data)

    def done(self, message: bytes = b"", extra: bytes = b"", **changes: Any) -> None:
        """Send SNAPSHOT_DONE."""
        words = {"request": self.asked["request"], "status": 0}
        words |= {"message_bytes": len(message), **changes}
        self._frame(SNAPSHOT_DONE, words, message + extra)

    def raw(self, code: int, body: bytes) -> None:
        """Send any frame."""
        head = b"DS4D" + code.to_bytes(4, "big") + len(body).to_bytes(4, "big")
        self.wire.send(head + body)

    # what has to come

    def waits(self, clause: str, what: str) -> None:
        """Take it that the coordinator keeps the connection and says nothing."""
        found = self.wire.quiet(self.peer.quiet)
        if found is not None:
            raise Deviation(clause, what, str(found))

    def over(self, clause: str, what: str) -> None:
        """Take it that the coordinator ends this connection, and it alone."""
        self.wire.closed(clause, what)
        self.goes_on()

    def goes_on(self, clause: str = "DS4D-SNAP-47") -> None:
        """Take it that the session goes on where it was, without a replay."""
        found = self.hop.wire.next()
        if isinstance(found, Ended) or found.name != "WORK":
            raise Deviation(clause, "the next WORK of the session", str(found))
        count = self.asked["token_count"]
        same = found["session"] == self.asked["session"] and not found["pos0"]
        if same and found["n_tokens"] > count:
            tokens = [int(t) & 0xFFFFFFFF for t in found["tokens"][:count]]
            if token_hash(tokens) == self.asked["token_hash"]:
                raise Deviation(clause, "no replay", f"all {count} tokens once more")
