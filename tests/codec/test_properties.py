"""What holds for any input: kernels equal definitions, a second hop adds nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.codec import PROFILES, TokenHash, get, kernels
from ds4proto.codec.compare import first_difference, identify_profile
from ds4proto.codec.token_hash import token_hash

PATTERNS = st.lists(
    st.one_of(
        st.integers(0, 2**32 - 1),
        st.sampled_from([0x3A7FFFFF, 0x3C7FFFFF, 0x43700000, 0x477FEFFF, 0x7F800001]),
        st.floats(width=32).map(lambda v: int(np.float32(v).view(np.uint32))),
    ),
    max_size=70,
)
NAMES = st.sampled_from(["f16", "bf16", "e4m3"])
EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)


def floats(bits: list[int]) -> Any:
    return np.array(bits, dtype=np.uint32).view(np.float32)


@EXAMPLES
@given(PATTERNS, NAMES, st.sampled_from(PROFILES))
def test_kernels_equal_definitions(bits: list[int], name: str, profile: str) -> None:
    if not kernels.available(name):
        pytest.skip(kernels.reason(name))
    plain = get(name, profile=profile, path="numpy")
    fast = get(name, profile=profile, path="numba")
    wire = plain.encode(floats(bits))
    assert fast.encode(floats(bits)).tobytes() == wire.tobytes()
    values = plain.decode(wire, values=len(bits)).view(np.uint32)
    again = fast.decode(wire, values=len(bits)).view(np.uint32)
    assert values.tobytes() == again.tobytes()


@EXAMPLES
@given(st.binary(max_size=64), st.sampled_from(["f16", "bf16", "e4m3"]))
def test_kernels_decode_any_bytes_alike(wire: bytes, name: str) -> None:
    if not kernels.available(name):
        pytest.skip(kernels.reason(name))
    size = 1 if name == "e4m3" else 2
    wire = wire[: len(wire) // size * size]
    plain = get(name, path="numpy").decode(wire, values=len(wire) // size)
    fast = get(name, path="numba").decode(wire, values=len(wire) // size)
    assert plain.view(np.uint32).tobytes() == fast.view(np.uint32).tobytes()


@EXAMPLES
@given(PATTERNS, NAMES)
def test_a_second_hop_changes_nothing(bits: list[int], name: str) -> None:
    codec = get(name)
    wire = codec.encode(floats(bits))
    second = codec.encode(codec.decode(wire, values=len(bits)))
    assert second.tobytes() == wire.tobytes()


@EXAMPLES
@given(PATTERNS)
def test_e4m3_is_finite_and_never_emits_the_last_codes(bits: list[int]) -> None:
    codec = get("e4m3")
    wire = codec.encode(floats(bits))
    assert not ((wire & 0x7F) > 0x77).any()
    values = codec.decode(wire, values=len(bits))
    assert (np.abs(values) <= 240).all()


@EXAMPLES
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=50), NAMES)
def test_order_is_kept(values: list[float], name: str) -> None:
    x = np.sort(np.array(values, dtype=np.float32))
    codec = get(name)
    got = codec.decode(codec.encode(x), values=x.size)
    assert (got[:-1] <= got[1:]).all()


@EXAMPLES
@given(PATTERNS, st.sampled_from(PROFILES))
def test_own_bytes_are_recognised(bits: list[int], profile: str) -> None:
    wire = get("e4m3", profile=profile).encode(floats(bits))
    assert first_difference(floats(bits), wire) is None
    if bits:
        observed = dict(zip(bits, wire.tolist(), strict=True))
        assert profile in identify_profile(observed).names


@EXAMPLES
@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 40))
def test_token_hash_splits_anywhere(tokens: list[int], cut: int) -> None:
    whole = token_hash(tokens)
    parts = TokenHash(tokens[:cut])
    parts.update(np.array(tokens[cut:], dtype=np.uint32))
    assert parts.value == whole
