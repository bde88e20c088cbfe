"""Byte streams out of the recorded captures, for replays."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
CAPTURES = ROOT / "conformance" / "captures"
PROBES = ROOT / "tests" / "data" / "ds4d_probes"

Flow = tuple[int, int]
"""Source and destination port."""


def _packets(path: Path) -> Iterator[tuple[int, bytes]]:
    data = path.read_bytes()
    magic, *_, link = struct.unpack_from("<IHHiIII", data)
    assert magic in (0xA1B2C3D4, 0xA1B23C4D), path
    at = 24
    while at < len(data):
        size = struct.unpack_from("<IIII", data, at)[2]
        yield link, data[at + 16 : at + 16 + size]
        at += 16 + size


_LINK_HEADER = {1: 14, 101: 0, 113: 16, 276: 20, 228: 0}


def streams(path: Path) -> dict[Flow, bytes]:
    """Return the payload of each direction of a loopback capture, by ports."""
    pieces: dict[Flow, dict[int, bytes]] = {}
    first: dict[Flow, int] = {}
    for link, packet in _packets(path):
        ip = packet[_LINK_HEADER[link] :]
        if not ip or ip[0] >> 4 != 4 or ip[9] != 6:
            continue
        total = struct.unpack_from(">H", ip, 2)[0] or len(ip)
        tcp = ip[4 * (ip[0] & 15) : total]
        source, target, seq = struct.unpack_from(">HHI", tcp)
        payload = tcp[4 * (tcp[12] >> 4) :]
        flow = (source, target)
        if tcp[13] & 2:
            first[flow] = seq + 1
            continue
        first.setdefault(flow, seq)
        if payload:
            pieces.setdefault(flow, {})[(seq - first[flow]) & 0xFFFFFFFF] = payload
    joined = {}
    for flow, parts in pieces.items():
        data = bytearray()
        for at in sorted(parts):
            assert at <= len(data), f"{path.name}: a hole in {flow}"
            data[at:] = parts[at] if at + len(parts[at]) >= len(data) else data[at:]
        joined[flow] = bytes(data)
    return joined
