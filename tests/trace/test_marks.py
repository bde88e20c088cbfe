"""Packets and times of stream offsets, and the bound on what is kept of them."""

from __future__ import annotations

import numpy as np

from ds4proto.trace.marks import Marks
from ds4proto.trace.tcp_events import Data, Gap
from ds4proto.trace.tcp_events import Marks as Segments


def piece(offset: int, sizes: list[int], packet: int) -> Data:
    starts = np.cumsum([offset, *sizes[:-1]])
    packets = np.arange(packet, packet + len(sizes))
    total = sum(sizes)
    return Data(
        1, "a>b", offset, memoryview(bytes(total)), packet, packet * 10,
        packet + len(sizes) - 1, 0, Segments(starts, packets, packets * 10),
    )  # fmt: skip


def test_offsets_find_their_segment() -> None:
    marks = Marks()
    marks.add(piece(0, [10, 5, 1], 1))
    marks.add_gap(Gap(1, "a>b", 16, 4, "lost", 9, 90))
    marks.add(piece(20, [7], 10))
    found = [marks.at(k)[0] for k in (0, 9, 10, 14, 15, 16, 19, 20, 26)]
    assert found == [1, 1, 2, 2, 3, 9, 9, 10, 10]
    assert marks.at(15) == (3, 30)


def test_what_lies_before_is_let_go() -> None:
    marks = Marks()
    for k in range(20):
        marks.add(piece(10 * k, [10], k + 1))
    marks.forget(105)
    assert marks.at(104) == (11, 110)
    assert len(marks._pieces) == 10


def test_a_long_frame_keeps_its_ends() -> None:
    marks = Marks()
    for k in range(100_000):
        marks.add(piece(10 * k, [10], k + 1))
    assert len(marks._pieces) <= 512
    assert marks.at(3) == (1, 10)
    assert marks.at(999_999) == (100_000, 1_000_000)
    assert abs(marks.at(500_000)[0] - 50_001) < 1_000
