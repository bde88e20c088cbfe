"""Fused kernels for devices with a compiler of their own.

`enable` puts those of this machine in the place of eager torch; without a CUDA device
and Triton it does nothing. The bytes are the same either way.
"""

from __future__ import annotations

from importlib.util import find_spec


def enable() -> tuple[str, ...]:
    """Use fused kernels where they can be compiled; return the kinds of device."""
    import torch

    if not (torch.cuda.is_available() and find_spec("triton")):
        return ()
    from ds4proto_runtime.kernels import triton_blocks

    triton_blocks.register()
    return ("cuda",)
