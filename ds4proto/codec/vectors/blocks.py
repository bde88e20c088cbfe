"""Build the vector files of the scaled formats, a group for each variant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from ds4proto.codec.blocks import VARIANTS, form_of
from ds4proto.codec.definition import INFINITY, MAGNITUDE, U32
from ds4proto.codec.elements import E8M0_NAN, NAN_BITS, e2m1_encode, e4m3fn_encode
from ds4proto.codec.layout import RowFormat, bytes_of_f32
from ds4proto.codec.mx import Mx, inverse_power
from ds4proto.codec.nv import Nv
from ds4proto.codec.row_scaled import RowScaled
from ds4proto.codec.vectors import block_rows as given
from ds4proto.codec.vectors.block_rows import BlockRow, pattern

Group = dict[str, Any]
Variant = dict[str, str]
_E2M1_STEPS: Final = (1.25, 1.5, 1.75, 1.9375)
_TORCHAO: Final = "torchao"


def block_groups(name: str) -> list[Group]:
    """Return the groups of the file of a scaled codec, tests without numbers."""
    groups = [
        _encode_group(name, variant, rows) for variant, rows in _plans(name) if rows
    ]
    return [*groups, *_decode_groups(name), _size_group(name)]


def _plans(name: str) -> Iterator[tuple[Variant, list[BlockRow]]]:
    if name in ("int8", "int4"):
        yield from _integer_plans(name)
    elif name == "fp8":
        yield {}, _all(given.e4m3fn_ties(), given.specials(), given.shapes())
        yield _order_plan(name, {}, {"order": "reciprocal"})
    elif name == "mxfp8":
        yield {}, _all(given.e4m3fn_ties(), given.shapes())
        for rule in ("floor", "even", "rceil", "ceil"):
            edges = given.scale_edges(448.0, (1.75, 1.9375))
            yield {"scale": rule}, _all(edges, given.specials())
    elif name in ("mxfp4", "e2m1-e8m0-16"):
        yield from _mxfp4_plans(name)
    else:
        yield from _nv_plans(name)


def _all(*rows: Iterable[BlockRow]) -> list[BlockRow]:
    return list(chain.from_iterable(rows))


def _integer_plans(name: str) -> Iterator[tuple[Variant, list[BlockRow]]]:
    top = 127.0 if name == "int8" else 7.0
    yield {}, _all(_integer_ties(top), given.specials(), given.shapes())
    divisor = str(top + 0.5)
    for lowest in (f"-{top:g}", f"-{top + 1:g}"):
        rows = [row for row in _integer_ties(top + 0.5) if "ends" in row.comment]
        yield {"divisor": divisor, "lowest": lowest}, rows
    yield _order_plan(name, {}, {"order": "reciprocal"})
    if name == "int4":
        yield {"block": "32"}, _all(given.specials(), given.shapes())


def _integer_ties(top: float) -> Iterator[BlockRow]:
    for sign in (1.0, -1.0):
        ends = [pattern(sign * top), pattern(-sign * top), pattern(sign * (top - 0.5))]
        yield BlockRow(f"both ends of {top:g}", ("ElementTie",), (tuple(ends),))
        for middle in (0.5, 1.5, 2.5, top - 1.5):
            bits = pattern(sign * middle)
            row = (pattern(top), bits - 1, bits, bits + 1)
            yield BlockRow(f"midpoint {sign * middle:g}", ("ElementTie",), (row,))


def _order_plan(
    name: str, base: Variant, other: Variant
) -> tuple[Variant, list[BlockRow]]:
    first, second = form_of(name, base), form_of(name, base | other)
    words = ", ".join(f"{key}={value}" for key, value in other.items())
    comment = f"other bytes without {words}"
    return base | other, list(given.differing(first, second, comment, 4))


def _mxfp4_plans(name: str) -> Iterator[tuple[Variant, list[BlockRow]]]:
    if name != "mxfp4":
        yield {}, _all(given.specials(), given.shapes(), given.whole_blocks())
        yield {"nibbles": "halves"}, list(given.whole_blocks())
        return
    yield {}, _all(given.e2m1_ties(), given.shapes(), given.whole_blocks())
    for rule in ("floor", "even", "rceil", "ceil"):
        edges = given.scale_edges(6.0, _E2M1_STEPS)
        yield {"scale": rule}, _all(edges, given.specials())
    for rounding in ("away", "down"):
        rows = _all(given.e2m1_ties(), islice(given.specials(), 3))
        yield {"rounding": rounding}, rows
    yield {"nibbles": "halves"}, list(given.whole_blocks())


def _nv_plans(name: str) -> Iterator[tuple[Variant, list[BlockRow]]]:
    yield {}, _all(given.specials(), given.shapes(), given.uneven_blocks())
    if name != "nvfp4":
        yield {"nibbles": "halves"}, list(given.whole_blocks())
        return
    encode = {"global_scale": "encode"}
    engine = {"order": "product-inverse", "zero": "zero", **encode}
    rows = _all(given.specials(), given.uneven_blocks())
    yield engine, rows
    yield {"zero": "zero"}, list(given.uneven_blocks())
    yield {"zero": "zero", "order": "divide"}, list(given.uneven_blocks())
    yield {"zero": "eighth"}, rows
    for order in ("product-inverse", "divide"):
        yield _order_plan(name, {}, {"order": order})
    yield _order_plan(name, {}, encode)
    yield _order_plan(name, {"order": "product-inverse"}, encode)
    yield {"nibbles": "halves"}, list(given.whole_blocks())


def _hex_patterns(bits: Any) -> str:
    return "".join(f"{int(b):08x}" for b in np.asarray(bits).reshape(-1))


def _encode_group(name: str, variant: Variant, rows: list[BlockRow]) -> Group:
    form = form_of(name, variant)
    tests = []
    for row in {row.rows: row for row in rows}.values():
        bits = np.array(row.rows, dtype=np.uint32)
        test = {
            "comment": row.comment,
            "flags": list(row.flags),
            "rows": bits.shape[0],
            "input": _hex_patterns(bits),
            "expected": form.encode_rows(bits).tobytes().hex(),
            "result": "valid",
        }
        other = _torchao_bytes(form, bits)
        if other not in ("", test["expected"]):
            test |= {"result": "acceptable", "acceptable": {_TORCHAO: other}}
        tests.append(test)
    return {"type": "BlockEncode", "variant": variant, "tests": tests}


def _torchao_bytes(form: RowFormat, bits: U32) -> str:
    """Return what torchao gives where its choices are its own; empty if not known.

    Beside scale byte 0 it multiplies by 2^126, with rceil by 1; rceil takes an f32
    logarithm, which loses the last bits of large exponents; a block with NaN has
    elements 3 (0x7f), with its sign, where the quotient is NaN.
    """
    if not isinstance(form, Mx) or form.rounding != "even" or form.nibbles != "pairs":
        return ""
    blocks = form.layout.split(bits)
    largest = (blocks & MAGNITUDE).max(axis=2)
    byte = form.scale_bytes(largest)
    rceil = form.scale == "rceil"
    fp8 = form.element == "e4m3fn"
    with np.errstate(all="ignore"):
        if rceil:
            limit = np.float32(448 if fp8 else 6)
            q = (largest.view(np.float32) / limit).astype(np.float64)
            logarithm = np.ceil(np.log2(q).astype(np.float32))
            finite = np.isfinite(logarithm)
            clipped = np.clip(np.where(finite, logarithm, -127), -127, 127) + 127
            byte = np.where(finite, clipped, byte).astype(np.uint8)
        factor = inverse_power(byte)
        factor[byte == 0] = np.float32(1 if rceil else 2.0**126)
        factor[byte == E8M0_NAN] = np.float32(np.nan if rceil else 0)
        y = (blocks.view(np.float32) * factor[:, :, None]).view(np.uint32)
    # Infinity by infinity: the sign of the NaN is that of x86, wherever this runs.
    infinite = (blocks & MAGNITUDE) == INFINITY
    y[infinite & (factor == 0)[:, :, None]] = np.uint32(0xFFC00000)
    nan = (y & MAGNITUDE) > INFINITY
    if fp8:
        codes = np.where(nan, 0x7F | y >> 24 & 0x80, e4m3fn_encode(y))
    else:
        codes = np.where(nan, 3 | y >> 28 & 8, e2m1_encode(np.where(nan, 0, y)))
    flat = codes.astype(np.uint8).reshape(bits.shape[0], -1)[:, : bits.shape[1]]
    return np.concatenate([form.layout.pack(flat), byte], axis=1).tobytes().hex()


# --- wires to decode ---------------------------------------------------------------


def _decode_groups(name: str) -> list[Group]:
    variants: list[Variant] = [{}]
    if "nibbles" in VARIANTS[name]:
        variants.append({"nibbles": "halves"})
    if name == "nvfp4":
        variants.append({"global_scale": "encode"})
    return [_decode_group(name, variant) for variant in variants]


def _decode_group(name: str, variant: Variant) -> Group:
    form = form_of(name, variant)
    if isinstance(form, RowScaled):
        wires = _row_wires(form)
    elif isinstance(form, Mx):
        wires = _mx_wires(form)
    else:
        assert isinstance(form, Nv)
        wires = _nv_wires(form)
    tests = []
    for comment, flag, width, wire in wires:
        line = np.frombuffer(wire, dtype=np.uint8).reshape(1, -1)
        tests.append(
            {
                "comment": comment,
                "flags": [flag],
                "rows": 1,
                "input": wire.hex(),
                "expected": _hex_patterns(form.decode_rows(line, width)),
                "result": "valid",
            }
        )
    return {"type": "BlockDecode", "variant": variant, "tests": tests}


Wires = Iterator[tuple[str, str, int, bytes]]
_ALL_BYTES: Final = bytes(range(256))
_ALL_NIBBLES: Final = bytes(
    [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
)  # fmt: skip


def _f32(bits: int) -> bytes:
    value = np.array([[bits]], dtype=np.uint32).view(np.float32)
    return bytes(bytes_of_f32(value).tobytes())


def _row_wires(form: RowScaled) -> Wires:
    codes = _ALL_NIBBLES if form.name == "int4" else _ALL_BYTES
    width = 16 if form.name == "int4" else 256
    yield "every code", "EveryCode", width, codes + _f32(pattern(0.1))
    few = codes[-8:] if form.name == "int4" else bytes([0, 1, 0x7F, 0x80, 0xFF])
    width = 2 * len(few) if form.name == "int4" else len(few)
    for comment, bits in (
        ("NaN", NAN_BITS), ("infinity", given.INF), ("negative", 0xC0000000),
        ("zero", 0), ("smallest", 1), ("largest finite", given.MAX),
    ):  # fmt: skip
        yield f"scale {comment}", "OddScale", width, few + _f32(int(bits))


def _mx_wires(form: Mx) -> Wires:
    fp8 = form.element == "e4m3fn"
    if fp8:
        yield "every code", "EveryCode", 256, _ALL_BYTES + b"\x7f" * 8
    codes = bytes(range(0x70, 0x90)) if fp8 else _ALL_NIBBLES * (form.block // 16)
    for byte in (0, 1, 2, 126, 127, 128, 253, 254, 255):
        comment = f"scale byte 0x{byte:02x}"
        yield comment, "OddScale", form.block, codes + bytes([byte])


def _nv_wires(form: Nv) -> Wires:
    codes = _ALL_NIBBLES * (form.block // 16)
    for byte in (0x38, 0, 1, 8, 0x20, 0x7E, 0x7F, 0x80, 0xB8, 0xFF):
        wire = codes + bytes([byte]) + _f32(pattern(0.375))
        yield f"scale byte 0x{byte:02x}", "OddScale", form.block, wire
    for comment, bits in (
        ("NaN", NAN_BITS), ("infinity", given.INF), ("negative", 0xC0000000),
        ("zero", 0), ("smallest", 1), ("largest finite", given.MAX),
    ):  # fmt: skip
        wire = codes + b"\x38" + _f32(int(bits))
        yield f"row scale {comment}", "OddScale", form.block, wire


def _size_group(name: str) -> Group:
    layout = form_of(name, {}).layout
    cases = []
    for width, rows in ((0, 1), (0, 4), (1, 1), (31, 1), (33, 3), (2048, 1), (2048, 2)):
        right = rows * layout.row_bytes(width)
        cases.append((width * rows, rows, right, "valid"))
        wrong = {
            right + 1,
            right + 4,
            right - 1,
            width * rows * layout.element_bits // 8,
        }
        cases += [
            (width * rows, rows, size, "invalid")
            for size in sorted(wrong - {right})
            if size >= 0
        ]
    tests = [
        {
            "comment": f"{size} bytes for {values} values in {rows} rows",
            "flags": ["ExactSize" if result == "valid" else "WrongSize"],
            "values": values,
            "rows": rows,
            "bytes": size,
            "result": result,
        }
        for values, rows, size, result in cases
    ]
    return {"type": "RowSize", "variant": {}, "tests": tests}
