"""Containers, built here by hand from their published layouts."""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
import sys
import tracemalloc

import dpkt
import pcapng
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.pcap import CaptureError, open_capture

PACKETS = [bytes(range(n)) for n in (60, 0, 1, 200, 61, 61, 61)]
TIMES = [1_700_000_000_123_456_789 + k * 1_000_000_007 for k in range(len(PACKETS))]


def classic(order="<", nanoseconds=True, linktype=1, snaplen=65535, packets=PACKETS):
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, linktype)
    for time_ns, data in zip(TIMES, packets, strict=False):
        seconds, ns = divmod(time_ns, 10**9)
        fraction = ns if nanoseconds else ns // 1000
        out += struct.pack(order + "IIII", seconds, fraction, len(data), len(data) + 5)
        out += data
    return out


def block(order, kind, body):
    body += bytes(-len(body) % 4)
    length = len(body) + 12
    return (
        struct.pack(order + "II", kind, length)
        + body
        + struct.pack(order + "I", length)
    )


def option(order, code, value):
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def shb(order="<", options=b""):
    return block(
        order,
        0x0A0D0D0A,
        struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options,
    )


def idb(order="<", linktype=1, snaplen=0, options=b""):
    return block(order, 1, struct.pack(order + "HHI", linktype, 0, snaplen) + options)


def epb(ticks, data, order="<", interface=0, origlen=None, options=b""):
    head = struct.pack(
        order + "IIIII",
        interface,
        ticks >> 32,
        ticks & 0xFFFFFFFF,
        len(data),
        len(data) if origlen is None else origlen,
    )
    return block(order, 6, head + data + bytes(-len(data) % 4) + options)


def read(data, **options):
    reader = open_capture(io.BytesIO(data), **options)
    found = []
    for batch in reader:
        assert batch.first_number == len(found) + 1
        for row in range(len(batch)):
            found.append(
                (
                    int(batch.time_ns[row]),
                    bytes(batch.packet(row)),
                    int(batch.origlen[row]),
                    int(batch.linktype[row]),
                )
            )
    assert reader.packets == len(found)
    return found, reader.info


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("nanoseconds", [True, False])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_classic(order, nanoseconds, pack):
    found, info = read(pack(classic(order, nanoseconds, linktype=101)))
    step = 1 if nanoseconds else 1000
    assert [t for t, *_ in found] == [t // step * step for t in TIMES]
    assert [d for _, d, *_ in found] == PACKETS
    assert [n for *_, n, _ in found] == [len(d) + 5 for d in PACKETS]
    assert {link for *_, link in found} == {101}
    assert (info.format, info.truncated, info.gzip) == (
        "pcap",
        False,
        pack is not bytes,
    )
    assert info.byteorder == {"<": "little", ">": "big"}[order]


@pytest.mark.parametrize("order", "<>")
def test_classic_agrees_with_dpkt(order):
    data = classic(order, nanoseconds=False)
    ours = [packet for _, packet, *_ in read(data)[0]]
    assert ours == [bytes(d) for _, d in dpkt.pcap.Reader(io.BytesIO(data))]


def test_many_gzip_members_and_trailing_zeros():
    data = classic()
    pieces = [gzip.compress(data[k : k + 50]) for k in range(0, len(data), 50)]
    found, info = read(b"".join(pieces) + bytes(100))
    assert [d for _, d, *_ in found] == PACKETS
    assert not info.truncated


def test_gzip_cut_short_gives_what_is_there():
    packed = gzip.compress(classic(packets=PACKETS * 1))
    found, info = read(packed[:-9])
    assert info.truncated
    assert [d for _, d, *_ in found] == PACKETS[: len(found)]


def test_a_block_without_room_for_its_fields_names_the_least_length():
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    with pytest.raises(CaptureError, match=r"4 from 20 to \d+, found 12"):
        read(section + struct.pack("<III", 1, 12, 12))  # an interface needs 20


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_damaged_gzip_gives_what_comes_before_the_damage(block_bytes):
    packed = bytearray(gzip.compress(classic(packets=PACKETS)))
    packed[-8] ^= 1  # the checksum alone: every packet is whole
    reader = open_capture(io.BytesIO(bytes(packed)), block_bytes=block_bytes)
    with pytest.raises(CaptureError, match="incorrect data check"):
        list(reader)
    assert reader.packets == len(PACKETS)


def test_damaged_gzip_is_a_clear_error():
    packed = bytearray(gzip.compress(b"".join([classic()] + [bytes(9)] * 400)))
    packed[12:30] = b"\xff" * 18
    with pytest.raises(CaptureError, match="damaged gzip data at file offset"):
        read(bytes(packed))


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_damage_in_the_last_bytes_of_gzip_data_is_no_mere_cut(block_bytes):
    # a copy from farther back than there are bytes, and nothing behind it: small
    # blocks have swallowed all input by the time the inflater gets to it
    packed = bytes.fromhex("1f8b0800000000000203e3e2e5e5d261606086f000")
    reader = open_capture(io.BytesIO(packed), block_bytes=block_bytes)
    with pytest.raises(CaptureError, match="invalid distance too far back"):
        list(reader)


@pytest.mark.filterwarnings("ignore:Field type:DeprecationWarning")  # theirs
@pytest.mark.parametrize("order", "<>")
def test_pcapng_sections_interfaces_and_clocks(order):
    other = "<" if order == ">" else ">"
    ns = option(order, 9, b"\x09")
    offset = option(order, 14, struct.pack(order + "q", -100))
    data = b"".join(
        [
            shb(order, option(order, 1, b"a comment") + option(order, 4, b"dumper")),
            idb(order, 1),
            idb(order, 101, options=ns + option(order, 2, b"lo0")),
            idb(order, 113, options=option(order, 9, b"\x8a") + offset),
            idb(order, 0, options=option(order, 9, b"\x0c")),
            epb(1_000_001, b"one", order, 0, options=option(order, 1, b"hm")),
            block(order, 0x0BAD, b"what is this?"),
            epb(5_000_000_007, b"two!", order, 1, origlen=1500),
            epb(1024 * 200 + 512, b"three", order, 2),
            epb(7_000_000_001_999, b"four", order, 3),
            shb(other),
            idb(other, 276),
            epb(3, b"five", other, 0),
        ]
    )
    found, info = read(data)
    assert found == [
        (1_000_001_000, b"one", 3, 1),
        (5_000_000_007, b"two!", 1500, 101),
        (100_500_000_000, b"three", 5, 113),
        (7_000_000_001, b"four", 4, 0),
        (3_000, b"five", 4, 276),
    ]
    assert info.format == "pcapng"
    assert info.skipped_blocks == 1
    assert [one.name for one in info.interfaces] == ["", "lo0", "", "", ""]
    assert info.marked_complete is None
    theirs = [
        one.packet_data
        for one in pcapng.FileScanner(io.BytesIO(data))
        if isinstance(one, pcapng.blocks.EnhancedPacket)
    ]
    assert theirs == [d for _, d, *_ in found]


@pytest.mark.parametrize("order", "<>")
def test_simple_and_obsolete_packet_blocks(order):
    pb = struct.pack(order + "HHIIII", 1, 3, 0, 77, 3, 9) + b"old\0"
    data = b"".join(
        [
            shb(order),
            idb(order, 1, snaplen=3),
            idb(order, 101),
            block(order, 3, struct.pack(order + "I", 9) + b"simp"),
            epb(5, b"mid", order, 1),
            block(order, 2, pb),
            block(order, 3, struct.pack(order + "I", 2) + b"xy"),
        ]
    )
    assert read(data)[0] == [
        (0, b"sim", 9, 1),
        (5_000, b"mid", 3, 101),
        (77_000, b"old", 9, 101),
        (0, b"xy", 2, 1),
    ]


def test_cut_anywhere_gives_all_whole_packets_and_the_offset():
    plain = classic()
    sizes = [16 + len(d) for d in PACKETS]
    edges = [24 + sum(sizes[:k]) for k in range(len(sizes) + 1)]
    for cut in range(24, len(plain) + 1):
        found, info = read(plain[:cut])
        whole = sum(edge <= cut for edge in edges) - 1
        assert len(found) == whole
        assert info.truncated_at == (None if cut in edges else edges[whole])
    for cut in range(4, 24):
        found, info = read(plain[:cut])
        assert (found, info.truncated_at) == ([], 0)


def test_cut_pcapng_anywhere():
    parts = [shb(), idb()] + [epb(k, d) for k, d in enumerate(PACKETS)]
    data = b"".join(parts)
    edges = [sum(map(len, parts[:k])) for k in range(len(parts) + 1)]
    for cut in range(8, len(data) + 1):
        found, info = read(data[:cut])
        whole = sum(edge <= cut for edge in edges) - 1
        assert len(found) == max(whole - 2, 0)
        assert info.truncated_at == (None if cut in edges else edges[whole])


def test_empty_input():
    found, info = read(b"")
    assert (found, info.format, info.truncated) == ([], "empty", False)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n" * 3, bytes(64), b"DS4D" * 9, b"\x4d"]
)
def test_something_else_is_refused(data):
    with pytest.raises(CaptureError, match=r"file offset 0: expected .*pcap.* found"):
        read(data)


@pytest.mark.parametrize("order", "<>")
def test_long_record_is_refused_before_memory_is_taken(order):
    plain = classic(order)
    bad = struct.pack(order + "IIII", 0, 0, 0xFFFFFFF0, 0xFFFFFFF0) + bytes(10_000)
    tracemalloc.start()
    try:
        with pytest.raises(CaptureError) as caught:
            read(plain + bad)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.offset == len(plain)
    assert caught.value.found == str(0xFFFFFFF0)
    assert "at most 16777216" in str(caught.value)
    assert peak < 4 << 20


def test_record_limit_is_the_callers():
    with pytest.raises(CaptureError, match=r"at most 199.*found 200"):
        read(classic(), max_record=199)
    assert len(read(classic(), max_record=200)[0]) == len(PACKETS)


def packets_before_error(data):
    found = []
    batches = iter(open_capture(io.BytesIO(data)))

    def take_all():
        for batch in batches:
            found.extend(bytes(batch.packet(row)) for row in range(len(batch)))

    with pytest.raises(CaptureError) as caught:
        take_all()
    return found, caught.value.offset


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<II", 6, 13) + bytes(40),  # not a multiple of four
        struct.pack("<II", 6, 8) + bytes(40),  # shorter than any block
        struct.pack("<II", 6, 0xFFFFFFFC) + bytes(40),  # longer than allowed
        struct.pack("<II", 6, 28) + bytes(40),  # too short for its kind
        epb(1, b"data", interface=2),  # interface nobody described
        epb(1, b"data")[:20] + struct.pack("<I", 5000) + epb(1, b"data")[24:],
        epb(1, b"data")[:-4] + struct.pack("<I", 40),  # lengths differ
        struct.pack("<II", 1, 16) + bytes(24),  # interface block too short
        block("<", 0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4E, 1, 0, -1)),
        block("<", 0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 2, 0, -1)),
    ],
)
def test_damage_in_pcapng_names_its_place(bad):
    good = shb() + idb() + epb(1, b"one") + epb(2, b"two")
    found, offset = packets_before_error(good + bad + epb(3, b"never"))
    assert found == [b"one", b"two"]
    assert len(good) <= offset <= len(good) + 12


def test_unsupported_pcap_version():
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 3, 0, 0, 0, 0, 1)
    with pytest.raises(CaptureError, match=r"expected 2\.4, found 3\.0"):
        read(data)


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1 << 20])
def test_block_size_does_not_matter(block_bytes):
    many = [bytes([k & 255]) * (k % 97) for k in range(300)]
    ng = shb() + idb() + b"".join(epb(k, d) for k, d in enumerate(many))
    assert [d for _, d, *_ in read(ng, block_bytes=block_bytes)[0]] == many
    global_header = classic(packets=[])
    plain = global_header + b"".join(
        struct.pack("<IIII", 1, 2, len(d), len(d)) + d for d in many
    )
    assert [d for _, d, *_ in read(plain, block_bytes=block_bytes)[0]] == many


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=12))
def test_runs_of_equal_packets(groups):
    sizes = [size * 20 for size, count in groups for _ in range(count)]
    many = [bytes([k & 255]) * n for k, n in enumerate(sizes)]
    data = classic(packets=[]) + b"".join(
        struct.pack("<IIII", k, 0, len(d), len(d)) + d for k, d in enumerate(many)
    )
    found, _ = read(data, block_bytes=4096)
    assert [(t // 10**9, d) for t, d, *_ in found] == list(enumerate(many))


@settings(max_examples=300)
@given(
    st.sampled_from(
        [classic("<"), classic(">", False), shb() + idb() + epb(9, b"abc") * 5]
    ),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
)
def test_mutated_captures_raise_nothing_but_capture_errors(data, changes):
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(changed)] = value
    with contextlib.suppress(CaptureError):
        read(bytes(changed))


class Growing(io.RawIOBase):
    """A file that somebody else appends to."""

    def __init__(self):
        self.data = b""
        self.at = 0

    def read(self, size=-1):
        piece = self.data[self.at : self.at + size]
        self.at += len(piece)
        return piece


@pytest.mark.parametrize("whole", [classic(), shb() + idb() + epb(1, b"x") * 9])
@pytest.mark.parametrize("step", [1, 5, 64])
def test_follow_a_growing_file(whole, step):
    source = Growing()

    def wait():
        source.data = whole[: len(source.data) + step]
        return source.at < len(whole)

    reader = open_capture(source, follow=True, wait=wait)
    found = [bytes(b.packet(row)) for b in reader for row in range(len(b))]
    assert found == [d for _, d, *_ in read(whole)[0]]
    assert not reader.info.truncated


def test_follow_gives_packets_before_the_next_wait():
    source = Growing()
    source.data = classic(packets=PACKETS[:2])
    seen = []

    def wait():
        seen.append(reader.packets)
        return False

    reader = open_capture(source, follow=True, wait=wait)
    assert sum(len(batch) for batch in reader) == 2
    assert seen == [2]


def test_follow_needs_a_bound():
    with pytest.raises(TypeError, match="bounds the waiting"):
        open_capture(io.BytesIO(b""), follow=True)


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BufferedReader(io.BytesIO(classic()))

    monkeypatch.setattr(sys, "stdin", Stdin)
    with open_capture("-") as reader:
        assert sum(len(batch) for batch in reader) == len(PACKETS)


def test_path_and_constant_memory(tmp_path):
    packet = struct.pack("<IIII", 1, 2, 1500, 1500) + bytes(1500)
    path = tmp_path / "big.pcap"
    path.write_bytes(classic(packets=[]) + packet * 22_000)  # 33 MB
    tracemalloc.start()
    try:
        with open_capture(path) as reader:
            count = sum(len(batch) for batch in reader)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 22_000
    assert peak < 8 << 20
