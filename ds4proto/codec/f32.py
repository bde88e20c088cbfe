"""32 bit: the bytes of the f32 as they are (CODEC-F32)."""

from __future__ import annotations

import numpy as np

from ds4proto.codec.base import Codec, Path
from ds4proto.codec.definition import U32
from ds4proto.codec.elementwise import ElementwiseCodec, Steps
from ds4proto.codec.registry import refuse_variants

DESCRIPTION = {
    "name": "f32",
    "wire": "IEEE binary32, little-endian",
    "bits_per_value": "32",
    "worst_relative_error": "0",
    "largest": "the largest f32",
    "smallest_normal": "2^-126",
    "subnormal_step": "2^-149",
    "clip": "none",
    "ties": "none",
    "infinity": "passes",
    "nan": "passes with its payload, not quieted",
    "negative_zero": "passes",
    "codes_changed_by_decode_encode": "0",
    "profile_dependent": "no",
    "source": "spec chapter 5, clauses CODEC-F32",
}


def _copy(source: U32, target: U32) -> None:
    np.copyto(target, source)


def make(*, profile: str, threads: int, path: Path, **variant: str) -> Codec:
    """Return the f32 codec; see `ds4proto.codec.get`."""
    del profile
    refuse_variants("f32", variant)
    return ElementwiseCodec(
        "f32",
        np.uint32,
        Steps(_copy, _copy),
        None,
        DESCRIPTION,
        threads=threads,
        path=path,
    )
