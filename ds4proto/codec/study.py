"""What a format costs a hidden state: signal to noise, and where the error comes from.

The question behind the hybrids: NVFP4 differs from MXFP4 in two things, its scales are
not powers of two (E4M3 with a row scale for E8M0) and its blocks are half as long. Each
hybrid changes one of the two, so that the distance splits into shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec.base import Codec, CodecError
from ds4proto.codec.registry import get

F32 = NDArray[np.float32]
RARITY: Final = 256


def squared_error(x: F32, codec: Codec) -> float:
    """Return the sum of squared differences after one trip over the wire, in f64.

    ``x`` is float32 of shape (rows, width). Values that arrive as NaN or infinity make
    the result so.
    """
    rows = x.shape[0]
    wire = codec.encode(x, rows=rows)
    back = codec.decode(wire, values=x.size, rows=rows).reshape(x.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = back.astype(np.float64) - x.astype(np.float64)
        return float(np.sum(difference * difference))


def relative_error(x: F32, codec: Codec) -> float:
    """Return the root of squared error over squared signal; 0 for a signal of zeros."""
    error = squared_error(x, codec)
    signal = float(np.sum(x.astype(np.float64) ** 2))
    if signal == 0:
        return 0.0 if error == 0 else float("inf")
    return float(np.sqrt(error / signal))


def sqnr_db(x: F32, codec: Codec) -> float:
    """Return the ratio of signal to quantisation noise in dB; infinite without noise.

    Parameters
    ----------
    x
        float32 of shape (rows, width), finite.
    codec
        What it is sent with.
    """
    error = relative_error(x, codec)
    return float("inf") if error == 0 else float(-20 * np.log10(error))


@dataclass(frozen=True)
class Decomposition:
    """How the error falls from MXFP4 to NVFP4; squared errors, relative to the signal.

    Attributes
    ----------
    mxfp4, nvfp4
        The two ends.
    finer_scale
        MXFP4 with E4M3 scales (codec ``e2m1-e4m3-32``).
    shorter_block
        MXFP4 with blocks of 16 (codec ``e2m1-e8m0-16``).
    """

    mxfp4: float
    finer_scale: float
    shorter_block: float
    nvfp4: float

    @property
    def ratio(self) -> float:
        """MXFP4's error over NVFP4's."""
        return self.mxfp4 / self.nvfp4 if self.nvfp4 else float("nan")

    @property
    def scale_share(self) -> float:
        """Part of the distance that the finer scale alone removes; 1 is all of it."""
        return self._share(self.finer_scale)

    @property
    def block_share(self) -> float:
        """Part of the distance that the shorter block alone removes; may be below 0."""
        return self._share(self.shorter_block)

    def _share(self, changed: float) -> float:
        gap = self.mxfp4 - self.nvfp4
        return (self.mxfp4 - changed) / gap if gap else float("nan")


def error_decomposition(x: F32, **codec_options: Any) -> Decomposition:
    """Split the distance between MXFP4 and NVFP4 on ``x``, shape (rows, width).

    Parameters
    ----------
    x
        float32, finite, not all zero.
    **codec_options
        ``threads`` and ``path`` for `ds4proto.codec.get`.

    Raises
    ------
    CodecError
        Nothing but zeros, or values that are not finite.
    """
    signal = float(np.sum(x.astype(np.float64) ** 2))
    if not np.isfinite(signal) or signal == 0:
        raise CodecError(
            "study",
            "signal",
            expected="finite values, not all zero",
            found=f"a sum of squares of {signal}",
            next_step="look at the hidden states before comparing formats",
        )
    names = ("mxfp4", "e2m1-e4m3-32", "e2m1-e8m0-16", "nvfp4")
    errors = [squared_error(x, get(name, **codec_options)) / signal for name in names]
    return Decomposition(*errors)


def synthetic_activations(
    rows: int, width: int, *, severity: float, seed: int, rarity: int = RARITY
) -> F32:
    """Return normal values of which one in ``rarity`` channels is larger.

    Parameters
    ----------
    rows, width
        Tokens and channels.
    severity
        Factor of the outlier channels; 1 makes none.
    seed
        Of the values and of the choice of channels.
    rarity
        One channel in this many is an outlier.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width), dtype=np.float32)
    channels = rng.choice(width, size=max(1, width // rarity), replace=False)
    x[:, channels] *= np.float32(severity)
    return x
