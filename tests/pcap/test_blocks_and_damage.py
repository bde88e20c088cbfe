"""What stands behind a damaged pcapng block counts for nothing, however it is read."""

from __future__ import annotations

import io
from struct import pack

import pytest

from ds4proto.pcap import CaptureError, CaptureReader, PcapngWriter
from ds4proto.pcap.format import BLOCK_EPB, BLOCK_IDB

UNKNOWN = 0x0BAD
PACKET = b"p" * 16


def block(kind: int, body: bytes) -> bytes:
    size = 12 + len(body)
    return pack("<II", kind, size) + body + pack("<I", size)


def packet(interface: int) -> bytes:
    return block(
        BLOCK_EPB, pack("<IIIII", interface, 0, 0, len(PACKET), len(PACKET)) + PACKET
    )


def start() -> bytes:
    out = io.BytesIO()
    PcapngWriter(out, linktype=101)
    return out.getvalue()


def read(data: bytes, step: int) -> tuple[int, int, int, str]:
    reader = CaptureReader(io.BytesIO(data), block_bytes=step)
    with pytest.raises(CaptureError, match="does not hold together") as caught:
        for _ in reader:
            pass
    info = reader.info
    expected = caught.value.expected
    return reader.packets, info.skipped_blocks, len(info.interfaces), expected


@pytest.mark.parametrize("step", [1, 50, 1 << 20])
def test_only_what_stands_before_the_damage_is_counted(step: int) -> None:
    odd = block(UNKNOWN, b"")
    data = start() + odd + packet(0) + odd + packet(7) + odd + packet(0)
    before = read(start() + odd + packet(0) + odd + packet(7), step)
    assert before[:3] == (1, 2, 1)
    assert read(data, step) == before


@pytest.mark.parametrize("step", [1, 50, 1 << 20])
def test_an_interface_holds_for_the_packets_behind_it(step: int) -> None:
    second = block(BLOCK_IDB, pack("<HHI", 1, 0, 0))
    packets, _, interfaces, expected = read(start() + packet(1) + second, step)
    assert (packets, interfaces) == (0, 1)
    assert "an interface below 1" in expected
