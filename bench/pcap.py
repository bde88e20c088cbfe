"""Capture reading and TCP reassembly: ``python -m bench.pcap [--json]``.

Seeded captures (classic pcap, Ethernet, IPv4, TCP) with 92, 1448 and 65,000 payload
bytes a packet: one direction alone, both directions in turn, one segment in a hundred
sent twice, and 16 connections with mixed sizes and bare acknowledgements. The rate
counts bytes of the capture file. Baseline: dpkt reading raw records of the same file in
the same run; tshark is measured where it is installed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from io import BytesIO
from pathlib import Path
from struct import Struct

from bench._timing import Case, measure, report
from ds4proto.pcap import Endpoint, build_tcp, open_capture, tcp_columns
from ds4proto.pcap.format import (
    PCAP_HEADER,
    PCAP_MAGIC_US,
    PCAP_RECORD,
    PCAP_VERSION,
)
from ds4proto.pcap.headers import ACK, PSH
from ds4proto.trace.tcp import Join, read_streams

BASELINE = "dpkt raw records"
ENDS = (Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 8_001))
SEQ_AT = 14 + 20 + 4
_RECORD = Struct("<" + PCAP_RECORD)
_NUMBERS = Struct(">II")


def capture(payload: int, size: int, kind: str, seed: int = 20260601) -> bytes:
    """Return a capture of about `size` bytes.

    `kind` is one-way, turns, repeats, or mixed: 16 connections at once, each segment
    answered by a bare acknowledgement, sizes between 12 bytes and `payload`.
    """
    rng = random.Random(seed)
    body = rng.randbytes(payload)
    if kind == "mixed":
        return _mixed(body, size, rng)
    templates = [
        bytearray(build_tcp(*ends, seq=0, flags=ACK | PSH, payload=body))
        for ends in (ENDS, ENDS[::-1])
    ]
    out = BytesIO()
    out.write(_header())
    numbers = [rng.getrandbits(32), rng.getrandbits(32)]
    length = len(templates[0])
    for k in range(size // (length + _RECORD.size)):
        side = k & 1 if kind == "turns" else 0
        seq = numbers[side]
        if kind == "repeats" and k and rng.random() < 0.01:
            seq = (seq - payload) & 0xFFFF_FFFF
        else:
            numbers[side] = (seq + payload) & 0xFFFF_FFFF
        _NUMBERS.pack_into(templates[side], SEQ_AT, seq, numbers[1 - side])
        out.write(_RECORD.pack(k // 100_000, k % 100_000 * 10, length, length))
        out.write(templates[side])
    return out.getvalue()


def _mixed(body: bytes, size: int, rng: random.Random) -> bytes:
    out = BytesIO()
    out.write(_header())
    templates, acks, numbers = [], [], []
    lengths = sorted({12, 92, len(body) // 2, len(body)})
    for connection in range(16):
        a, b = Endpoint(ENDS[0].host, 40_000 + connection), ENDS[1]
        templates.append(
            [
                bytearray(build_tcp(a, b, seq=0, flags=ACK, payload=body[:length]))
                for length in lengths
            ]
        )
        acks.append(bytearray(build_tcp(b, a, seq=7, flags=ACK)))
        numbers.append(rng.getrandbits(32))
    k = 0
    while out.tell() < size:
        connection, which = rng.randrange(16), rng.randrange(len(lengths))
        packet, answer = templates[connection][which], acks[connection]
        _NUMBERS.pack_into(packet, SEQ_AT, numbers[connection], 7)
        numbers[connection] = (numbers[connection] + lengths[which]) & 0xFFFF_FFFF
        _NUMBERS.pack_into(answer, SEQ_AT, 7, numbers[connection])
        for one in (packet, answer):
            out.write(_RECORD.pack(k // 100_000, k % 100_000 * 10, len(one), len(one)))
            out.write(one)
            k += 1
    return out.getvalue()


def _header() -> bytes:
    return Struct("<" + PCAP_HEADER).pack(
        PCAP_MAGIC_US, *PCAP_VERSION, 0, 0, 262_144, 1
    )


def _exhaust(make: Callable[[], Iterator[object]]) -> Case:
    def run() -> None:
        for _ in make():
            pass

    return run


def _columns(path: Path) -> Iterator[object]:
    with open_capture(path) as reader:
        for batch in reader:
            yield tcp_columns(batch)


def _streams(path: Path, join: Join) -> Case:
    return _exhaust(lambda: read_streams(path, join=join))


def _dpkt(path: Path) -> Case:
    pcap = import_module("dpkt.pcap")

    def run() -> None:
        with path.open("rb") as file:
            for _ in pcap.Reader(file):
                pass

    return run


def _tshark(program: str, path: Path) -> Case:
    command = [program, "-n", "-r", str(path), "-T", "fields", "-e", "tcp.seq"]

    def run() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line a table")
    parser.add_argument("--mebibytes", type=int, default=32, help="size of a capture")
    parser.add_argument("--only", default="", help="kinds that contain this word")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each case")
    options = parser.parse_args()
    shapes = [(size, "one-way") for size in (92, 1448, 65_000)]
    shapes += [(92, "turns"), (1448, "turns"), (92, "repeats"), (1448, "repeats")]
    shapes += [(92, "mixed"), (1448, "mixed")]
    tshark = shutil.which("tshark")
    with tempfile.TemporaryDirectory() as folder:
        for payload, kind in shapes:
            if options.only not in kind:
                continue
            path = Path(folder) / f"{payload}-{kind}.pcap"
            data = capture(payload, options.mebibytes << 20, kind)
            path.write_bytes(data)
            with open_capture(path) as reader:
                packets = sum(len(batch) for batch in reader)
            # A default binds the path of this turn; mypy cannot type such a lambda.
            cases: dict[str, Case] = {
                BASELINE: _dpkt(path),
                "records": _exhaust(lambda path=path: iter(open_capture(path))),  # type: ignore[misc]
                "records, headers": _exhaust(lambda path=path: _columns(path)),  # type: ignore[misc]
                "streams, join=turn": _streams(path, "turn"),
                "streams, join=batch": _streams(path, "batch"),
            }
            rows = measure(
                cases, baseline=BASELINE, work=len(data), rounds=options.rounds
            )
            if tshark:
                rows += measure(
                    {BASELINE: _dpkt(path), "tshark": _tshark(tshark, path)},
                    baseline=BASELINE,
                    work=len(data),
                    rounds=1,
                )[1:]
            report(
                f"{payload} B a packet, {kind}, {packets} packets",
                rows,
                baseline=BASELINE,
                unit="MB/s of capture",
                scale=1e6,
                as_json=options.json,
            )
            path.unlink()


if __name__ == "__main__":
    main()
