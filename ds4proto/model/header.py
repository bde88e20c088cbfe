"""What a parsed GGUF header is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds4proto.model.cursor import ByteOrder
from ds4proto.model.ggml_types import GgmlType


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array value.

    Attributes
    ----------
    item_type : str
        ``u8`` .. ``f64``, ``bool``, ``string`` or ``array``.
    count : int
        Elements in the file.
    items : tuple or None
        The elements, or None where the array was only counted.
    """

    item_type: str
    count: int
    items: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor record.

    Attributes
    ----------
    name : str
    dims : tuple of int
        Innermost first, as stored.
    type : GgmlType
    offset : int
        Bytes from the start of the tensor data.
    nbytes : int or None
        Stored size; None for a type whose block size is not known.
    """

    name: str
    dims: tuple[int, ...]
    type: GgmlType
    offset: int
    nbytes: int | None

    @property
    def values(self) -> int:
        """Number of values."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the header of one GGUF file says.

    Attributes
    ----------
    source : str
        File name, or ``"<bytes>"`` / ``"<stream>"``.
    version : int
    byte_order : str
        ``little`` or ``big``.
    metadata : mapping
        Key -> int, float, bool, str or `GgufArray`.
    tensors : mapping
        Name -> `TensorInfo`, in file order.
    alignment, data_offset : int
        Bytes.
    file_size : int or None
        Bytes of the file; None for a stream that was not read to its end.
    missing : tuple of str
        Tensors that reach past the end of the file (only with ``partial=True``).
    """

    source: str
    version: int
    byte_order: ByteOrder
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    alignment: int
    data_offset: int
    file_size: int | None
    missing: tuple[str, ...] = field(default=())

    @property
    def tensor_bytes(self) -> int:
        """Sum of the tensors' sizes, types of unknown size left out."""
        return sum(t.nbytes or 0 for t in self.tensors.values())

    @property
    def data_end(self) -> int:
        """Smallest file size that holds every tensor, bytes."""
        ends = (t.offset + (t.nbytes or 0) for t in self.tensors.values())
        return self.data_offset + max(ends, default=0)

    @property
    def split(self) -> tuple[int, int] | None:
        """(number, count) of a file of a split set; number counts from 0."""
        count = self.metadata.get("split.count")
        number = self.metadata.get("split.no", 0)
        if isinstance(count, int) and isinstance(number, int) and count > 1:
            return (number, count)
        return None

    def integer(self, key: str) -> int | None:
        """Return an integer value, None where absent or of another type."""
        value = self.metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value
