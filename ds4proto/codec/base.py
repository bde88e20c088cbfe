"""The names every codec shares: the protocol, the error, the numeric profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ds4proto.errors import Ds4ProtoError

Path = Literal["auto", "numpy", "numba"]

PROFILES: Final = ("strict", "gcc-linux", "clang-fast", "gcc-fast")
"""Numeric profiles of ds4 builds; only the e4m3 encoder depends on them."""

MAX_WIRE_BYTES: Final = 2**32 - 1
"""Largest payload that a u32 length field can announce (CODEC-SIZE-01)."""


class CodecError(Ds4ProtoError, ValueError):
    """A codec was asked for something that it cannot do.

    Parameters
    ----------
    codec
        Name of the codec, or of the part that refused.
    what
        What is wrong, in a few words.
    expected, found
        Sizes, types or names, as text.
    next_step
        What the caller can do about it.
    """

    def __init__(
        self, codec: str, what: str, *, expected: str, found: str, next_step: str
    ) -> None:
        self.codec = codec
        self.what = what
        self.expected = expected
        self.found = found
        self.next_step = next_step
        super().__init__(
            f"codec {codec}: {what}: expected {expected}, found {found}; {next_step}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.codec, self.what, self.expected, self.found,
                           self.next_step))  # fmt: skip


def _rebuild(
    codec: str, what: str, expected: str, found: str, next_step: str
) -> CodecError:
    return CodecError(codec, what, expected=expected, found=found, next_step=next_step)


@runtime_checkable
class Codec(Protocol):
    """One wire format of f32 values.

    ``values`` is always the number of f32 values of the whole payload and ``rows``
    the number of equal rows (tokens) they form, row-major; codecs without a scale
    per row only check that the rows are equal.
    """

    name: str

    def wire_bytes(self, values: int, rows: int = 1) -> int:
        """Return the size in bytes of ``values`` encoded values in ``rows`` rows."""
        ...

    def encode(self, x: Any, out: Any = None, *, rows: int = 1) -> Any:
        """Encode f32 values: numpy gives numpy ``uint8``, torch gives torch ``uint8``.

        Parameters
        ----------
        x
            C-contiguous array or tensor of float32, any shape.
        out
            Writable contiguous ``uint8`` array (or tensor, or buffer) of at least
            ``wire_bytes`` bytes that does not overlap ``x``; made when absent.

        Returns
        -------
        The encoded bytes, shape ``(wire_bytes,)``: the front part of ``out`` if given.

        Raises
        ------
        CodecError
            Wrong type, layout or size; nothing has been written then.
        """
        ...

    def decode(self, wire: Any, out: Any = None, *, values: int, rows: int = 1) -> Any:
        """Decode exactly ``wire_bytes(values, rows)`` bytes to ``values`` f32 values.

        ``wire`` is any contiguous buffer, ``uint8`` array or tensor; ``out`` a writable
        C-contiguous float32 array or tensor of at least ``values`` values.
        Returns shape ``(values,)``. Raises `CodecError` like `encode`.
        """
        ...

    def describe(self) -> Mapping[str, str]:
        """Return the choices of the format in words: range, steps, ties, NaN, sizes."""
        ...


def check_count(codec: str, values: int, rows: int) -> None:
    """Refuse negative counts and rows that do not divide the values."""
    if values < 0:
        raise CodecError(
            codec,
            "number of values",
            expected="0 or more",
            found=str(values),
            next_step="pass the count of f32 values of the whole payload",
        )
    if rows < 1 or values % rows:
        raise CodecError(
            codec,
            "number of rows",
            expected=f"a divisor of {values} values, 1 or more",
            found=str(rows),
            next_step="pass the number of tokens; each row must be equally long",
        )


def check_wire_bytes(codec: str, size: int) -> int:
    """Return ``size``, or refuse one that no u32 length field can announce."""
    if size > MAX_WIRE_BYTES:
        raise CodecError(
            codec,
            "payload too large",
            expected=f"at most {MAX_WIRE_BYTES} bytes",
            found=f"{size} bytes",
            next_step="send fewer tokens a frame",
        )
    return size
