"""What a failed gate says: who, where in the model, how far, who stopped, what next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds4proto.link.ds4t_gate_headers import GateShape
from ds4proto.link.schedule import Schedule, gate_of
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import ATTN, LOGITS_LAYER
from ds4proto.schema.ds4t_hello import ROLE_CODES
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import frame

Stopped = Literal["this rank", "the peer", "both", "neither"]
_ROW = struct_of(frame("DS4T.GATE_ROW", dialect="v14").body, "v14")
_VERSIONS = frozenset(d.version for d in dialects_of("DS4T"))
_ROLES = frozenset(ROLE_CODES.values())


@dataclass(frozen=True, slots=True)
class GateDiagnosis:
    """Where a gate stood when it failed.

    Attributes
    ----------
    rank : int
        0 leader, 1 worker.
    shape : {"row", "batch", "bulk"}
    layer, third, seq : int
        As in the own header; ``third`` is the gate kind, the rows or the tag.
    token : int or None
        Token of the connection (from 1) that a row gate belongs to.
    received, expected : int
        Bytes of header and payload from the peer.
    sent, to_send : int
        Bytes of the own header and payload.
    waited : float
        Seconds since the gate was opened.
    quiet : float
        Seconds since the last byte either way.
    skew : float
        Longest time so far that the peer's header came after this rank was ready.
    next_step : str
    """

    rank: int
    shape: GateShape
    layer: int
    third: int
    seq: int
    token: int | None
    received: int
    expected: int
    sent: int
    to_send: int
    waited: float
    quiet: float
    skew: float
    next_step: str = ""

    @property
    def stopped(self) -> Stopped:
        """Which side stopped first, as far as the bytes tell.

        A side that owes bytes while the other has done its part has stopped. When
        this rank could not write either, the peer reads nothing: it stopped too.
        """
        owed = self.received < self.expected
        unsent = self.sent < self.to_send
        if owed:
            return "the peer"
        return "both" if unsent and self.received else "neither"

    @property
    def name(self) -> str:
        """The gate in words."""
        if self.shape == "row":
            return f"{'ATTN' if self.third == ATTN else 'FFN'} row gate"
        if self.shape == "batch":
            return f"batch gate of {self.third} rows"
        return "logits gate" if self.layer == LOGITS_LAYER else "bulk gate"

    def __str__(self) -> str:
        token = f"token {self.token}, " if self.token is not None else ""
        parts = [
            f"rank {self.rank}: {token}layer {self.layer}, {self.name}, seq {self.seq}",
            f"received {self.received} of {self.expected} bytes, "
            f"sent {self.sent} of {self.to_send}",
            f"{_STOPPED[self.stopped]}; open for {self.waited * 1e3:.0f} ms, "
            f"quiet for {self.quiet * 1e3:.0f} ms, "
            f"largest skew before {self.skew * 1e3:.1f} ms",
        ]
        text = "; ".join(parts)
        return f"{text}. Next: {self.next_step}" if self.next_step else text


_STOPPED: dict[Stopped, str] = {
    "this rank": "this rank stopped first",
    "the peer": "the peer stopped first",
    "both": "the peer sent all and reads no more",
    "neither": "both sides had sent all",
}


def silence_advice(shape: GateShape, received: int, header: int) -> str:
    """Return what to try when a gate stays silent."""
    if shape == "bulk" and received > header:
        return (
            "a bulk payload that stops short points to another chunk size or split "
            "threshold on the peer: compare DS4_METAL_PREFILL_CHUNK, "
            "DS4_TP_PREFILL_SPLIT_MIN and --ctx on both sides"
        )
    if received:
        return "the peer was cut off inside this gate: look at its last lines"
    return (
        "the peer did not reach this gate: it waits elsewhere, computes longer than "
        "the gate timeout (DS4_TP_GATE_TIMEOUT_MS), or runs another schedule"
    )


def desync_advice(head: Buf, shape: GateShape, seq: int, schedule: Schedule) -> str:
    """Return what a header that was not due tells.

    Parameters
    ----------
    head : buffer
        The peer's 16 bytes.
    shape, seq
        What this rank had due.
    schedule : Schedule
    """
    foreign = foreign_bytes(head, schedule)
    if foreign:
        return foreign
    magic, layer, third, theirs = _ROW.unpack_from(head)
    if shape == "row" and magic == DS4T_MAGIC and schedule.slots and theirs:
        place = gate_of(theirs, schedule)
        if (place.layer, place.kind) == (layer, "FFN" if third else "ATTN"):
            ahead = theirs - seq
            side = "ahead" if ahead > 0 else "behind"
            return (
                f"the peer is {abs(ahead)} gates {side}, at token {place.token}, layer "
                f"{place.layer}, {place.kind}: one rank ran a gate without the other"
            )
        return (
            "the peer fires other gates for the same tokens: compare model, build and "
            "the GLM options of both sides"
        )
    return (
        "these bytes may be payload: the gate before had another length on the peer; "
        "compare prefill chunk, split threshold, --ctx and draft block on both sides"
    )


def foreign_bytes(head: Buf, schedule: Schedule) -> str:
    """Return who sends such first bytes on a data connection, "" for a gate header.

    Nothing identifies a data connection, so that any client may become it
    (DS4T-ROBUST-02).
    """
    if len(head) < _ROW.size:
        return f"a gate header has {_ROW.size} bytes, these are {len(head)}"
    magic, layer, third, seq = _ROW.unpack_from(head)
    if magic not in (DS4T_MAGIC, DS4B_MAGIC):
        shown = bytes(head[:16])
        return (
            f"{shown!r} is no gate header: another program may hold this connection, "
            "or the gate before had another length on the peer"
        )
    # of a hello, version, role and rdma_ok stand where layer, gate and seq are
    role, rdma_ok = seq & 0xFFFFFFFF, seq >> 32
    hello = third == 0 and layer in _VERSIONS and role in _ROLES and rdma_ok in (0, 1)
    due = schedule.slot_of(role) if rdma_ok == 0 else None
    if magic == DS4T_MAGIC and hello and due != 2 * layer:
        return (
            f"these bytes are the hello of a version {layer} rank: another worker "
            "connected where the data connection was due"
        )
    return ""
