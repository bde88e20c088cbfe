"""16 bit on the main line: IEEE binary16 (CODEC-F16)."""

from __future__ import annotations

import numpy as np

from ds4proto.codec import definition
from ds4proto.codec.base import Codec, Path
from ds4proto.codec.elementwise import ElementwiseCodec, Steps, numpy_steps
from ds4proto.codec.registry import refuse_variants

DESCRIPTION = {
    "name": "f16",
    "wire": "IEEE binary16, little-endian",
    "bits_per_value": "16",
    "worst_relative_error": "2^-11",
    "largest": "65504",
    "smallest_normal": "2^-14",
    "subnormal_step": "2^-24",
    "clip": "none: magnitudes of 65520 and more become infinity",
    "ties": "to even",
    "infinity": "passes",
    "nan": "encodes to 0x7e00 with its sign; decodes with its payload, not quieted",
    "negative_zero": "passes",
    "codes_changed_by_decode_encode": "2044",
    "profile_dependent": "no",
    "source": "spec chapter 5, clauses CODEC-F16",
}


def _kernel() -> Steps:
    from ds4proto.codec.kernels import half

    return Steps(half.encode, half.decode, half.decode_past_cache)


def make(*, profile: str, threads: int, path: Path, **variant: str) -> Codec:
    """Return the f16 codec; see `ds4proto.codec.get`."""
    del profile
    refuse_variants("f16", variant)
    return ElementwiseCodec(
        "f16",
        np.uint16,
        numpy_steps(definition.f16_encode, definition.f16_decode),
        _kernel,
        DESCRIPTION,
        threads=threads,
        path=path,
    )
