"""Activation widths of DS4D and the codecs they stand for (CODEC-SIZE-02)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

from ds4proto.codec.base import Codec, CodecError, Path
from ds4proto.codec.registry import get

ACTIVATION_BITS: Final = (32, 16, 8)
"""Widths that a peer may ask for, in bits a value."""

DEFAULT_BITS: Final = 32
"""What a width field of 0 means."""

_CODECS: Final = MappingProxyType({32: "f32", 16: "f16", 8: "e4m3"})
ACTIVATION_TEXT: Final = "must be 32, 16, or 8"
"""How ds4 words the refusal of any other width."""


def resolve_bits(bits: int) -> int:
    """Return the width that ``bits`` stands for: itself, or 32 for 0.

    Raises
    ------
    CodecError
        Any width but 32, 16, 8 and 0.
    """
    resolved = DEFAULT_BITS if bits == 0 else bits
    if resolved not in ACTIVATION_BITS:
        raise CodecError(
            f"activation width {bits}",
            ACTIVATION_TEXT,
            expected="32, 16, or 8 (0 stands for 32)",
            found=str(bits),
            next_step="choose one of these with --dist-activation-bits",
        )
    return resolved


def activation_codec(
    bits: int,
    *,
    profile: str = "strict",
    half: Literal["f16", "bf16"] = "f16",
    threads: int = 1,
    path: Path = "auto",
) -> Codec:
    """Return the codec of a DS4D activation width.

    Parameters
    ----------
    bits
        ``input_hc_bits`` or ``payload_bits`` of a frame, or the option's value.
    half
        What 16 bit means: IEEE half on the main line, BF16 on one side branch.
        Nothing on the wire tells the two apart.
    profile, threads, path
        As for `get`.

    Raises
    ------
    CodecError
        Any other width, or an unknown half format.
    """
    resolved = resolve_bits(bits)
    if half not in ("f16", "bf16"):
        raise CodecError(
            "activation width 16",
            "unknown half format",
            expected="f16 or bf16",
            found=repr(half),
            next_step="use f16 unless both peers are the BF16 side branch",
        )
    name = half if resolved == 16 else _CODECS[resolved]
    return get(name, profile=profile, threads=threads, path=path)
