"""What the bytes are: every frame declared once, and what is derived from it.

The names below are loaded on first use, so that importing the package stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ds4proto.schema.problem import Buf, Problem, SchemaError

if TYPE_CHECKING:
    from ds4proto.schema.declare import FieldSpec, FrameSpec, Layout, names_of
    from ds4proto.schema.dialect_spec import Dialect
    from ds4proto.schema.dialects import all_dialects, dialect
    from ds4proto.schema.fast import dtype_of, struct_of
    from ds4proto.schema.recognise import dialect_candidates
    from ds4proto.schema.registry import (
        Reading,
        build,
        frame,
        frame_of_code,
        frames,
        header_of,
        parse,
        read,
        read_body,
        to_bytes,
    )

_HOMES = {
    "Dialect": "dialect_spec",
    "FieldSpec": "declare",
    "FrameSpec": "declare",
    "Layout": "declare",
    "Reading": "registry",
    "all_dialects": "dialects",
    "build": "registry",
    "dialect": "dialects",
    "dialect_candidates": "recognise",
    "dtype_of": "fast",
    "frame": "registry",
    "frame_of_code": "registry",
    "frames": "registry",
    "header_of": "registry",
    "names_of": "declare",
    "parse": "registry",
    "read": "registry",
    "read_body": "registry",
    "struct_of": "fast",
    "to_bytes": "registry",
}


def __getattr__(name: str) -> Any:
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


__all__ = [
    "Buf",
    "Dialect",
    "FieldSpec",
    "FrameSpec",
    "Layout",
    "Problem",
    "Reading",
    "SchemaError",
    "all_dialects",
    "build",
    "dialect",
    "dialect_candidates",
    "dtype_of",
    "frame",
    "frame_of_code",
    "frames",
    "header_of",
    "names_of",
    "parse",
    "read",
    "read_body",
    "struct_of",
    "to_bytes",
]
