"""8 bit: the unscaled E4M3-like byte of ds4 (CODEC-E4M3)."""

from __future__ import annotations

from functools import partial

import numpy as np

from ds4proto.codec import definition
from ds4proto.codec.base import Codec, Path
from ds4proto.codec.definition import E4M3_PROFILES, NumericProfile
from ds4proto.codec.elementwise import ElementwiseCodec, Steps, numpy_steps
from ds4proto.codec.registry import refuse_variants


def describe(profile: NumericProfile) -> dict[str, str]:
    """Return the choices of the byte under one numeric profile."""
    return {
        "name": "e4m3",
        "wire": "1 sign, 4 exponent (bias 7), 3 mantissa bits; no scale",
        "bits_per_value": "8",
        "worst_relative_error": "2^-4",
        "largest": "240",
        "smallest_normal": "2^-6",
        "subnormal_step": "2^-9",
        "clip": "magnitudes of 232 and more, infinity too, become 240 (0x77)",
        "ties": "away from zero",
        "below_smallest_normal": "0x07 from 6.5 * 2^-9 up to 2^-6: no carry to 0x08",
        "double_rounding": "0x3a7fffff, just below 2^-10, becomes 2^-9 (0x01)",
        "infinity": "becomes 240",
        "nan": f"0x{profile.positive_nan:02x} if positive, "
        f"0x{profile.negative_nan:02x} if negative; never decoded",
        "negative_zero": "0x80, negative f32 denormals too"
        if profile.signed_tiny
        else "0x00, negative f32 denormals too",
        "codes_changed_by_decode_encode": "16"
        if profile.signed_tiny
        else "17 (0x80 as well)",
        "profile_dependent": "-0, negative f32 denormals and NaN, when encoding",
        "profile": f"{profile.name}: {profile.build}",
        "source": "spec chapter 5, clauses CODEC-E4M3",
    }


def _kernel(profile: NumericProfile) -> Steps:
    from ds4proto.codec.kernels import e4m3

    return Steps(e4m3.encoder(profile), e4m3.decode, e4m3.decode_past_cache)


def make(*, profile: str, threads: int, path: Path, **variant: str) -> Codec:
    """Return the e4m3 codec; see `ds4proto.codec.get`."""
    refuse_variants("e4m3", variant)
    numeric = E4M3_PROFILES[profile]
    return ElementwiseCodec(
        "e4m3",
        np.uint8,
        numpy_steps(
            partial(definition.e4m3_encode, profile=numeric), definition.e4m3_decode
        ),
        partial(_kernel, numeric),
        describe(numeric),
        threads=threads,
        path=path,
    )
