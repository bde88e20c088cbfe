"""The two connections of a pair, as the cases read and write them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from ds4proto_conformance.bench.tp_wire import (
    ControlFrame,
    ControlWire,
    DataWire,
    Gate,
    TpTranscript,
    gate_bytes,
)
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended

from ds4proto.peer.channel import SocketChannel


@pytest.fixture
def pair() -> Iterator[tuple[SocketChannel, socket.socket, TpTranscript]]:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, label="test")
    yield channel, theirs, TpTranscript()
    channel.close()
    theirs.close()


def control(pair: tuple[SocketChannel, socket.socket, TpTranscript]) -> ControlWire:
    return ControlWire(pair[0], pair[2], 2.0, "v14")


def test_gate_headers_as_recorded() -> None:
    assert gate_bytes("row", 2, 1, 6).hex() == "54345344020001000600000000000000"
    assert gate_bytes("batch", 2, 5, 9).hex() == "42345344020005000900000000000000"
    assert gate_bytes("bulk", 2, 0, 10).hex() == "423453440200160b0a00000000000000"
    assert gate_bytes("row", 2, 1, 6, seq=7)[8] == 7


def test_control_frames_in_pieces(
    pair: tuple[SocketChannel, socket.socket, TpTranscript],
) -> None:
    wire = control(pair)
    ack = bytes.fromhex("543453441100000010000000") + bytes.fromhex(
        "0100000000000000" + "00000000" + "00000000"
    )
    pair[1].sendall(ack[:5])
    assert wire.quiet(0.02) is None
    pair[1].sendall(ack[5:] + ack[:3])
    found = wire.frame("COMMAND_ACK", "DS4T-ACK-02")
    assert found["session_id"] == 1
    assert found["status"] == 0
    pair[1].close()
    assert wire.next() == Ended("cut")
    assert [row["type"] for row in pair[2].frames("v14")] == [
        "DS4T.COMMAND_ACK",
        "end of stream (cut)",
    ]


def test_foreign_bytes_are_a_deviation(
    pair: tuple[SocketChannel, socket.socket, TpTranscript],
) -> None:
    pair[1].sendall(b"HTTP/1.1 400 Bad")
    with pytest.raises(Deviation, match="DS4T-CTRL-10"):
        control(pair).next()


def test_an_end_is_told_from_silence(
    pair: tuple[SocketChannel, socket.socket, TpTranscript],
) -> None:
    wire = control(pair)
    silent = wire.next(0.01)
    assert isinstance(silent, Ended)
    assert silent.how == "silence"
    with pytest.raises(Deviation, match="without a frame"):
        ControlWire(pair[0], pair[2], 0.01, "v14").closed("DS4T-CTRL-02")
    pair[1].close()
    assert wire.closed("DS4T-CTRL-02") == Ended("closed")


def test_gates_cross_both_ways_at_once(
    pair: tuple[SocketChannel, socket.socket, TpTranscript],
) -> None:
    wire = DataWire(pair[0], pair[2], 2.0)
    theirs = gate_bytes("row", 0, 1, 3) + b"\1" * 64
    pair[1].sendall(theirs)
    found = wire.exchange(gate_bytes("row", 0, 1, 3) + bytes(64), 64)
    assert isinstance(found, Gate)
    assert (found.layer, found.third, found.seq) == (0, 1, 3)
    assert found.payload == b"\1" * 64
    assert len(pair[1].recv(200)) == 80
    pair[1].sendall(theirs[:20])
    pair[1].shutdown(socket.SHUT_WR)
    assert wire.gate(64) == Ended("cut")


def test_unknown_types_are_read_whole(
    pair: tuple[SocketChannel, socket.socket, TpTranscript],
) -> None:
    pair[1].sendall(bytes.fromhex("543453446300000004000000") + b"abcd")
    found = control(pair).next()
    assert isinstance(found, ControlFrame)
    assert (found.name, found.body) == ("type 99", b"abcd")
