"""Framing at an endpoint: what a header says, and what becomes of a skipped body."""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import patch

from ds4proto.link import ds4d_frames, ds4d_intake
from ds4proto.link.ds4d_frames import TELEMETRY_PART, WORK_PART, read_tokens
from ds4proto.link.ds4d_intake import Frame, Intake
from ds4proto.link.ds4d_limits import DEFAULT
from ds4proto.link.ds4d_worker import WorkerLink
from tests.link.ds4d import toy
from tests.link.ds4d.host import Host
from tests.spec.proving import proof

ERROR = bytes.fromhex("44533444 00000002 00000003") + b"bad"
"""An ERROR with the text "bad": magic, type 2, three bytes of body."""


@proof(
    "DS4D-FRAME-04",
    "a header of sixteen bytes",
    patch.object(ds4d_intake, "HEADER_SIZE", 16),
)
def a_header_has_twelve_bytes_and_does_not_count_itself() -> None:
    intake = Intake(lambda _type, size, _kept: size, DEFAULT)
    intake.feed(ERROR + ERROR, 0.0)
    for at in (0, 15):
        found = intake.next()
        assert isinstance(found, Frame)
        assert (found.type, found.size, found.offset) == (2, 3, at)
        assert bytes(found.body) == b"bad"
    assert intake.next() is None


@proof(
    "DS4D-FRAME-08",
    "token ids in little-endian order",
    patch.object(ds4d_frames, "_ORDER", "<"),
)
def numbers_are_big_endian_and_the_upper_half_comes_first() -> None:
    fixed = bytes.fromhex("00000000 00000001 00000002") + bytes(68)
    assert WORK_PART.read(fixed)["session"] == (1 << 32) + 2
    record = struct.pack(">10I", *range(10))
    assert list(TELEMETRY_PART.read(record).values()) == list(range(10))
    assert read_tokens(bytes.fromhex("00000001 01020304"), 0, 2) == (1, 0x01020304)


def keep_all(_link: Any, _code: int, size: int, _kept: memoryview) -> int:
    return size


@proof(
    "DS4D-FRAME-11",
    "a worker that stores what it skips",
    patch.object(WorkerLink, "_plan", keep_all),
)
def a_skipped_body_is_not_stored() -> None:
    host = Host(toy.facts(5, 7, head=True))
    link = host.open()
    host.give(link, struct.pack(">4sII", b"DS4D", 99, 1 << 30))
    for _ in range(64):
        host.give(link, bytes(4096))
    assert len(link._intake.kept) == 0
    assert len(link._intake._buf) <= 4096
