"""Codecs: what holds across profiles, and at both ends of a connection."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from ds4proto import codec
from ds4proto.codec import registry
from ds4proto.codec.base import PROFILES
from tests.spec.proving import proof

real_get = registry.get


def flushing(name: str, *, profile: str = "strict", **more: Any) -> Any:
    """Give a 16-bit codec that flushes small halves in one profile."""
    found = real_get(name, profile=profile, **more)
    if name == "f16" and profile != "strict":
        encode = found.encode
        found.encode = lambda x, *w, **k: encode(np.where(abs(x) < 1e-4, 0, x), *w, **k)
    return found


@proof(
    "CODEC-E4M3-24",
    "halves flushed in the profiles of fast builds",
    patch.object(codec, "get", flushing),
)
def sixteen_bit_and_both_decoders_are_the_same_in_all_profiles() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    bytes_ = np.arange(256, dtype=np.uint8)
    x = np.arange(0, 1 << 32, 65521, dtype=np.uint32).view(np.float32)
    seen: dict[str, set[bytes]] = {"encode": set(), "f16": set(), "e4m3": set()}
    for profile in PROFILES:
        f16 = codec.get("f16", profile=profile, path="numpy")
        e4m3 = codec.get("e4m3", profile=profile, path="numpy")
        seen["encode"].add(bytes(f16.encode(x)))
        seen["f16"].add(f16.decode(halves, values=1 << 16).tobytes())
        seen["e4m3"].add(e4m3.decode(bytes_, values=256).tobytes())
    assert {name: len(found) for name, found in seen.items()} == dict.fromkeys(seen, 1)
