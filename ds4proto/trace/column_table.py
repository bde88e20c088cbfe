"""`FrameColumns` as a Parquet table."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, BinaryIO, Final

import numpy as np

from ds4proto.trace.columns import FrameColumns

__all__ = ["ColumnTable"]


class ColumnTable:
    """Writes `FrameColumns` as Parquet, in columns of the same names as `ParquetRows`.

    A row group holds frames of one type. Columns that this path cannot fill (roles,
    problems, payload, tails) are not there.

    Parameters
    ----------
    stream : binary stream
    frames : set of str, optional
        Full names of the frames that will come (`frame_names` finds them); the table
        then has the fields of these alone. Null columns cost more time than full ones.
    group_rows : int
        Rows that are collected before a row group is written.
    """

    def __init__(
        self,
        stream: BinaryIO,
        frames: AbstractSet[str] | None = None,
        *,
        group_rows: int = 1 << 19,
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ds4proto.trace.parquet import row_schema

        heads = None if frames is None else {name.lower() for name in frames}
        fields = [field for field in row_schema() if _filled(field.name, heads)]
        self._schema = pa.schema(fields)
        words = [f.name for f in fields if pa.types.is_dictionary(f.type)]
        self._writer = pq.ParquetWriter(
            stream, self._schema, compression="zstd", compression_level=1,
            use_dictionary=words,
        )  # fmt: skip
        self._group_rows = group_rows
        self._held: dict[tuple[str, str], list[FrameColumns]] = {}
        self._file: str | None = None
        self.frames = 0

    def file(self, name: str | None) -> None:
        """Say which capture the frames from here on are from."""
        self._flush()
        self._file = name

    def write(self, part: FrameColumns) -> None:
        """Take frames."""
        self.frames += len(part)
        key = (part.spec.full_name, part.dialect)
        held = self._held.setdefault(key, [])
        held.append(part)
        if sum(map(len, held)) >= self._group_rows:
            self._group(self._held.pop(key))

    def finish(self) -> None:
        """Write what is held and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        for parts in self._held.values():
            self._group(parts)
        self._held.clear()

    def _group(self, parts: list[FrameColumns]) -> None:
        import pyarrow as pa

        spec, count = parts[0].spec, sum(map(len, parts))
        since = [part.time_ns - part.start_ns for part in parts]
        found: dict[str, Any] = {
            "stream": _spread([part.stream for part in parts], parts, np.int32),
            "first_time": np.concatenate(since) / 1e9,
            "stream_offset": np.concatenate([part.offset for part in parts]),
            "length": np.concatenate([part.length for part in parts]),
            "first_packet": np.concatenate([part.packet for part in parts]),
            "direction": _words(pa, [part.direction for part in parts], parts),
            "protocol": _words(pa, [spec.protocol] * len(parts), parts),
            "dialect": _words(pa, [part.dialect for part in parts], parts),
            "type": _words(pa, [spec.name] * len(parts), parts),
            "src": _words(pa, [part.src for part in parts], parts),
            "dst": _words(pa, [part.dst for part in parts], parts),
        }
        if self._file is not None:
            found["file"] = _words(pa, [self._file] * len(parts), parts)
        fixed = np.concatenate([part.fixed for part in parts])
        for path in fixed.dtype.names or ():
            column = fixed[path]
            if column.dtype.kind in "uif":
                native = column.astype(column.dtype.newbyteorder("="))
                found[f"{spec.full_name.lower()}.{path}"] = native
        arrays = [
            _array(pa, found[field.name], field.type)
            if field.name in found
            else pa.nulls(count, field.type)
            for field in self._schema
        ]
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=table.num_rows)


_ALWAYS: Final = frozenset(
    {
        "file", "stream", "direction", "protocol", "dialect", "type", "first_time",
        "stream_offset", "length", "first_packet", "src", "dst",
    }
)  # fmt: skip


def _filled(name: str, heads: AbstractSet[str] | None) -> bool:
    """Tell whether this path has values for a column of the row table."""
    head, _, path = name.rpartition(".")
    if not head or head == "payload":
        return name in _ALWAYS
    return bool(path) and (heads is None or head in heads)


def _array(pa: Any, values: Any, kind: Any) -> Any:
    if isinstance(values, np.ndarray):
        return pa.array(values, kind)
    return values


def _spread(values: list[int], parts: list[FrameColumns], dtype: Any) -> Any:
    return np.repeat(np.array(values, dtype), [len(part) for part in parts])


def _words(pa: Any, words: list[str], parts: list[FrameColumns]) -> Any:
    names = sorted(set(words))
    places = _spread([names.index(word) for word in words], parts, np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(names))
