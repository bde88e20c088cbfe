"""What to post, when to send, what to wait for: the windows of the RDMA data plane.

Every phase posts its receives, meets the peer at a barrier byte on the data
connection, and only then sends. The machines here know offsets and work request ids;
the transport posts what they say and reports completions. Offsets are inside the slab
(or inside the payload, for bulk gates that are not staged).
"""

from __future__ import annotations

from typing import NamedTuple

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed, failed, text_of
from ds4proto.link.rdma_attributes import (
    BULK_ID,
    CQ_ENTRIES,
    DECODE_WINDOW,
    MAX_VECTOR,
    QpAttributes,
)
from ds4proto.link.schedule import Schedule
from ds4proto.schema.ds4t_gates import DECODE_BYTE, VERIFY_BYTE
from ds4proto.schema.slab import Region, slab_layout

PHASE = "RDMA gate"


class Post(NamedTuple):
    """One work request: a receive or a send of ``length`` bytes at ``offset``."""

    wr_id: int
    offset: int
    length: int


class RdmaFailed(Ds4ProtoError):
    """A completion or a barrier byte that was not due; see ``failure``."""

    def __init__(self, failure: PairFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


def pieces(offset: int, length: int, message: int) -> tuple[tuple[int, int], ...]:
    """Cut an area into messages: (offset, length), all but the last full."""
    return tuple(
        (offset + at, min(message, length - at)) for at in range(0, length, message)
    )


def rdma_failed(
    clause: str, text: str, expected: str, found: str, now: float, step: str = ""
) -> RdmaFailed:
    """Return a failure of the queue pair's side of a gate."""
    return RdmaFailed(
        failed(
            now,
            clause,
            text=text,
            phase=PHASE,
            expected=expected,
            found=found,
            next_step=step,
        )
    )


def check_barrier(
    expected: int, found: int, now: float, *, granted: int | None = None
) -> None:
    """Compare the peer's barrier byte with the own one.

    Parameters
    ----------
    granted : int, optional
        Receives that the own queue pair was granted; named where windows differ.

    Raises
    ------
    RdmaFailed
        If they differ.
    """
    if found == expected:
        return
    names = {DECODE_BYTE: "a decode window", VERIFY_BYTE: "a verify window"}
    clause = "DS4T-ROBUST-10"
    if expected == DECODE_BYTE:
        clause = "DS4T-RDMA-61"
    elif expected == VERIFY_BYTE:
        clause = "DS4T-RDMA-90"
    mine, theirs = (
        names.get(v, f"bulk window {v} (mod 256)") for v in (expected, found)
    )
    depth = "" if granted is None else f"; this side was granted {granted} receives"
    raise rdma_failed(
        clause,
        f"tp rdma: barrier mismatch: got {found:#04x}, want {expected:#04x}",
        mine,
        f"{theirs}{depth}",
        now,
        "the ranks run different phases, or cut bulk gates into windows of "
        "different size: compare the granted depths and DS4_TP_DISABLE_VERIFY_WINDOW",
    )


def slab_region(settings: TpSettings, name: str) -> Region:
    """Return one region of the slab."""
    identity = settings.identity
    layout = slab_layout(identity.n_layer, identity.n_embd)
    return next(region for region in layout if region.name == name)


def check_depth(completions: int, entries: int = CQ_ENTRIES) -> None:
    """Refuse a round that can raise more completions than the queue holds.

    Raises
    ------
    LocalProtocolError
        (DS4T-RDMA-26).
    """
    if completions > entries:
        raise LocalProtocolError(
            f"a round of {completions} completions does not fit a completion queue "
            f"of {entries} entries"
        )


class DecodeWindow:
    """Row gates over the queue pair: 16 gates' receives ahead.

    Parameters
    ----------
    settings : TpSettings
    attributes : QpAttributes

    Attributes
    ----------
    active : bool
        Receives are posted and the barrier is passed.
    barrier : int or None
        Byte to exchange after ``open``; None in dialects without one.
    received : int
        Row gates whose receive has completed: the watermark.
    """

    def __init__(self, settings: TpSettings, attributes: QpAttributes) -> None:
        identity = settings.identity
        vec = identity.vector_bytes
        if vec > MAX_VECTOR:
            raise LocalProtocolError(text_of("DS4T-RDMA-03", vec, attributes.message))
        self._slots = Schedule.from_hello(identity.words()).slots
        if not self._slots:
            raise LocalProtocolError("RDMA needs a gate schedule, and it is empty")
        message = attributes.message
        out, into = slab_region(settings, "out"), slab_region(settings, "in")
        self._out = [pieces(out.offset + s * vec, vec, message) for s in self._slots]
        self._in = [pieces(into.offset + s * vec, vec, message) for s in self._slots]
        self.chunks = len(self._out[0])
        self.barrier = DECODE_BYTE if settings.rules.decode_barrier else None
        self.active = False
        self.received = 0
        self._posted = 0
        self._draining = 0
        self._sends = 0

    def open(self, seq: int) -> list[Post]:
        """Return the receives of gates ``seq`` .. ``seq + 15`` (DS4T-RDMA-60).

        Post them, exchange ``barrier``, then call ``opened``.
        """
        if self.active:
            raise LocalProtocolError("the decode window is open already")
        self.received = self._posted = seq - 1
        found: list[Post] = []
        for _ in range(DECODE_WINDOW):
            found += self._receive()
        return found

    def opened(self) -> None:
        """Note the barrier."""
        self.active = True

    def _receive(self) -> list[Post]:
        self._posted += 1
        seq = self._posted
        parts = self._in[(seq - 1) % len(self._in)]
        last = len(parts) - 1
        return [
            Post(seq if k == last else 0, at, length)
            for k, (at, length) in enumerate(parts)
        ]

    def sends(self, layer: int, kind: int, seq: int) -> list[Post]:
        """Return the sends of one gate, chained.

        Raises
        ------
        LocalProtocolError
            If the window is not open, or the gate is not the schedule's
            (DS4T-SCHED-06).
        """
        index = (seq - 1) % len(self._slots)
        if self._slots[index] != 2 * layer + kind:
            raise LocalProtocolError(text_of("DS4T-SCHED-06", layer, kind, seq))
        if not self.active:
            raise LocalProtocolError("the decode window is not open")
        self._sends += self.chunks
        return [Post(seq, at, length) for at, length in self._out[index]]

    def send_completed(self, count: int = 1) -> None:
        """Note completed sends."""
        self._sends -= count

    def receive_completed(self, wr_id: int, now: float) -> bool:
        """Note a receive; True when it is the last message of a gate.

        Raises
        ------
        RdmaFailed
            If a gate overtook another one: a message was lost.
        """
        if self._draining:
            self._draining -= 1
            return False
        if wr_id == 0 and self.chunks > 1:
            return False
        due = self.received + 1
        if wr_id != due:
            raise rdma_failed(
                "DS4T-RDMA-63",
                f"ds4-tp: gate out of order: got seq {wr_id}, want {due}",
                f"seq {due}",
                f"seq {wr_id}",
                now,
                "a message was lost: on UC that happens in silence when it came "
                "before its receive was posted",
            )
        self.received = due
        return True

    def refill(self) -> list[Post]:
        """Return the receive of the gate 16 ahead, after a gate (DS4T-RDMA-64)."""
        return self._receive() if self._posted < self.received + DECODE_WINDOW else []

    def late(self, seq: int, now: float) -> RdmaFailed:
        """Return the failure of a gate that did not come (DS4T-RDMA-65)."""
        return rdma_failed(
            "DS4T-RDMA-65",
            text_of("DS4T-RDMA-65", seq, self.received),
            f"gate {seq}",
            f"{self.received} gates",
            now,
            "look at the peer's last lines, and at the retry counters of the port",
        )

    def drain(self) -> list[Post]:
        """Return the dummy sends that use up the peer's receives (DS4T-RDMA-70).

        Then wait until ``drained``; the window is closed afterwards.
        """
        if not self.active:
            return []
        self._draining = DECODE_WINDOW * self.chunks
        found = []
        for k in range(DECODE_WINDOW):
            parts = self._out[(self.received + k) % len(self._out)]
            found += [Post(BULK_ID | k + 1, at, length) for at, length in parts]
        self._sends += len(found)
        return found

    @property
    def drained(self) -> bool:
        """True when all 16 gates' receives and all sends have completed."""
        return self._draining == 0 and self._sends <= 0

    def close(self) -> None:
        """Close the drained window; the row sequence goes on without a gap."""
        if not self.drained:
            raise LocalProtocolError(
                f"the window is not drained: {self._draining} receives, "
                f"{self._sends} sends are out"
            )
        self.active = False
