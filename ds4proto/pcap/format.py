"""Layouts of the two capture containers, declared once for reader and writer.

Sources: pcap and pcapng Internet-Drafts (draft-ietf-opsawg-pcap, -pcapng). Struct
formats lack their byte-order character; callers put ``<`` or ``>`` in front.
"""

from __future__ import annotations

from typing import Final

# Classic pcap: magic, major, minor, thiszone, sigfigs, snaplen, network.
PCAP_HEADER: Final = "IHHiIII"
PCAP_HEADER_BYTES: Final = 24
PCAP_MAGIC_US: Final = 0xA1B2C3D4
PCAP_MAGIC_NS: Final = 0xA1B23C4D
PCAP_VERSION: Final = (2, 4)
# Record: seconds, fraction, captured length, original length.
PCAP_RECORD: Final = "IIII"
PCAP_RECORD_BYTES: Final = 16
PCAP_RECORD_SECONDS: Final = 0
PCAP_RECORD_FRACTION: Final = 4
PCAP_RECORD_CAPLEN: Final = 8
PCAP_RECORD_ORIGLEN: Final = 12
# The upper half of `network` may carry the frame check sequence length.
PCAP_LINKTYPE_MASK: Final = 0x03FF_FFFF

# pcapng: every block is type, total length, body, total length.
BLOCK_HEAD: Final = "II"
BLOCK_HEAD_BYTES: Final = 8
BLOCK_FRAME_BYTES: Final = 12
BLOCK_SHB: Final = 0x0A0D0D0A
BLOCK_IDB: Final = 1
BLOCK_PB: Final = 2
BLOCK_SPB: Final = 3
BLOCK_ISB: Final = 5
BLOCK_EPB: Final = 6
BYTE_ORDER_MAGIC: Final = 0x1A2B3C4D
# Bodies without options.
SHB_BODY: Final = "IHHq"  # byte-order magic, major, minor, section length
SHB_BODY_BYTES: Final = 16
IDB_BODY: Final = "HHI"  # link type, reserved, snap length
IDB_BODY_BYTES: Final = 8
EPB_BODY: Final = "IIIII"  # interface, time high, time low, captured, original
EPB_BODY_BYTES: Final = 20
PB_BODY: Final = "HHIIII"  # interface, drops, time high, time low, captured, original
PB_BODY_BYTES: Final = 20
SPB_BODY: Final = "I"  # original length
SPB_BODY_BYTES: Final = 4
ISB_BODY: Final = "III"  # interface, time high, time low
ISB_BODY_BYTES: Final = 12

OPTION_HEAD: Final = "HH"  # code, length
OPTION_END: Final = 0
OPTION_COMMENT: Final = 1
OPTION_SHB_USERAPPL: Final = 4
OPTION_IF_NAME: Final = 2
OPTION_IF_TSRESOL: Final = 9
OPTION_IF_TSOFFSET: Final = 14
OPTION_ISB_IFRECV: Final = 4
TSRESOL_POWER_OF_TWO: Final = 0x80
DEFAULT_TICKS: Final = 1_000_000

GZIP_MAGIC: Final = b"\x1f\x8b"
OWN_APPLICATION: Final = "ds4proto"

MAX_RECORD_BYTES: Final = 16 << 20
"""Longest packet record or pcapng block taken by default."""
MAX_INTERFACES: Final = 65_536
"""Most interfaces taken from one section (the packet block has 16-bit ids)."""


def padded(length: int) -> int:
    """Return `length` rounded up to the 32-bit boundary of pcapng."""
    return (length + 3) & ~3
