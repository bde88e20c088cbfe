"""Does a line of a report hold what ``schema.json`` says? Names and types, no more.

The schema itself is read, so that what a report holds is said once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

__all__ = ["fault_of"]

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
}


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    text = (
        files("ds4proto_conformance.report").joinpath("schema.json").read_text("utf-8")
    )
    kinds = json.loads(text)["oneOf"]
    return {shape["properties"]["kind"]["const"]: shape for shape in kinds}


def fault_of(line: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a line of a known kind, or None."""
    shape = _shapes().get(str(line.get("kind")))
    if shape is None:
        return None
    missing = [name for name in shape["required"] if name not in line]
    if missing:
        return f"a {line['kind']} without {', '.join(missing)}"
    for name, value in line.items():
        due = shape["properties"].get(name, {})
        if "enum" in due and value not in due["enum"]:
            return f"{name}: expected one of {due['enum']}, found {value!r:.60}"
        kind = _TYPES.get(str(due.get("type")))
        if kind is not None and (
            not isinstance(value, kind)
            or (isinstance(value, bool) and kind is not bool)
        ):
            return f"{name}: expected {due['type']}, found {value!r:.60}"
    return None
