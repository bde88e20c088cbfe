"""Codes that builds of ds4 gave, as further rows of the vector files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from ds4proto.codec.vectors.rows import Row

RANDOM_ROWS: Final = 600
"""How many of the random measured inputs each vector file takes, evenly spaced."""


def e4m3_measured(directory: Path) -> list[Row]:
    """Read all boundary rows and a sample of the random ones."""
    content = json.loads((directory / "e4m3_encode_boundary.json").read_text("utf-8"))
    rows = [
        Row(int(bits, 16), str(note), ["Measured"], int(byte, 16))
        for note, bits, byte in content["rows"]
    ]
    with np.load(directory / "e4m3_encode.npz") as data:
        return rows + _sample(data["random_f32_bits"], data["random_byte"])


def f16_measured(directory: Path) -> list[Row]:
    """Read the special rows and a sample of the ties, their neighbours and the rest."""
    with np.load(directory / "f16_encode.npz") as data:
        bits, codes = data["f32_bits"], data["f16"]
        first = int(data["group_start"][1])
    special = [_row(b, c) for b, c in zip(bits[:first], codes[:first], strict=True)]
    return special + _sample(bits[first:], codes[first:])


def bf16_rule_rows(directory: Path) -> list[Row]:
    """Read a sample of the rows computed from the side branch's integer rule."""
    with np.load(directory / "bf16_encode.npz") as data:
        rows = _sample(data["f32_bits"], data["bf16"])
    for row in rows:
        row.flags = ["Random"]
    return rows


def hash_measured(directory: Path) -> list[tuple[int, list[int], int]]:
    """Read (start, tokens, hash) of every measured case and chain link."""
    content = json.loads((directory / "token_hash.json").read_text("utf-8"))
    start = int(content["init"], 16)
    rows = [(start, case["tokens"], int(case["hash"], 16)) for case in content["cases"]]
    return rows + [
        (int(link["prefix_hash"], 16), link["tokens"], int(link["result_hash"], 16))
        for link in content["chain"]
    ]


def _sample(bits: Any, codes: Any) -> list[Row]:
    chosen = np.linspace(0, bits.size - 1, min(RANDOM_ROWS, bits.size)).astype(int)
    return [_row(bits[i], codes[i]) for i in chosen]


def _row(bits: Any, code: Any) -> Row:
    return Row(int(bits), "", ["Measured"], int(code))
