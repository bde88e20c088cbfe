"""The scaled formats on torch tensors, wherever these live.

Tensors in host memory go through numpy and the compiled loops, as views. On any other
device the encoder and decoder below run there, in eager torch: the same steps as the
definition, every operation of integers or a single IEEE f32 operation, so that the
bytes are the same. A package with fused kernels for a kind of device can put them in
their place with `register_device`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ds4proto.codec import torch_path
from ds4proto.codec.base import Codec, CodecError
from ds4proto.codec.elements import E2M1_THRESHOLDS, E2M1_VALUES, E4M3FN_VALUES
from ds4proto.codec.layout import RowFormat, RowLayout
from ds4proto.codec.mx import Mx
from ds4proto.codec.nv import EIGHTH, Nv
from ds4proto.codec.row_scaled import RowScaled

Tensor = Any
_MAGNITUDE: Final = 0x7FFFFFFF
_INFINITY: Final = 0x7F800000
_NAN: Final = 0x7FC00000
_E8M0_NAN: Final = 0xFF


@dataclass(frozen=True)
class DeviceKernels:
    """Fused kernels of one kind of device.

    Attributes
    ----------
    encode
        ``encode(form, x, wire) -> bool``: f32 (rows, width) to bytes (rows, row bytes),
        both contiguous on the device. False if the form is not among those it knows.
    decode
        ``decode(form, wire, x) -> bool``, the other way.
    """

    encode: Callable[[RowFormat, Tensor, Tensor], bool]
    decode: Callable[[RowFormat, Tensor, Tensor], bool]


_DEVICES: dict[str, DeviceKernels] = {}


def register_device(kind: str, kernels: DeviceKernels | None) -> None:
    """Use ``kernels`` for tensors whose ``device.type`` is ``kind``; None ends that."""
    if kernels is None:
        _DEVICES.pop(kind, None)
    else:
        _DEVICES[kind] = kernels


def encode(codec: Codec, x: Any, out: Any, *, rows: int) -> Any:
    """Encode a float32 tensor to a ``uint8`` tensor on the same device."""
    if _on_host(x):
        return torch_path.encode(codec, x, out, rows=rows)
    torch: Any = sys.modules["torch"]
    source = _checked(codec, "input", x, "float32", x.device)
    size = codec.wire_bytes(source.numel(), rows)
    if out is None:
        out = torch.empty(size, dtype=torch.uint8, device=x.device)
    target = _room(codec, _checked(codec, "out", out, "uint8", x.device), size, "bytes")
    if size:
        form = form_of_codec(codec)
        lines, wire = source.view(rows, -1), target.view(rows, -1)
        fused = _DEVICES.get(x.device.type)
        if fused is None or not fused.encode(form, lines, wire):
            wire.copy_(encode_rows(form, lines))
    return target


def decode(codec: Codec, wire: Any, out: Any, *, values: int, rows: int) -> Any:
    """Decode a ``uint8`` tensor to a float32 tensor on the same device."""
    if _on_host(wire):
        return torch_path.decode(codec, wire, out, values=values, rows=rows)
    torch: Any = sys.modules["torch"]
    source = _checked(codec, "wire", wire, "uint8", wire.device)
    size = codec.wire_bytes(values, rows)
    if source.numel() != size:
        raise CodecError(
            codec.name,
            "wire size",
            expected=f"{size} bytes",
            found=f"{source.numel()} bytes",
            next_step="check the width and the number of values the frame declares",
        )
    if out is None:
        out = torch.empty(values, dtype=torch.float32, device=wire.device)
    checked = _checked(codec, "out", out, "float32", wire.device)
    target = _room(codec, checked, values, "values")
    if values:
        form = form_of_codec(codec)
        lines, result = source.view(rows, -1), target.view(rows, -1)
        fused = _DEVICES.get(wire.device.type)
        if fused is None or not fused.decode(form, lines, result):
            result.copy_(decode_rows(form, lines, values // rows))
    return target


def _on_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def form_of_codec(codec: Codec) -> RowFormat:
    """Return the format that a scaled codec carries."""
    form: RowFormat = codec.form  # type: ignore[attr-defined]  # has one
    return form


def _checked(codec: Codec, what: str, tensor: Any, dtype: str, device: Any) -> Any:
    torch: Any = sys.modules["torch"]
    found = expected = ""
    if not isinstance(tensor, torch.Tensor):
        expected, found = "a torch tensor beside a torch tensor", type(tensor).__name__
    elif tensor.dtype != getattr(torch, dtype):
        expected, found = f"torch.{dtype}", str(tensor.dtype)
    elif tensor.device != device or device.type == "meta":
        expected, found = "memory of one device", f"{tensor.device} beside {device}"
    elif tensor.layout != torch.strided or not tensor.is_contiguous():
        expected, found = "a contiguous tensor", f"shape {tuple(tensor.shape)}"
    if expected:
        raise CodecError(
            codec.name,
            what,
            expected=expected,
            found=found,
            next_step="pass contiguous tensors of one device, .contiguous() makes one",
        )
    return tensor.detach().view(-1)


def _room(codec: Codec, out: Any, size: int, unit: str) -> Any:
    if out.numel() < size:
        raise CodecError(
            codec.name,
            "out size",
            expected=f"{size} {unit} or more",
            found=f"{out.numel()} {unit}",
            next_step="wire_bytes() tells the bytes that a payload needs",
        )
    return out[:size]


# --- the steps, in eager torch ----------------------------------------------------


def encode_rows(form: RowFormat, x: Tensor) -> Tensor:
    """Encode f32 of shape (rows, width) to bytes (rows, row bytes), same device."""
    torch: Any = sys.modules["torch"]
    layout = form.layout
    rows, width = x.shape
    block = layout.block or width
    blocks = layout.blocks(width)
    padded = torch.nn.functional.pad(x, (0, blocks * block - width))
    lines = padded.view(rows, blocks, block)
    largest = (lines.view(torch.int32) & _MAGNITUDE).amax(-1, keepdim=True)
    if isinstance(form, RowScaled):
        codes, scales = _row_scaled(torch, form, lines, largest)
    elif isinstance(form, Mx):
        codes, scales = _mx(torch, form, lines, largest)
    elif isinstance(form, Nv):
        codes, scales = _nv(torch, form, lines, largest)
    else:
        raise TypeError(f"no torch steps for {type(form).__name__}")
    codes = codes.to(torch.uint8).view(rows, -1)[:, :width]
    return torch.cat([_packed(torch, layout, codes), scales], dim=1)


def decode_rows(form: RowFormat, wire: Tensor, width: int) -> Tensor:
    """Decode bytes of shape (rows, row bytes) to f32 (rows, width), same device."""
    torch: Any = sys.modules["torch"]
    layout = form.layout
    codes = _unpacked(torch, layout, wire, width)
    start = layout.element_bytes(width)
    end = start + layout.blocks(width) * layout.scale_bytes
    bytes_ = wire[:, start:end].clone(memory_format=torch.contiguous_format)
    if isinstance(form, RowScaled):
        elements = _row_elements(torch, form, codes)
        scale = bytes_.view(torch.float32)
    elif isinstance(form, Mx):
        fp8 = form.element == "e4m3fn"
        elements = _table(torch, E4M3FN_VALUES if fp8 else E2M1_VALUES, codes)
        power = _power(torch, bytes_.int())
        scale = torch.where(bytes_ == _E8M0_NAN, torch.inf, power)
    elif isinstance(form, Nv):
        elements = _table(torch, E2M1_VALUES, codes)
        tail = wire[:, -4:].clone(memory_format=torch.contiguous_format)
        stored = tail.view(torch.float32)
        if form.global_scale == "encode":
            stored = _number(torch, 1.0, wire) / stored
        scale = _table(torch, E4M3FN_VALUES, bytes_) * stored
    else:
        raise TypeError(f"no torch steps for {type(form).__name__}")
    finite = torch.isfinite(scale)
    each = torch.where(finite, scale, _number(torch, 0.0, wire))
    good = _widened(finite, layout.block, width)
    bits = (elements * _widened(each, layout.block, width)).view(torch.int32)
    return torch.where(good, bits, _NAN).to(torch.int32).view(torch.float32)


def _number(torch: Any, value: float, like: Tensor) -> Tensor:
    # On some devices a division by a Python number is a product with its reciprocal.
    return torch.tensor(value, dtype=torch.float32, device=like.device)


def _table(torch: Any, patterns: Any, codes: Tensor) -> Tensor:
    signed = torch.from_numpy(patterns.view("int32").copy()).to(codes.device)
    return signed[codes.long()].view(torch.float32)


def _widened(per_block: Tensor, block: int, width: int) -> Tensor:
    if not block:
        return per_block.expand(-1, width)
    return per_block.repeat_interleave(block, dim=1)[:, :width]


def _packed(torch: Any, layout: RowLayout, codes: Tensor) -> Tensor:
    if layout.element_bits == 8:
        return codes
    if layout.nibbles == "halves":
        split = codes.reshape(codes.shape[0], -1, 2, layout.block // 2)
        return (split[:, :, 0] | split[:, :, 1] << 4).reshape(codes.shape[0], -1)
    codes = torch.nn.functional.pad(codes & 15, (0, codes.shape[1] % 2))
    return codes[:, 0::2] | codes[:, 1::2] << 4


def _unpacked(torch: Any, layout: RowLayout, wire: Tensor, width: int) -> Tensor:
    packed = wire[:, : layout.element_bytes(width)]
    if layout.element_bits == 8:
        return packed
    if layout.nibbles == "halves":
        split = packed.reshape(packed.shape[0], -1, 1, layout.block // 2)
        return torch.cat([split & 15, split >> 4], dim=2).reshape(packed.shape[0], -1)
    both = torch.stack([packed & 15, packed >> 4], dim=-1)
    return both.reshape(packed.shape[0], -1)[:, :width]


def _e4m3fn(torch: Any, y: Tensor) -> Tensor:
    bits = y.view(torch.int32)
    magnitude = bits & _MAGNITUDE
    clipped = magnitude.clamp(max=0x43E00000)
    normal = ((clipped + 0x7FFFF + (clipped >> 20 & 1)) >> 20) - 960
    small = magnitude.clamp(max=0x3C800000).view(torch.float32)
    subnormal = torch.round(small * 512).int()
    code = torch.where(magnitude >= 0x3C800000, normal, subnormal)
    return code | torch.where(bits < 0, 0x80, 0)


def _e2m1(torch: Any, y: Tensor, rounding: str = "even") -> Tensor:
    bits = y.view(torch.int32)
    limits = torch.from_numpy(E2M1_THRESHOLDS[rounding].view("int32").copy())
    magnitude = bits & _MAGNITUDE
    code = torch.bucketize(magnitude, limits.to(y.device), right=True, out_int32=True)
    sign = torch.where(bits < 0, 8, 0)
    if rounding == "down":
        sign = torch.where(code == 0, 0, sign)
    return code | sign


def _power(torch: Any, byte: Tensor) -> Tensor:
    return torch.where(byte == 0, 0x00400000, byte << 23).int().view(torch.float32)


def _row_scaled(torch: Any, form: RowScaled, x: Tensor, largest: Tensor) -> Any:
    broken = largest >= _INFINITY
    zero = _number(torch, 0.0, x)
    a = torch.where(broken, 0, largest).int().view(torch.float32)
    x = torch.where(broken, zero, x)
    least = _number(torch, 2.0**-126, x)
    scale = torch.maximum(a / _number(torch, form.divisor, x), least)
    y = x / scale if form.order == "divide" else x * (_number(torch, 1.0, x) / scale)
    if form.name == "fp8":
        codes = _e4m3fn(torch, y)
    else:
        codes = torch.round(y).clamp(form.lowest, form.highest).int() & 0xFF
    stored = torch.where(broken, _NAN, scale.view(torch.int32)).int()
    return codes, stored.squeeze(-1).contiguous().view(torch.uint8)


def _row_elements(torch: Any, form: RowScaled, codes: Tensor) -> Tensor:
    if form.name == "fp8":
        return _table(torch, E4M3FN_VALUES, codes)
    wide = codes.int()
    half = 8 if form.name == "int4" else 128
    return ((wide ^ half) - half).float()


def _mx(torch: Any, form: Mx, x: Tensor, largest: Tensor) -> Any:
    nan = largest > _INFINITY
    pattern = torch.where(nan, 0, largest).int()
    fp8 = form.element == "e4m3fn"
    if form.scale == "rceil":
        limit = _number(torch, 448.0 if fp8 else 6.0, x)
        q = (pattern.view(torch.float32) / limit).view(torch.int32)
        byte = ((q >> 23) + (q & 0x7FFFFF != 0).int()).clamp(max=254)
        byte = torch.where(q <= 0x00400000, 0, byte)
    else:
        if form.scale == "even":
            pattern = pattern + (1 << (19 if fp8 else 21))
        exponent = pattern >> 23
        if form.scale == "ceil":
            exponent = exponent + (pattern & 0x7FFFFF != 0).int()
        byte = (exponent - form.emax).clamp(min=0)
    x = torch.where(nan, _number(torch, 0.0, x), x)
    y = x * _power(torch, 254 - byte)
    codes = _e4m3fn(torch, y) if fp8 else _e2m1(torch, y, form.rounding)
    byte = torch.where(nan, _E8M0_NAN, byte)
    return codes, byte.to(torch.uint8).squeeze(-1)


def _nv(torch: Any, form: Nv, x: Tensor, largest: Tensor) -> Any:
    def number(value: float) -> Tensor:
        return _number(torch, value, x)

    one = number(1.0)
    broken = largest >= _INFINITY
    x = torch.where(broken, number(0.0), x)
    a = torch.where(broken, 0, largest).int().view(torch.float32)
    top = a.amax(1, keepdim=True)
    empty = top == 0
    top = torch.where(empty, one, top)
    if form.global_scale == "decode":
        decode = torch.maximum(top / number(2688.0), number(2.0**-100))
        encode = one / decode
    else:
        encode = torch.minimum(number(2688.0) / top, number(2.0**100))
        decode = one / encode
    decode, encode = torch.where(empty, one, decode), torch.where(empty, one, encode)
    sixth = a / number(6.0)
    q = sixth / decode if form.global_scale == "decode" else sixth * encode
    if form.zero == "floor":
        q = torch.maximum(q, number(2.0**-6))
    byte = _e4m3fn(torch, q)
    if form.zero == "eighth":
        byte = torch.where(byte == 0, EIGHTH, byte)
    none = byte == 0
    s = torch.where(none, one, _table(torch, E4M3FN_VALUES, byte))
    if form.order == "divide":
        y = x / (s * decode)
    elif form.order == "inverse-first":
        y = x * (encode / s)
    else:
        y = x * (one / (s * decode))
    codes = _e2m1(torch, torch.where(none, x * torch.finfo(torch.float32).max, y))
    byte = torch.where(broken, 0x7F, byte).to(torch.uint8).squeeze(-1)
    stored = decode if form.global_scale == "decode" else encode
    return codes, torch.cat([byte, stored.reshape(-1, 1).view(torch.uint8)], dim=1)
