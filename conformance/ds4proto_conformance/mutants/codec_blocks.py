"""Codec builds that get the scaled formats wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ds4proto.codec import get
from ds4proto_conformance.peers.faults import Fault

SCALED: Final = ("mxfp8", "mxfp4", "nvfp4", "int8", "int4", "fp8")
_MX_BLOCK: Final = 32
_NV_BLOCK: Final = 16
Change = Callable[[Any, bytes, int], bytes]
"""(values or wire bytes, what a sound build gives, rows) -> what this one gives."""


def _fault(name: str, about: str, change: Change, *which: str) -> Fault:
    def evaluate(operation: Any, asked: Any) -> bytes:
        given, found, rows = asked
        return change(given, found, rows) if operation in which else bytes(found)

    return Fault(f"codec-{name}", "codec", "codec", about, evaluate=evaluate)


def _encoding(codec: str, name: str, about: str, change: Change) -> Fault:
    return _fault(f"{codec}-{name}", about, change, f"encode {codec}")


def _decoding(codec: str, name: str, about: str, change: Change) -> Fault:
    return _fault(f"{codec}-{name}", about, change, f"decode {codec}")


def _variant(codec: str, **choice: Any) -> Change:
    """Return the bytes of another variant of the format."""
    return lambda values, _found, rows: bytes(
        get(codec, path="numpy", **choice).encode(values, rows=rows)
    )


def _given(codec: str, alter: Callable[[Any], Any]) -> Change:
    """Return the bytes of altered values."""
    return lambda values, _found, rows: bytes(
        get(codec, path="numpy").encode(alter(values).astype(np.float32), rows=rows)
    )


def _rows(wire: bytes | Any, rows: int) -> Any:
    return np.frombuffer(wire, np.uint8).reshape(rows, -1).copy()


def _tail(size: Callable[[int], slice], alter: Callable[[Any], Any]) -> Change:
    """Return a change of some bytes behind the elements of each row."""

    def change(values: Any, found: bytes, rows: int) -> bytes:
        wire, where = _rows(found, rows), size(values.size // rows)
        wire[:, where] = alter(wire[:, where])
        return bytes(wire.tobytes())

    return change


def _mx_scales(width: int) -> slice:
    blocks = (width + _MX_BLOCK - 1) // _MX_BLOCK
    return slice(-blocks, None) if width else slice(0, 0)


def _nv_scales(width: int) -> slice:
    blocks = (width + _NV_BLOCK - 1) // _NV_BLOCK
    return slice(-4 - blocks, -4) if width else slice(0, 0)


def _redecoded(codec: str, alter: Callable[[Any, int], None]) -> Change:
    """Return the values of altered wire bytes; ``alter(rows of bytes, width)``."""

    def change(given: Any, found: bytes, rows: int) -> bytes:
        count = len(found) // 4
        wire = _rows(given.tobytes(), rows)
        alter(wire, count // rows)
        values = get(codec, path="numpy").decode(wire.ravel(), values=count, rows=rows)
        return np.asarray(values, "<f4").tobytes()

    return change


def _swap(wire: Any, width: int) -> None:
    half = (width + 1) // 2
    wire[:, :half] = wire[:, :half] << 4 | wire[:, :half] >> 4


def _swapped(values: Any, found: bytes, rows: int) -> bytes:
    wire = _rows(found, rows)
    _swap(wire, values.size // rows)
    return bytes(wire.tobytes())


def _scale_0_is_0(wire: Any, width: int) -> None:
    for row in wire:
        for block in range((width + _MX_BLOCK - 1) // _MX_BLOCK):
            if row[width + block] == 0:
                row[block * _MX_BLOCK : min(width, (block + 1) * _MX_BLOCK)] = 0


def _row_scale_1(wire: Any, _width: int) -> None:
    wire[:, -4:] = np.frombuffer(np.float32(1).tobytes(), np.uint8)


def _padded(values: Any, _found: bytes, rows: int) -> bytes:
    width = values.size // rows
    more = -width % _MX_BLOCK
    whole = np.pad(values.reshape(rows, width), ((0, 0), (0, more)))
    return bytes(get("mxfp4", path="numpy").encode(whole.ravel(), rows=rows))


def _away(values: Any) -> Any:
    outward = np.nextafter(values, np.copysign(np.float32(np.inf), values))
    return np.where(values == 0, values, outward)


def _inward(values: Any) -> Any:
    return np.nextafter(values, np.float32(0))


def _parts(values: Any, found: bytes, rows: int) -> tuple[Any, Any]:
    """Return the elements and the scales of each row."""
    wire, width = _rows(found, rows), values.size // rows
    for size in (width, (width + 1) // 2):
        if 0 < wire.shape[1] - size < max(8, size):
            return wire[:, :size], wire[:, size:]
    return wire, wire[:, :0]


def _scales_last(values: Any, found: bytes, rows: int) -> bytes:
    elements, scales = _parts(values, found, rows)
    return bytes(elements.tobytes() + scales.tobytes())


def _scales_first(values: Any, found: bytes, rows: int) -> bytes:
    elements, scales = _parts(values, found, rows)
    return np.hstack([scales, elements]).tobytes()


def _any_size(_connection: Any, request: bytes) -> bytes:
    """Cut or fill the bytes to decode."""
    name = request[1:16].rstrip(b"\0").decode()
    if request[0] != 2 or name not in SCALED:
        return request
    count, rows = (int.from_bytes(request[at : at + 4], "big") for at in (16, 20))
    due = get(name, path="numpy").wire_bytes(count, rows)
    return request[:24] + request[24:][:due].ljust(due, b"\0")


_ENCODE: Final = tuple(f"encode {name}" for name in SCALED)


def _not_finite(name: str) -> tuple[Fault, Fault]:
    return (
        _encoding(
            name,
            "nan-kept",
            "takes NaN for 0 and infinity for the largest",
            _given(name, np.nan_to_num),
        ),
        _decoding(
            name,
            "scale-unchecked",
            "gives 0 where the scale is not finite",
            lambda _g, found, _r: (
                np.nan_to_num(np.frombuffer(found, "<f4")).astype("<f4").tobytes()
            ),
        ),
    )


MUTANTS: Final = (
    _encoding("mxfp8", "scale-even", "rounds before it takes the exponent",
              _variant("mxfp8", scale="even")),
    _encoding("mxfp8", "scale-up", "takes the next power of two",
              _variant("mxfp8", scale="ceil")),
    _encoding("mxfp8", "away", "rounds ties away from zero", _given("mxfp8", _away)),
    _encoding("mxfp8", "nan-scale", "has no scale byte for NaN",
              _tail(_mx_scales, lambda s: np.where(s == 0xFF, 0xFE, s))),
    _decoding("mxfp8", "scale-0-is-0", "takes the scale byte 0 for a scale of 0",
              _redecoded("mxfp8", _scale_0_is_0)),
    _decoding("mxfp8", "bias-off", "takes 126 for the bias of a scale",
              lambda _g, found, _r: (np.frombuffer(found, "<f4") * 2).tobytes()),
    _encoding("mxfp4", "scale-ceil", "takes the next power of two",
              _variant("mxfp4", scale="ceil")),
    _encoding("mxfp4", "away", "rounds ties away from zero",
              _variant("mxfp4", rounding="away")),
    _encoding("mxfp4", "down", "rounds ties towards zero",
              _variant("mxfp4", rounding="down")),
    _encoding("mxfp4", "zero-scale", "scales a block of zeros by 1",
              _tail(_mx_scales, lambda s: np.where(s == 0, 127, s))),
    _encoding("mxfp4", "signless", "drops the sign of zero",
              _given("mxfp4", lambda v: v + np.float32(0))),
    _encoding("mxfp4", "inf-is-nan", "takes infinity for NaN",
              _given("mxfp4", lambda v: np.where(np.isinf(v), np.nan, v))),
    _encoding("mxfp4", "halves-swapped", "puts the even element in the high half",
              _swapped),
    _encoding("mxfp4", "padded", "fills the last block with zeros", _padded),
    _decoding("mxfp4", "decode-swapped", "reads the high half first",
              _redecoded("mxfp4", _swap)),
    _encoding("nvfp4", "row-scale-inverse", "stores 2688 / A",
              _variant("nvfp4", global_scale="encode")),
    _encoding("nvfp4", "zero-scales", "has no least block scale",
              _variant("nvfp4", zero="zero")),
    _encoding("nvfp4", "eighth", "sends 0x20 for a block scale of 0",
              _variant("nvfp4", zero="eighth")),
    _encoding("nvfp4", "nan-scale", "has no block scale for NaN",
              _tail(_nv_scales, lambda s: np.where(s == 0x7F, 0x7E, s))),
    _decoding("nvfp4", "row-scale-ignored", "leaves the row's scale out",
              _redecoded("nvfp4", _row_scale_1)),
    _encoding("int8", "127.5", "divides by 127.5", _variant("int8", divisor="127.5")),
    _encoding("int8", "truncates", "rounds ties towards zero",
              _given("int8", _inward)),
    _encoding("int4", "7.5", "divides by 7.5", _variant("int4", divisor="7.5")),
    _encoding("int4", "truncates", "rounds ties towards zero",
              _given("int4", _inward)),
    _encoding("fp8", "240", "takes 240 for the largest element",
              _tail(lambda _w: slice(-4, None), lambda s: (
                  np.ascontiguousarray(s).view("<f4") * np.float32(448 / 240)
              ).view(np.uint8))),
    _encoding("fp8", "away", "rounds ties away from zero", _given("fp8", _away)),
    *(fault for name in ("int8", "int4", "fp8") for fault in _not_finite(name)),
    _fault("scales-behind-all-rows", "sends all elements, then all scales",
           _scales_last, *_ENCODE),
    _fault("scale-in-front", "sends the scales of a row first", _scales_first,
           *_ENCODE),
    Fault("codec-any-size", "codec", "limits", "fills or cuts what it decodes",
          received=_any_size),
)  # fmt: skip
