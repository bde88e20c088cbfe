"""A capture as pictures: one HTML page, PNG files, a qlog-style file.

Names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.trace.pictures.collecting import Collector
    from ds4proto.trace.pictures.drawing import Drawn, draw
    from ds4proto.trace.pictures.findings import remarks_of
    from ds4proto.trace.pictures.heads import HeadDecoder, watch_heads
    from ds4proto.trace.pictures.model import Picture, Place, Remark
    from ds4proto.trace.pictures.page import write_html
    from ds4proto.trace.pictures.png import write_png
    from ds4proto.trace.pictures.qlog import QlogWriter

_HOMES = {
    "Collector": "collecting",
    "Drawn": "drawing",
    "HeadDecoder": "heads",
    "Picture": "model",
    "Place": "model",
    "QlogWriter": "qlog",
    "Remark": "model",
    "draw": "drawing",
    "remarks_of": "findings",
    "watch_heads": "heads",
    "write_html": "page",
    "write_png": "png",
}

__all__ = [
    "Collector",
    "Drawn",
    "HeadDecoder",
    "Picture",
    "Place",
    "QlogWriter",
    "Remark",
    "draw",
    "remarks_of",
    "watch_heads",
    "write_html",
    "write_png",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
