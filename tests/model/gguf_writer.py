"""A tiny GGUF writer for tests, independent of the reader: plain struct packing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CODES = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "B"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}


@dataclass
class Arr:
    item: str
    values: Sequence[Any]


class Writer:
    """Collects entries and tensors; `bytes()` lays them out."""

    def __init__(self, *, version: int = 3, order: str = "<") -> None:
        self.version = version
        self.order = order
        self.kv: list[bytes] = []
        self.tensors: list[tuple[str, tuple[int, ...], int, int]] = []
        self.data = 0

    def pack(self, code: str, *values: Any) -> bytes:
        return struct.pack(self.order + code, *values)

    def text(self, value: str | bytes) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return self.pack("Q", len(raw)) + raw

    def value(self, kind: str, value: Any) -> bytes:
        if kind == "string":
            return self.text(value)
        if kind == "array":
            return self.array(value)
        return self.pack(CODES[kind][1], value)

    def number(self, kind: str) -> int:
        return {"string": 8, "array": 9}.get(kind) or CODES[kind][0]

    def array(self, arr: Arr) -> bytes:
        head = self.pack("IQ", self.number(arr.item), len(arr.values))
        return head + b"".join(self.value(arr.item, v) for v in arr.values)

    def add(self, key: str, kind: str, value: Any) -> Writer:
        raw = self.text(key) + self.pack("I", self.number(kind))
        self.kv.append(raw + self.value(kind, value))
        return self

    def raw_kv(self, raw: bytes) -> Writer:
        self.kv.append(raw)
        return self

    def tensor(
        self, name: str, dims: Sequence[int], kind: int, nbytes: int, align: int = 32
    ) -> Writer:
        self.tensors.append((name, tuple(dims), kind, self.data))
        self.data = -(-(self.data + nbytes) // align) * align
        return self

    def header(self) -> bytes:
        out = b"GGUF" + self.pack("I", self.version)
        out += self.pack("QQ", len(self.tensors), len(self.kv)) + b"".join(self.kv)
        for name, dims, kind, offset in self.tensors:
            out += self.text(name) + self.pack("I", len(dims))
            out += b"".join(self.pack("Q", d) for d in dims)
            out += self.pack("IQ", kind, offset)
        return out

    def bytes(self, align: int = 32) -> bytes:
        head = self.header()
        pad = -len(head) % align
        return head + bytes(pad + self.data)


def model(
    arch: str,
    *,
    blocks: int,
    width: int,
    vocabulary: int,
    gate_type: int = 12,
    first_routed: int = 0,
    layers: range | None = None,
    extra: dict[str, int] | None = None,
) -> Writer:
    """A header with the shape of a real model; tensors are named, data is not there."""
    w = Writer()
    w.add("general.architecture", "string", arch)
    w.add(f"{arch}.block_count", "u32", blocks)
    w.add(f"{arch}.embedding_length", "u32", width)
    w.add(f"{arch}.vocab_size", "u32", vocabulary)
    for key, value in (extra or {}).items():
        w.add(f"{arch}.{key}", "u32", value)
    for n in layers if layers is not None else range(blocks):
        w.tensor(f"blk.{n}.attn_norm.weight", (width,), 0, width * 4)
        if n >= first_routed:
            w.tensor(f"blk.{n}.ffn_gate_exps.weight", (256, 2), gate_type, 32)
    return w
