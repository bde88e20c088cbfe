"""What crosses one boundary: two tensors, each through a codec.

Like SGLang's pipeline, a stage sends the output of its last block (``hidden_states``)
and the stream that it joins (``residual``) apart. Both arrive as BF16 whatever crossed,
so that the formats differ in nothing but their bytes; BF16 itself is the control.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ds4proto.codec.base import Codec

TENSORS = 2


@dataclass(slots=True)
class Traffic:
    """What one stage sent and received, and how long coding took."""

    sent_bytes: int = 0
    received_bytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    wait_seconds: float = 0.0
    messages: int = 0
    tokens: int = field(default=0)


def rebuilt(x: Tensor) -> Tensor:
    """Return float32 values as they are after a stop in BF16."""
    return x.to(torch.bfloat16).to(torch.float32)


class Boundary:
    """One direction of point-to-point traffic between two stages.

    Parameters
    ----------
    codec : Codec
        Format of both tensors.
    width : int
        Values of one row.
    device : str
        Where tensors live; ``nccl`` wants them on the GPU.
    """

    def __init__(self, codec: Codec, width: int, device: str = "cpu") -> None:
        self._codec = codec
        self._width = width
        self._device = device
        self.traffic = Traffic()

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of both tensors of ``rows`` tokens."""
        return TENSORS * self._codec.wire_bytes(rows * self._width, rows=rows)

    def encode(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """Return both tensors as one run of bytes."""
        start = time.perf_counter()
        parts = []
        for tensor in (hidden, residual):
            rows = tensor.shape[0]
            flat = rebuilt(tensor).contiguous().view(-1)
            parts.append(self._codec.encode(flat, rows=rows))
        wire = torch.cat(parts)
        self.traffic.encode_seconds += time.perf_counter() - start
        return wire

    def decode(self, wire: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return both tensors of ``rows`` tokens, as BF16 values in float32."""
        start = time.perf_counter()
        half = wire.numel() // TENSORS
        found = []
        for part in (wire[:half], wire[half:]):
            values = self._codec.decode(part, values=rows * self._width, rows=rows)
            found.append(rebuilt(values.view(rows, self._width)))
        self.traffic.decode_seconds += time.perf_counter() - start
        return found[0], found[1]

    def send(self, hidden: Tensor, residual: Tensor, to: int) -> None:
        """Send both tensors to a stage."""
        wire = self.encode(hidden, residual)
        dist.send(wire, to)
        self.traffic.sent_bytes += wire.numel()
        self.traffic.messages += 1
        self.traffic.tokens += hidden.shape[0]

    def receive(self, rows: int, source: int) -> tuple[Tensor, Tensor]:
        """Receive both tensors of ``rows`` tokens from a stage."""
        wire = torch.empty(self.bytes_of(rows), dtype=torch.uint8, device=self._device)
        start = time.perf_counter()
        dist.recv(wire, source)
        self.traffic.wait_seconds += time.perf_counter() - start
        self.traffic.received_bytes += wire.numel()
        return self.decode(wire, rows)
