"""Records that the capture readers hand out, and the errors they raise."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from ds4proto.errors import ExitCode

Buf: TypeAlias = bytes | bytearray | memoryview
I64: TypeAlias = npt.NDArray[np.int64]
I32: TypeAlias = npt.NDArray[np.int32]
U64: TypeAlias = npt.NDArray[np.uint64]
U32: TypeAlias = npt.NDArray[np.uint32]
U16: TypeAlias = npt.NDArray[np.uint16]
U8: TypeAlias = npt.NDArray[np.uint8]

ContainerFormat = Literal["pcap", "pcapng", "empty"]


class CaptureError(ValueError):
    """A capture that cannot be read further.

    Parameters
    ----------
    message : str
        What is wrong, in one line.
    offset : int
        Byte offset in the (decompressed) file of the thing that is wrong.
    expected, found : str
        What should have stood there, and what stands there.
    next_step : str
        What the reader of the message can do about it.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.NOTHING_RAN

    def __init__(
        self, message: str, *, offset: int, expected: str, found: str, next_step: str
    ) -> None:
        self.message = message
        self.offset = offset
        self.expected = expected
        self.found = found
        self.next_step = next_step
        super().__init__(
            f"{message} at file offset {offset}: expected {expected}, "
            f"found {found}; {next_step}"
        )

    def of(self, name: object) -> Self:
        """Return the same error with the name of the capture in front."""
        return type(self)(
            f"{name}: {self.message}",
            offset=self.offset,
            expected=self.expected,
            found=self.found,
            next_step=self.next_step,
        )


class CaptureWriteError(OSError):
    """A capture file could not be written; what stands on disk is whole blocks."""


class LinkType(IntEnum):
    """Link-layer header types (tcpdump.org/linktypes) that are taken apart."""

    NULL = 0
    ETHERNET = 1
    RAW_BSD = 12
    RAW_OPENBSD = 14
    RAW = 101
    LOOP = 108
    LINUX_SLL = 113
    IPV4 = 228
    IPV6 = 229
    PKTAP = 258
    LINUX_SLL2 = 276


class Endpoint(NamedTuple):
    """One side of a conversation: textual address and port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, with brackets around an IPv6 host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(slots=True, eq=False)
class PacketBatch:
    """Packets of one block of a capture, as columns.

    Attributes
    ----------
    data : memoryview
        Read-only bytes that every `offset` points into. It stays valid as long as
        somebody holds it; holding it keeps the whole block in memory.
    time_ns : int64 (n,)
        Timestamps, nanoseconds since the epoch.
    offset, caplen, origlen : int64 (n,)
        Where the packet starts in `data`, its captured and its original length in
        bytes.
    linktype : int32 (n,)
        Link type of each packet.
    first_number : int
        Number of the first packet, counted from 1 over the whole capture; the
        others follow without gaps.
    file_offset : int
        Offset in the (decompressed) capture of ``data[0]``.
    """

    data: memoryview
    time_ns: I64
    offset: I64
    caplen: I64
    origlen: I64
    linktype: I32
    first_number: int
    file_offset: int

    def __len__(self) -> int:
        return int(self.offset.size)

    def packet(self, row: int) -> memoryview:
        """Return the captured bytes of packet `row` of this batch."""
        start = int(self.offset[row])
        return self.data[start : start + int(self.caplen[row])]


@dataclass(slots=True)
class Interface:
    """A capture interface: link type, snap length (0 = none told), clock."""

    linktype: int
    snaplen: int = 0
    ticks_per_second: int = 1_000_000
    offset_seconds: int = 0
    name: str = ""


@dataclass(slots=True)
class CaptureInfo:
    """What a capture says about itself; grows while it is read.

    Attributes
    ----------
    format : {"pcap", "pcapng", "empty"}
    byteorder : {"little", "big"}
        Of the current section.
    gzip : bool
        Whether the input was compressed.
    interfaces : list of Interface
        Of every section, in order of appearance.
    application : str
        ``shb_userappl`` of the current section.
    comment : str
        Comment of the current section's header; the first one.
    truncated_at : int or None
        File offset of a last record that is not all there, or None.
    marked_complete : bool or None
        For captures of our own writer: whether the closing statistics block was
        seen. None where the container says nothing about it.
    skipped_blocks : int
        pcapng blocks of unknown type that were passed over.
    """

    format: ContainerFormat = "empty"
    byteorder: Literal["little", "big"] = "little"
    gzip: bool = False
    interfaces: list[Interface] = field(default_factory=list)
    application: str = ""
    comment: str = ""
    truncated_at: int | None = None
    marked_complete: bool | None = None
    skipped_blocks: int = 0

    @property
    def truncated(self) -> bool:
        """Whether the last record was cut off."""
        return self.truncated_at is not None


@dataclass(slots=True, eq=False)
class TcpColumns:
    """TCP segments found in a `PacketBatch`, as columns of equal length m.

    Attributes
    ----------
    batch : PacketBatch
    row : int64 (m,)
        Row of each segment in `batch`, ascending.
    version : uint8 (m,)
        4 or 6.
    src_hi, src_lo, dst_hi, dst_lo : uint64 (m,)
        Addresses as two big-endian halves; an IPv4 address stands in ``lo``.
    ports : uint32 (m,)
        Source port in the high 16 bits, destination port in the low ones.
    seq, ack : uint32 (m,)
    flags : uint8 (m,)
        FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32.
    ip_offset, tcp_offset : int64 (m,)
        Where those headers start in ``batch.data``.
    payload_offset : int64 (m,)
        Where the payload starts in ``batch.data``.
    payload_caplen, payload_len : int64 (m,)
        Payload bytes in the capture, and on the wire.
    """

    batch: PacketBatch
    row: I64
    version: U8
    src_hi: U64
    src_lo: U64
    dst_hi: U64
    dst_lo: U64
    ports: U32
    seq: U32
    ack: U32
    flags: U8
    ip_offset: I64
    tcp_offset: I64
    payload_offset: I64
    payload_caplen: I64
    payload_len: I64

    def __len__(self) -> int:
        return int(self.row.size)


class UdpDatagram(NamedTuple):
    """One UDP datagram.

    `payload` holds the captured bytes, `payload_len` counts those on the wire.
    """

    packet: int
    time_ns: int
    src: Endpoint
    dst: Endpoint
    payload: memoryview
    payload_len: int
