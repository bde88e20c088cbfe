"""The token hash over an array of u32 token ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4proto.codec.kernels.compiler import hash_kernel

_D = np.uint64


def _hash(state: Any, tokens: Any, prime: Any) -> Any:
    for i in range(tokens.shape[0]):
        token = _D(tokens[i])
        for shift in range(0, 32, 8):
            byte = _D(_D(token >> _D(shift)) & _D(0xFF))
            state = _D(_D(state ^ byte) * prime)
    return state


update = hash_kernel(_hash, "u64", "u64", "in:u32", "u64")
