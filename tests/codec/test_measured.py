"""Every measured row, on both paths."""

from __future__ import annotations

import json
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import get
from ds4proto.codec.base import Path

DATA = FilePath(__file__).parent / "data"


def encode(name: str, bits: Any, dtype: Any, **options: Any) -> Any:
    return get(name, **options).encode(bits.view(np.float32)).view(dtype)


def assert_rows(given: Any, got: Any, wanted: Any) -> None:
    """Report the first row that differs."""
    assert len(given) == len(got) == len(wanted) > 0
    wrong = np.flatnonzero(got != wanted)
    if wrong.size:
        i = int(wrong[0])
        pytest.fail(
            f"{wrong.size} of {len(given)} rows differ; first is row {i}: "
            f"{int(given[i]):#x} gave {int(got[i]):#x}, not {int(wanted[i]):#x}"
        )


def boundary() -> tuple[Any, Any]:
    rows = json.loads((DATA / "e4m3_encode_boundary.json").read_text())["rows"]
    assert len(rows) == 2770
    bits = np.array([int(row[1], 16) for row in rows], dtype=np.uint32)
    return bits, np.array([int(row[2], 16) for row in rows], dtype=np.uint8)


def e4m3_all() -> tuple[Any, Any]:
    with np.load(DATA / "e4m3_encode.npz") as data:
        bits = np.concatenate([data["boundary_f32_bits"], data["random_f32_bits"]])
        codes = np.concatenate([data["boundary_byte"], data["random_byte"]])
    assert bits.size == 22_770
    return bits, codes


def test_e4m3_boundary_rows(path: Path) -> None:
    bits, codes = boundary()
    assert_rows(bits, encode("e4m3", bits, np.uint8, path=path), codes)


def test_e4m3_all_rows(path: Path) -> None:
    bits, codes = e4m3_all()
    assert_rows(bits, encode("e4m3", bits, np.uint8, path=path), codes)


@pytest.mark.parametrize(
    ("profile", "differing"),
    [("strict", 0), ("gcc-linux", 55), ("clang-fast", 48), ("gcc-fast", 77)],
)
def test_profiles_break_as_many_rows_as_measured(
    path: Path, profile: str, differing: int
) -> None:
    bits, codes = e4m3_all()
    got = encode("e4m3", bits, np.uint8, path=path, profile=profile)
    assert int((got != codes).sum()) == differing
    magnitude = bits & 0x7FFFFFFF
    special = (magnitude > 0x7F800000) | ((magnitude < 0x00800000) & (bits >> 31 == 1))
    assert_rows(bits[~special], got[~special], codes[~special])


@pytest.mark.parametrize(
    ("profile", "negative_tiny", "nan", "negative_nan"),
    [
        ("strict", 0x80, 0x77, 0xF7),
        ("gcc-linux", 0x00, 0x77, 0x77),
        ("clang-fast", 0x80, 0x00, 0x80),
        ("gcc-fast", 0x00, 0x00, 0x00),
    ],
)
def test_profile_bytes(
    path: Path, profile: str, negative_tiny: int, nan: int, negative_nan: int
) -> None:
    bits = np.array(
        [0x80000000, 0x80000001, 0x807FFFFF, 0x7F800001, 0x7FC00000, 0xFF800001,
         0xFFC00000, 0x80800000, 0x00000001, 0xFF800000],
        dtype=np.uint32,
    )  # fmt: skip
    wanted = np.array(
        [negative_tiny] * 3 + [nan] * 2 + [negative_nan] * 2 + [0x80, 0x00, 0xF7]
    )
    got = encode("e4m3", bits, np.uint8, path=path, profile=profile)
    assert_rows(bits, got, wanted)


def test_e4m3_decode_rows(path: Path) -> None:
    rows = json.loads((DATA / "e4m3_decode.json").read_text())["rows"]
    codes = np.array([int(row[0], 16) for row in rows], dtype=np.uint8)
    wanted = np.array([int(row[1], 16) for row in rows], dtype=np.uint32)
    assert codes.tolist() == list(range(256))
    values = get("e4m3", path=path).decode(codes, values=256)
    assert_rows(codes, values.view(np.uint32), wanted)
    assert values.tolist() == [row[2] for row in rows]


def test_f16_encode_rows(path: Path) -> None:
    with np.load(DATA / "f16_encode.npz") as data:
        bits, codes = data["f32_bits"], data["f16"]
    assert bits.size == 100_000
    assert_rows(bits, encode("f16", bits, np.uint16, path=path), codes)


def test_f16_decode_rows(path: Path) -> None:
    wanted = np.load(DATA / "f16_decode_u32.npy")
    codes = np.arange(65_536, dtype=np.uint16)
    got = get("f16", path=path).decode(codes.view(np.uint8), values=codes.size)
    assert_rows(codes, got.view(np.uint32), wanted)


def test_bf16_encode_rows(path: Path) -> None:
    with np.load(DATA / "bf16_encode.npz") as data:
        bits, codes = data["f32_bits"], data["bf16"]
    assert bits.size == 18_188
    assert_rows(bits, encode("bf16", bits, np.uint16, path=path), codes)


def test_bf16_nan_gets_no_care(path: Path) -> None:
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], dtype=np.uint32)
    wanted = np.array([0x7F80, 0x8000, 0x0000])
    assert_rows(bits, encode("bf16", bits, np.uint16, path=path), wanted)


def test_f16_equals_numpys_cast_where_there_is_no_nan(path: Path) -> None:
    rng = np.random.default_rng(16)
    bits = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    bits = bits[(bits & 0x7FFFFFFF) <= 0x7F800000]
    with np.errstate(all="ignore"):
        wanted = bits.view(np.float32).astype(np.float16).view(np.uint16)
    assert_rows(bits, encode("f16", bits, np.uint16, path=path), wanted)


def test_known_values_of_the_byte(path: Path) -> None:
    x = np.array(
        [448, np.nan, -np.inf, 1.0625, 0.01513671875, 0.0009765625, -0.0, 239.9],
        dtype=np.float32,
    )
    got = get("e4m3", path=path).encode(x)
    assert got.tobytes().hex() == "7777f73907018077"
