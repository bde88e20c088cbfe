"""The edges of each field: the values at which a reader changes its mind."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.schema.declare import FieldSpec, in_dialect

FLOATS = (0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan"))
"""Floats that readers and writers tend to treat differently."""


def integer_range(field: FieldSpec) -> tuple[int, int]:
    """Return the lowest and the highest integer that fits the field's type.

    Raises
    ------
    TypeError
        If the field is not an integer.
    """
    if field.kind != "int":
        raise TypeError(f"{field.path} is a {field.type_name}, not an integer")
    bits = 8 * field.size
    if field.code.isupper():
        return 0, (1 << bits) - 1
    return -(1 << bits - 1), (1 << bits - 1) - 1


def boundary_values(
    field: FieldSpec, dialect: str = "*"
) -> tuple[int | float | bytes, ...]:
    """Return the values worth trying in ``field``, each of which fits its type.

    Ends of the type and the sign bit; both sides of each limit; the neighbours of a
    constant; every named value and, for masks, every single bit, named or not.

    Parameters
    ----------
    field : FieldSpec
    dialect : str
        Named values that other dialects have are left out; ``*`` keeps all.

    Returns
    -------
    tuple
        Sorted integers, or floats, or byte strings, without repetition.
    """
    if field.kind == "bytes":
        size = field.size
        return (bytes(size), b"\xff" * size, bytes(i & 0xFF for i in range(size)))
    if field.kind == "float":
        return FLOATS
    low, high = integer_range(field)
    found = {value for value in _edges(field, dialect) if low <= value <= high}
    return tuple(sorted(found))


def _edges(field: FieldSpec, dialect: str) -> Iterator[int]:
    low, high = integer_range(field)
    yield from (low, high, low + 1, high - 1, 0, 1, 2)
    yield from (1 << 8 * field.size - 1, (1 << 8 * field.size - 1) - 1)
    if field.const is not None:
        yield from (field.const - 1, field.const, field.const + 1)
        yield int.from_bytes(field.const.to_bytes(field.size, "big"), "little")
    if field.limit is not None:
        limit = field.limit
        for edge in (limit.low, limit.high, *(limit.one_of or ())):
            if edge is not None:
                yield from (edge - 1, edge, edge + 1)
    for name in field.enum:
        if in_dialect(name.dialects, dialect) or dialect == "*":
            yield name.value
    if field.flags:
        for bit in range(8 * field.size):
            yield 1 << bit
