"""Scaled codecs against a plain copy: ``python -m bench.codec_blocks [--json]``.

Baseline: ``np.copyto`` f32 -> f32 of the same values in the same run, 2,048 values a
row. Beside our codecs stand eager torch and torchao, where these are installed, over
fewer values with a copy of their own: they are a hundred times slower.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from bench._timing import Case, measure, report
from ds4proto.codec import get

BASELINE = "np.copyto f32"
WIDTH = 2048
CASES: tuple[tuple[str, dict[str, str]], ...] = (
    ("int8", {}),
    ("int8", {"order": "reciprocal"}),
    ("fp8", {}),
    ("int4", {}),
    ("int4", {"block": "32"}),
    ("mxfp8", {}),
    ("mxfp4", {}),
    ("mxfp4", {"scale": "rceil"}),
    ("mxfp4", {"nibbles": "halves"}),
    ("e2m1-e8m0-16", {}),
    ("nvfp4", {}),
    ("nvfp4", {"order": "divide"}),
    ("e2m1-e4m3-32", {}),
)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Case:
    return lambda: function(*args, **kwargs)


def _ours(x: Any, y: Any, threads: int) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    suffix = "" if threads == 1 else f", {threads} threads"
    rows = x.size // WIDTH
    for name, variant in CASES:
        codec = get(name, profile="strict", threads=threads, path="auto", **variant)
        wire = np.empty(codec.wire_bytes(x.size, rows), dtype=np.uint8)
        label = " ".join([name, *variant.values()])
        cases[f"{label} quantise{suffix}"] = _call(codec.encode, x, wire, rows=rows)
        cases[f"{label} dequantise{suffix}"] = _call(
            codec.decode, wire, y, values=x.size, rows=rows
        )
    return cases


def _torch_int8(torch: Any, x: Any) -> Any:
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(2.0**-126)
    return torch.round(x / scale).to(torch.int8), scale


def _others(x: Any) -> dict[str, Case]:
    if not find_spec("torch"):
        return {}
    torch = import_module("torch")
    torch.set_num_threads(1)
    source = torch.from_numpy(x.reshape(-1, WIDTH))
    codes, scale = _torch_int8(torch, source)
    cases: dict[str, Case] = {
        "torch eager int8 quantise": _call(_torch_int8, torch, source),
        "torch eager int8 dequantise": lambda: codes.float() * scale,
    }
    if not find_spec("torchao"):
        return cases
    mx = import_module("torchao.prototype.mx_formats.mx_tensor")
    nv = import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    top = source.abs().amax() / 2688
    for label, dtype in (
        ("mxfp8", torch.float8_e4m3fn),
        ("mxfp4", torch.float4_e2m1fn_x2),
    ):
        s, d = mx.to_mx(source, dtype, 32)
        cases[f"torchao {label} quantise"] = _call(mx.to_mx, source, dtype, 32)
        cases[f"torchao {label} dequantise"] = _call(
            mx.to_dtype, d, s, dtype, 32, torch.float32
        )
    cases["torchao nvfp4 quantise"] = _call(nv.nvfp4_quantize, source, 16, top)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line a table")
    parser.add_argument("--values", type=int, default=1 << 24, help="f32 values")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each case")
    parser.add_argument("--ours", action="store_true", help="leave out the others")
    options = parser.parse_args()
    values = max(WIDTH, options.values // WIDTH * WIDTH)
    rng = np.random.default_rng(20260602)
    x = rng.standard_normal(values, dtype=np.float32)
    y = np.empty_like(x)
    cases: dict[str, Case] = {BASELINE: lambda: np.copyto(y, x)}
    cases |= _ours(x, y, 1) | _ours(x, y, 2)
    rows = measure(cases, baseline=BASELINE, work=x.nbytes, rounds=options.rounds)
    report(
        f"scaled codecs, {values} values",
        rows,
        baseline=BASELINE,
        unit="GB/s of f32",
        scale=1e9,
        as_json=options.json,
    )
    few = x[: max(WIDTH, values // 16 // WIDTH * WIDTH)].copy()
    others = {} if options.ours else _others(few)
    if not others:
        return
    spare = np.empty_like(few)
    others = {BASELINE: lambda: np.copyto(spare, few), **others}
    report(
        f"scaled codecs of others, {few.size} values",
        measure(others, baseline=BASELINE, work=few.nbytes, rounds=3),
        baseline=BASELINE,
        unit="GB/s of f32",
        scale=1e9,
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
