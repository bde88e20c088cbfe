"""Packets written in parts equal packets written whole; a full disk cuts back."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from ds4proto.pcap import CaptureReader, CaptureWriteError, PcapngWriter
from ds4proto.pcap.build import checksum


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5000, 65001])
def test_parts_and_whole_are_the_same_bytes(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    head = b"head of odd length."
    with PcapngWriter(tmp_path / "a") as one, PcapngWriter(tmp_path / "b") as two:
        one.packet(1_000_000_007, head + data)
        two.packet_parts(1_000_000_007, [(head, memoryview(data))])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_parts_that_do_not_fit_leave_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    writer = PcapngWriter(path)
    writer.packet_parts(1, [(b"h" * 54, bytes(1000))])
    whole = path.stat().st_size

    def full(number: int, parts: list[bytes]) -> int:
        os.write(number, bytes(parts[0])[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(CaptureWriteError, match="No space left"):
        writer.packet_parts(2, [(b"h" * 54, bytes(1000))])
    writer.abandon()
    assert path.stat().st_size == whole
    with CaptureReader(path) as reader:
        assert sum(len(batch) for batch in reader) == 1


def test_many_packets_of_one_call_are_the_packets_of_many_calls(tmp_path: Path) -> None:
    packets = [(b"h" * 54, bytes([n % 256]) * (n % 9)) for n in range(700)]
    with PcapngWriter(tmp_path / "a") as one, PcapngWriter(tmp_path / "b") as two:
        for head, payload in packets:
            one.packet(5, head + payload)
        two.packet_parts(5, packets)
        assert one.packets == two.packets == 700
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_disk_that_fills_up_keeps_the_whole_packets_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    writer = PcapngWriter(path)

    def nearly_full(number: int, parts: list[bytes]) -> int:
        return os.write(number, b"".join(parts)[:2500])

    class Full:
        def __init__(self, file: Any) -> None:
            self.fileno, self.close = file.fileno, file.close

        def write(self, _data: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", nearly_full)
    monkeypatch.setattr(writer._blocks, "_file", Full(writer._blocks._file))
    with pytest.raises(CaptureWriteError, match="No space left"):
        writer.packet_parts(2, [(b"h" * 54, bytes(1000))] * 3)
    writer.abandon()
    with CaptureReader(path) as reader:
        assert sum(len(batch) for batch in reader) == 2


@pytest.mark.parametrize("size", range(0, 200, 7))
def test_checksums_by_32_bits_are_those_by_16(size: int) -> None:
    data = random.Random(size).randbytes(size)
    total = 0
    for at in range(0, size, 2):
        total += int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    # zero has two spellings in one's complement
    assert checksum(data) % 0xFFFF == ~total & 0xFFFF or total in (0, 0xFFFF)
