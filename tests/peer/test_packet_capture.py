"""Finding the protocols among packets, ring files, and clear refusals."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.errors import WrongUsage
from ds4proto.pcap import (
    CaptureReader,
    Endpoint,
    PacketBatch,
    PcapngWriter,
    TcpConversation,
)
from ds4proto.peer import packet_capture
from ds4proto.peer.packet_capture import Finder, Lost, Ring, packets_of
from ds4proto.testing import captures_dir
from ds4proto.trace.decoder import CaptureDecoder

HELLO = captures_dir() / "ds4d" / "d_s3_forward_f16.pcap"


def batches(data: bytes) -> list[PacketBatch]:
    with CaptureReader(io.BytesIO(data)) as reader:
        return list(reader)


def talk(writer: PcapngWriter, port: int, up: bytes, down: bytes) -> None:
    one = Endpoint("10.0.0.1", port)
    conversation = TcpConversation(writer, one, Endpoint("10.0.0.2", 8080))
    conversation.open(1)
    for n in range(20):
        conversation.data(2 + n, "a>b", up)
        conversation.data(2 + n, "b>a", down)


def test_ours_are_kept_from_the_handshake_on_and_others_left_out() -> None:
    stream = io.BytesIO()
    with PcapngWriter(stream) as writer:
        talk(writer, 1000, b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n")
        talk(writer, 2000, b"DS4D" + bytes(40), b"DS4D" + bytes(8))
        talk(writer, 3000, b"ab", b"cd")
    finder = Finder()
    kept = [packet for one in batches(stream.getvalue()) for packet in finder.feed(one)]
    finder.finish()
    assert (finder.flows, len(kept)) == (1, 43)  # three of the handshake, then 40
    assert finder.passed_over == 86
    assert all(b"HTTP" not in data for _, data, _ in kept)


def test_what_is_kept_decodes_like_the_whole(tmp_path: Path) -> None:
    finder, ring = Finder(), Ring(str(tmp_path / "x.pcapng"))
    for one in batches(HELLO.read_bytes()):
        for packet in finder.feed(one):
            ring.packet(*packet)
    ring.close()
    names = [row.name for row in CaptureDecoder(HELLO)]
    assert [row.name for row in CaptureDecoder(tmp_path / "x.pcapng")] == names


def test_a_ring_keeps_the_last_files(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path / "r.pcapng"), files=2, size=1000)
    for n in range(10):
        ring.packet(n, bytes(600), 600)
    ring.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "r.0004.pcapng",
        "r.0005.pcapng",
    ]
    for path in tmp_path.iterdir():
        with CaptureReader(path) as reader:
            assert sum(len(batch) for batch in reader) == 2
            assert reader.info.marked_complete


def refuse(_name: str) -> Any:
    raise PermissionError(1, "Operation not permitted")


def test_without_permission_the_text_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packet_capture, "_open", refuse)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(WrongUsage, match=r"CAP_NET_RAW.*no tcpdump.*ds4proto proxy"):
        list(packets_of("lo", lambda: True, lambda _lost: None))
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(WrongUsage, match=r"no packet sockets.*no tcpdump"):
        list(packets_of("lo0", lambda: True, lambda _lost: None))


def test_tcpdump_takes_over_and_its_refusal_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "tcpdump"
    fake.write_text(f"#!/bin/sh\ncat {HELLO}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = list(packets_of("en5", lambda: False, lambda _lost: None, tool="tcpdump"))
    with CaptureReader(HELLO) as reader:
        assert sum(map(len, found)) == sum(len(batch) for batch in reader)
    # what the tool prints at its end, on macOS and Linux alike
    ending = "18 packets captured\n23 packets received by filter\n"
    ending += "5 packets dropped by kernel\n1 packet dropped by interface\n"
    told: list[Lost] = []
    fake.write_text(f"#!/bin/sh\ncat {HELLO}\nprintf '{ending}' >&2\n")
    list(packets_of("en5", lambda: False, told.append, tool="tcpdump"))
    assert told == [Lost(23, 6)]
    fake.write_text("#!/bin/sh\necho 'en5: permission denied' >&2\nexit 1\n")
    with pytest.raises(WrongUsage, match="permission denied"):
        list(packets_of("en5", lambda: False, lambda _lost: None, tool="tcpdump"))


def test_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_name: str) -> Any:
        raise OSError(19, "No such device")

    monkeypatch.setattr(packet_capture, "_open", absent)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(WrongUsage, match="interface eth9: No such device; there are: "):
        list(packets_of("eth9", lambda: True, lambda _lost: None))

    def unspeakable(name: str) -> Any:
        raise AssertionError(name.encode())  # not reached: the name has no bytes

    monkeypatch.setattr(packet_capture, "_open", unspeakable)
    with pytest.raises(WrongUsage, match="no name of one; there are: "):
        list(packets_of("e\udcff", lambda: True, lambda _lost: None))


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the command capture a file in place of an interface."""

    def use(data: bytes, dropped: int = 0) -> None:
        def source(_name: str, _stop: Any, told: Any, *, tool: str) -> Any:
            yield from batches(data)
            told(Lost(100, dropped))

        monkeypatch.setattr(packet_capture, "packets_of", source)

    return use


def test_the_command_writes_counts_and_statuses(
    feed: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pcapng"
    feed(HELLO.read_bytes())
    assert run(["capture", "-o", str(path), "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["connections"] == 3
    assert "gates over RDMA do not pass the kernel" in err
    feed(HELLO.read_bytes(), dropped=7)
    assert run(["capture", "-o", str(path)]) == 1
    assert "7 lost by the kernel" in capfd.readouterr().err
    stream = io.BytesIO()
    with PcapngWriter(stream) as writer:
        talk(writer, 1, b"GET / HTTP/1.1\r\n\r\n", b"HTTP")
    feed(stream.getvalue())
    assert run(["capture", "-o", str(path)]) == 2
    assert run(["capture", "-o", str(path), "--ring", "3", "--redact"]) == 2


def test_a_redacted_capture_leaves_no_private_file(feed: Any, tmp_path: Path) -> None:
    feed(HELLO.read_bytes())
    path = tmp_path / "x.pcapng"
    assert run(["capture", "-o", str(path), "--redact", "--headers-only"]) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["x.pcapng"]
    rows = list(CaptureDecoder(path))
    assert len(rows) == 38
    assert all(row.payload is None or row.payload.captured == 0 for row in rows)


def test_the_kernel_or_its_refusal() -> None:
    """Where packet sockets are allowed they are opened; else the text says why not."""
    said = ""
    found = None
    try:
        found = list(packets_of("lo", lambda: True, lambda _lost: None, tool="socket"))
    except WrongUsage as error:
        said = str(error)
    assert found == [] or "cannot capture on lo" in said or "interface lo" in said
