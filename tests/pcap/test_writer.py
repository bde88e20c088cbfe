"""What the writers write, read back by other tools and by our own reader."""

from __future__ import annotations

import errno
import hashlib
import io
import socket
import struct

import dpkt
import pcapng
import pytest

from ds4proto.pcap import (
    CaptureWriteError,
    Endpoint,
    PcapngWriter,
    PcapWriter,
    TcpConversation,
    build_tcp,
    build_udp,
    open_capture,
)
from ds4proto.pcap import writer as writer_module
from ds4proto.pcap.build import checksum

A, B = Endpoint("127.0.0.1", 40000), Endpoint("127.0.0.1", 8001)
A6, B6 = Endpoint("::1", 40000), Endpoint("fe80::2", 8001)


def packets_of(source):
    reader = open_capture(source)
    found = [
        (int(batch.time_ns[row]), bytes(batch.packet(row)))
        for batch in reader
        for row in range(len(batch))
    ]
    return found, reader.info


def converse(sink, a=A, b=B):
    talk = TcpConversation(sink, a, b)
    talk.open(1_000)
    talk.data(2_000, "a>b", b"request")
    talk.data(3_000, "b>a", [b"head", memoryview(bytes(150_000))])
    talk.fin(4_000, "a>b")
    talk.rst(5_000, "b>a")


def plain_sum(data):
    """Sum 16-bit words the way RFC 1071 writes it down."""
    data += b"\0" * (len(data) & 1)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.mark.parametrize("size", [0, 1, 2, 5, 1448, 65_000])
@pytest.mark.parametrize("ends", [(A, B), (A6, B6)])
def test_checksums(size, ends):
    payload = bytes(k * 7 & 255 for k in range(size))
    for build, protocol in (
        (lambda: build_tcp(*ends, seq=1, payload=payload, linktype=101), 6),
        (lambda: build_udp(*ends, payload=payload, linktype=101), 17),
    ):
        packet = build()
        if ends == (A, B):
            assert plain_sum(packet[:20]) == 0xFFFF
            addresses, rest = packet[12:20], packet[20:]
        else:
            addresses, rest = packet[8:40], packet[40:]
        pseudo = addresses + struct.pack(">II", len(rest), protocol)
        assert plain_sum(pseudo + rest) == 0xFFFF


def test_checksum_example_of_rfc_1071():
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2


@pytest.mark.parametrize("make", [PcapngWriter, PcapWriter])
@pytest.mark.parametrize("linktype", [1, 101, 0])
@pytest.mark.parametrize("ends", [(A, B), (A6, B6)])
def test_conversation(make, linktype, ends):
    out = io.BytesIO()
    with make(out, linktype=linktype) as sink:
        converse(sink, *ends)
    found, info = packets_of(io.BytesIO(out.getvalue()))
    assert {one.linktype for one in info.interfaces} == {linktype}
    strip = {1: 14, 101: 0, 0: 4}[linktype]
    unpack = dpkt.ip.IP if ends == (A, B) else dpkt.ip6.IP6
    parts = [unpack(data[strip:]) for _, data in found]
    segments = [part.data for part in parts]
    assert [time for time, _ in found] == [1000] * 3 + [2000] + [3000] * 4 + [
        4000
    ] * 2 + [5000]
    assert [s.flags for s in segments] == [2, 18, 16, 24, 24, 24, 24, 24, 17, 16, 20]
    assert [len(s.data) for s in segments] == [
        0, 0, 0, 7, 4, 65_000, 65_000, 20_000, 0, 0, 0,
    ]  # fmt: skip
    # Each side numbers its bytes in order, and acknowledges all it was sent.
    due = {40000: 1000, 8001: 2000}
    for s in segments:
        assert s.seq == due[s.sport]
        due[s.sport] += len(s.data) + bool(s.flags & 3)
        assert s.ack == (due[s.dport] if s.flags & 16 else 0)


def test_sequence_numbers_wrap():
    out = io.BytesIO()
    sink = PcapWriter(out, linktype=101)
    talk = TcpConversation(sink, A, B, isn_a=0xFFFFFFF0)
    talk.data(0, "a>b", bytes(32))
    talk.skip("a>b", 100)
    talk.data(0, "a>b", b"x")
    seqs = [
        dpkt.ip.IP(data).data.seq
        for _, data in packets_of(io.BytesIO(out.getvalue()))[0]
    ]
    assert seqs == [0xFFFFFFF0, 116]


@pytest.mark.filterwarnings("ignore:Field type:DeprecationWarning")  # theirs
def test_the_bytes_stay_the_same():
    def make():
        out = io.BytesIO()
        with PcapngWriter(out, comment="c", interface_name="lo") as sink:
            converse(sink)
        return out.getvalue()

    digest = hashlib.sha256(make()).hexdigest()
    assert hashlib.sha256(make()).hexdigest() == digest
    blocks = list(pcapng.FileScanner(io.BytesIO(make())))
    assert [type(one).__name__ for one in blocks] == [
        "SectionHeader",
        "InterfaceDescription",
        *["EnhancedPacket"] * 11,
        "InterfaceStatistics",
    ]
    assert blocks[0].options["opt_comment"] == "c"
    assert blocks[1].options["if_name"] == "lo"
    assert [one.packet_data for one in blocks[2:-1]] == [
        data for _, data in packets_of(io.BytesIO(make()))[0]
    ]


def test_second_interface_comment_and_original_length():
    out = io.BytesIO()
    with PcapngWriter(out) as sink:
        number = sink.add_interface(101, snaplen=64, name="other")
        sink.packet(5, b"abc", interface=number, origlen=999, comment="why")
    (batch,) = open_capture(io.BytesIO(out.getvalue()))
    assert (batch.linktype[0], batch.origlen[0], batch.caplen[0]) == (101, 999, 3)


def test_own_recordings_say_whether_they_are_complete(tmp_path):
    path = tmp_path / "r.pcapng"
    with PcapngWriter(path) as sink:
        converse(sink)
    assert packets_of(path)[1].marked_complete is True

    def broken_off():
        with PcapngWriter(path) as sink:
            converse(sink)
            raise KeyError

    with pytest.raises(KeyError):
        broken_off()
    found, info = packets_of(path)
    assert (len(found), info.marked_complete, info.truncated) == (11, False, False)


def test_a_killed_recorder_loses_at_most_the_last_block(tmp_path):
    path = tmp_path / "r.pcapng"
    sink = PcapngWriter(path)
    converse(sink)  # neither flushed nor closed
    assert len(packets_of(path)[0]) == 11
    sink.abandon()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    found, info = packets_of(path)
    assert (len(found), info.truncated, info.marked_complete) == (10, True, False)


def test_buffered_blocks_wait_for_flush(tmp_path):
    path = tmp_path / "r.pcap"
    sink = PcapWriter(path, buffer_bytes=1 << 20)
    converse(sink)
    assert path.stat().st_size == 0
    sink.flush()
    assert len(packets_of(path)[0]) == 11
    sink.close()
    sink.close()


class FullDisk:
    """A file on a disk with little room."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = self.file.write(data[: self.room])
        self.room -= count
        return count

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 20])
@pytest.mark.parametrize("make", [PcapngWriter, PcapWriter])
def test_full_disk_leaves_whole_blocks(tmp_path, monkeypatch, make, buffer_bytes):
    monkeypatch.setattr(
        writer_module,
        "_create",
        lambda path: FullDisk(path.open("wb", buffering=0), 1_000),
    )
    path = tmp_path / "full"
    sink = make(path, buffer_bytes=buffer_bytes)

    def record():
        for k in range(100):
            sink.packet(k, bytes([k]) * 90)
        sink.flush()

    with pytest.raises(CaptureWriteError, match=r"No space left.*make room") as caught:
        record()
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(CaptureWriteError, match="earlier write failed"):
        sink.packet(0, b"more")
    sink.abandon()
    found, info = packets_of(path)
    assert not info.truncated
    assert info.marked_complete is (False if make is PcapngWriter else None)
    assert [data for _, data in found] == [bytes([k]) * 90 for k in range(len(found))]
    assert 5 <= len(found) < 12


def test_wrong_use_is_told():
    sink = PcapngWriter(io.BytesIO())
    with pytest.raises(ValueError, match="time_ns is -1"):
        sink.packet(-1, b"")
    with pytest.raises(ValueError, match="interface is 1: expected below 1"):
        sink.packet(1, b"", interface=1)
    with pytest.raises(ValueError, match="expected at most 65000; split it"):
        sink.tcp_segment(1, A, B, seq=1, payload=bytes(65_001))
    with pytest.raises(ValueError, match="same family"):
        build_tcp(A, B6, seq=1)
    with pytest.raises(ValueError, match="link type 113"):
        build_tcp(A, B, seq=1, linktype=113)
    with pytest.raises(ValueError, match='expected "a>b" or "b>a"'):
        TcpConversation(sink, A, B).data(0, "b", b"")
    with pytest.raises(ValueError, match="write pcapng"):
        PcapWriter(io.BytesIO()).packet(1 << 63, b"")


def test_single_segments():
    out = io.BytesIO()
    with PcapngWriter(out, linktype=101) as sink:
        sink.tcp_segment(9, A, B, seq=5, ack=6, flags=24, payload=b"hi")
    ((time, data),), _ = packets_of(io.BytesIO(out.getvalue()))
    ip = dpkt.ip.IP(data)
    assert (time, ip.data.seq, ip.data.ack, ip.data.flags) == (9, 5, 6, 24)
    assert socket.inet_ntoa(ip.src) == "127.0.0.1"
    assert ip.data.data == b"hi"
