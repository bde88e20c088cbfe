"""Compiled forms of the codecs, through numba (extra ``fast``).

Each module holds plain loops over patterns; `ds4proto.codec.kernels.compiler` turns
them into machine code. Nothing here is imported before a codec asks for it.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.util import find_spec
from typing import Any


@cache
def reason(name: str) -> str:
    """Say why the kernels of ``name`` cannot be used; empty if they can."""
    if find_spec("numba") is None:
        return "numba is not installed"
    if name == "f16" and not _has_half_conversion():
        return "this processor has no half-precision conversion"
    return ""


def available(name: str) -> bool:
    """Tell whether the kernels of the codec ``name`` can be used here."""
    return not reason(name)


def _has_half_conversion() -> bool:
    """Tell whether LLVM will emit an instruction and not call a missing routine."""
    from importlib import import_module

    config: Any = import_module("numba.core.config")
    if platform.machine().lower() in ("arm64", "aarch64"):
        return True
    if config.CPU_NAME or config.CPU_FEATURES:  # compiling for a named processor
        return "+f16c" in (config.CPU_FEATURES or "")
    binding: Any = import_module("llvmlite.binding")
    return bool(binding.get_host_cpu_features().get("f16c", False))
