"""RoCE v2 captures beside a control stream: messages, retries, and which gate each was.

A gate that crosses a queue pair has no header. What a message is follows from its
packet number: RDMA_INFO tells the first one, and the control stream tells which
messages come after it, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Final

from ds4proto.link.rdma_attributes import MTU_BYTES
from ds4proto.link.rdma_choice import gid_of_address
from ds4proto.pcap.decap import ROCE_V2_PORT, Decapsulator
from ds4proto.pcap.reader import open_capture
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.roce_findings import findings_of
from ds4proto.trace.roce_headers import MASK, RocePacket, read_packet
from ds4proto.trace.roce_plan import SIDES, Expected, MessagePlan, Setup

Source = str | PathLike[str] | BinaryIO
_MAX_FLOWS: Final = 1024
_HALF: Final = 1 << 23


@dataclass(slots=True)
class RoceMessage:
    """One message of a queue pair, all of its transmissions together.

    Attributes
    ----------
    psn : int
        Of its first packet.
    packets, nbytes : int
        As last seen whole.
    first_packet : int
        Number of its first packet in the capture.
    time, last_time : float
        Seconds since the epoch, of the first and of the latest transmission.
    sends : int
        Transmissions; more than one on RC alone.
    rnr, naks : int
        Answers that asked for it again.
    acked : float or None
        When it was acknowledged.
    whole : bool
        Every packet was seen.
    detail : str
        RNR timer, or the reason of a NAK.
    gate : Expected or None
    """

    psn: int
    time: float
    first_packet: int
    packets: int = 0
    nbytes: int = 0
    last_time: float = 0.0
    sends: int = 1
    rnr: int = 0
    naks: int = 0
    acked: float | None = None
    whole: bool = False
    detail: str = ""
    gate: Expected | None = None


@dataclass(slots=True)
class RoceFlow:
    """One direction of one queue pair.

    Attributes
    ----------
    side : {"leader", "worker", ""}
        Who sends; empty where no RDMA_INFO names it.
    src, dst : str
    dest_qp : int
    transport : str
    messages : list of RoceMessage
        In order of first transmission.
    lost : list of Expected
        Due and never on the wire, though a later one was.
    missing : list of Expected
        Due and never on the wire, at the end.
    first_psn : int or None
        What RDMA_INFO announced.
    """

    src: str
    dst: str
    dest_qp: int
    transport: str
    side: str = ""
    messages: list[RoceMessage] = field(default_factory=list)
    lost: list[Expected] = field(default_factory=list)
    missing: list[Expected] = field(default_factory=list)
    first_psn: int | None = None
    setup: Setup | None = None
    mtu: int = 0
    unnamed: str = ""
    """The first gate whose length the commands do not tell; names end there."""
    _open: RoceMessage | None = None
    _by_psn: dict[int, RoceMessage] = field(default_factory=dict)
    _open_messages: list[RoceMessage] = field(default_factory=list)

    @property
    def retries(self) -> int:
        """Transmissions beyond the first."""
        return sum(message.sends - 1 for message in self.messages)


@dataclass(slots=True)
class RoceReport:
    """What a RoCE capture holds.

    Attributes
    ----------
    flows : list of RoceFlow
    plan : MessagePlan
    findings : list of str
        Lost, late and repeated messages, each with its gate.
    packets : Counter
        By what they were.
    """

    flows: list[RoceFlow]
    plan: MessagePlan
    findings: list[str]
    packets: Counter[str]

    def messages(self) -> Iterator[tuple[RoceFlow, RoceMessage]]:
        """Yield all messages in the order of their first packets."""
        found = [(f, m) for f in self.flows for m in f.messages]
        return iter(sorted(found, key=lambda pair: pair[1].first_packet))


def decode_roce(control: Source | None, roce: Source) -> RoceReport:
    """Read a RoCE v2 capture, with the control capture beside it.

    Parameters
    ----------
    control : path or stream, or None
        Without it messages have no names.
    roce : path or stream
        UDP port 4791; both may be the same file.

    Raises
    ------
    CaptureError
        If a capture cannot be read.
    """
    plan = MessagePlan()
    if control is not None:
        for row in CaptureDecoder(control, payload="none"):
            plan.feed(row)
    return read_roce(plan, roce)


def read_roce(plan: MessagePlan, roce: Source) -> RoceReport:
    """Read a RoCE v2 capture under a plan that has been fed; see ``decode_roce``."""
    reader = _Reader(plan)
    if isinstance(roce, (str, PathLike)):
        with Path(roce).open("rb") as stream:
            reader.read(stream)
    else:
        reader.read(roce)
    for flow in reader.flows:
        _name(flow)
    return RoceReport(
        reader.flows, plan, findings_of(reader.flows, plan), reader.packets
    )


class _Reader:
    """Packets in, flows out."""

    def __init__(self, plan: MessagePlan) -> None:
        self.flows: list[RoceFlow] = []
        self.packets: Counter[str] = Counter()
        self._plan = plan
        self._by_key: dict[tuple[str, str, int], RoceFlow] = {}

    def read(self, stream: BinaryIO) -> None:
        """Read a whole capture."""
        decap = Decapsulator(udp_ports=frozenset({ROCE_V2_PORT}))
        for batch in open_capture(stream):
            for datagram in decap.split(batch)[1]:
                packet = read_packet(datagram)
                if isinstance(packet, str):
                    self.packets[packet] += 1
                else:
                    self._take(packet)

    def _take(self, packet: RocePacket) -> None:
        name = packet.answer or packet.detail or f"SEND {packet.part}"
        self.packets[f"{packet.transport} {name}"] += 1
        if packet.part == "ack":
            self._answer(packet)
        elif packet.part != "other":
            flow = self._flow(packet)
            if flow is not None:
                _send(flow, packet)

    def _flow(self, packet: RocePacket) -> RoceFlow | None:
        key = (packet.src, packet.dst, packet.dest_qp)
        flow = self._by_key.get(key)
        if flow is None and len(self.flows) < _MAX_FLOWS:
            flow = RoceFlow(packet.src, packet.dst, packet.dest_qp, packet.transport)
            self._match(flow, packet)
            self._by_key[key] = flow
            self.flows.append(flow)
        return flow

    def _match(self, flow: RoceFlow, packet: RocePacket) -> None:
        """Find the side whose RDMA_INFO fits: its peer's number, its own PSN."""
        for setup in reversed(self._plan.setups):
            for side, other in (SIDES, SIDES[::-1]):
                mine, theirs = setup.info.get(side), setup.info.get(other)
                if mine is None or theirs is None or theirs.qpn != flow.dest_qp:
                    continue
                ahead = (packet.psn - mine.psn) & MASK
                if ahead < _HALF and _is_address(mine.gid, flow.src):
                    flow.side, flow.setup, flow.first_psn = side, setup, mine.psn
                    flow.mtu = _path_mtu(flow, mine.mtu, theirs.mtu, self._plan)
                    return

    def _answer(self, packet: RocePacket) -> None:
        """Note an acknowledgement with the messages of the other direction."""
        for flow in self.flows:
            if (flow.src, flow.dst) != (packet.dst, packet.src):
                continue
            setup = flow.setup
            if setup is not None and setup.info[flow.side].qpn != packet.dest_qp:
                continue
            if packet.answer == "ACK":
                _acknowledge(flow, packet)
            else:
                _refuse(flow, packet)


def _acknowledge(flow: RoceFlow, packet: RocePacket) -> None:
    """Note an ACK: it stands for its message and for all before it."""
    left = []
    for message in flow._open_messages:
        if (packet.psn - message.psn) & MASK < _HALF:
            message.acked = packet.time_ns / 1e9
        else:
            left.append(message)
    flow._open_messages = left


def _refuse(flow: RoceFlow, packet: RocePacket) -> None:
    """Note a NAK with the message that it asks for again."""
    for message in reversed(flow.messages):
        behind = (packet.psn - message.psn) & MASK
        if behind < max(message.packets, 1):
            message.rnr += packet.answer == "RNR NAK"
            message.naks += packet.answer == "NAK"
            message.detail = packet.detail
            return


def _is_address(gid: bytes, host: str) -> bool:
    """Tell whether a host is the address of a GID."""
    return gid_of_address(host) == gid


def _path_mtu(flow: RoceFlow, mine: int, theirs: int, plan: MessagePlan) -> int:
    if flow.transport == "UC" or not plan.barriers:
        return 1024
    return MTU_BYTES.get(min(mine, theirs), 1024)


def _send(flow: RoceFlow, packet: RocePacket) -> None:
    """Add a packet of a SEND to its message."""
    time = packet.time_ns / 1e9
    if packet.part in ("first", "only"):
        message = flow._by_psn.get(packet.psn)
        if message is None or flow.transport == "UC":
            message = RoceMessage(packet.psn, time, packet.number)
            flow._by_psn[packet.psn] = message
            flow.messages.append(message)
            if flow.transport == "RC":
                flow._open_messages.append(message)
        else:
            message.sends += 1
        message.packets, message.nbytes = 0, 0
        flow._open = message
    message_or_none = flow._open
    if message_or_none is None:
        return  # the middle of a message whose start was not captured
    message = message_or_none
    message.packets += 1
    message.nbytes += packet.nbytes
    message.last_time = time
    if packet.part in ("first", "middle"):
        flow.mtu = packet.nbytes
    else:
        span = (packet.psn - message.psn) & MASK
        message.whole = message.whole or span + 1 == message.packets
        flow._open = None


def _name(flow: RoceFlow) -> None:
    """Give each message its gate, by the packets that stand before it."""
    setup, first = flow.setup, flow.first_psn
    if setup is None or first is None:
        return
    due = setup.expected.get(flow.side, [])
    places: dict[int, int] = {}
    at = 0
    for index, expected in enumerate(due):
        if expected.nbytes < 0:
            due = due[:index]  # how many packets follow is not known
            flow.unnamed = str(expected)
            break
        places[at & MASK] = index
        at += max(1, -(-expected.nbytes // (flow.mtu or 1024)))
    seen: set[int] = set()
    for message in flow.messages:
        index = places.get((message.psn - first) & MASK, -1)
        if index >= 0:
            message.gate = due[index]
            seen.add(index)
    last = max(seen, default=-1)
    flow.lost = [e for n, e in enumerate(due[: last + 1]) if n not in seen]
    flow.missing = due[last + 1 :]
