"""Metadata values of a GGUF header: scalars, strings, arrays of any depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ds4proto.model.cursor import Cursor
from ds4proto.model.header import GgufArray

BAD_FILE: Final = "the file is damaged or hostile; fetch it again"

# value type number -> (name, struct code, bytes)
_SCALARS: Final[Mapping[int, tuple[str, str, int]]] = {
    0: ("u8", "B", 1),
    1: ("i8", "b", 1),
    2: ("u16", "H", 2),
    3: ("i16", "h", 2),
    4: ("u32", "I", 4),
    5: ("i32", "i", 4),
    6: ("f32", "f", 4),
    7: ("bool", "B", 1),
    10: ("u64", "Q", 8),
    11: ("i64", "q", 8),
    12: ("f64", "d", 8),
}
_STRING: Final = 8
_ARRAY: Final = 9


def read_value(cursor: Cursor, key: str, keep: bool) -> Any:
    """Read one typed value; `keep` stores an array that would only be counted."""
    at = cursor.offset
    kind = cursor.u32(f"type of {key!r}")
    if kind == _STRING:
        return cursor.text(f"value of {key!r}", cursor.limits.string)
    if kind == _ARRAY:
        return _array(cursor, key, keep, 1)
    return _scalar(cursor, key, kind, at)


def _scalar(cursor: Cursor, key: str, kind: int, at: int) -> int | float | bool:
    entry = _SCALARS.get(kind)
    if entry is None:
        cursor.fail(
            f"type of {key!r}",
            offset=at,
            expected="a value type of 0..12",
            found=str(kind),
            next_step=BAD_FILE,
        )
    here = cursor.offset
    value = cursor.number(entry[1], f"value of {key!r}")
    if entry[0] != "bool":
        return value
    if value not in (0, 1):
        cursor.fail(
            f"value of {key!r}",
            offset=here,
            expected="0 or 1 for a bool",
            found=str(value),
            next_step=BAD_FILE,
        )
    return bool(value)


def _array(cursor: Cursor, key: str, keep: bool, depth: int) -> GgufArray:
    field = f"value of {key!r}"
    if depth > cursor.limits.depth:
        cursor.fail(
            field,
            expected=f"arrays nested at most {cursor.limits.depth} deep",
            found=f"depth {depth}",
            next_step=BAD_FILE,
        )
    at = cursor.offset
    kind = cursor.u32(f"item type of {key!r}")
    count = cursor.length(f"length of {key!r}", cursor.limits.array, what="elements")
    keep = _keep(cursor, count, keep)
    items: tuple[Any, ...] = ()
    if kind == _ARRAY:
        # Empty inner arrays cost 12 bytes of file each, so the count is capped too.
        cursor.arrays += count
        if cursor.arrays > cursor.limits.kv:
            cursor.fail(
                field,
                expected=f"at most {cursor.limits.kv} arrays inside arrays",
                found=str(cursor.arrays),
                next_step=BAD_FILE,
            )
        items = tuple(_array(cursor, key, keep, depth + 1) for _ in range(count))
        return GgufArray("array", count, items if keep else None)
    if kind == _STRING:
        cursor.room(count * 8, field)  # each has at least its length word
        if keep:
            cap = cursor.limits.string
            items = tuple(cursor.text(field, cap) for _ in range(count))
        else:
            _skip_strings(cursor, count, field)
        return GgufArray("string", count, items if keep else None)
    entry = _SCALARS.get(kind)
    if entry is None:
        cursor.fail(
            f"item type of {key!r}",
            offset=at,
            expected="a value type of 0..12",
            found=str(kind),
            next_step=BAD_FILE,
        )
    name, _, width = entry
    cursor.room(count * width, field)
    if keep:
        items = tuple(_scalar(cursor, key, kind, at) for _ in range(count))
    else:
        cursor.skip(count * width, field)
    return GgufArray(name, count, items if keep else None)


def _keep(cursor: Cursor, count: int, wanted: bool) -> bool:
    """Whether to store: short arrays and wanted ones, within one budget a file."""
    if not wanted and count > cursor.limits.stored:
        return False
    if cursor.kept + count > cursor.limits.kept:
        return False
    cursor.kept += count
    return True


def _skip_strings(cursor: Cursor, count: int, field: str) -> None:
    for _ in range(count):
        cursor.skip(cursor.length(field, cursor.limits.string, what="bytes"), field)
