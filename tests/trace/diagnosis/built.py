"""Captures and logs written by hand, for faults that no proxy can inject."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ds4proto.pcap import Endpoint, PcapWriter, TcpConversation, build_tcp
from tests.link.streams import ds4d, ds4t, result, work

COORDINATOR, WORKER = Endpoint("10.0.0.1", 9000), Endpoint("10.0.0.2", 40000)
LEADER, RANK = Endpoint("10.0.0.1", 9911), Endpoint("10.0.0.2", 50000)
GATES = Endpoint("10.0.0.2", 50001)
SYN, ACK = 2, 16
MS = 1_000_000
START = 1_750_000_000_000 * MS
STATE = np.linspace(-1, 1, 128, dtype="<f4").tobytes()
HELLO: dict[str, Any] = {
    "model_name": "stub", "model_id": 0, "n_layers": 8, "layer_start": 4,
    "layer_end": 7, "quant_bits": 2, "has_output": 1, "has_hidden": 1, "ctx_size": 1024,
    "listen_port": 21101,
}  # fmt: skip
TP_HELLO: dict[str, Any] = {
    "version": 10, "model_id": 0, "n_layer": 2, "n_embd": 16, "n_vocab": 32,
    "quant_bits": 2, "gates_per_token": 4, "gate_slot_start": 0, "gate_slot_step": 1,
    "gguf_bytes": 1 << 30,
}  # fmt: skip


class Wire:
    """One TCP connection written packet by packet, with true acknowledgements.

    Side 0 dials. `trip` nanoseconds pass between a segment and its acknowledgement.
    """

    def __init__(
        self, path: Path, a: Endpoint = WORKER, b: Endpoint = COORDINATOR,
        *, trip: int = MS // 10,
    ) -> None:  # fmt: skip
        self.sink = PcapWriter(path, linktype=101)
        self.ends = (a, b)
        self.trip, self.now = trip, START
        self.seq, self.peak = [1000, 2000], [0, 0]
        self._put(0, 1000, flags=SYN)
        self.now += trip
        self._put(1, 2000, flags=SYN | ACK, ack=1001)
        self.seq = [1001, 2001]
        self._put(0, 1001, ack=2001)

    def _put(
        self, side: int, seq: int, data: bytes = b"", *, flags: int = ACK, ack: int = 0
    ) -> None:
        packet = build_tcp(
            self.ends[side], self.ends[1 - side], seq=seq, ack=ack, flags=flags,
            payload=data, linktype=101,
        )  # fmt: skip
        self.sink.packet(self.now, packet)

    def send(self, side: int, data: bytes, *, wait: int = MS // 20) -> None:
        """Send a segment `wait` nanoseconds after what came before."""
        self.now += wait
        self._put(side, self.seq[side], data, ack=self.seq[1 - side])
        self.seq[side] += len(data)

    def again(self, side: int, data: bytes) -> None:
        """Send the last segment once more."""
        self.now += 200 * MS
        self._put(side, self.seq[side] - len(data), data, ack=self.seq[1 - side])

    def acknowledge(self, side: int, *, wait: int | None = None) -> None:
        """Acknowledge everything from a side, without data."""
        self.now += self.trip if wait is None else wait
        self._put(side, self.seq[side], ack=self.seq[1 - side])

    def close(self) -> None:
        """Finish the file."""
        self.sink.close()


def delayed_acks(folder: Path) -> Sequence[Path]:
    """Header and payload apart; each waits for the acknowledgement of the last."""
    path = folder / "wire.pcap"
    wire = Wire(path)
    wire.send(0, ds4d("HELLO", **HELLO))
    wire.acknowledge(1)
    for number in range(1, 9):
        whole = work(number, STATE)
        wire.send(1, whole[:12], wait=MS)
        wire.acknowledge(0, wait=40 * MS)
        wire.send(1, whole[12:])
        wire.acknowledge(0)
        wire.send(0, result(number))
        wire.acknowledge(1)
    wire.close()
    return [path]


def lossy_wire(folder: Path) -> Sequence[Path]:
    """Segments that are sent twice."""
    path = folder / "wire.pcap"
    wire = Wire(path)
    wire.send(0, ds4d("HELLO", **HELLO))
    wire.acknowledge(1)
    for number in range(1, 41):
        whole = work(number, STATE)
        wire.send(1, whole, wait=MS)
        if number % 5 == 0:
            wire.again(1, whole)
        wire.acknowledge(0)
        wire.send(0, result(number))
        wire.acknowledge(1)
    wire.close()
    return [path]


def slow_round_trip(folder: Path) -> Sequence[Path]:
    """A link of 77 ms there and back."""
    path = folder / "wire.pcap"
    wire = Wire(path, trip=77 * MS)
    wire.send(0, ds4d("HELLO", **HELLO))
    wire.acknowledge(1)
    for number in range(1, 9):
        wire.send(1, work(number, STATE), wait=MS)
        wire.acknowledge(0)
        wire.send(0, result(number))
        wire.acknowledge(1)
    wire.close()
    return [path]


def two_sides(
    folder: Path, *, way: float, late: float, apart: float = 3.0, tokens: int = 6
) -> Sequence[Path]:
    """One run of a pair as each side records it.

    Parameters
    ----------
    way, late, apart : float
        Seconds: of the link one way, that the worker comes after the leader, and
        between both clocks.
    """
    folder.mkdir(exist_ok=True)
    sent: list[tuple[float, str, bytes]] = []
    time = 0.0
    for seq in range(1, 4 * tokens + 1):
        slot = (seq - 1) % 4
        for rank, when in (("leader", time), ("worker", time + late)):
            head = ds4t("GATE_ROW", layer=slot // 2, gate=slot % 2, seq=seq)
            values = bytes([seq % 256, 0 if rank == "leader" else 1]) * 32
            sent.append((when, rank, head + values))
        time += late + way + 0.001
    files = []
    for side, offset in (("leader", 0.0), ("worker", apart)):
        path = folder / f"{side}.pcap"
        sink = PcapWriter(path, linktype=101)
        control = TcpConversation(sink, RANK, LEADER)
        data = TcpConversation(sink, GATES, LEADER)

        def at(seconds: float, offset: float = offset) -> int:
            return START + round((seconds + offset) * 1e9)

        control.open(at(0.001))
        control.data(at(0.01), "b>a", ds4t("HELLO", **TP_HELLO, role=1, ctx_size=256))
        control.data(at(0.011), "a>b", ds4t("HELLO", **TP_HELLO, role=2))
        data.open(at(0.012))
        seen = sorted(
            (when + (0.0 if rank == side else way), rank, frame)
            for when, rank, frame in sent
        )
        for when, rank, frame in seen:
            data.data(at(0.1 + when), "b>a" if rank == "leader" else "a>b", frame)
        sink.close()
        files.append(path)
    return files


def slow_link_from_both_sides(folder: Path) -> Sequence[Path]:
    """A link of 3 ms each way, ranks that are as fast as each other."""
    return two_sides(folder, way=0.003, late=0.0)


def slow_rank_from_both_sides(folder: Path) -> Sequence[Path]:
    """A worker that comes 4 ms late over a link of 0.1 ms each way."""
    return two_sides(folder, way=0.0001, late=0.004)


def link_local_gid(folder: Path) -> Sequence[Path]:
    """A pair of which one rank sends a link-local GID."""
    path = folder / "control.pcap"
    sink = PcapWriter(path, linktype=101)
    control = TcpConversation(sink, RANK, LEADER)
    control.open(START)
    hello = {**TP_HELLO, "rdma_ok": 1}
    mapped = bytes(10) + b"\xff\xff" + bytes((169, 254, 10, 1))
    local = bytes((0xFE, 0x80)) + bytes(13) + b"\x01"
    info: dict[str, Any] = {
        "slab_base": 0,
        "rkey": 0,
        "lid": 0,
        "mtu": 5,
        "link_layer": 2,
    }
    frames = (
        ("b>a", ds4t("HELLO", **hello, role=1, ctx_size=256)),
        ("a>b", ds4t("HELLO", **hello, role=2)),
        ("b>a", ds4t("RDMA_INFO", **info, qpn=17, psn=5, gid=mapped)),
        ("a>b", ds4t("RDMA_INFO", **info, qpn=18, psn=6, gid=local)),
    )
    for number, (way, frame) in enumerate(frames, 1):
        control.data(START + number * MS, way, frame)  # type: ignore[arg-type]
    sink.close()
    return [path]


def log_of_a_timeout(folder: Path) -> Sequence[Path]:
    """A worker's log; the slab of 14,091,976 bytes is that of V4 Flash."""
    path = folder / "worker.log"
    path.write_text(
        "ds4-tp: leader connected, transport=rdma gate-timeout=750ms\n"
        "[ok] bound: rank 1, slab 14091976 bytes, rdma transport, peer_ctx 4096\n"
        "ds4-tp: timeout waiting gate seq 128 (recv_done 127)\n"
    )
    return [path]
