"""Damaged captures: no exception but the documented one, no byte unaccounted for."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path

import pytest

from ds4proto.pcap import CaptureError, PcapWriter, TcpConversation
from ds4proto.testing import captures_dir
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.rows import FrameRow
from tests.link.test_ds4t_control import V10_WORKER
from tests.trace.diagnosis.built import COORDINATOR, WORKER

ROOT = captures_dir()
CAPTURES = [
    "ds4d/d_s3_forward_f16.pcap",
    "ds4d/f_snapshot_load_s3.pcap",
    "ds4d/l_s2_ipc_anyei.pcap",
    "ds4t/v10_everything.pcap",
    "ds4t/v9_verify_prefix.pcap",
    "ds4t/v7_everything.pcap",
    "ds4t/v10_multimodal.pcap",
]


def damaged(data: bytes, seed: int) -> bytes:
    """Return a capture with a few bytes changed, packets dropped or its end cut."""
    rng = random.Random(seed)
    records, at = [], 24
    while at + 16 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        records.append(bytearray(data[at : at + 16 + size]))
        at += 16 + size
    for _ in range(rng.randrange(1, 6)):
        record = rng.choice(records)
        place = rng.randrange(16 + 66, len(record) + 1) if len(record) > 82 else 0
        match rng.randrange(5):
            case 0 if place:
                record[place - 1] ^= 1 << rng.randrange(8)
            case 1 if place:
                record[place - 1 : place + 3] = rng.randbytes(4)[
                    : len(record) - place + 1
                ]
            case 2:
                records.remove(record)
            case 3:
                records.insert(rng.randrange(len(records)), record)
            case 4:
                first = rng.randrange(len(records) - 1)
                records[first : first + 2] = records[first : first + 2][::-1]
    whole = data[:24] + b"".join(records)
    return whole[: rng.randrange(24, len(whole))] if rng.random() < 0.2 else whole


def decoded(data: bytes) -> tuple[list[FrameRow], CaptureDecoder]:
    decoder = CaptureDecoder(io.BytesIO(data))
    rows: list[FrameRow] = []
    with suppress(CaptureError):
        rows.extend(decoder)
    return rows, decoder


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("block", range(4))
def test_every_byte_of_a_damaged_capture_is_accounted_for(
    name: str, block: int
) -> None:
    data = (ROOT / name).read_bytes()
    for seed in range(25 * block, 25 * block + 25):
        rows, decoder = decoded(damaged(data, seed))
        places: dict[tuple[int, str], int] = {}
        for row in sorted(rows, key=lambda r: (r.stream, r.direction, r.stream_offset)):
            key = (row.stream, row.direction)
            assert row.stream_offset == places.get(key, 0), (seed, key)
            places[key] = row.stream_offset + row.length
        for watch in decoder.decoder.ended:
            assert watch.stats is not None
            for direction, totals in watch.totals.items():
                way = watch.stats.of(direction)
                carried = way.unique_bytes + way.lost_bytes
                assert totals.total == carried, (seed, watch.number, direction)
                if not watch.foreign:
                    assert places.get((watch.number, direction), 0) == carried


@pytest.mark.parametrize("seed", range(30))
def test_noise_behind_a_magic_is_no_frame(seed: int) -> None:
    rng = random.Random(seed)
    magic = rng.choice([b"DS4D", b"T4SD", b"B4SD", b"D4SD"])
    data = magic + rng.randbytes(rng.randrange(3000))
    rows, decoder = decoded(data)
    (watch,) = decoder.decoder.ended
    assert not any(row.is_frame for row in rows)
    assert sum(row.length for row in rows) == (0 if watch.foreign else len(data))
    assert watch.totals["a>b"].total == len(data)


@pytest.mark.parametrize("size", [12, 13, 14, 40, 87])
def test_a_cut_hello_is_not_taken_for_the_frame_of_its_version(
    size: int, tmp_path: Path
) -> None:
    # as a header, a worker's hello of version 10 reads: LOGITS of two bytes
    hello = V10_WORKER
    assert len(hello) == 88
    sink = PcapWriter(tmp_path / "cut.pcap", linktype=101)
    line = TcpConversation(sink, WORKER, COORDINATOR)
    line.open(0)
    line.data(1_000, "a>b", hello[:size])
    line.fin(2_000, "a>b")
    sink.close()
    rows = list(CaptureDecoder(tmp_path / "cut.pcap"))
    cut = next(row for row in rows if row.fields.get("reason") == "truncated")
    assert cut.length == size
    assert "frame" not in cut.fields
    assert cut.problems[0].clause == "DS4T-HELLO-01"
