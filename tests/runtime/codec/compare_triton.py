"""Compare the Triton kernels with the definition; prints ``N compared, M differ``.

Runs on a CUDA device if there is one, else interpreted (TRITON_INTERPRET=1). With
``--break`` the kernels get other input than the definition, to see the check fail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ds4proto_runtime.kernels import triton_blocks

from ds4proto.codec import get
from ds4proto.codec.registry import SCALED

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SCALED),
    ("int8", {"order": "reciprocal", "divisor": "127.5", "lowest": "-128"}),
    ("int4", {"block": "32", "divisor": "7.5"}),
    ("mxfp4", {"scale": "even", "rounding": "away"}),
    ("mxfp4", {"scale": "rceil", "rounding": "down", "nibbles": "halves"}),
    ("mxfp8", {"scale": "rceil"}),
    ("mxfp4", {"scale": "ceil"}),
    ("nvfp4", {"nibbles": "halves", "order": "divide", "zero": "zero"}),
    ("nvfp4", {"order": "product-inverse", "global_scale": "encode", "zero": "zero"}),
    ("nvfp4", {"zero": "eighth", "global_scale": "encode"}),
]


def inputs(rows: int, width: int) -> Iterator[Any]:
    """Give any patterns, values of any size, and values on ties of any scale."""
    rng = np.random.default_rng([31, rows, width])
    yield rng.integers(0, 1 << 32, (rows, width), dtype=np.uint32).view(np.float32)
    spread = np.exp(rng.standard_normal((rows, width)) * 4)
    yield (rng.standard_normal((rows, width)) * spread).astype(np.float32)
    ties = rng.integers(-28, 29, (rows, width)) / 4
    yield np.ldexp(ties, rng.integers(-140, 100, (rows, 1))).astype(np.float32)


def differs(codec: Any, x: Any, device: str, shift: float) -> bool:
    """Tell whether a kernel gives another wire or other values than the definition."""
    rows, width = x.shape
    form = codec.form
    wire = codec.encode(x, rows=rows)
    made = torch.zeros(rows, wire.size // rows, dtype=torch.uint8, device=device)
    given = torch.from_numpy(x).to(device)
    if shift:  # a sum with 0 would lose the sign of zero
        given = given + shift
    assert triton_blocks.encode(form, given.contiguous(), made)
    if made.cpu().numpy().tobytes() != wire.tobytes():
        return True
    rng = np.random.default_rng(32)
    for sent in (wire, rng.integers(0, 256, wire.size, dtype=np.uint8)):
        wanted = codec.decode(sent, values=x.size, rows=rows)
        values = torch.zeros(rows, width, device=device)
        source = torch.from_numpy(sent).view(rows, -1).to(device)
        assert triton_blocks.decode(form, source, values)
        if values.cpu().numpy().tobytes() != wanted.tobytes():
            return True
    return False


def main() -> int:
    """Compare all formats; exit status 1 if one differs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shift = 0.5 if "--break" in sys.argv else 0.0
    shapes = ((2, 64), (1, 96), (2, 37), (1, 1))
    compared = failed = 0
    with np.errstate(all="ignore"):
        for name, variant in VARIANTS[: 1 if shift else None]:
            codec = get(name, path="numpy", **variant)
            for rows, width in shapes:
                if variant.get("nibbles") and width % 32:
                    continue
                for kind, x in enumerate(inputs(rows, width)):
                    compared += 1
                    if differs(codec, x, device, shift):
                        failed += 1
                        print(f"{name} {variant} {rows} x {width}, input {kind}")
    print(f"{compared} compared, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
