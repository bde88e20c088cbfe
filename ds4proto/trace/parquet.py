"""Rows as a Parquet table: columns of the row, then one typed column a frame field.

The columns do not depend on the capture, so that tables of several captures can be
read together: those of `FrameRow`, of the payload's summary, and every fixed field of
every frame under its ``--where`` name, null where a row is another frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, BinaryIO, Final

import msgspec

from ds4proto.schema import frames
from ds4proto.schema.declare import FieldSpec
from ds4proto.trace.names import MISSING, Column
from ds4proto.trace.rows import FrameRow, plain

__all__ = ["ParquetRows", "field_columns", "row_schema"]

_GROUP_ROWS: Final = 65_536
_ROW: Final = {
    "file": "word", "run": "int32", "stream": "int32", "direction": "word",
    "protocol": "word", "dialect": "word", "type": "word", "time": "float64",
    "first_time": "float64", "epoch": "float64", "stream_offset": "int64",
    "length": "int64", "first_packet": "int64", "last_packet": "int64",
    "src": "word", "dst": "word", "src_role": "word", "dst_role": "word",
}  # fmt: skip
_PAYLOAD: Final = {
    "path": "word", "width": "word", "length": "int64", "values": "int64",
    "low": "float64", "high": "float64", "nan": "int64", "inf": "int64",
    "zeros": "int64", "ge240": "int64", "over_f16": "int64", "hash": "string",
    "data": "binary",
}  # fmt: skip
_PAYLOAD_NAMES: Final = {"low": "min", "high": "max", "length": "bytes"}


@cache
def field_columns() -> dict[str, dict[str, str]]:
    """Return, by frame name, the Parquet type of each of its fixed fields."""
    found: dict[str, dict[str, str]] = {}
    for frame in frames():
        columns = found.setdefault(frame.full_name, {})
        for spec in frame.body.fields:
            if spec.const is None:
                columns.setdefault(spec.path, _type_of(spec))
    return found


def _type_of(spec: FieldSpec) -> str:
    code = spec.code
    if code.endswith("s"):
        return "string"
    if code in "fd":
        return "float64"
    bits = max(8 * spec.size, 8)
    return f"{'uint' if code.isupper() else 'int'}{bits}"


def row_schema() -> Any:
    """Return the Arrow schema of the table."""
    import pyarrow as pa

    columns = [(name, _arrow(kind)) for name, kind in _ROW.items()]
    columns.append(("problems", pa.list_(pa.string())))
    for name, kind in _PAYLOAD.items():
        columns.append((f"payload.{_PAYLOAD_NAMES.get(name, name)}", _arrow(kind)))
    columns.append(("payload.shape", pa.list_(pa.int64())))
    columns.append(("payload.notes", pa.list_(pa.string())))
    columns.append(("fields", pa.string()))
    for frame, fields in field_columns().items():
        for path, kind in fields.items():
            columns.append((f"{frame.lower()}.{path}", _arrow(kind)))
    return pa.schema(columns)


def _arrow(kind: str) -> Any:
    import pyarrow as pa

    if kind == "word":  # few different texts, many rows
        return pa.dictionary(pa.int32(), pa.string())
    return getattr(pa, kind)()


class ParquetRows:
    """Writes rows as one Parquet file, a row group at a time.

    Parameters
    ----------
    stream : binary stream
    columns : mapping, optional
        Write these alone; types are found from the first group's values.
    payload : bool
        Whether rows carry summaries at all.
    """

    def __init__(
        self,
        stream: BinaryIO,
        columns: Mapping[str, Column] | None = None,
        *,
        payload: bool = True,
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa = pa
        self._pq = pq
        self._stream = stream
        self._columns = columns
        self._payload = payload
        self._file: str | None = None
        self._rows: list[FrameRow] = []
        self._files: list[str | None] = []
        self._writer: Any = None
        self._json = msgspec.json.Encoder().encode
        self._schema: Any = row_schema() if columns is None else None

    def file(self, name: str | None) -> None:
        """Say which capture the rows from here on are from."""
        self._file = None if name is None else str(plain(name))

    def write(self, row: FrameRow) -> None:
        """Take a row."""
        self._rows.append(row)
        self._files.append(self._file)
        if len(self._rows) >= _GROUP_ROWS:
            self._group()

    def flush(self) -> None:
        """Do nothing: a Parquet file is readable once it is whole."""

    def finish(self) -> None:
        """Write what is held and the footer."""
        if self._rows or self._writer is None:
            self._group()
        self._writer.close()

    def _group(self) -> None:
        table = self._table() if self._columns is None else self._picked(self._columns)
        self.write_table(table)
        self._rows.clear()
        self._files.clear()

    def write_table(self, table: Any) -> None:
        """Write a row group that was made elsewhere, in the schema of `row_schema`."""
        if self._writer is None:
            self._writer = self._pq.ParquetWriter(
                self._stream, table.schema, compression="zstd"
            )
        if table.schema != self._writer.schema:
            table = table.cast(self._writer.schema)
        self._writer.write_table(table)

    def _picked(self, columns: Mapping[str, Column]) -> Any:
        pa = self._pa
        found = {}
        schema = None if self._writer is None else self._writer.schema
        for name, column in columns.items():
            values = [_cell(column.get(row)) for row in self._rows]
            kind = None if schema is None else schema.field(name).type
            try:
                found[name] = pa.array(values, kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                found[name] = pa.array([None if v is None else str(v) for v in values])
        return pa.table(found)

    def _table(self) -> Any:
        pa, rows, schema = self._pa, self._rows, self._schema
        columns: dict[str, Any] = {"file": self._files}
        for name in _ROW:
            if name != "file":
                columns[name] = [getattr(row, name) for row in rows]
        columns["problems"] = [[p.clause for p in row.problems] for row in rows]
        for name in (*_PAYLOAD, "shape", "notes"):
            shown = _PAYLOAD_NAMES.get(name, name)
            columns[f"payload.{shown}"] = [
                None if row.payload is None else getattr(row.payload, name)
                for row in rows
            ]
        columns["fields"] = [self._json(row.fields).decode() for row in rows]
        self._typed(columns, rows)
        arrays = [
            pa.nulls(len(rows), field.type)
            if field.name not in columns
            else pa.array(columns[field.name], field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _typed(self, columns: dict[str, Any], rows: list[FrameRow]) -> None:
        places: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            if row.is_frame:
                places.setdefault(row.name, []).append(place)
        for name, where in places.items():
            for path in field_columns().get(name, ()):
                values: list[Any] = [None] * len(rows)
                for place in where:
                    values[place] = rows[place].fields.get(path)
                columns[f"{name.lower()}.{path}"] = values


def _cell(value: Any) -> Any:
    if value is MISSING:
        return None
    return list(value) if isinstance(value, tuple) else value
