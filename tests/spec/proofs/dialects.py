"""Dialects: what a decoder makes of a fork's frames and files."""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import patch

from ds4proto.codec.token_hash import token_hash
from ds4proto.schema import ds4d_work, dsv4, frame, read, to_bytes
from ds4proto.schema.container import read_container
from tests.spec.proving import proof

RATIOS = (0, 0, 4, 128)
HOP = {"host": "10.0.0.1", "port": 7, "layer_start": 2, "layer_end": 3, "flags": 1}
BACK = {"kind": 1, "host_len": 0, "port": 0}


def work(hidden: bytes, bits: int = 32, flags: int = 0x13) -> set[str]:
    """Return the clauses that a WORK of the anyei fork breaks."""
    spec = frame("DS4D.WORK", dialect="anyei")
    values = {
        "model_id": 0,
        "session": 1,
        "request": 1,
        "prefix_hash": token_hash(()),
        "result_hash": token_hash((5,)),
        "pos0": 0,
        "layer_start": 2,
        "layer_end": 3,
        "flags": flags,
        "input_hc_bits": bits,
        "route_index": 0,
        "tokens": (5,),
        "hidden": hidden,
        "route": [HOP],
        "route_return": BACK,
    }
    data = to_bytes(spec, values, dialect="anyei")
    return {p.clause for p in read(spec, data, dialect="anyei").problems}


@proof(
    "DS4D-DIALECT-31",
    "any bytes taken for a slot descriptor",
    patch.object(ds4d_work, "_is_descriptor", lambda _v: True),
)
def a_slot_descriptor_has_8_bytes_at_32_bit() -> None:
    assert work(struct.pack(">2I", 1, 4096)) == set()
    assert "DS4D-DIALECT-31" in work(bytes(12))
    assert "DS4D-DIALECT-31" in work(bytes(8), bits=16)
    assert "DS4D-DIALECT-31" in work(bytes(8), flags=0x12)
    assert "DS4D-DIALECT-31" not in work(bytes(64), flags=3)


def shard(version: int, prefill_cap: int, indexer_words: int) -> bytes:
    """Return a shard of layers 2 and 3 with two indexer rows of some width."""
    words = [0x4C565344, version, 32, prefill_cap, 8, 4, 10, 9, 4, 2, 1, 2, 3, 4]
    rows = [2, 0, 2, 0]
    floats = 4 * 2 + 2 * 2 + 2 * 32 + 2 * indexer_words + 2 * 16  # layer 2
    floats += 4 * 2 + 2 * 256  # layer 3
    return struct.pack("<18I", *words, *rows) + bytes(4 * floats)


def clauses(data: bytes, dialect: str) -> list[Any]:
    found = read_container(data, ratios=RATIOS, dialect=dialect)
    return [problem.clause for problem in found.problems]


@proof(
    "DS4D-DIALECT-36",
    "the bit passed over",
    patch.object(dsv4, "PACKED_INDEX_BIT", 0),
)
def a_marked_file_of_the_fork_has_indexer_rows_of_68_bytes() -> None:
    packed = shard(2, 1 << 31 | 4, 17)
    assert clauses(packed, "xangel82") == []
    assert clauses(shard(2, 4, 1), "xangel82") == []
    assert clauses(shard(2, 1 << 31 | 4, 1), "xangel82") == ["FILE-DSVL-19"]
    found = read_container(packed, ratios=RATIOS, dialect="xangel82")
    (rows,) = (t for t in found.tensors if t.name == "indexer")
    assert (rows.rows, rows.nbytes) == (2, 2 * 68)
    assert clauses(shard(1, 1 << 31 | 4, 1), "upstream") == []
