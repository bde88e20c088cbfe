"""Tensor types of GGUF files: name, values per block, bytes per block.

The numbers are those of the public GGUF format; the tests compare every row with the
format owners' Python package. Numbers that were given up by the format stay listed by
name, so that an old file is named correctly; their sizes are unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One tensor type.

    Attributes
    ----------
    code : int
        Number in the tensor record.
    name : str
        Name as tools print it.
    block : int
        Values per block; 0 = not known here.
    size : int
        Bytes per block; 0 = not known here.
    """

    code: int
    name: str
    block: int = 0
    size: int = 0

    @property
    def known(self) -> bool:
        """Whether tensor sizes can be computed."""
        return self.block > 0

    def nbytes(self, values: int) -> int | None:
        """Return the bytes of `values` values; None if the type is unknown."""
        return values // self.block * self.size if self.block else None

    @property
    def bits_per_value(self) -> float | None:
        """Storage bits per value; None if unknown."""
        return self.size * 8 / self.block if self.block else None


_ROWS: tuple[tuple[int, str, int, int], ...] = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (4, "Q4_2 (removed)", 0, 0),
    (5, "Q4_3 (removed)", 0, 0),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (31, "Q4_0_4_4 (removed)", 0, 0),
    (32, "Q4_0_4_8 (removed)", 0, 0),
    (33, "Q4_0_8_8 (removed)", 0, 0),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)

GGML_TYPES = MappingProxyType({row[0]: GgmlType(*row) for row in _ROWS})
"""Type number -> `GgmlType`."""


def ggml_type(code: int) -> GgmlType:
    """Return the type with this number; an unlisted one has no known size."""
    return GGML_TYPES.get(code) or GgmlType(code, f"type {code}")
