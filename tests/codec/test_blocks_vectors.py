"""The vectors of the scaled formats hold the known facts, and a lint that bites."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import get, vectors, verify
from ds4proto.codec.registry import SCALED
from ds4proto.codec.vectors.lint import lint


def groups(name: str, kind: str) -> Iterator[tuple[dict[str, str], Any]]:
    for group in vectors.load(name)["testGroups"]:
        if group["type"] == kind:
            yield group["variant"], group["tests"]


def encoded(name: str, comment: str) -> dict[str, str]:
    """Return variant (its values, joined) to wire of the tests with a comment."""
    return {
        " ".join(variant.values()): test["expected"]
        for variant, tests in groups(name, "BlockEncode")
        for test in tests
        if test["comment"] == comment
    }


def test_zero_blocks() -> None:
    for rule in ("floor", "even", "rceil", "ceil"):
        assert encoded("mxfp4", "zeros")[rule] == "000000"
        assert encoded("mxfp8", "zeros")[rule] == "0000000000"
    one = np.float32(1).tobytes().hex()
    found = encoded("nvfp4", "zeros")
    assert found[""] == "000008" + one  # torchao's floor
    assert found["product-inverse zero encode"] == "000000" + one
    assert found["eighth"] == "000020" + one  # 0.125


def test_not_finite() -> None:
    scales = {"floor": "fd", "even": "fd", "ceil": "fd", "rceil": "fe"}
    for rule, byte in scales.items():
        assert (
            encoded("mxfp4", "infinity")[rule] == "0708" + byte
        )  # then zeros, with their signs
        assert encoded("mxfp4", "NaN")[rule] == "0000ff"
        assert encoded("mxfp8", "NaN")[rule] == "00000000ff"
    assert encoded("int8", "NaN")[""] == "00000000" + "0000c07f"
    assert encoded("nvfp4", "infinity in the first block")[""][32:36] == "7f7e"


def test_torchao_differs_where_it_is_known_to() -> None:
    """In NaN blocks the elements, at scale byte 0 the factor; nowhere else."""
    found = {
        (test["flags"][0], variant["scale"])
        for variant, tests in groups("mxfp4", "BlockEncode")
        for test in tests
        if test["result"] == "acceptable" and "scale" in variant
    }
    rules = ("floor", "even", "rceil", "ceil")
    assert found >= {("NaNBlock", rule) for rule in rules}
    assert found >= {("TinyBlock", rule) for rule in rules}
    # An f32 logarithm loses the last bits of 2^30 and 2^-20.
    assert ("ScaleEdge", "rceil") in found
    assert {flag for flag, rule in found if rule != "rceil"} == {
        "NaNBlock",
        "TinyBlock",
    }
    nan = next(
        test["acceptable"]["torchao"]
        for variant, tests in groups("mxfp4", "BlockEncode")
        for test in tests
        if test["comment"] == "NaN" and variant.get("scale") == "rceil"
    )
    assert nan == "3333ff"


def test_rules_part_where_they_should() -> None:
    """Scale bytes of block maxima beside 2^0, 1.75, 1.5 and 2^1, for E2M1."""
    wanted = {
        "3f7fffff": {"floor": 124, "even": 125, "rceil": 125, "ceil": 125},
        "3f800000": {"floor": 125, "even": 125, "rceil": 125, "ceil": 125},
        "3f800001": {"floor": 125, "even": 125, "rceil": 125, "ceil": 126},
        "3fc00000": {"floor": 125, "even": 125, "rceil": 125, "ceil": 126},
        "3fc00001": {"floor": 125, "even": 125, "rceil": 126, "ceil": 126},
        "3fdfffff": {"floor": 125, "even": 125, "rceil": 126, "ceil": 126},
        "3fe00000": {"floor": 125, "even": 126, "rceil": 126, "ceil": 126},
    }
    for bits, by_rule in wanted.items():
        found = encoded("mxfp4", f"block maximum 0x{bits}")
        assert {rule: int(wire[-2:], 16) for rule, wire in found.items()} == by_rule


def test_orders_are_told_apart() -> None:
    for name in ("int8", "fp8", "int4", "nvfp4"):
        for variant, tests in groups(name, "BlockEncode"):
            for test in tests:
                if "OperationOrder" not in test["flags"]:
                    continue
                changed: dict[str, Any] = dict(variant)
                key = "global_scale" if "global_scale" in variant else "order"
                del changed[key]
                bits = np.frombuffer(bytes.fromhex(test["input"]), dtype=">u4")
                x = bits.astype(np.uint32).view(np.float32)
                assert (
                    get(name, **changed).encode(x).tobytes().hex() != test["expected"]
                )


def test_package_data_is_small() -> None:
    from importlib.resources import files

    folder = files("ds4proto.codec.vectors")
    total = sum(len(folder.joinpath(f"{name}.json").read_bytes()) for name in SCALED)
    assert total < 500_000


def _ignore(count: int) -> None:
    pass


@pytest.mark.parametrize("name", SCALED)
def test_verify_runs_all_of_them(name: str) -> None:
    ran = sum(v.ran for v in verify.verify_vectors([name], ["numpy"], _ignore))
    assert ran == vectors.load(name)["numberOfTests"] > 80


def test_a_wrong_wire_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    content = copy.deepcopy(vectors.load("mxfp4"))
    seen = {}
    loaded: dict[str, Any] = {}
    for group in content["testGroups"]:
        test = group["tests"][0]
        if group["type"] == "RowSize":
            test["bytes"] += 1
        else:
            first = int(test["expected"][0], 16)
            test["expected"] = f"{first ^ 1:x}" + test["expected"][1:]
        seen[group["type"]] = test["tcId"]
    monkeypatch.setitem(loaded, "mxfp4", content)
    monkeypatch.setattr(vectors, "load", loaded.__getitem__)
    verdicts = list(verify.verify_vectors(["mxfp4"], ["numpy"], _ignore))
    assert all(v.failed == 1 for v in verdicts)
    assert verdicts[-1].first.startswith(f"tcId {seen['RowSize']}: ")
    assert verify.exit_code(verdicts) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("patterns", "no whole rows of f32 patterns"),
        ("length", "wires of unequal length"),
        ("same", "an acceptable wire is the expected one"),
        ("twice", "is asked twice"),
    ],
)
def test_lint_finds(change: str, message: str) -> None:
    content = copy.deepcopy(vectors.load("mxfp4"))
    tests = [t for g in content["testGroups"] for t in g["tests"] if "acceptable" in t]
    test = tests[0]
    if change == "patterns":
        test["input"] = test["input"][:-2]
    elif change == "length":
        test["acceptable"]["torchao"] += "00"
    elif change == "same":
        test["acceptable"]["torchao"] = test["expected"]
    else:
        group = next(g for g in content["testGroups"] if test in g["tests"])
        other = next(t for t in group["tests"] if t["rows"] == test["rows"] == 1)
        test["input"] = other["input"]
    assert any(message in problem for problem in lint("mxfp4", content))
