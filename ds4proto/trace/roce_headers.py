"""What a RoCE v2 datagram is: BTH and its extensions, in the words of the schema.

Source: InfiniBand Architecture Specification 1.4, volume 1, chapter 9 (transport
layer) and annex A17 (RoCE v2: the same packets in UDP datagrams to port 4791).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from ds4proto.link.rdma_attributes import RNR_MILLISECONDS
from ds4proto.pcap.types import UdpDatagram
from ds4proto.printable import counted
from ds4proto.schema.fast import struct_of
from ds4proto.schema.roce import AETH, BTH, IMMEDIATE, RETH

ICRC_BYTES: Final = 4
MASK: Final = 0xFFFFFF
Transport = Literal["RC", "UC", "RD", "UD", "other"]
Part = Literal["first", "middle", "last", "only", "ack", "other"]
_TRANSPORTS: Final[dict[int, Transport]] = {0: "RC", 1: "UC", 2: "RD", 3: "UD"}
_SEND: Final[dict[int, Part]] = {
    0: "first", 1: "middle", 2: "last", 3: "last", 4: "only", 5: "only",
    22: "last", 23: "only",
}  # fmt: skip
_IMMEDIATE_CODES: Final = frozenset({3, 5, 9, 11})
_RETH_CODES: Final = frozenset({6, 10, 11, 12})
_WRITES: Final = frozenset({6, 7, 8, 9, 10, 11})
_READS: Final = frozenset({12, 13, 14, 15, 16})
ACK: Final = 17
Answer = Literal["ACK", "RNR NAK", "NAK", ""]
_NAKS: Final = (
    "packet sequence error",
    "invalid request",
    "remote access error",
    "remote operational error",
)


class RocePacket(NamedTuple):
    """One RoCE v2 packet.

    Attributes
    ----------
    number : int
        Packet number in its capture, from 1.
    time_ns : int
    src, dst : str
        Addresses.
    transport, part : str
        Queue pair type; which part of a SEND it is, or an acknowledgement.
    dest_qp, psn : int
    nbytes : int
        Payload bytes on the wire.
    answer : str
        For an acknowledgement.
    detail : str
        Timer of an RNR NAK, reason of a NAK, or the name of another operation.
    """

    number: int
    time_ns: int
    src: str
    dst: str
    transport: Transport
    part: Part
    dest_qp: int
    psn: int
    nbytes: int
    answer: Answer = ""
    detail: str = ""


def read_packet(datagram: UdpDatagram) -> RocePacket | str:
    """Return the packet of a datagram, or why it is none."""
    form = struct_of(BTH, "*")
    data = datagram.payload
    if datagram.payload_len < form.size + ICRC_BYTES or len(data) < form.size:
        return (
            f"{counted(datagram.payload_len, 'byte', 'are')} too few for BTH and "
            "checksum"
        )
    opcode, marks, _, dest_qp, psn = form.unpack_from(data)
    transport = _TRANSPORTS.get(opcode >> 5, "other")
    code = opcode & 31
    at = form.size
    part: Part = _SEND.get(code, "other")
    answer: Answer = ""
    detail = ""
    if code in _RETH_CODES:
        at += struct_of(RETH, "*").size
    if code in _IMMEDIATE_CODES:
        at += struct_of(IMMEDIATE, "*").size
    if code in _WRITES or code in _READS:
        detail = "RDMA WRITE" if code in _WRITES else "RDMA READ"
    if code == ACK and transport == "RC":
        ack = struct_of(AETH, "*")
        if len(data) < at + ack.size:
            return "an acknowledgement without its AETH"
        (word,) = ack.unpack_from(data, at)
        at += ack.size
        part = "ack"
        answer, detail = _syndrome(word >> 24)
    pad = marks >> 4 & 3
    nbytes = datagram.payload_len - at - pad - ICRC_BYTES
    if nbytes < 0:
        return (
            f"{counted(datagram.payload_len, 'byte', 'are')} too few for operation "
            f"{code}"
        )
    return RocePacket(
        datagram.packet,
        datagram.time_ns,
        datagram.src.host,
        datagram.dst.host,
        transport,
        part,
        dest_qp & MASK,
        psn & MASK,
        nbytes,
        answer,
        detail,
    )


def _syndrome(byte: int) -> tuple[Answer, str]:
    kind, value = byte >> 5 & 3, byte & 31
    if kind == 0:
        return "ACK", ""
    if kind == 1:
        return "RNR NAK", f"timer {value} ({RNR_MILLISECONDS[value]:g} ms)"
    if kind == 3:
        return "NAK", _NAKS[value] if value < len(_NAKS) else f"code {value}"
    return "", f"reserved syndrome {byte:#04x}"
