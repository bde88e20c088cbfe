"""Codec builds that encode or decode wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ds4proto_conformance.peers.faults import Fault

Pair = tuple[Any, bytes]


def _on(which: str, change: Callable[[Any, Any], Any]) -> Any:
    """Alter one operation; ``change(given, found)`` with arrays of codes or values."""
    kind = "<u1" if "e4m3" in which else "<u4" if "f32" in which else "<u2"

    def evaluate(operation: Any, pair: Any) -> bytes:
        given, found, _rows = pair
        if operation != which:
            return bytes(found)
        view = "<f4" if which.startswith("decode") else kind
        return bytes(
            np.ascontiguousarray(
                change(given, np.frombuffer(found, view).copy())
            ).tobytes()
        )

    return evaluate


def _signed(found: Any, magnitude: Any) -> Any:
    return ((found & 0x80) | magnitude).astype(np.uint8)


def _even(values: Any, codes: Any) -> Any:
    from ds4proto.codec import get

    table = get("e4m3", path="numpy").decode(np.arange(256, dtype=np.uint8), values=256)
    down = codes - ((codes & 0x7F) > 8)
    tie = np.abs(table[codes] - values) == np.abs(values - table[down])
    return np.where((codes & 1).astype(bool) & tie, down, codes).astype(np.uint8)


def _cut(values: Any, codes: Any) -> Any:
    from ds4proto.codec import get

    table = get("e4m3", path="numpy").decode(np.arange(256, dtype=np.uint8), values=256)
    over = np.abs(table[codes]) > np.abs(values)
    return (codes - (over & ((codes & 0x7F) > 0))).astype(np.uint8)


def _threshold(values: Any, codes: Any) -> Any:
    scaled = np.abs(values) * 512
    tie = (scaled < 7) & (scaled % 1 == 0.5)
    return (codes - tie).astype(np.uint8)


def _away_16(values: Any, codes: Any) -> Any:
    back = codes.view(np.float16).astype(np.float32)
    up = codes + 1
    tie = np.abs(up.view(np.float16).astype(np.float32) - values) == np.abs(
        values - back
    )
    smaller = np.abs(back) < np.abs(values)
    return np.where(tie & smaller, up, codes).astype("<u2")


def _e(name: str, about: str, which: str, change: Callable[[Any, Any], Any]) -> Fault:
    return Fault(f"codec-{name}", "codec", "codec", about, evaluate=_on(which, change))


def _header(operation: Any, pair: Any) -> bytes:
    return (b"\0\0\0\x01" if operation.startswith("encode") else b"") + bytes(pair[1])


MUTANTS: Final = (
    _e("e4m3-even", "rounds ties to even", "encode e4m3", _even),
    _e("e4m3-truncates", "cuts instead of rounding", "encode e4m3", _cut),
    _e(
        "e4m3-448",
        "saturates at the last code",
        "encode e4m3",
        lambda v, c: np.where(np.abs(v) >= 240, _signed(c, 0x7E), c).astype(np.uint8),
    ),
    _e(
        "e4m3-flush",
        "gives zero for subnormals",
        "encode e4m3",
        lambda v, c: np.where(np.abs(v) < 2**-6, c & 0x80, c).astype(np.uint8),
    ),
    _e("e4m3-threshold-down", "rounds thresholds down", "encode e4m3", _threshold),
    _e(
        "e4m3-carry",
        "carries into the normal range",
        "encode e4m3",
        lambda v, c: np.where(
            (np.abs(v) >= 7.5 / 512) & (np.abs(v) < 2**-6), _signed(c, 8), c
        ).astype(np.uint8),
    ),
    _e(
        "e4m3-exact",
        "compares exactly below 2^-10",
        "encode e4m3",
        lambda v, c: np.where(np.abs(v) < 2**-10, c & 0x80, c).astype(np.uint8),
    ),
    _e(
        "e4m3-no-profile",
        "gives 0x7f for NaN",
        "encode e4m3",
        lambda v, c: np.where(np.isnan(v), 0x7F, c).astype(np.uint8),
    ),
    _e(
        "e4m3-drifts",
        "loses the lowest bit of exact values",
        "encode e4m3",
        lambda v, c: np.where(np.abs(v) == 0.5625, c - 1, c).astype(np.uint8),
    ),
    _e(
        "e4m3-decode-subnormal",
        "decodes subnormals as m / 1024",
        "decode e4m3",
        lambda g, f: np.where((g & 0x78) == 0, f / 2, f).astype("<f4"),
    ),
    _e(
        "e4m3-decode-bias",
        "has an exponent bias of 8",
        "decode e4m3",
        lambda g, f: np.where(
            ((g & 0x78) != 0) & ((g & 0x78) != 0x78), f / 2, f
        ).astype("<f4"),
    ),
    _e(
        "e4m3-decode-nan",
        "decodes the top codes as NaN",
        "decode e4m3",
        lambda g, f: np.where((g & 0x78) == 0x78, np.nan, f).astype("<f4"),
    ),
    _e("f16-away", "rounds ties away", "encode f16", _away_16),
    _e(
        "f16-flush",
        "gives zero for subnormals",
        "encode f16",
        lambda _v, c: np.where((c & 0x7C00) == 0, c & 0x8000, c).astype("<u2"),
    ),
    _e(
        "f16-saturates",
        "saturates at 65,504",
        "encode f16",
        lambda v, c: np.where(
            ((c & 0x7FFF) == 0x7C00) & np.isfinite(v), (c & 0x8000) | 0x7BFF, c
        ).astype("<u2"),
    ),
    _e(
        "f16-signless",
        "drops the sign of zero",
        "encode f16",
        lambda _v, c: np.where((c & 0x7FFF) == 0, 0, c).astype("<u2"),
    ),
    _e(
        "f16-nan-payload",
        "keeps NaN payloads",
        "encode f16",
        lambda v, c: np.where(
            np.isnan(v), c | (v.view(np.uint32) >> 13 & 0x3FF).astype("<u2"), c
        ).astype("<u2"),
    ),
    _e(
        "f16-decode-flush",
        "decodes subnormals as zero",
        "decode f16",
        lambda _g, f: np.where(np.abs(f) < 2**-14, 0, f).astype("<f4"),
    ),
    _e(
        "bf16-cuts",
        "keeps the upper half",
        "encode bf16",
        lambda v, _c: (v.view(np.uint32) >> 16).astype("<u2"),
    ),
    _e(
        "bf16-quiet",
        "keeps NaN a NaN",
        "encode bf16",
        lambda v, c: np.where(np.isnan(v), 0x7FC0, c).astype("<u2"),
    ),
    _e(
        "bf16-decode-turned",
        "decodes the other byte first",
        "decode bf16",
        lambda _g, f: (
            (f.view("<u4") >> 16).astype("<u2").byteswap().astype("<u4") << 16
        ),
    ),
    _e(
        "f32-quiets",
        "quiets NaN",
        "encode f32",
        lambda v, c: np.where(np.isnan(v), c | 0x00400000, c).astype("<u4"),
    ),
    _e(
        "f32-turned",
        "sends the high byte first",
        "encode f32",
        lambda _v, c: c.byteswap(),
    ),
    Fault(
        "codec-with-header", "codec", "codec", "puts a count in front", evaluate=_header
    ),
)
