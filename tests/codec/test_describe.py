"""describe() says what the codec does: every number in it is measured here."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import PROFILES, get
from ds4proto.codec.base import Path

NAMES = ("f32", "f16", "bf16", "e4m3")
# Smallest normal and largest value of each format, as IEEE and the wire define them.
NORMAL_RANGE = {
    "f16": (2.0**-14, 65504.0),
    "bf16": (2.0**-126, 255 * 2.0**120),
    "e4m3": (2.0**-6, 240.0),
}


def number(text: str) -> float:
    """Read ``2^-9``, ``240`` or ``2044 (...)``."""
    power = re.match(r"2\^(-?\d+)$", text)
    return 2.0 ** int(power[1]) if power else float(text.split(maxsplit=1)[0])


def there_and_back(codec: Any, x: Any) -> Any:
    return codec.decode(codec.encode(x), values=x.size)


def every_normal_step(name: str) -> Any:
    """Give f32 values dense around all midpoints of a format's normal range."""
    low, high = (np.float32(v).view(np.uint32) for v in NORMAL_RANGE[name])
    drop = {"f16": 13, "bf16": 16, "e4m3": 20}[name]
    codes = np.arange(int(low) >> drop, int(high) >> drop, dtype=np.uint32) << drop
    half = np.uint32(1 << (drop - 1))
    parts = [codes, codes + half - 1, codes + half, codes + half + 1]
    return np.concatenate(parts).view(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_answers_the_same_questions(name: str) -> None:
    facts = get(name).describe()
    asked = ("wire", "bits_per_value", "worst_relative_error", "largest", "clip",
             "smallest_normal", "subnormal_step", "ties", "infinity", "nan",
             "negative_zero", "codes_changed_by_decode_encode", "source")  # fmt: skip
    assert all(facts[key] for key in asked)
    assert get(name).wire_bytes(1) * 8 == int(facts["bits_per_value"])


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3"])
def test_worst_relative_error_is_a_tight_bound(name: str, path: Path) -> None:
    codec = get(name, path=path)
    x = every_normal_step(name)
    exact, got = x.astype(np.float64), there_and_back(codec, x).astype(np.float64)
    worst = float((np.abs(got - exact) / exact).max())
    bound = number(codec.describe()["worst_relative_error"])
    # Half a step from 1 is bound / (1 + bound) of the value itself.
    assert bound * 0.999 / (1 + bound) <= worst <= bound


def test_f32_loses_nothing() -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 32, 10_000, dtype=np.uint32)
    got = there_and_back(get("f32"), bits.view(np.float32)).view(np.uint32)
    assert np.array_equal(got, bits)
    assert number(get("f32").describe()["worst_relative_error"]) == 0


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3"])
def test_steps_and_smallest_normal(name: str, path: Path) -> None:
    codec = get(name, path=path)
    facts = codec.describe()
    step, normal = number(facts["subnormal_step"]), number(facts["smallest_normal"])
    dtype = np.uint8 if name == "e4m3" else np.uint16
    count = int(normal / step)
    codes = np.arange(count + 1, dtype=dtype)
    values = codec.decode(codes.view(np.uint8), values=codes.size).astype(np.float64)
    assert np.array_equal(values, np.arange(count + 1) * step)
    assert normal == NORMAL_RANGE[name][0]


def test_largest_values_and_clip(path: Path) -> None:
    e4m3, f16, bf16 = (get(n, path=path) for n in ("e4m3", "f16", "bf16"))
    assert number(e4m3.describe()["largest"]) == 240
    x = np.array([231.99998, 232, 240, 1e38, np.inf, -np.inf], dtype=np.float32)
    assert there_and_back(e4m3, x).tolist() == [224, 240, 240, 240, 240, -240]
    assert number(f16.describe()["largest"]) == 65504
    assert "65520" in f16.describe()["clip"]
    x = np.array([65519.996, 65520, -65520], dtype=np.float32)
    assert there_and_back(f16, x).tolist() == [65504, np.inf, -np.inf]
    assert bf16.describe()["largest"] == "0x7f7f = 255 * 2^120"
    assert "511 * 2^119" in bf16.describe()["clip"]
    largest = int(Fraction(255) * 2**120)
    x = np.array([0x7F7F7FFF, 0x7F7F8000], dtype=np.uint32).view(np.float32)
    assert float(x[1]) == 511.0 * 2.0**119
    assert there_and_back(bf16, x).tolist() == [float(largest), np.inf]


@pytest.mark.parametrize(
    ("name", "tie", "below", "above"),
    [
        ("e4m3", 1.0625, 1.0, 1.125),  # between an even and an odd code
        ("e4m3", 1.1875, 1.125, 1.25),  # between an odd and an even one
        ("f16", 1 + 2.0**-11, 1.0, 1 + 2.0**-10),
        ("f16", 1 + 3 * 2.0**-11, 1 + 2.0**-10, 1 + 2.0**-9),
        ("bf16", 1 + 2.0**-8, 1.0, 1 + 2.0**-7),
        ("bf16", 1 + 3 * 2.0**-8, 1 + 2.0**-7, 1 + 2.0**-6),
    ],
)
def test_tie_rule(
    name: str, tie: float, below: float, above: float, path: Path
) -> None:
    codec = get(name, path=path)
    rule = codec.describe()["ties"]
    assert rule == ("away from zero" if name == "e4m3" else "to even")
    got = there_and_back(codec, np.array([tie, -tie], dtype=np.float32)).tolist()
    wanted = above
    if rule == "to even":
        code = codec.encode(np.array([below], dtype=np.float32)).view(np.uint16)[0]
        wanted = above if code & 1 else below
    assert got == [wanted, -wanted]


@pytest.mark.parametrize("profile", PROFILES)
def test_e4m3_special_bytes(profile: str, path: Path) -> None:
    codec = get("e4m3", profile=profile, path=path)
    facts = codec.describe()
    bits = np.array([0x7FC00000, 0xFFC00000, 0x80000000], dtype=np.uint32)
    positive, negative, zero = codec.encode(bits.view(np.float32)).tolist()
    assert f"0x{positive:02x} if positive" in facts["nan"]
    assert f"0x{negative:02x} if negative" in facts["nan"]
    assert facts["negative_zero"].startswith(f"0x{zero:02x}")
    assert facts["profile"].startswith(f"{profile}:")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3"])
def test_codes_that_do_not_survive(name: str, profile: str, path: Path) -> None:
    codec = get(name, profile=profile, path=path)
    dtype = np.uint8 if name == "e4m3" else np.uint16
    codes = np.arange(np.iinfo(dtype).max + 1, dtype=dtype)
    values = codec.decode(codes.view(np.uint8), values=codes.size)
    changed = codes[codec.encode(values).view(dtype) != codes]
    stated = number(codec.describe()["codes_changed_by_decode_encode"])
    assert changed.size == stated
    if name == "f16":
        assert stated == 2044
        assert ((changed & 0x7FFF) > 0x7C00).all()
    if name == "e4m3":
        never = [*range(0x78, 0x80), *range(0xF8, 0x100)]
        lost_zero = [0x80] if profile in ("gcc-linux", "gcc-fast") else []
        assert changed.tolist() == sorted(never + lost_zero)
