"""A codec command: vectors in on its stdin, answers out on its stdout.

Every message is a big-endian u32 length and that many bytes. A request is: one byte
operation (0 describe, 1 encode, 2 decode), the codec's name as 15 bytes padded with
NUL, u32 count of f32 values, u32 rows, and the data: count f32 little-endian for
encode, wire bytes for decode. An answer is: one byte status (0 done, 1 not supported,
2 refused) and the data, or a text.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ds4proto.peer import SYSTEM_CLOCK
from ds4proto_conformance.bench.base import Bench
from ds4proto_conformance.transcript import Line
from ds4proto_conformance.verdicts import Deviation, Unsupported

__all__ = ["DECODE", "DESCRIBE", "ENCODE", "CodecBench"]

DESCRIBE: Final = 0
ENCODE: Final = 1
DECODE: Final = 2
_HEAD: Final = struct.Struct(">IB15sII")
MAX_ANSWER: Final = 64 << 20


class CodecBench(Bench):
    """A codec build under test."""

    profile = "strict"
    _line: Line | None = None

    def learn(self) -> None:
        """Ask for the name of the build, and learn its numeric profile."""
        self.begin(self.settings.seed)
        status, data = self.ask(DESCRIBE, "", 0, 1, b"")
        self._about = data.decode("utf-8", "replace") if status == 0 else ""

    def describe(self) -> dict[str, Any]:
        """Return the build's own words."""
        return {"build": self._about, "numeric_profile": self.profile}

    def begin(self, seed: int) -> None:
        """Get ready for a case."""
        super().begin(seed)
        self._line = self.transcript.line("stdio", "codec", dialled_by_us=True)

    def ask(
        self, operation: int, name: str, count: int, rows: int, data: bytes
    ) -> tuple[int, bytes]:
        """Send one request; return status and data of its answer.

        Raises
        ------
        PeerLost
            The command ended or did not answer in time.
        """
        what = ("a description", "encode", "decode")[operation]
        self.budget.wait(f"the answer to {what} {name}".rstrip())
        channel = self.connections.channel("control", deadline=self._soon())
        head = _HEAD.pack(24 + len(data), operation, name.encode(), count, rows)
        deadline = SYSTEM_CLOCK.now() + self.patience
        if self._line is not None:
            self._line.note(False, SYSTEM_CLOCK.now(), head + data)
        channel.phase = f"asked for {what}"
        channel.send([head, data], deadline=deadline)
        prefix = bytearray(4)
        channel.recv_exact(prefix, deadline=deadline)
        size = int.from_bytes(prefix, "big")
        if not 1 <= size <= MAX_ANSWER:
            raise Deviation(
                "CODEC-E4M3-12",
                f"an answer of 1 to {MAX_ANSWER} bytes",
                f"a length of {size}",
            )
        answer = bytearray(size)
        channel.recv_exact(answer, deadline=deadline)
        if self._line is not None:
            self._line.note(True, SYSTEM_CLOCK.now(), bytes(prefix + answer))
        return answer[0], bytes(answer[1:])

    def _run(
        self, operation: int, name: str, count: int, rows: int, data: bytes
    ) -> bytes:
        status, found = self.ask(operation, name, count, rows, data)
        if status == 1:
            raise Unsupported(
                f"{name}: {found.decode('utf-8', 'replace') or 'not here'}"
            )
        if status:
            text = found.decode("utf-8", "replace")
            raise Deviation("CODEC-E4M3-12", "an answer", f"status {status} {text!r}")
        return found

    def encode(self, name: str, values: Any, rows: int = 1) -> bytes:
        """Return the wire bytes of f32 values."""
        return self._run(
            ENCODE, name, values.size, rows, values.astype("<f4").tobytes()
        )

    def decode(self, name: str, wire: bytes, count: int, rows: int = 1) -> Any:
        """Return the values of wire bytes as f32."""
        import numpy as np

        raw = self._run(DECODE, name, count, rows, wire)
        if len(raw) != 4 * count:
            raise Deviation("CODEC-E4M3-12", f"{count} values", f"{len(raw)} bytes")
        return np.frombuffer(raw, "<f4")

    def same(self, clause: str, what: str, due: bytes, found: bytes) -> None:
        """Compare bytes, and name the first that differs."""
        if due == found:
            return
        if len(due) != len(found):
            raise Deviation(
                clause, f"{len(due)} bytes of {what}", f"{len(found)} bytes"
            )
        at = next(i for i, (a, b) in enumerate(zip(due, found, strict=True)) if a != b)
        number = sum(a != b for a, b in zip(due, found, strict=True))
        raise Deviation(
            clause,
            f"{what}: byte {at} is {due[at]:#04x}",
            f"{found[at]:#04x}; {number} of {len(due)} bytes differ",
        )
