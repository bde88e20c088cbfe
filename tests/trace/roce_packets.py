"""RoCE v2 packets by hand, for tests."""

from __future__ import annotations

import io
import struct

from ds4proto.pcap import Endpoint, PcapWriter, build_udp

LEADER, WORKER = "192.0.2.1", "192.0.2.2"
OPCODES = {"first": 0, "middle": 1, "last": 2, "only": 4, "ack": 17}


class RoceTape:
    """Collects packets and gives a capture."""

    def __init__(self, transport: str = "RC") -> None:
        self._bits = 0 if transport == "RC" else 0x20
        self._packets: list[tuple[int, bytes]] = []
        self.now = 1_000_000_000

    def packet(
        self,
        src: str,
        qpn: int,
        psn: int,
        part: str,
        payload: bytes = b"",
        *,
        aeth: int | None = None,
        opcode: int | None = None,
        extra: bytes = b"",
    ) -> None:
        code = self._bits | OPCODES[part] if opcode is None else opcode
        head = struct.pack(">BBHII", code, 0, 0xFFFF, qpn, psn)
        if aeth is not None:
            head += struct.pack(">I", aeth << 24)
        dst = WORKER if src == LEADER else LEADER
        data = head + extra + payload + bytes(4)
        self.now += 1_000_000
        self._packets.append(
            (
                self.now,
                build_udp(Endpoint(src, 49152), Endpoint(dst, 4791), payload=data),
            )
        )

    def message(self, src: str, qpn: int, psn: int, nbytes: int, mtu: int) -> int:
        """Send one message; returns the next packet number."""
        count = max(1, -(-nbytes // mtu))
        for n in range(count):
            size = min(mtu, nbytes - n * mtu)
            part = "middle"
            if count == 1:
                part = "only"
            elif n == 0:
                part = "first"
            elif n == count - 1:
                part = "last"
            self.packet(src, qpn, (psn + n) & 0xFFFFFF, part, bytes(size))
        return (psn + count) & 0xFFFFFF

    def capture(self) -> io.BytesIO:
        stream = io.BytesIO()
        writer = PcapWriter(stream)
        for time, data in self._packets:
            writer.packet(time, data)
        stream.seek(0)
        return stream
