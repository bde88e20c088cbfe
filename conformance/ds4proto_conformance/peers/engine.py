"""The engine of the small peers: history matters, every byte is determined."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec.widths import activation_codec
from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.link.ds4d_worker_events import EvaluateWork

__all__ = ["MODEL", "Engine", "worker_facts"]

F32 = NDArray[np.float32]
MODEL: Final = ModelFacts(0, "Toy V4", 8, 64, 256, 256)
PREFILL_CAP: Final = 16


def worker_facts(position: str = "last", model: ModelFacts = MODEL) -> WorkerFacts:
    """Return the facts of a worker at a place of the line."""
    start, end = {"first": (0, 1), "middle": (2, 4), "last": (5, 7)}[position]
    last = end == model.n_layers - 1
    return WorkerFacts(model, start, end, last, prefill_cap=PREFILL_CAP)


def pack(values: F32, bits: int) -> bytes:
    """Return f32 values at a wire width."""
    codec = activation_codec(bits, path="numpy")
    return bytes(codec.encode(np.ascontiguousarray(values, np.float32)))


def unpack(data: Any, bits: int) -> F32:
    """Return wire bytes as f32 values."""
    raw = np.frombuffer(data, np.uint8)
    codec = activation_codec(bits, path="numpy")
    size = len(raw) * 8 // bits
    found: F32 = codec.decode(raw, values=size)
    return found


class Engine:
    """A slice of a model that remembers the tokens of its sessions."""

    def __init__(self, model: ModelFacts = MODEL, layers: tuple[int, int] = (5, 7)):
        self.model = model
        self.layers = layers
        self.sessions: dict[int, list[int]] = {}

    def reset(self, session: int) -> None:
        """Empty a session."""
        self.sessions[session] = []

    def drop(self, sessions: tuple[int, ...]) -> None:
        """Forget sessions."""
        for session in sessions:
            self.sessions.pop(session, None)

    def embed(self, tokens: tuple[int, ...]) -> F32:
        """Return the rows of some tokens."""
        ids = np.asarray(tokens, np.int64)[:, None]
        column = np.arange(self.model.hidden_values)[None, :]
        rows: F32 = ((ids * 31 + column * 7) % 97 / 97 - 0.5).astype(np.float32)
        return rows

    def rows(self, session: int, tokens: tuple[int, ...], hidden: F32) -> F32:
        """Return the rows that leave the slice, and remember the tokens."""
        past = self.sessions.setdefault(session, [])
        out = np.empty_like(hidden)
        for index, token in enumerate(tokens):
            past.append(token)
            # Steps of 1/128: many values lie half way between two 8-bit codes.
            seen = zlib.crc32(repr(past).encode()) % 128
            out[index] = hidden[index] * np.float32(0.75) + np.float32(seen / 128)
        return out

    def head(self, row: F32) -> F32:
        """Return the logits of one row."""
        ids = np.arange(self.model.vocab)[:, None]
        column = np.arange(self.model.hidden_values)[None, :]
        weights = ((ids * 13 + column * 5) % 17 - 8).astype(np.float32)
        logits: F32 = (weights @ row).astype(np.float32)
        return logits

    def evaluate(self, job: EvaluateWork) -> bytes:
        """Return the payload that a WORK asks for."""
        width = self.model.hidden_values
        if job.hidden is None:
            hidden = self.embed(job.tokens)
        else:
            hidden = unpack(job.hidden, job.bits).reshape(-1, width)
        rows = self.rows(job.session, job.tokens, hidden)
        if job.want == "ack":
            return b""
        if job.want == "logits":
            return self.head(rows[-1]).astype("<f4").tobytes()
        return pack(rows, job.bits)

    def save(self, session: int) -> bytes:
        """Return a shard."""
        text = json.dumps({"layers": self.layers, "tokens": self.sessions[session]})
        return b"SHRD" + text.encode() + bytes(3000)

    def restore(self, session: int, shard: bytes, tokens: tuple[int, ...]) -> str:
        """Take a shard; return what is wrong with it, if anything."""
        if not shard.startswith(b"SHRD"):
            return "failed to restore worker KV shard"
        try:
            said = json.loads(shard[4:].rstrip(b"\0"))
        except (ValueError, RecursionError):  # bytes of somebody else, or damaged ones
            said = None
        if said != {"layers": list(self.layers), "tokens": list(tokens)}:
            return "failed to restore worker KV shard"
        self.sessions[session] = list(tokens)
        return ""
