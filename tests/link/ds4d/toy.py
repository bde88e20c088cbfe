"""A small engine with the arithmetic of the recorded sessions, in float32.

8 layers, 64 hidden values, vocabulary 256; every operation rounds once, so that
payloads equal the recorded ones bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds4proto.codec.widths import activation_codec
from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts

F = np.float32
HIDDEN, VOCAB, N_LAYERS, CTX, PREFILL_CAP = 64, 256, 8, 256, 16
HEAD, INDEX, WINDOW, RAW_CAP = 16, 8, 8, 16
MODEL = ModelFacts(0, "Toy V4", N_LAYERS, HIDDEN, VOCAB, CTX)

_SIGN = np.where(np.arange(HIDDEN) % 2, F(1), F(-1)).astype(F)
_HEAD = ((np.arange(VOCAB)[:, None] * 13 + np.arange(HIDDEN) * 5) % 17 - 8).astype(F)


def facts(start: int, end: int, *, head: bool) -> WorkerFacts:
    return WorkerFacts(MODEL, start, end, head, prefill_cap=PREFILL_CAP)


def ratio(layer: int) -> int:
    return 0 if layer < 2 else 4 if layer % 2 == 0 else 128


def embed(token: int) -> Any:
    steps = (token * 31 + np.arange(HIDDEN) * 7) % 97
    return steps.astype(F) / F(97) - F(0.5)


def logits(h: Any) -> Any:
    out = np.zeros(VOCAB, F)
    for j in range(HIDDEN):
        out = out + (h[j] * _HEAD[:, j]) / F(8)
    return out


@dataclass
class Layer:
    raw: list[Any] = field(default_factory=list)
    comp: list[Any] = field(default_factory=list)
    index: list[Any] = field(default_factory=list)


class Slice:
    """KV of one slice of one session."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.reset()

    def reset(self) -> None:
        self.count = 0
        self.layers = {n: Layer() for n in range(self.start, self.end + 1)}

    def run(self, tokens: tuple[int, ...], hidden: Any | None) -> Any:
        rows = []
        for i, token in enumerate(tokens):
            h = embed(token) if hidden is None else hidden[i]
            for number in self.layers:
                h = self._layer(number, h)
            self.count += 1
            rows.append(h)
        return np.array(rows, F)

    def _layer(self, number: int, h: Any) -> Any:
        layer, p, r = self.layers[number], self.count, ratio(number)
        row = h[:HEAD] * F(0.5) + h[::-1][:HEAD] * F(0.25)
        layer.raw.append(row)
        acc = F(0)
        for q in range(max(0, p + 1 - WINDOW), p + 1):
            acc = F(acc + layer.raw[q][q % HEAD])
        if r:
            for k, c in enumerate(layer.comp):
                acc = F(acc + F(c[k % HEAD] * F(0.125)))
            if (p + 1) % r == 0:
                layer.comp.append(row.copy())
                if r == 4:
                    layer.index.append(row[:INDEX] * F(0.5))
        bump = F(F((number + 1) * ((p % 7) + 1)) / F(64))
        return h * F(0.75) + F(acc * F(0.03125)) + bump * _SIGN

    def shard(self) -> bytes:
        live = min(self.count, WINDOW)
        words = [0x4C565344, 1, CTX, PREFILL_CAP, RAW_CAP, WINDOW, CTX // 4 + 2]
        words += [self.count, N_LAYERS, HEAD, INDEX, self.start, self.end, live]
        words += [len(layer.comp) for layer in self.layers.values()]
        words += [len(layer.index) for layer in self.layers.values()]
        data = np.array(words, "<u4").tobytes()
        for number, layer in self.layers.items():
            r, live_rows = ratio(number), layer.raw[len(layer.raw) - live :]
            data += b"".join(x.tobytes() for x in live_rows)
            if r:
                width = 2 if r == 4 else 1
                data += b"".join(x.tobytes() for x in layer.comp)
                data += bytes(8 * width * width * HEAD * r)
            if r == 4:
                data += b"".join(x.tobytes() for x in layer.index)
                data += bytes(8 * width * width * INDEX * r)
        return data

    def load(self, shard: bytes, count: int) -> str | None:
        """Restore a shard of this slice; return the engine's refusal, if any."""
        if len(shard) < 56:
            return "truncated session payload"
        words = np.frombuffer(shard, "<u4", 14)
        if tuple(words[:2]) != (0x4C565344, 1):
            return "unsupported session layer payload version"
        self.reset()
        n = self.end - self.start + 1
        comp = np.frombuffer(shard, "<u4", n, 56)
        index = np.frombuffer(shard, "<u4", n, 56 + 4 * n)
        at, live = 56 + 8 * n, int(words[13])

        def rows(many: int, width: int) -> list[Any]:
            nonlocal at
            data = np.frombuffer(shard, F, many * width, at).reshape(many, width)
            at += 4 * many * width
            return list(data)

        for i, (number, layer) in enumerate(self.layers.items()):
            r = ratio(number)
            layer.raw = [np.zeros(HEAD, F)] * (count - live) + rows(live, HEAD)
            if r:
                width = 2 if r == 4 else 1
                layer.comp = rows(int(comp[i]), HEAD)
                at += 8 * width * width * HEAD * r
            if r == 4:
                layer.index = rows(int(index[i]), INDEX)
                at += 8 * width * width * INDEX * r
        self.count = count
        return None


def unpack(wire: memoryview | bytes, bits: int, n_tokens: int) -> Any:
    codec = activation_codec(bits)
    flat = codec.decode(
        np.frombuffer(wire, np.uint8), values=n_tokens * HIDDEN, rows=n_tokens
    )
    return np.asarray(flat, F).reshape(n_tokens, HIDDEN)


def pack(rows: Any, bits: int) -> bytes:
    codec = activation_codec(bits)
    flat = np.ascontiguousarray(rows, F).reshape(-1)
    return bytes(np.asarray(codec.encode(flat, rows=len(rows))).tobytes())
