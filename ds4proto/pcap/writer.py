"""Write captures: pcapng and classic pcap, whole blocks only, same bytes each time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import BinaryIO, Self, cast

from ds4proto.pcap import format as f
from ds4proto.pcap.build import build_tcp
from ds4proto.pcap.headers import ACK
from ds4proto.pcap.types import Buf, CaptureWriteError, Endpoint, LinkType

_NANOSECONDS = 9  # if_tsresol: powers of ten
_U32_MAX = 0xFFFF_FFFF
_I64 = Struct("<Q")
_TOGETHER = 64  # packets of one system call, which takes 1024 pieces


class _Blocks:
    """Whole blocks on their way to a file; a failed write leaves none half done.

    Parameters
    ----------
    target : path or binary stream
    buffer_bytes : int
        Blocks gather up to this many bytes before they are written; 0 writes each
        at once.
    """

    def __init__(
        self, target: str | PathLike[str] | BinaryIO, buffer_bytes: int
    ) -> None:
        self._owned = isinstance(target, str | PathLike)
        if isinstance(target, str | PathLike):
            self.name = str(target)
            self._file = _create(Path(target))
        else:
            self.name = getattr(target, "name", "<stream>")
            self._file = target
        self._buffer_bytes = buffer_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._whole = 0  # bytes of whole blocks in the file
        self.failed = False

    def put(self, block: bytes) -> None:
        """Take one whole block."""
        if self.failed:
            raise self._error("an earlier write failed")
        self._held.append(block)
        self._held_bytes += len(block)
        if self._held_bytes > self._buffer_bytes:
            self.flush()

    def put_parts(self, blocks: list[list[Buf]]) -> None:
        """Take whole blocks in parts; written without joining them where it can."""
        if not self._owned or self._buffer_bytes:
            for block in blocks:
                self.put(b"".join(block))
            return
        if self.failed:
            raise self._error("an earlier write failed")
        parts = [part for block in blocks for part in block]
        size = sum(len(part) for part in parts)
        written = 0
        try:
            written = os.writev(self._file.fileno(), parts)
            if written < size:  # near a full disk: the rest tells
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += self._file.write(rest[written:]) or 0
        except OSError as error:
            self.failed = True
            self._cut_back([sum(map(len, block)) for block in blocks], written)
            raise self._error(error.strerror or str(error), error.errno) from error
        self._whole += size

    def flush(self) -> None:
        """Write what is held."""
        held, self._held, self._held_bytes = self._held, [], 0
        if not held or self.failed:
            return
        data = memoryview(b"".join(held))
        written = 0
        try:
            while written < len(data):
                count = self._file.write(data[written:])
                written += len(data) - written if count is None else count
            self._file.flush()
        except OSError as error:
            self.failed = True
            self._cut_back([len(block) for block in held], written)
            raise self._error(error.strerror or str(error), error.errno) from error
        self._whole += len(data)

    def close(self) -> None:
        """Write what is held, and close a file that was opened here."""
        try:
            self.flush()
        finally:
            if self._owned:
                self._file.close()

    def _cut_back(self, sizes: list[int], written: int) -> None:
        """Shorten the file to the last whole block, where it can be shortened."""
        keep = self._whole
        for size in sizes:
            if keep + size > self._whole + written:
                break
            keep += size
        if self._owned:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), keep)
                self._whole = keep

    def _error(self, reason: str, code: int | None = None) -> CaptureWriteError:
        message = (
            f"cannot write capture {self.name}: {reason}; the file holds "
            f"{self._whole} bytes of whole blocks and is not marked complete: make "
            "room or choose another place, and record again"
        )
        return CaptureWriteError(code or 0, message)


def _create(path: Path) -> BinaryIO:
    return cast(BinaryIO, path.open("wb", buffering=0))


class _Writer:
    """What both writers share: the block queue and its life."""

    def __init__(
        self,
        target: str | PathLike[str] | BinaryIO,
        linktype: int,
        buffer_bytes: int,
    ) -> None:
        if buffer_bytes < 0:
            raise ValueError(f"buffer_bytes is {buffer_bytes}: expected 0 or more")
        self._blocks = _Blocks(target, buffer_bytes)
        self.linktype = int(linktype)
        self.packets = 0
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # leave it readable, but not marked complete
            with suppress(OSError):
                self.abandon()

    def flush(self) -> None:
        """Hand everything so far to the operating system."""
        self._blocks.flush()

    def abandon(self) -> None:
        """Close without the mark of completeness."""
        self._closed = True
        self._blocks.close()

    def close(self) -> None:
        """Finish the file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._finish()
            self._blocks.close()

    def _finish(self) -> None:
        return

    def packet(self, time_ns: int, data: Buf, *, origlen: int | None = None) -> None:
        """Write one packet from its link header on."""
        raise NotImplementedError

    def tcp_segment(
        self,
        time_ns: int,
        src: Endpoint,
        dst: Endpoint,
        *,
        seq: int,
        ack: int = 0,
        flags: int = ACK,
        payload: Buf = b"",
        ident: int = 0,
        from_a: bool = True,
    ) -> None:
        """Build and write one TCP packet; parameters as for `build.build_tcp`.

        `ds4proto.pcap.build.TcpConversation` keeps the numbers for a whole connection.
        """
        packet = build_tcp(
            src,
            dst,
            seq=seq,
            ack=ack,
            flags=flags,
            payload=payload,
            ident=ident,
            linktype=self.linktype,
            from_a=from_a,
        )
        self.packet(time_ns, packet)


class PcapngWriter(_Writer):
    """Little-endian pcapng with nanosecond time.

    `close` adds an interface statistics block with the number of packets, which
    `CaptureInfo.marked_complete` looks for; a recording that was broken off lacks it.

    Parameters
    ----------
    target : path or binary stream
        A path is created or emptied.
    linktype : int
        Of the first interface: Ethernet (1) or raw IP (101).
    snaplen : int
        0 for no limit.
    comment : str
        Stored in the section header.
    interface_name : str
        Stored with the interface.
    buffer_bytes : int
        Blocks are gathered up to this many bytes; 0 (the default) writes each block
        at once, so that a killed recorder loses none.

    Raises
    ------
    CaptureWriteError
        When the file cannot be written, such as on a full disk. What is there stays
        readable up to the last whole block.
    """

    def __init__(
        self,
        target: str | PathLike[str] | BinaryIO,
        *,
        linktype: int = LinkType.ETHERNET,
        snaplen: int = 0,
        comment: str = "",
        interface_name: str = "",
        buffer_bytes: int = 0,
    ) -> None:
        super().__init__(target, linktype, buffer_bytes)
        self._epb = Struct("<" + f.EPB_BODY)
        self._last_ns = 0
        self._interfaces = 0
        options = []
        if comment:
            options.append((f.OPTION_COMMENT, comment.encode()))
        options.append((f.OPTION_SHB_USERAPPL, f.OWN_APPLICATION.encode()))
        body = Struct("<" + f.SHB_BODY).pack(f.BYTE_ORDER_MAGIC, 1, 0, -1)
        self._blocks.put(_block(f.BLOCK_SHB, body + _options(options)))
        self.add_interface(linktype, snaplen=snaplen, name=interface_name)

    def add_interface(self, linktype: int, *, snaplen: int = 0, name: str = "") -> int:
        """Describe a further interface; returns its number for `packet`."""
        options = [(f.OPTION_IF_NAME, name.encode())] if name else []
        options.append((f.OPTION_IF_TSRESOL, bytes((_NANOSECONDS,))))
        body = Struct("<" + f.IDB_BODY).pack(linktype, 0, snaplen)
        self._blocks.put(_block(f.BLOCK_IDB, body + _options(options)))
        self._interfaces += 1
        return self._interfaces - 1

    def packet(
        self,
        time_ns: int,
        data: Buf,
        *,
        origlen: int | None = None,
        interface: int = 0,
        comment: str = "",
    ) -> None:
        """Write one packet.

        Parameters
        ----------
        time_ns : int
            Nanoseconds since the epoch, not negative.
        data : bytes-like
            The packet from its link header on.
        origlen : int, optional
            Length on the wire where `data` is only its beginning.
        """
        if not 0 <= time_ns < 1 << 64:
            raise ValueError(f"time_ns is {time_ns}: expected 0 to 2**64 - 1")
        if not 0 <= interface < self._interfaces:
            raise ValueError(
                f"interface is {interface}: expected below {self._interfaces}"
            )
        caplen = len(data)
        head = self._epb.pack(
            interface, time_ns >> 32, time_ns & _U32_MAX, caplen,
            caplen if origlen is None else origlen,
        )  # fmt: skip
        pad = bytes(f.padded(caplen) - caplen)
        tail = _options([(f.OPTION_COMMENT, comment.encode())]) if comment else b""
        self._blocks.put(_block(f.BLOCK_EPB, b"".join((head, data, pad, tail))))
        self._last_ns = max(self._last_ns, time_ns)
        self.packets += 1

    def packet_parts(self, time_ns: int, packets: Sequence[tuple[bytes, Buf]]) -> None:
        """Write packets of one time, heads and payloads apart; none is copied."""
        for at in range(0, len(packets), _TOGETHER):
            some = packets[at : at + _TOGETHER]
            self._blocks.put_parts([self._parts(time_ns, *packet) for packet in some])
            self.packets += len(some)
        self._last_ns = max(self._last_ns, time_ns)

    def _parts(self, time_ns: int, head: bytes, payload: Buf) -> list[Buf]:
        size = len(head) + len(payload)
        length = f.padded(size) + f.EPB_BODY_BYTES + f.BLOCK_FRAME_BYTES
        start = Struct("<" + f.BLOCK_HEAD).pack(f.BLOCK_EPB, length)
        body = self._epb.pack(0, time_ns >> 32, time_ns & _U32_MAX, size, size)
        end = bytes(f.padded(size) - size) + length.to_bytes(4, "little")
        return [start + body + head, payload, end]

    def _finish(self) -> None:
        body = Struct("<" + f.ISB_BODY).pack(
            0, self._last_ns >> 32, self._last_ns & _U32_MAX
        )
        count = _options([(f.OPTION_ISB_IFRECV, _I64.pack(self.packets))])
        self._blocks.put(_block(f.BLOCK_ISB, body + count))


class PcapWriter(_Writer):
    """Classic little-endian pcap with nanosecond time; see `PcapngWriter`."""

    def __init__(
        self,
        target: str | PathLike[str] | BinaryIO,
        *,
        linktype: int = LinkType.ETHERNET,
        snaplen: int = 262_144,
        buffer_bytes: int = 0,
    ) -> None:
        super().__init__(target, linktype, buffer_bytes)
        self._record = Struct("<" + f.PCAP_RECORD)
        header = Struct("<" + f.PCAP_HEADER).pack(
            f.PCAP_MAGIC_NS, *f.PCAP_VERSION, 0, 0, snaplen, linktype
        )
        self._blocks.put(header)

    def packet(self, time_ns: int, data: Buf, *, origlen: int | None = None) -> None:
        """Write one packet; `time_ns` reaches to the year 2106."""
        seconds, fraction = divmod(time_ns, 1_000_000_000)
        if not 0 <= seconds <= _U32_MAX:
            raise ValueError(
                f"time_ns is {time_ns}: expected seconds that fit 32 bits; write pcapng"
            )
        caplen = len(data)
        head = self._record.pack(
            seconds, fraction, caplen, caplen if origlen is None else origlen
        )
        self._blocks.put(b"".join((head, data)))
        self.packets += 1


def _block(kind: int, body: bytes) -> bytes:
    length = len(body) + f.BLOCK_FRAME_BYTES
    head = Struct("<" + f.BLOCK_HEAD).pack(kind, length)
    return b"".join((head, body, length.to_bytes(4, "little")))


def _options(options: list[tuple[int, bytes]]) -> bytes:
    head = Struct("<" + f.OPTION_HEAD)
    parts = []
    for code, value in options:
        pad = bytes(f.padded(len(value)) - len(value))
        parts.append(head.pack(code, len(value)) + value + pad)
    parts.append(head.pack(f.OPTION_END, 0))
    return b"".join(parts)
