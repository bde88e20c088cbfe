"""Codec vectors that show a clause, and the definition with that rule broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ds4proto.cli import _spec_coverage as coverage
from ds4proto.codec import arrays, get, layout, mx, nv, row_scaled, vectors, verify
from ds4proto.codec.layout import RowLayout
from ds4proto.codec.mx import Mx
from ds4proto.codec.nv import Nv
from ds4proto.codec.row_scaled import RowScaled

Fault = Callable[[], AbstractContextManager[Any]]
CHECKS = {
    "BlockEncode": verify._check_row_encode,
    "BlockDecode": verify._check_row_decode,
    "RowSize": verify._check_row_size,
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
                    try:
                        yield check(codec, test)
                    except ValueError as error:
                        yield str(error)


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


def set_to(holder: Any, name: str, value: Any) -> Fault:
    return lambda: patch.object(holder, name, value)


def around(holder: Any, name: str, make: Callable[[Any], Any]) -> Fault:
    """Replace a function by one that is made of it."""
    return lambda: patch.object(holder, name, make(getattr(holder, name)))


def as_if(owner: Any, name: str, **other: dict[Any, Any]) -> Fault:
    """Let a method act as if the format had other choices, old to new by name."""

    def make(real: Any) -> Any:
        def method(self: Any, *words: Any) -> Any:
            found = {key: ways.get(getattr(self, key)) for key, ways in other.items()}
            changed = {key: way for key, way in found.items() if way is not None}
            return real(replace(self, **changed), *words)

        return method

    return around(owner, name, make)


def with_blocks_of(owner: Any, size: int) -> Fault:
    real = owner.layout.fget
    wrong = property(lambda self: replace(real(self), block=size))
    return lambda: patch.object(owner, "layout", wrong)


def half_up(y: Any, lowest: int, highest: int) -> Any:
    rounded = np.clip(np.floor(y + np.float32(0.5)), lowest, highest)
    return rounded.astype(np.int8).view(np.uint8)


def unchecked(_codec: str, wire: Any, size: int) -> Any:
    """Take a payload of any length."""
    return np.frombuffer(bytes(wire)[:size].ljust(size, b"\0"), np.uint8)


TINY = np.float32(2.0**-120)
OTHER_NAN = np.uint32(0x7FC00001)
TIES_UP = around(row_scaled, "e4m3fn_encode", lambda real: lambda bits: real(bits + 1))
ORDERS = {"divide": "reciprocal", "reciprocal": "divide"}
NV_ORDERS = {"inverse-first": "divide", "divide": "product-inverse"}
FAULTS: dict[str, Fault] = {
    "CODEC-ROW-01": lambda: rewired(Mx, lambda rows: rows[::-1]),
    "CODEC-ROW-02": lambda: rewired(Nv, lambda rows: np.roll(rows, 4, axis=1)),
    "CODEC-ROW-03": set_to(row_scaled, "bytes_of_f32", big_endian),
    "CODEC-ROW-04": around(
        layout, "pack_pairs", lambda real: lambda n: real(n) >> 4 | real(n) << 4
    ),
    "CODEC-ROW-05": set_to(
        layout, "pack_halves", lambda codes, _: layout.pack_pairs(codes & np.uint8(15))
    ),
    "CODEC-ROW-06": set_to(
        RowLayout, "element_bytes", lambda _self, width: -(-width // 32) * 32
    ),
    "CODEC-ROW-08": set_to(arrays, "wire_in", unchecked),
    "CODEC-ELEM-01": TIES_UP,
    "CODEC-ELEM-02": around(
        mx, "e2m1_encode", lambda real: lambda bits, _rounding: real(bits, "away")
    ),
    "CODEC-ELEM-03": set_to(RowScaled, "encode_rows", in_64_bit),
    "CODEC-ELEM-04": set_to(nv, "NAN_BITS", OTHER_NAN),
    "CODEC-INT8-01": set_to(row_scaled, "SMALLEST_SCALE", TINY),
    "CODEC-INT8-02": set_to(row_scaled, "integer_encode", half_up),
    "CODEC-INT8-03": set_to(row_scaled, "NAN_BITS", OTHER_NAN),
    "CODEC-INT8-04": set_to(row_scaled, "NAN_BITS", OTHER_NAN),
    "CODEC-INT4-01": set_to(row_scaled, "SMALLEST_SCALE", TINY),
    "CODEC-INT4-02": set_to(row_scaled, "integer_encode", half_up),
    "CODEC-INT4-03": set_to(row_scaled, "NAN_BITS", OTHER_NAN),
    "CODEC-INT4-04": set_to(row_scaled, "NAN_BITS", OTHER_NAN),
    "CODEC-FP8-01": set_to(row_scaled, "SMALLEST_SCALE", TINY),
    "CODEC-FP8-02": as_if(RowScaled, "encode_rows", order=ORDERS),
    "CODEC-FP8-03": set_to(row_scaled, "NAN_BITS", OTHER_NAN),
    "CODEC-FP8-04": set_to(row_scaled, "NAN_BITS", OTHER_NAN),
    "CODEC-MX-01": as_if(Mx, "scale_bytes", scale={"floor": "ceil"}),
    "CODEC-MX-02": as_if(Mx, "scale_bytes", scale={"even": "floor"}),
    "CODEC-MX-03": as_if(Mx, "scale_bytes", scale={"rceil": "ceil"}),
    "CODEC-MX-04": as_if(Mx, "scale_bytes", scale={"ceil": "floor"}),
    "CODEC-MX-05": around(
        mx, "inverse_power", lambda real: lambda byte: real(byte) / np.float32(2)
    ),
    "CODEC-MX-06": around(
        Mx, "scale_bytes", lambda real: lambda self, a: np.maximum(real(self, a), 1)
    ),
    "CODEC-MX-07": set_to(mx, "E8M0_NAN", 0xFE),
    "CODEC-MX-08": set_to(mx, "INFINITY", mx.INFINITY - np.uint32(1)),
    "CODEC-MX-09": around(
        mx,
        "power",
        lambda real: lambda byte: np.where(byte == 0, np.float32(0), real(byte)),
    ),
    "CODEC-MX-10": with_blocks_of(Mx, 32),
    "CODEC-NVFP4-01": set_to(nv, "LEAST_DECODE", np.float32(2.0**-90)),
    "CODEC-NVFP4-02": swapped_scales,
    "CODEC-NVFP4-03": set_to(nv, "E2M1_MAX", np.float32(6.25)),
    "CODEC-NVFP4-04": set_to(nv, "SMALLEST_BLOCK_SCALE", np.float32(2.0**-9)),
    "CODEC-NVFP4-05": as_if(Nv, "_scaled", order=NV_ORDERS),
    "CODEC-NVFP4-06": set_to(nv, "LARGEST_F32", np.float32(1)),
    "CODEC-NVFP4-07": set_to(nv, "E4M3FN_NAN", 0x7E),
    "CODEC-NVFP4-08": set_to(nv, "NAN_BITS", OTHER_NAN),
    "CODEC-NVFP4-09": with_blocks_of(Nv, 16),
}


def test_every_clause_of_the_scaled_formats_is_broken_once() -> None:
    families = ("ROW", "ELEM", "INT8", "INT4", "FP8", "MX", "NVFP4")
    shown = {
        clause for clause, *_ in coverage._VECTORS if clause.split("-")[1] in families
    }
    assert shown == set(FAULTS)


@pytest.mark.parametrize("clause", FAULTS)
def test_the_definition_without_the_rule_fails(clause: str) -> None:
    told = list(messages(clause))
    assert told
    assert not any(told)
    with FAULTS[clause]():
        assert any(messages(clause))
