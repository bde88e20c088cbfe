"""What crossed the wire: captures in, streams, frames, rows, findings out.

Names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.trace.decoder import CaptureDecoder, Decoder, decode
    from ds4proto.trace.payload import PayloadSummary
    from ds4proto.trace.rows import FrameRow
    from ds4proto.trace.runs import Run
    from ds4proto.trace.stats import CaptureStats
    from ds4proto.trace.tcp import Reassembler, read_streams
    from ds4proto.trace.where import WhereError, compile_where

_HOMES = {
    "CaptureDecoder": "decoder",
    "CaptureStats": "stats",
    "Decoder": "decoder",
    "FrameRow": "rows",
    "PayloadSummary": "payload",
    "Reassembler": "tcp",
    "Run": "runs",
    "WhereError": "where",
    "compile_where": "where",
    "decode": "decoder",
    "read_streams": "tcp",
}

__all__ = [
    "CaptureDecoder",
    "CaptureStats",
    "Decoder",
    "FrameRow",
    "PayloadSummary",
    "Reassembler",
    "Run",
    "WhereError",
    "compile_where",
    "decode",
    "read_streams",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
