"""Codecs by name. To add one: write ``ds4proto/codec/NAME.py``, name it below.

Such a module has one function, ``make(*, profile, threads, path, **variant)``,
which returns a `Codec`. It is imported when somebody asks for it. The scaled formats
share one such module, ``blocks``, whose ``make`` takes the name first.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Final, Protocol, cast

from ds4proto.codec.base import PROFILES, Codec, CodecError, Path

SCALED: Final = (
    "int8",
    "fp8",
    "mxfp8",
    "nvfp4",
    "e2m1-e8m0-16",
    "e2m1-e4m3-32",
    "mxfp4",
    "int4",
)
"""Formats with scales in the payload, ours; the rest are those of ds4."""

_NAMES: Final = ("f32", "f16", "bf16", "e4m3", *SCALED)
_MAX_THREADS: Final = 64


class _Maker(Protocol):
    def __call__(
        self, *, profile: str, threads: int, path: Path, **variant: str
    ) -> Codec: ...


def names() -> tuple[str, ...]:
    """Return the names of all codecs, widest first."""
    return _NAMES


def get(
    name: str,
    *,
    profile: str = "strict",
    threads: int = 1,
    path: Path = "auto",
    **variant: str,
) -> Codec:
    """Return the codec called ``name``.

    Parameters
    ----------
    name
        One of `names`.
    profile
        Numeric profile of the peer's build, one of `PROFILES`. Changes nothing but
        the bytes that the e4m3 encoder gives for -0, negative denormals and NaN.
    threads
        Payloads of some 100 Ki values and more are split over this many threads.
    path
        ``numpy`` (the definition), ``numba`` (kernels, loaded at once) or ``auto``:
        kernels where the extra ``fast`` is installed. The bytes are the same.
    **variant
        Choices of one codec, see its ``describe()``.

    Raises
    ------
    CodecError
        Unknown name, profile, path or variant; the message lists the known ones.
    """
    if name not in _NAMES:
        raise CodecError(
            str(name),
            "unknown codec",
            expected="one of " + ", ".join(_NAMES),
            found=repr(name),
            next_step="see `ds4proto codec list`",
        )
    if profile not in PROFILES:
        raise CodecError(
            name,
            "unknown numeric profile",
            expected="one of " + ", ".join(PROFILES),
            found=repr(profile),
            next_step="identify_profile() names the profile of a peer's bytes",
        )
    if path not in ("auto", "numpy", "numba"):
        raise CodecError(
            name,
            "unknown path",
            expected="auto, numpy or numba",
            found=repr(path),
            next_step="leave path out to get the fastest one installed",
        )
    if not 1 <= threads <= _MAX_THREADS:
        raise CodecError(
            name,
            "number of threads",
            expected=f"1 to {_MAX_THREADS}",
            found=str(threads),
            next_step="two are enough to saturate most memory buses",
        )
    make = import_module(f"ds4proto.codec.{'blocks' if name in SCALED else name}").make
    maker = cast(_Maker, partial(make, name) if name in SCALED else make)
    return maker(profile=profile, threads=threads, path=path, **variant)


def refuse_variants(codec: str, variant: dict[str, str]) -> None:
    """Refuse variant names that ``codec`` does not have."""
    if variant:
        raise CodecError(
            codec,
            "unknown variant",
            expected="none",
            found=", ".join(sorted(variant)),
            next_step="this codec has no choices beside profile, threads and path",
        )
