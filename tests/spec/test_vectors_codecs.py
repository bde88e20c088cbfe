"""Codec vectors that show a clause, and the definition with that rule broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ds4proto.cli import _spec_coverage as coverage
from ds4proto.codec import get, layout, nv, row_scaled, vectors, verify
from ds4proto.codec.mx import Mx
from ds4proto.codec.nv import Nv
from ds4proto.codec.row_scaled import RowScaled

CHECKS = {
    "BlockEncode": verify._check_row_encode,
    "BlockDecode": verify._check_row_decode,
}


def messages(clause: str) -> Iterator[str]:
    """Yield what each vector says that stands for a clause; empty where it holds."""
    shown = [(name, flag) for c, name, flag in coverage._VECTORS if c == clause]
    for name, flag in shown:
        for group in vectors.load(name)["testGroups"]:
            check = CHECKS.get(group["type"])
            if check is None:
                continue
            codec = get(name, path="numpy", **group["variant"])
            for test in group["tests"]:
                if flag in test["flags"]:
                    yield check(codec, test)


def rewired(owner: Any, change: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Alter the bytes of encoded rows."""
    real = owner.encode_rows
    return patch.object(
        owner, "encode_rows", lambda self, bits: change(real(self, bits))
    )


def in_64_bit(self: Any, bits: Any) -> Any:
    """Encode with every step in 64 bits."""
    x = np.ascontiguousarray(bits).view(np.float32).astype(np.float64)
    scale = np.maximum(np.abs(x).max(axis=1, keepdims=True) / self.divisor, 2.0**-126)
    codes = np.clip(np.rint(x / scale), self.lowest, self.highest)
    elements = self.layout.pack(codes.astype(np.int8).view(np.uint8))
    scales = np.ascontiguousarray(scale.astype("<f4")).view(np.uint8)
    return np.concatenate([elements, scales], axis=1)


@contextmanager
def swapped_scales() -> Iterator[None]:
    real = Nv.row_scales

    def row_scales(self: Nv, largest: Any) -> Any:
        decode, encode = real(self, largest)
        return (encode, decode) if self.global_scale == "encode" else (decode, encode)

    with np.errstate(all="ignore"), patch.object(Nv, "row_scales", row_scales):
        yield


def big_endian(values: Any) -> Any:
    return np.ascontiguousarray(values, dtype=">f4").view(np.uint8)


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "CODEC-ROW-01": lambda: rewired(Mx, lambda rows: rows[::-1]),
    "CODEC-ROW-02": lambda: rewired(Nv, lambda rows: np.roll(rows, 4, axis=1)),
    "CODEC-ROW-03": lambda: patch.object(row_scaled, "bytes_of_f32", big_endian),
    "CODEC-ROW-05": lambda: patch.object(
        layout, "pack_halves", lambda codes, _: layout.pack_pairs(codes & np.uint8(15))
    ),
    "CODEC-ELEM-03": lambda: patch.object(RowScaled, "encode_rows", in_64_bit),
    "CODEC-ELEM-04": lambda: patch.object(nv, "NAN_BITS", np.uint32(0xFFC00000)),
    "CODEC-NVFP4-02": swapped_scales,
    "CODEC-NVFP4-06": lambda: patch.object(nv, "LARGEST_F32", np.float32(1)),
}


@pytest.mark.parametrize("clause", FAULTS)
def test_the_definition_without_the_rule_fails(clause: str) -> None:
    told = list(messages(clause))
    assert told
    assert not any(told)
    with FAULTS[clause]():
        assert any(messages(clause))
