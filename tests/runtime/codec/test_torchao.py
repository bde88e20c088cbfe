"""Bytes beside torchao's, where both define the same ones.

Needs torch, like everything under ``tests/runtime``, and torchao. Both come with
``make setup-runtime``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from ds4proto.codec import get, vectors

torchao: Any = pytest.importorskip(
    "torchao", reason="torchao (extra `crosscheck`) is not installed"
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

ELEMENTS = {"mxfp8": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}
RULES = ("floor", "even", "rceil", "ceil")


def torchao_mx(name: str, rule: str, x: Any) -> tuple[Any, Any]:
    """Return torchao's elements and scale bytes of rows of whole blocks."""
    mode = mx_tensor.ScaleCalculationMode[rule.upper()]
    scales, data = mx_tensor.to_mx(torch.from_numpy(x), ELEMENTS[name], 32, mode)
    return data.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy()


def spread(rows: int, width: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)) * np.exp(rng.standard_normal((rows, width)))
    return x.astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ELEMENTS)
def test_mx_bytes(name: str, rule: str) -> None:
    x = spread(256, 1024, 1)
    x[3, :32] = 0
    ours = get(name, scale=rule).encode(x, rows=256).reshape(256, -1)
    data, scales = torchao_mx(name, rule, x)
    assert np.array_equal(ours, np.concatenate([data, scales], axis=1))


@pytest.mark.parametrize("name", ELEMENTS)
def test_mx_values(name: str) -> None:
    codec: Any = get(name)
    wire = np.random.default_rng(2).integers(0, 256, (64, codec.row_bytes(128)))
    wire = wire.astype(np.uint8)
    elements = codec.form.layout.element_bytes(128)
    data = torch.from_numpy(wire[:, :elements].copy())
    if name == "mxfp8":
        data = data.view(torch.float8_e4m3fn)
    scales = torch.from_numpy(wire[:, elements:].copy()).view(torch.float8_e8m0fnu)
    wanted = mx_tensor.to_dtype(data, scales, ELEMENTS[name], 32, torch.float32)
    got = codec.decode(wire, values=64 * 128, rows=64).reshape(64, 128)
    assert np.array_equal(got, wanted.numpy(), equal_nan=True)


def test_nvfp4_bytes_and_values() -> None:
    codec = get("nvfp4")
    for row in spread(64, 512, 3):
        wire = codec.encode(row)
        top = torch.tensor(np.abs(row).max()) / torch.tensor(2688.0)
        scales, data = nvfp4_tensor.nvfp4_quantize(
            torch.from_numpy(row[None]), 16, per_tensor_scale=top
        )
        stored = top.reshape(1, 1).view(torch.uint8)
        wanted = torch.cat([data, scales.view(torch.uint8), stored], dim=1)
        assert wire.tobytes() == wanted.numpy().tobytes()
        tensor = nvfp4_tensor.NVFP4Tensor(
            data, scales, 16, torch.float32, per_tensor_scale=top
        )
        values = tensor.dequantize(torch.float32).numpy()
        assert codec.decode(wire, values=512).tobytes() == values.tobytes()


@pytest.mark.parametrize("name", ELEMENTS)
def test_what_the_vectors_say_of_torchao(name: str) -> None:
    """Expected, or under `acceptable`, the bytes that torchao gives, for every row."""
    others = 0
    for group in vectors.load(name)["testGroups"]:
        variant = group["variant"]
        if group["type"] != "BlockEncode" or {"rounding", "nibbles"} & set(variant):
            continue
        for test in group["tests"]:
            raw = bytes.fromhex(test["input"])
            bits = np.frombuffer(raw, dtype=">u4").astype(np.uint32)
            bits = bits.reshape(test["rows"], -1)
            width = bits.shape[1]
            padded = np.pad(bits, ((0, 0), (0, -width % 32))).view(np.float32)
            rule = variant.get("scale", "floor")
            data, scales = torchao_mx(name, rule, padded)
            packed = width if name == "mxfp8" else (width + 1) // 2
            row = np.concatenate([data[:, :packed], scales], axis=1)
            told = test.get("acceptable", {}).get("torchao", test["expected"])
            others += told != test["expected"]
            assert row.tobytes().hex() == told, (variant, test["tcId"], test["comment"])
    assert others > 10
