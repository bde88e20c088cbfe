"""Codecs against a plain copy of f32 values: ``python -m bench.codec [--json]``.

Baseline: ``np.copyto`` f32 -> f32 of the same 16 Mi values in the same run. Beside our
codecs stand the casts of numpy, ml_dtypes and torch, where these are installed; the
8-bit ones of the others are OCP formats and give other bytes.
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


def _ours(x: Any, y: Any, threads: int) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    suffix = "" if threads == 1 else f", {threads} threads"
    for name in ("e4m3", "f16", "bf16"):
        codec = get(name, threads=threads)
        wire = np.empty(codec.wire_bytes(x.size), dtype=np.uint8)
        cases[f"{name} encode{suffix}"] = _call(codec.encode, x, wire)
        cases[f"{name} decode{suffix}"] = _call(codec.decode, wire, y, values=x.size)
    stock = get("e4m3", profile="gcc-linux", threads=threads)
    byte = np.empty(x.size, dtype=np.uint8)
    cases[f"e4m3 encode, gcc-linux{suffix}"] = _call(stock.encode, x, byte)
    return cases


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Case:
    return lambda: function(*args, **kwargs)


def _others(x: Any, y: Any) -> dict[str, Case]:
    half = np.empty(x.size, dtype=np.float16)
    cases: dict[str, Case] = {
        "numpy f16 encode": lambda: np.copyto(half, x, casting="same_kind"),
        "numpy f16 decode": lambda: np.copyto(y, half),
    }
    if find_spec("ml_dtypes"):
        dtype = np.dtype(import_module("ml_dtypes").float8_e4m3)
        byte = np.empty(x.size, dtype=dtype)
        cases["ml_dtypes float8_e4m3 encode"] = lambda: np.copyto(
            byte, x, casting="unsafe"
        )
        cases["ml_dtypes float8_e4m3 decode"] = lambda: np.copyto(
            y, byte, casting="unsafe"
        )
    if find_spec("torch"):
        torch = import_module("torch")
        torch.set_num_threads(1)
        source, target = torch.from_numpy(x), torch.from_numpy(y)
        for label, dtype in (("f16", torch.float16), ("e4m3fn", torch.float8_e4m3fn)):
            wire = torch.empty(x.size, dtype=dtype)
            cases[f"torch {label} encode"] = _call(wire.copy_, source)
            cases[f"torch {label} decode"] = _call(target.copy_, wire)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    parser.add_argument("--values", type=int, default=1 << 24, help="f32 values")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each case")
    parser.add_argument("--ours", action="store_true", help="leave out the others")
    options = parser.parse_args()
    rng = np.random.default_rng(20260601)
    x = rng.standard_normal(options.values, dtype=np.float32)
    y = np.empty_like(x)
    cases: dict[str, Case] = {BASELINE: lambda: np.copyto(y, x)}
    cases |= _ours(x, y, 1) | _ours(x, y, 2)
    if not options.ours:
        cases |= _others(x, y)
    rows = measure(cases, baseline=BASELINE, work=x.nbytes, rounds=options.rounds)
    report(
        f"codec, {options.values} values",
        rows,
        baseline=BASELINE,
        unit="GB/s of f32",
        scale=1e9,
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
