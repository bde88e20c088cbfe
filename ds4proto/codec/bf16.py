"""16 bit on one side branch: BF16 by an integer rule (CODEC-BF16)."""

from __future__ import annotations

import numpy as np

from ds4proto.codec import definition
from ds4proto.codec.base import Codec, Path
from ds4proto.codec.elementwise import ElementwiseCodec, Steps, numpy_steps
from ds4proto.codec.registry import refuse_variants

DESCRIPTION = {
    "name": "bf16",
    "wire": "upper half of an f32, little-endian",
    "bits_per_value": "16",
    "worst_relative_error": "2^-8",
    "largest": "0x7f7f = 255 * 2^120",
    "smallest_normal": "2^-126",
    "subnormal_step": "2^-133",
    "clip": "none: magnitudes of 511 * 2^119 and more become infinity",
    "ties": "to even",
    "infinity": "passes",
    "nan": "no care: it may become infinity, -0 or +0, or keep its upper payload",
    "negative_zero": "passes",
    "codes_changed_by_decode_encode": "0",
    "profile_dependent": "no",
    "source": "spec chapter 5, clauses CODEC-BF16",
}


def _kernel() -> Steps:
    from ds4proto.codec.kernels import bf16

    return Steps(bf16.encode, bf16.decode, bf16.decode_past_cache)


def make(*, profile: str, threads: int, path: Path, **variant: str) -> Codec:
    """Return the bf16 codec; see `ds4proto.codec.get`."""
    del profile
    refuse_variants("bf16", variant)
    return ElementwiseCodec(
        "bf16",
        np.uint16,
        numpy_steps(definition.bf16_encode, definition.bf16_decode),
        _kernel,
        DESCRIPTION,
        threads=threads,
        path=path,
    )
