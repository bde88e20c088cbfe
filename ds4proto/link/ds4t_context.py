"""What the control connection of a TP pair shows of the rules between frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ds4proto.link.events import FrameReceived
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.problem import Problem

COMMANDS = frozenset(
    {
        "SYNC",
        "EVAL",
        "REWIND",
        "INVALIDATE",
        "STOP",
        "VERIFY",
        "VERIFY_COMMIT",
        "SESSION_CREATE",
        "SESSION_DESTROY",
        "EVAL_BATCH",
        "MIXED_BATCH",
        "SYNC_MULTIMODAL",
        "GLM_MTP",
        "RESTORE_PAYLOAD",
    }
)
_ACKED = {
    "SYNC": "session_id",
    "SYNC_MULTIMODAL": "session_id",
    "SESSION_CREATE": "session_id",
    "SESSION_DESTROY": "session_id",
    "MIXED_BATCH": "prefill_session_id",
    "EVAL_BATCH": None,
    "GLM_MTP": "session_id",
    "RESTORE_PAYLOAD": "session_id",
}
_COMPARED = ("gguf_bytes", "model_id", "n_layer", "n_embd", "n_vocab", "quant_bits")
_SCHEDULE = (
    "gate_slot_start",
    "gate_slot_step",
    "gates_per_token",
    "gate_slot_mask0",
    "gate_slot_mask1",
    "gate_slot_mask2",
)
_POINTS = ("seq", "point", "current", "total")
HALF_LOGIT_BYTES = 2
"""Bytes of LOGITS for each vocabulary entry: half the values, four bytes each."""
MAX_WAITING = 4096


def placed(
    frame: FrameReceived,
    clause: str,
    path: str,
    expected: object,
    found: object,
    next_step: str = "",
) -> Problem:
    """Return a problem of one fixed field of ``frame``."""
    spec = frame.spec
    at = offsets_of(spec.body, frame.dialect.rstrip("?")).get(path)
    at = None if at is None else at + spec.header_size
    where = None if at is None else frame.stream_offset + at
    return Problem(
        clause, f"{spec.name}.{path}", at, where, str(expected), str(found), next_step
    )


@dataclass(slots=True)
class Context:
    """State of the control connection; one object serves both directions."""

    hello: Mapping[str, Any] | None = None
    hello_dialect: str | None = None
    evals: int = 0
    acks: deque[tuple[str, int]] = field(default_factory=deque)
    points: dict[str, deque[Mapping[str, Any]]] = field(
        default_factory=lambda: {"a": deque(), "b": deque()}
    )

    blind: bool = False

    def forget(self) -> None:
        """Bytes were lost: what was outstanding is not known any more.

        From here on an ack without its command is no problem: it names a session
        alone, and what fits may answer another command of the same session.
        """
        self.blind = True
        self.acks.clear()
        self.evals = 0
        for waiting in self.points.values():
            waiting.clear()

    def greeting(self, frame: FrameReceived) -> Iterator[Problem]:
        """Take a hello; judge the second one against the first."""
        v = frame.fields
        first, self.hello = self.hello, v
        if first is None:
            self.hello_dialect = frame.dialect
            return
        if v["version"] != first["version"]:
            yield placed(
                frame,
                "DS4T-HELLO-03",
                "version",
                first["version"],
                v["version"],
                "both ranks have to be built from the same protocol version",
            )
            return
        if v["role"] == first["role"]:
            yield placed(frame, "DS4T-HELLO-04", "role", "the other role", v["role"])
        if v.get("runtime_features") != first.get("runtime_features"):
            yield placed(
                frame,
                "DS4T-HELLO-30",
                "runtime_features",
                f"{first.get('runtime_features', 0):#x}",
                f"{v.get('runtime_features', 0):#x}",
            )
        for path in _COMPARED + _SCHEDULE:
            if path in v and v[path] != first.get(path):
                yield placed(
                    frame,
                    "DS4T-HELLO-05",
                    path,
                    first.get(path),
                    v[path],
                    "both ranks have to load the same model file",
                )

    def judge(
        self, frame: FrameReceived, end: str, *, leads: bool
    ) -> Iterator[Problem]:
        """Take one control frame; yield the rules between frames that it breaks."""
        name, v = frame.spec.name, frame.fields
        if any(p.fatal for p in frame.problems):
            if name in _ACKED and leads:
                self.acks.clear()
            return
        if leads and name in COMMANDS:
            yield from self._command(frame, name, v)
        elif name == "COMMAND_ACK":
            yield from self._ack(frame, v)
        elif name == "LOGITS" and not leads:
            yield from self._logits(frame)
        elif name == "SYNC_CHECKPOINT":
            yield from self._checkpoint(frame, v, end)

    def _command(
        self, frame: FrameReceived, name: str, v: Mapping[str, Any]
    ) -> Iterator[Problem]:
        if name in ("EVAL", "GLM_MTP"):
            due = self.evals + 1
            if self.evals and v["seq"] != due:
                yield placed(
                    frame,
                    "DS4T-EVAL-02",
                    "seq",
                    f"{due}, one more",
                    v["seq"],
                    "one counter runs over all sessions of the connection",
                )
            self.evals = v["seq"]
        if name in _ACKED:
            path = _ACKED[name]
            if len(self.acks) >= MAX_WAITING:
                self.acks.popleft()
            self.acks.append((name, 0 if path is None else v.get(path, 0)))

    def _ack(self, frame: FrameReceived, v: Mapping[str, Any]) -> Iterator[Problem]:
        if self.blind:
            while self.acks and self.acks[0][1] != v["session_id"]:
                self.acks.popleft()
            if self.acks:
                self.acks.popleft()
            return
        if not self.acks:
            yield placed(
                frame,
                "DS4T-ACK-02",
                "session_id",
                "no ack: no command waits for one",
                v["session_id"],
            )
            return
        name, session = self.acks.popleft()
        if v["session_id"] != session:
            yield placed(
                frame,
                "DS4T-ACK-10",
                "session_id",
                f"{session}, as in {name}",
                v["session_id"],
            )

    def _logits(self, frame: FrameReceived) -> Iterator[Problem]:
        if self.hello is None or "n_vocab" not in self.hello:
            return
        due = HALF_LOGIT_BYTES * self.hello["n_vocab"]
        found = frame.length - frame.spec.header_size
        if found != due:
            at = frame.stream_offset + frame.spec.header_size
            yield Problem(
                "DS4T-LOGITS-01",
                "LOGITS.logits",
                frame.spec.header_size,
                at,
                f"{due} bytes, half of {self.hello['n_vocab']} values",
                f"{found}",
            )

    def _checkpoint(
        self, frame: FrameReceived, v: Mapping[str, Any], end: str
    ) -> Iterator[Problem]:
        theirs = self.points["b" if end == "a" else "a"]
        if not theirs:
            mine = self.points[end]
            if len(mine) >= MAX_WAITING:
                mine.popleft()
            mine.append(v)
            return
        first = theirs.popleft()
        clauses = ("DS4T-CKPT-02", "DS4T-CKPT-03", "DS4T-CKPT-04", "DS4T-CKPT-04")
        for clause, path in zip(clauses, _POINTS, strict=True):
            if v[path] != first[path]:
                yield placed(
                    frame,
                    clause,
                    path,
                    f"{first[path]}, as the other rank",
                    v[path],
                )
