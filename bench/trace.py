"""Decoding captures: ``python -m bench.trace [--json] [--big GIB]``.

Seeded captures (classic pcap, Ethernet, IPv4, TCP). Rates of bytes count the bytes of
the capture file, rates of rows the frames. Each case runs on one core, the rate is from
CPU time; the baseline is a plain read of the same file through the reassembly alone.
Where tshark is installed it reads the same file, with its start-up time taken off.

``--big GIB`` writes a capture of that size with 64 MiB frames, decodes it in a process
of its own and reports the speed and the greatest memory that it held.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from bench._timing import measure, report
from ds4proto.pcap import Endpoint, build_tcp
from ds4proto.pcap.format import (
    PCAP_HEADER,
    PCAP_MAGIC_US,
    PCAP_RECORD,
    PCAP_VERSION,
)
from ds4proto.pcap.headers import ACK, PSH
from ds4proto.schema import frame, to_bytes
from ds4proto.trace.column_table import ColumnTable
from ds4proto.trace.columns import frame_columns, frame_names
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.output import JsonLines
from ds4proto.trace.tcp import read_streams

SEED = 20260601
ENDS = (Endpoint("10.0.0.1", 40_000), Endpoint("10.0.0.2", 8_001))
SEQ_AT = 14 + 20 + 4
BASELINE = "reassembly alone"
HIDDEN = 16_384
MIB = 1 << 20
_TSHARK_PACKETS = 20_000
_RECORD = Struct("<" + PCAP_RECORD)
_SEQ = Struct(">I")
_ROUTE = [
    {"host": "10.0.0.2", "port": 8001, "layer_start": 3, "layer_end": 7, "flags": 1}
]


def work(number: int, tokens: int, hidden: bytes, bits: int) -> bytes:
    """Return a WORK of `tokens` tokens with the hidden state given."""
    values = {
        "model_id": 0, "session": 7, "request": number, "prefix_hash": 1,
        "result_hash": 2, "pos0": 0, "tokens": tuple(range(tokens)), "layer_start": 3,
        "layer_end": 7, "flags": 3, "hidden": hidden, "input_hc_bits": bits,
        "route": _ROUTE, "route_index": 0,
        "route_return": {"kind": 1, "host_len": 0, "port": 0, "host": ""},
    }  # fmt: skip
    return to_bytes(frame("DS4D.WORK", dialect="upstream"), values, dialect="upstream")


def big_frames(total: int, frame_bytes: int, seed: int = SEED) -> Iterator[bytes]:
    """Yield WORK frames of about `frame_bytes` until `total` bytes are out."""
    tokens = max(1, frame_bytes // (4 * HIDDEN))
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal(tokens * HIDDEN).astype("<f4").tobytes()
    number, out = 0, 0
    while out < total:
        number += 1
        made = work(number, tokens, hidden, 32)
        out += len(made)
        yield made


def control_frames(count: int) -> bytes:
    """Return a hello and EVAL commands, each its fixed part and nothing else."""
    hello = {
        "version": 10, "role": 1, "gguf_bytes": 1, "model_id": 0, "n_layer": 2,
        "n_embd": 16, "n_vocab": 32, "quant_bits": 2, "ctx_size": 256,
        "gate_slot_start": 0, "gate_slot_step": 1, "gates_per_token": 4,
    }  # fmt: skip
    first = to_bytes(frame("DS4T.HELLO", dialect="v10"), hello, dialect="v10")
    evaluate = {"session_id": 1, "seq": 1, "token": 3}
    one = to_bytes(frame("DS4T.EVAL", dialect="v10"), evaluate, dialect="v10")
    frames = np.tile(np.frombuffer(one, np.uint8), (count, 1))
    numbers = np.arange(1, count + 1, dtype="<u8").view(np.uint8)
    frames[:, 20:28] = numbers.reshape(count, 8)
    return first + frames.tobytes()


def result_frames(count: int) -> bytes:
    """Return acknowledging RESULT frames, without telemetry."""
    spec = frame("DS4D.RESULT", dialect="upstream")
    values = {
        "request": 0, "result_hash": 2, "status": 0, "result_kind": 0, "telemetry": [],
        "payload": b"", "payload_bits": 0,
    }  # fmt: skip
    one = to_bytes(spec, values, dialect="upstream")
    frames = np.tile(np.frombuffer(one, np.uint8), (count, 1))
    frames[:, 12:20] = np.arange(count, dtype=">u8").view(np.uint8).reshape(count, 8)
    return frames.tobytes()


def write_capture(path: Path, pieces: Iterator[bytes], segment: int) -> int:
    """Write a one-way conversation in segments of `segment` bytes; return its size."""
    rng = random.Random(SEED)
    seq = rng.getrandbits(32)
    head = build_tcp(*ENDS, seq=0, flags=ACK | PSH, payload=bytes(segment))[:-segment]
    with path.open("wb") as file:
        file.write(_header())
        rest, count = b"", 0
        for piece in pieces:
            data = rest + piece
            whole = len(data) // segment * segment
            block = np.frombuffer(data[:whole], np.uint8).reshape(-1, segment)
            file.write(_packets(block, head, seq, count))
            seq = (seq + whole) & 0xFFFF_FFFF
            count += len(block)
            rest = data[whole:]
        if rest:
            short = build_tcp(*ENDS, seq=seq, flags=ACK | PSH, payload=rest)
            file.write(_RECORD.pack(*_clock(count), len(short), len(short)) + short)
        return file.tell()


def _packets(block: Any, head: bytes, seq: int, first: int) -> bytes:
    """Return pcap records for rows of payload, made as one array."""
    rows, segment = block.shape
    length = len(head) + segment
    out = np.empty((rows, _RECORD.size + length), np.uint8)
    number = np.arange(first, first + rows, dtype=np.int64)
    words = np.empty((rows, 4), "<u4")
    words[:, 0], words[:, 1] = number // 100_000, number % 100_000 * 10
    words[:, 2:] = length
    out[:, :16] = words.view(np.uint8)
    out[:, 16 : 16 + len(head)] = np.frombuffer(head, np.uint8)
    numbers = (seq + segment * np.arange(rows, dtype=np.int64)).astype(">u4")
    at = _RECORD.size + SEQ_AT
    out[:, at : at + 4] = numbers.reshape(rows, 1).view(np.uint8)
    out[:, 16 + len(head) :] = block
    return out.tobytes()


def _clock(number: int) -> tuple[int, int]:
    return number // 100_000, number % 100_000 * 10


def _header() -> bytes:
    numbers = (PCAP_MAGIC_US, *PCAP_VERSION, 0, 0, 262_144, 1)
    return Struct("<" + PCAP_HEADER).pack(*numbers)


class _Nowhere(io.RawIOBase):
    """A stream that forgets."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


def _exhaust(make: Callable[[], Iterator[Any]]) -> Callable[[], None]:
    def run() -> None:
        for _ in make():
            pass

    return run


def _rows(path: Path, payload: Any) -> Callable[[], None]:
    return _exhaust(lambda: iter(CaptureDecoder(path, payload=payload)))


def _json(path: Path) -> Callable[[], None]:
    def run() -> None:
        out = JsonLines(io.BufferedWriter(_Nowhere()))
        for row in CaptureDecoder(path):
            out.write(row)
        out.finish()

    return run


def _parquet(path: Path) -> Callable[[], None]:
    def run() -> None:
        table = ColumnTable(io.BytesIO(), frame_names(path))
        for part in frame_columns(path):
            table.write(part)
        table.finish()

    return run


def _tshark(path: Path, empty: Path, packets: int) -> float | None:
    """Return CPU seconds that tshark takes for a packet, without its start."""
    program = shutil.which("tshark")
    if program is None:
        return None
    seconds = []
    for one in (empty, path):
        command = [program, "-n", "-r", str(one), "-c", str(packets)]
        command += ["-T", "fields", "-e", "tcp.seq"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, check=True, timeout=600, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(
            after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        )
    return max(seconds[1] - seconds[0], 1e-6) / packets


def bytes_cases(folder: Path, size: int, rounds: int, as_json: bool) -> None:
    """Measure the decoding of large frames in large and in small segments."""
    empty = folder / "empty.pcap"
    empty.write_bytes(_header())
    for segment in (1448, 92):
        path = folder / f"big-{segment}.pcap"
        stored = write_capture(path, big_frames(size, 4 * MIB), segment)
        rows = measure(
            {
                # A default binds the path of this turn; mypy cannot type such a lambda.
                BASELINE: _exhaust(lambda path=path: read_streams(path)),  # type: ignore[misc]
                "decode, payload summary": _rows(path, "summary"),
                "decode, payload none": _rows(path, "none"),
            },
            baseline=BASELINE, work=stored, rounds=rounds,
        )  # fmt: skip
        title = f"captures of {segment}-byte segments, 4 MiB frames"
        report(title, rows, baseline=BASELINE, unit="MB/s", scale=1e6, as_json=as_json)
        taken = min(_TSHARK_PACKETS, stored // (segment + 82))
        seconds = _tshark(path, empty, taken)
        if seconds is not None:
            ratio = seconds * stored / (segment + 70) / rows[1].cpu_seconds
            _say(as_json, {"tshark_us_a_packet": seconds * 1e6, "times_as_fast": ratio},
                 f"tshark -T fields on the same file: {seconds * 1e6:.1f} us a packet, "
                 f"decode is {ratio:.0f} times as fast")  # fmt: skip
        path.unlink()


def row_cases(folder: Path, count: int, rounds: int, as_json: bool) -> None:
    """Measure rows a second on frames that are little more than a header."""
    path = folder / "small.pcap"
    for title, data in (
        ("control frames of 36 bytes", control_frames(count)),
        ("RESULT frames of 52 bytes, each breaking a rule", result_frames(count)),
    ):
        write_capture(path, iter([data]), 1448)
        rows = measure(
            {
                BASELINE: _exhaust(lambda: read_streams(path)),
                "rows": _rows(path, "summary"),
                "JSON lines": _json(path),
                "Parquet, columns": _parquet(path),
            },
            baseline=BASELINE, work=count, rounds=rounds,
        )  # fmt: skip
        report(title, rows, baseline=BASELINE, unit="k rows/s", scale=1e3,
               as_json=as_json)  # fmt: skip


def _say(as_json: bool, record: dict[str, Any], text: str) -> None:
    print(json.dumps(record) if as_json else text)


# Linux keeps ru_maxrss of the parent across fork and exec, so ask for the peak of the
# process image itself where the kernel tells it.
_CHILD = """
import re, resource, sys, time
from pathlib import Path
from ds4proto.trace import decode
start = time.process_time()
count = sum(1 for _ in decode(sys.argv[1]))
seconds = time.process_time() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak *= 1 if sys.platform == "darwin" else 1024
status = Path("/proc/self/status")
if status.exists():
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) * 1024
print(count, seconds, peak)
"""


def big_case(folder: Path, gib: float, as_json: bool) -> None:
    """Decode a capture of 64 MiB frames in a process of its own; report its memory."""
    path = folder / "huge.pcap"
    size = int(gib * (1 << 30))
    stored = write_capture(path, big_frames(size, 64 * MIB), 1448)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], check=True, capture_output=True,
        text=True, timeout=3600, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wall = time.perf_counter() - start
    frames, seconds, peak = done.stdout.split()
    record = {
        "capture_bytes": stored, "frames": int(frames), "cpu_seconds": float(seconds),
        "wall_seconds": wall, "mb_per_s": stored / float(seconds) / 1e6,
        "peak_rss_mib": int(peak) / MIB,
    }  # fmt: skip
    _say(as_json, record, f"{stored / MIB:.0f} MiB with {frames} frames of 64 MiB: "
         f"{record['mb_per_s']:.0f} MB/s, greatest memory "
         f"{record['peak_rss_mib']:.0f} MiB")  # fmt: skip
    path.unlink()


def main() -> None:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=64, help="size of each capture")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--big", type=float, default=0.25, metavar="GIB")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bytes_cases(folder, given.mib * MIB, given.rounds, given.json)
        row_cases(folder, given.rows, given.rounds, given.json)
        if given.big > 0:
            big_case(folder, given.big, given.json)


if __name__ == "__main__":
    main()
