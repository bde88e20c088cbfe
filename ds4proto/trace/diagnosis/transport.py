"""TCP patterns: retransmissions, losses, small writes, late acknowledgements."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ds4proto.printable import counted
from ds4proto.schema import header_of
from ds4proto.schema.ds4t_gates import GATE_ROW
from ds4proto.schema.fast import struct_of
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.connections import Connection, Connections
from ds4proto.trace.diagnosis.finding import Evidence, Finding, proof
from ds4proto.trace.diagnosis.spread import ms, share
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.tcp_events import (
    SMALL_SEGMENT,
    Data,
    Direction,
    DirectionStats,
    StreamEvent,
)

__all__ = ["TransportCheck"]

_HEADERS: Final = frozenset(
    {struct_of(header_of("DS4D"), "*").size, struct_of(header_of("DS4T"), "*").size}
    | {struct_of(GATE_ROW.body, "v14").size}
)
_MOST: Final = 1 << 14
MANY_SPLIT: Final = 0.2
ENOUGH: Final = 8
PAUSES: Final = 3
RETRANSMITTED: Final = 0.01
SLOW_TRIP: Final = 0.005
WAYS: Final[tuple[Direction, Direction]] = ("a>b", "b>a")


@dataclass(slots=True)
class Writes:
    """How the frames of one connection were cut into segments."""

    frames: int = 0
    split: int = 0
    first: FrameRow | None = None


class TransportCheck:
    """What TCP itself tells, where the packets are those of a wire."""

    def __init__(self, scene: Scene, connections: Connections) -> None:
        self._scene = scene
        self._connections = connections
        self._short: OrderedDict[int, None] = OrderedDict()
        self._writes: dict[int, Writes] = {}
        self._gaps: Counter[str] = Counter()
        self._first_gaps: dict[str, FrameRow] = {}
        self._middle: FrameRow | None = None

    def saw(self, event: StreamEvent) -> None:
        """Note segments that hold a header and nothing else."""
        if not isinstance(event, Data):
            return
        marks = event.marks
        if marks is None:
            if len(event.data) in _HEADERS:
                self._note(event.packet)
            return
        offsets = marks.offset.tolist()
        offsets.append(event.offset + len(event.data))
        packets = marks.packet.tolist()
        for k, packet in enumerate(packets):
            if offsets[k + 1] - offsets[k] in _HEADERS:
                self._note(packet)

    def _note(self, packet: int) -> None:
        self._short[packet] = None
        if len(self._short) > _MOST:
            self._short.popitem(last=False)

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if not row.is_frame:
            reason = str(row.fields.get("reason", ""))
            if reason in ("gap", "not captured"):
                self._gaps[reason] += row.length
                self._first_gaps.setdefault(reason, row)
            elif reason == "before the first header":
                self._middle = self._middle or row
            return
        writes = self._writes.setdefault(row.stream, Writes())
        writes.frames += 1
        if row.last_packet > row.first_packet and row.first_packet in self._short:
            writes.split += 1
            writes.first = writes.first or row

    def findings(self) -> Iterator[Finding]:
        """Answer connection by connection."""
        if self._middle is not None:
            yield Finding(
                "unknown.began-later", "note", "certain",
                "the capture began inside a connection: hellos and the first requests "
                "are not in it, and what they would settle it cannot tell",
                {}, (proof(self._middle, self._scene.file),),
                "start the recording before the peers", file=self._scene.file,
            )  # fmt: skip
        for reason, nbytes in self._gaps.items():
            lost = reason == "gap"
            yield Finding(
                "unknown.lost" if lost else "unknown.cut", "note", "certain",
                f"the capture lost {counted(nbytes, 'byte')} that crossed the wire: "
                "frames inside "
                "it cannot be judged" if lost else
                f"{counted(nbytes, 'byte', 'were')} cut off by the snap length: values "
                "inside them "
                "cannot be judged",
                {"bytes": nbytes},
                (proof(self._first_gaps[reason], self._scene.file),),
                "a larger capture buffer (tcpdump -B), or ds4proto proxy, which loses "
                "nothing" if lost else "record with snap length 0",
                file=self._scene.file,
            )  # fmt: skip
        if not self._gaps["gap"]:
            yield from self._inside_frames()
        if self._scene.made_up_packets:
            yield Finding(
                "unknown.transport", "note", "certain",
                "the file was recorded by a peer or a proxy: its segments are not "
                "those of the network, so that small writes, acknowledgements and "
                "retransmissions cannot be judged",
                next_step="ds4proto capture, or tcpdump, shows them",
                file=self._scene.file,
            )  # fmt: skip
            return
        for held in self._connections.all.values():
            if held.stats is not None and held.frames:
                yield from self._repeats(held)
                yield from self._pauses(held)
                yield from self._small(held)
                yield from self._trip(held)

    def _inside_frames(self) -> Iterator[Finding]:
        """Tell bytes that were lost inside payloads, whose frames are known."""
        holed = [
            held for held in self._connections.all.values()
            if held.frames and any(self._stats(held, way).lost_bytes for way in WAYS)
        ]  # fmt: skip
        if not holed:
            return
        nbytes = sum(self._stats(h, way).lost_bytes for h in holed for way in WAYS)
        yield Finding(
            "unknown.lost", "note", "certain",
            f"the capture lost {counted(nbytes, 'byte')} that crossed the wire, inside "
            "payloads: "
            "their values cannot be judged, nor how long their frames took",
            {"bytes": nbytes}, (self._place(holed[0], "a>b"),),
            "a larger capture buffer (tcpdump -B), or ds4proto proxy, which loses "
            "nothing", file=self._scene.file,
        )  # fmt: skip

    def _repeats(self, held: Connection) -> Iterator[Finding]:
        for way in WAYS:
            counts = self._stats(held, way)
            again, segments = counts.retransmissions, counts.data_segments
            if not again:
                continue
            heavy = again >= PAUSES and again > RETRANSMITTED * segments
            yield Finding(
                "tcp.retransmissions", "warning" if heavy else "note", "certain",
                f"{self._way(held, way)}: {again} of {counted(segments, 'segment')} "
                "with data "
                f"were sent again ({counted(counts.retransmitted_bytes, 'byte')}), "
                f"{counts.out_of_order} came out of order",
                {"retransmissions": again, "segments": segments,
                 "bytes": counts.retransmitted_bytes,
                 "out_of_order": counts.out_of_order},
                (self._place(held, way),),
                "packets are lost on the way: cable, Wi-Fi, a switch that overflows, "
                "or an MTU that one side does not take" if heavy else "",
                self._run(held), self._scene.file,
            )  # fmt: skip

    def _pauses(self, held: Connection) -> Iterator[Finding]:
        for way in WAYS:
            counts = self._stats(held, way)
            pauses = counts.delayed_ack_pauses
            if not pauses:
                continue
            heavy = pauses >= PAUSES
            yield Finding(
                "tcp.delayed-ack", "warning" if heavy else "note", "likely",
                f"{self._way(held, way)}: {counted(pauses, 'time')} the sender stood "
                "still until "
                "a bare acknowledgement came after 35 to 250 ms (usually 40), and "
                "then went on: small writes wait for the acknowledgement of the last",
                {"pauses": pauses, "lost_s_at_least": round(0.035 * pauses, 3)},
                (self._place(held, way),),
                "TCP_NODELAY on the sender, and one write for header and payload",
                self._run(held), self._scene.file,
            )  # fmt: skip

    def _small(self, held: Connection) -> Iterator[Finding]:
        writes = self._writes.get(held.stream)
        small = sum(self._stats(held, way).small_segments for way in WAYS)
        total = sum(self._stats(held, way).data_segments for way in WAYS)
        if writes is None or not writes.split:
            return
        heavy = writes.split >= ENOUGH and writes.split > MANY_SPLIT * writes.frames
        row = writes.first
        yield Finding(
            "tcp.small-writes", "note", "certain",
            f"{self._way(held, 'a>b')} and back: {writes.split} of {writes.frames} "
            f"frames ({share(writes.split, writes.frames)}) have header and payload in "
            f"different segments; {small} of {counted(total, 'segment')} carry fewer "
            "than "
            f"{SMALL_SEGMENT} bytes",
            {"split": writes.split, "frames": writes.frames, "small_segments": small,
             "segments": total},
            () if row is None else (proof(row, self._scene.file),),
            "one write (writev, sendmsg) for header and payload saves a packet each"
            if heavy else "", self._run(held), self._scene.file,
        )  # fmt: skip

    def _trip(self, held: Connection) -> Iterator[Finding]:
        stats = held.stats
        if stats is None or stats.min_rtt_ns is None:
            return
        trip = stats.min_rtt_ns / 1e9
        if trip < SLOW_TRIP or held.holes:
            return  # of what is lost, nobody knows when it passed
        yield Finding(
            "tcp.round-trip", "warning", "certain",
            f"slow link: the shortest round trip from the place of the recording on "
            f"stream {held.stream} ({self._way(held, 'a>b')}) is {ms(trip)}; every "
            "token pays it once a hop at least, with tensor parallelism once a gate",
            {"round_trip_ms": round(trip * 1e3, 3)}, (self._place(held, "a>b"),),
            "see which interface that address belongs to (Wi-Fi, a bridge); a direct "
            "cable has 0.05 to 0.3 ms; ds4proto preflight measures all links",
            self._run(held), self._scene.file,
        )  # fmt: skip

    # -- common -----------------------------------------------------------------

    def _stats(self, held: Connection, way: Direction) -> DirectionStats:
        return DirectionStats() if held.stats is None else held.stats.of(way)

    def _way(self, held: Connection, way: Direction) -> str:
        a = self._connections.role(held, "a")
        b = self._connections.role(held, "b")
        return f"{a} -> {b}" if way == "a>b" else f"{b} -> {a}"

    def _run(self, held: Connection) -> int:
        return self._scene.run_number(held.stream)

    def _place(self, held: Connection, way: Direction) -> Evidence:
        return Evidence(
            self._scene.file, held.stream, way, held.packet,
            time=round(held.opened, 9), text="connection",
        )  # fmt: skip
