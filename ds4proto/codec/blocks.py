"""The scaled formats as codecs: variants by name, rows, threads, and the fast paths.

INT8, FP8, INT4, MXFP8, MXFP4, NVFP4 and two hybrids are formats of this project for a
compressed pipeline wire, no dialect of ds4 has them. What their bytes mean is told by
`ds4proto.codec.row_scaled`, `ds4proto.codec.mx` and `ds4proto.codec.nv`; how a row
lies on the wire by `ds4proto.codec.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ds4proto.codec import arrays, kernels
from ds4proto.codec.base import (
    CodecError,
    Path,
    check_count,
    check_wire_bytes,
)
from ds4proto.codec.definition import U8, U32
from ds4proto.codec.elements import ROUNDINGS
from ds4proto.codec.layout import RowFormat
from ds4proto.codec.mx import SCALE_RULES, Mx
from ds4proto.codec.nv import GLOBAL_SCALES, ORDERS, ZERO_SCALES, Nv
from ds4proto.codec.parallel import CHUNK, run_slices
from ds4proto.codec.row_scaled import RowScaled

Step = Callable[[Any, Any, int, int], None]
"""``step(source, target, rows, width)`` on flat arrays of whole rows."""

_NIBBLES: Final = ("pairs", "halves")
_DIVISION: Final = ("divide", "reciprocal")
_FP4: Final = {"scale": SCALE_RULES, "rounding": ROUNDINGS, "nibbles": _NIBBLES}
_NV: Final = {
    "order": ORDERS,
    "global_scale": GLOBAL_SCALES,
    "zero": ZERO_SCALES,
    "nibbles": _NIBBLES,
}

VARIANTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    # The first value of each choice is what a codec does unless told otherwise.
    "int8": {
        "divisor": ("127", "127.5"),
        "lowest": ("-127", "-128"),
        "order": _DIVISION,
    },
    "fp8": {"order": _DIVISION},
    "int4": {
        "divisor": ("7", "7.5"),
        "lowest": ("-7", "-8"),
        "order": _DIVISION,
        "block": ("row", "32"),
    },
    "mxfp8": {"scale": SCALE_RULES},
    "mxfp4": _FP4,
    "e2m1-e8m0-16": _FP4,
    "nvfp4": _NV,
    "e2m1-e4m3-32": _NV,
}
"""Name -> choice -> its values."""

FAMILIES: Final[Mapping[str, str]] = {
    "int8": "INT8",
    "fp8": "FP8",
    "int4": "INT4",
    "mxfp8": "MX",
    "mxfp4": "MX",
    "e2m1-e8m0-16": "MX",
    "nvfp4": "NVFP4",
    "e2m1-e4m3-32": "NVFP4",
}
"""Name -> which clauses tell its bytes."""


class BlockCodec:
    """A codec whose rows carry scales.

    Parameters
    ----------
    form
        The format, as numpy defines it.
    threads, path
        As for `ds4proto.codec.get`.
    """

    def __init__(self, form: RowFormat, *, threads: int = 1, path: Path = "auto"):
        self.name = form.name
        self.form = form
        self._threads = threads
        self._path = path
        self._loaded: tuple[str, Step, Step] | None = None
        if path == "numba":
            self._steps()

    @property
    def path(self) -> str:
        """The steps in use: ``numpy`` or ``numba``."""
        return self._steps()[0]

    def row_bytes(self, width: int) -> int:
        """Return the bytes of one encoded row of ``width`` values."""
        self.form.layout.check_width(self.name, width)
        return self.form.layout.row_bytes(width)

    def wire_bytes(self, values: int, rows: int = 1) -> int:
        """Return the size of ``rows`` rows; each has its own scales."""
        check_count(self.name, values, rows)
        return check_wire_bytes(self.name, rows * self.row_bytes(values // rows))

    def encode(self, x: Any, out: Any = None, *, rows: int = 1) -> Any:
        """Encode float32 values; see `ds4proto.codec.base.Codec.encode`.

        Tensors on other devices than the processor are encoded there.
        """
        if arrays.is_torch(x):
            from ds4proto.codec import torch_blocks

            return torch_blocks.encode(self, x, out, rows=rows)
        bits = arrays.f32_bits(self.name, x)
        size = self.wire_bytes(bits.size, rows)
        wire = arrays.wire_out(self.name, out, size, bits)
        self._run(self._steps()[1], bits, wire, bits.size, rows)
        return wire

    def decode(self, wire: Any, out: Any = None, *, values: int, rows: int = 1) -> Any:
        """Decode to float32 values; see `ds4proto.codec.base.Codec.decode`."""
        if arrays.is_torch(wire):
            from ds4proto.codec import torch_blocks

            return torch_blocks.decode(self, wire, out, values=values, rows=rows)
        size = self.wire_bytes(values, rows)
        data = arrays.wire_in(self.name, wire, size)
        result = arrays.values_out(self.name, out, values, data)
        self._run(self._steps()[2], data, result.view(np.uint32), values, rows)
        return result

    def describe(self) -> Mapping[str, str]:
        """Return the choices of the format in words."""
        layout = self.form.layout
        facts = self.form.facts()
        return {
            "name": self.name,
            "wire": f"rows of {facts['element']} elements, then scales",
            "bits_per_value": f"{layout.row_bytes(2048) / 256:.2f} at width 2048",
            **facts,
            "profile_dependent": "no",
            "source": "ours, clauses CODEC-ROW and CODEC-" + FAMILIES[self.name],
        }

    def _run(
        self, step: Step, source: Any, target: Any, values: int, rows: int
    ) -> None:
        width = values // rows
        if width == 0:
            return
        row = self.row_bytes(width)
        into_wire = target.dtype == np.uint8
        per_source, per_target = (width, row) if into_wire else (row, width)

        def some_rows(start: int, stop: int) -> None:
            first, last = start // width, stop // width
            step(
                source[first * per_source : last * per_source],
                target[first * per_target : last * per_target],
                last - first,
                width,
            )

        run_slices(some_rows, values, self._threads, unit=width * _rows_of(width))

    def _steps(self) -> tuple[str, Step, Step]:
        if self._loaded is None:
            self._loaded = self._choose()
        return self._loaded

    def _choose(self) -> tuple[str, Step, Step]:
        if self._path != "numpy" and kernels.available(self.name):
            from ds4proto.codec.kernels import blocks as compiled

            return ("numba", *compiled.steps(self.form))
        if self._path == "numba":
            raise CodecError(
                self.name,
                "numba path",
                expected="an installed numba that can compile it here",
                found=kernels.reason(self.name),
                next_step="pip install 'ds4proto[fast]', or leave path out",
            )
        return ("numpy", *numpy_steps(self.form))


def _rows_of(width: int) -> int:
    """Return how many rows one step takes, at least one."""
    return max(1, CHUNK // width)


def numpy_steps(form: RowFormat) -> tuple[Step, Step]:
    """Wrap a definition as steps over flat arrays, a few rows at a time."""

    def encode(bits: U32, wire: U8, rows: int, width: int) -> None:
        source, target = bits.reshape(rows, width), wire.reshape(rows, -1)
        for start in range(0, rows, _rows_of(width)):
            part = slice(start, start + _rows_of(width))
            target[part] = form.encode_rows(source[part])

    def decode(wire: U8, bits: U32, rows: int, width: int) -> None:
        source, target = wire.reshape(rows, -1), bits.reshape(rows, width)
        for start in range(0, rows, _rows_of(width)):
            part = slice(start, start + _rows_of(width))
            target[part] = form.decode_rows(source[part], width)

    return encode, decode


def form_of(name: str, variant: Mapping[str, str]) -> RowFormat:
    """Return the format of a name and its variants.

    Raises
    ------
    CodecError
        Unknown choice or value; the message lists the known ones.
    """
    known = VARIANTS[name]
    for key, value in variant.items():
        if key not in known:
            raise CodecError(
                name,
                "unknown variant",
                expected="one of " + ", ".join(known),
                found=key,
                next_step=f"see `ds4proto codec describe {name}`",
            )
        if value not in known[key]:
            raise CodecError(
                name,
                f"unknown {key}",
                expected="one of " + ", ".join(known[key]),
                found=repr(value),
                next_step=f"see `ds4proto codec describe {name}`",
            )
    chosen = {key: variant.get(key, values[0]) for key, values in known.items()}
    if name in ("nvfp4", "e2m1-e4m3-32"):
        return Nv(name, 16 if name == "nvfp4" else 32, **chosen)
    if name == "mxfp8":
        return Mx(name, "e4m3fn", 32, **chosen)
    if name in ("mxfp4", "e2m1-e8m0-16"):
        return Mx(name, "e2m1", 32 if name == "mxfp4" else 16, **chosen)
    if name == "fp8":
        return RowScaled(name, 448.0, 0, 0, chosen["order"])
    block = 32 if chosen.get("block") == "32" else 0
    divisor, lowest = float(chosen["divisor"]), int(chosen["lowest"])
    highest = 127 if name == "int8" else 7
    return RowScaled(name, divisor, lowest, highest, chosen["order"], block)


def make(
    name: str, *, profile: str, threads: int, path: Path, **variant: str
) -> BlockCodec:
    """Return the codec of a scaled format; see `ds4proto.codec.get`."""
    del profile
    return BlockCodec(form_of(name, variant), threads=threads, path=path)
