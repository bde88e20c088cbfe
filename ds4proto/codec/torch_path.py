"""torch tensors through the numpy codecs, as views where the device allows."""

from __future__ import annotations

import sys
from typing import Any

from ds4proto.codec.arrays import wire_in
from ds4proto.codec.base import Codec, CodecError


def _host(codec: str, what: str, tensor: Any, dtype: str) -> Any:
    """Return a numpy view of a contiguous CPU tensor."""
    torch: Any = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor):
        raise CodecError(
            codec,
            f"{what} type",
            expected="a torch tensor beside a torch tensor",
            found=type(tensor).__name__,
            next_step="pass both as torch tensors or both as numpy arrays",
        )
    if tensor.dtype != getattr(torch, dtype):
        raise CodecError(
            codec,
            f"{what} dtype",
            expected=f"torch.{dtype}",
            found=str(tensor.dtype),
            next_step=f"convert it with .to(torch.{dtype}) if you mean its values",
        )
    if tensor.device.type != "cpu":
        raise CodecError(
            codec,
            f"{what} device",
            expected="cpu",
            found=str(tensor.device),
            next_step="copy it with .cpu(); payloads leave from host memory anyway",
        )
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise CodecError(
            codec,
            f"{what} layout",
            expected="a contiguous tensor",
            found=f"shape {tuple(tensor.shape)}, layout {tensor.layout}",
            next_step="pass tensor.contiguous()",
        )
    return tensor.detach().numpy()


def encode(codec: Codec, x: Any, out: Any, *, rows: int) -> Any:
    """Encode a float32 tensor to a ``uint8`` tensor on the same device."""
    torch: Any = sys.modules["torch"]
    source = _host(codec.name, "input", x, "float32")
    size = codec.wire_bytes(source.size, rows)
    if out is None:
        out = torch.empty(size, dtype=torch.uint8)
    codec.encode(source, _host(codec.name, "out", out, "uint8"), rows=rows)
    return out.view(-1)[:size]


def decode(codec: Codec, wire: Any, out: Any, *, values: int, rows: int) -> Any:
    """Decode a ``uint8`` tensor to a float32 tensor on the same device."""
    torch: Any = sys.modules["torch"]
    source = _host(codec.name, "wire", wire, "uint8")
    # Nothing is allocated for a count that the wire does not bear out.
    wire_in(codec.name, source, codec.wire_bytes(values, rows))
    if out is None:
        out = torch.empty(values, dtype=torch.float32)
    target = _host(codec.name, "out", out, "float32")
    codec.decode(source, target, values=values, rows=rows)
    return out.detach().view(-1)[:values]
