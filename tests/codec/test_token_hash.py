"""The token hash equals every measured value, at once and step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import CodecError, TokenHash, kernels
from ds4proto.codec.token_hash import (
    TOKEN_HASH_PRIME,
    TOKEN_HASH_START,
    token_hash,
)

CONTENT = json.loads((Path(__file__).parent / "data" / "token_hash.json").read_text())
CASES = [(case["tokens"], int(case["hash"], 16)) for case in CONTENT["cases"]]


def test_constants() -> None:
    assert int(CONTENT["init"], 16) == TOKEN_HASH_START == 0x14650FB0739D0383
    assert CONTENT["prime"] == TOKEN_HASH_PRIME == 0x100000001B3
    assert len(CASES) == 22


@pytest.mark.parametrize(("tokens", "value"), CASES)
def test_cases(tokens: list[int], value: int) -> None:
    assert token_hash(tokens) == value
    assert token_hash(iter(tokens)) == value
    assert token_hash(tuple(tokens)) == value
    steps = TokenHash()
    for token in tokens:
        steps.append(token)
    assert (steps.value, steps.count) == (value, len(tokens))
    assert steps.words == (value >> 32, value & 0xFFFFFFFF)
    assert TokenHash(tokens) == steps
    for dtype in (np.uint32, np.int64, np.uint64, ">u4"):
        assert token_hash(np.array(tokens, dtype=dtype)) == value
    assert token_hash(list(np.array(tokens, dtype=np.int64))) == value


@pytest.mark.parametrize("link", CONTENT["chain"])
def test_chain(link: dict[str, Any]) -> None:
    prefix = int(link["prefix_hash"], 16)
    result = int(link["result_hash"], 16)
    assert token_hash(link["tokens"], prefix) == result
    going_on = TokenHash(value=prefix, count=link["pos0"])
    assert going_on.update(link["tokens"]) == result
    assert going_on.count == link["pos0"] + len(link["tokens"])


def test_both_ways_of_computing_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(4).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    by_default = token_hash(tokens)

    def absent(name: str) -> str:
        return "numba is not installed"

    monkeypatch.setattr(kernels, "reason", absent)
    assert token_hash(tokens) == by_default == token_hash(tokens.tolist())
    half = TokenHash(tokens[:7000])
    half.update(tokens[7000:].reshape(100, 130))
    assert half.value == by_default


def test_copies_are_independent() -> None:
    first = TokenHash([1, 2])
    second = first.copy()
    second.append(3)
    assert first == TokenHash([1, 2])
    assert second == TokenHash([1, 2, 3])
    assert first != second
    assert first != "text"
    assert repr(first) == f"TokenHash(value=0x{first.value:016x}, count=2)"


@pytest.mark.parametrize(
    "tokens",
    [[1, -1], [1, 1 << 32], [1, "a"], [1, 1.5], [1, None],
     np.array([1, -1]), np.array([1, 1 << 32]), np.array([1.0, 2.0])],
)  # fmt: skip
def test_bad_tokens_change_nothing(tokens: Any) -> None:
    state = TokenHash([9])
    with pytest.raises(CodecError, match="token"):
        state.update(tokens)
    assert state == TokenHash([9])


def test_bad_state() -> None:
    for value in (-1, 1 << 64):
        with pytest.raises(CodecError, match="unsigned 64-bit"):
            TokenHash(value=value)
