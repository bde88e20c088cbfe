"""What TCP reassembly reports: streams opening, their bytes, holes and ends.

Offsets count the bytes of one direction of one stream; 0 is the first byte after the
SYN, or, where no SYN was captured, the first byte seen. They are Python integers and
do not wrap. Packet numbers count from 1 over the whole capture; times are integer
nanoseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ds4proto.pcap.types import Endpoint

Direction = Literal["a>b", "b>a"]
GapReason = Literal["lost", "not captured"]
CloseKind = Literal["fin", "rst"]
I64: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Marks:
    """Which packet, and which time, carries which offset of a piece.

    Attributes
    ----------
    offset, packet, time_ns : int64 (k,)
        Offset of the first byte, packet number and time of each segment, by
        ascending offset.
    """

    offset: I64
    packet: I64
    time_ns: I64

    def at(self, offset: int) -> tuple[int, int]:
        """Return (packet number, time in ns) of the segment that carries `offset`."""
        k = int(np.searchsorted(self.offset, offset, side="right")) - 1
        k = max(k, 0)
        return int(self.packet[k]), int(self.time_ns[k])


@dataclass(slots=True)
class DirectionStats:
    """Counts for one direction of a stream.

    ``payload_bytes`` counts what the headers announce, and always equals
    ``unique_bytes + retransmitted_bytes + discarded_bytes``; ``unique_bytes`` equals
    the bytes given in `Data` events plus those of "not captured" gaps once the
    stream has ended.

    Attributes
    ----------
    segments : int
        Packets of this direction.
    data_segments, small_segments : int
        Those with payload; those with fewer than `SMALL_SEGMENT` payload bytes.
    payload_bytes, unique_bytes, retransmitted_bytes, discarded_bytes : int
        See above; discarded bytes lie before the start, past the end, or outside
        any plausible window.
    not_captured_bytes, lost_bytes : int
        Bytes in gaps of either reason.
    unseen_end_bytes : int
        Behind the last byte seen, as the other side's acknowledgements say; not in
        any gap, since some captures have made-up acknowledgements.
    retransmissions, overlaps, conflicts : int
        Segments with no new byte; with old and new bytes; old bytes that differ
        from the first copy.
    out_of_order : int
        Segments that arrived behind a hole.
    duplicate_packets : int
        Packets seen twice by the capture itself (loopback, ``any`` device).
    keep_alives : int
        Keep-alive or zero-window probes that carried nothing new.
    delayed_ack_pauses : int
        Times that a sender sat still until a bare ACK came 35 to 250 ms after its
        last segment, and then went on.
    syn, fin, rst : bool
        Flags seen from this side.
    """

    segments: int = 0
    data_segments: int = 0
    small_segments: int = 0
    payload_bytes: int = 0
    unique_bytes: int = 0
    retransmitted_bytes: int = 0
    discarded_bytes: int = 0
    not_captured_bytes: int = 0
    lost_bytes: int = 0
    unseen_end_bytes: int = 0
    retransmissions: int = 0
    overlaps: int = 0
    conflicts: int = 0
    out_of_order: int = 0
    duplicate_packets: int = 0
    keep_alives: int = 0
    delayed_ack_pauses: int = 0
    syn: bool = False
    fin: bool = False
    rst: bool = False


SMALL_SEGMENT = 256
"""Payload bytes under which a segment counts as small."""


@dataclass(slots=True)
class StreamStats:
    """Counts of one stream; `ab` and `ba` belong to the two directions.

    ``min_rtt_ns`` is the shortest time from a segment (or SYN) to the first answer
    that acknowledges exactly its end, or None where there was none.
    """

    stream: int
    a: Endpoint
    b: Endpoint
    first_packet: int
    last_packet: int
    first_time_ns: int
    last_time_ns: int
    syn_seen: bool
    min_rtt_ns: int | None = None
    ab: DirectionStats = field(default_factory=DirectionStats)
    ba: DirectionStats = field(default_factory=DirectionStats)

    def of(self, direction: Direction) -> DirectionStats:
        """Return the counts of one direction."""
        return self.ab if direction == "a>b" else self.ba


@dataclass(slots=True, eq=False)
class Opened:
    """A stream begins. `a` sent the SYN, or else the first captured data."""

    stream: int
    a: Endpoint
    b: Endpoint
    time_ns: int
    packet: int
    syn_seen: bool


@dataclass(slots=True, eq=False)
class Data:
    """Consecutive bytes of one direction.

    Attributes
    ----------
    offset : int
        Stream offset of ``data[0]``.
    data : memoryview
        The bytes. May point into the capture block: keep a copy, not the view.
    packet, time_ns : int
        Of the first segment.
    last_packet, last_time_ns : int
        Of the last segment.
    marks : Marks or None
        Per segment, where `data` joins several; None for a single one.
    """

    stream: int
    direction: Direction
    offset: int
    data: memoryview
    packet: int
    time_ns: int
    last_packet: int
    last_time_ns: int
    marks: Marks | None = None

    def at(self, offset: int) -> tuple[int, int]:
        """Return (packet number, time in ns) of the segment that carries `offset`."""
        if self.marks is None:
            return self.packet, self.time_ns
        return self.marks.at(offset)


@dataclass(slots=True, eq=False)
class Gap:
    """Bytes that the capture does not hold; the stream goes on behind them."""

    stream: int
    direction: Direction
    offset: int
    length: int
    reason: GapReason
    packet: int
    time_ns: int


@dataclass(slots=True, eq=False)
class Closed:
    """One side said that it will send no more (FIN), or broke off (RST).

    ``direction`` is that of the packet which carried the flag.
    """

    stream: int
    direction: Direction
    kind: CloseKind
    time_ns: int
    packet: int


@dataclass(slots=True, eq=False)
class End:
    """Nothing more will be reported for this stream."""

    stream: int
    stats: StreamStats


StreamEvent: TypeAlias = Opened | Data | Gap | Closed | End
