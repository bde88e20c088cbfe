"""Specification, reference implementation and testbed of the ds4 wire protocols.

Importing this package loads the standard library only; each part is imported by
its own name (``ds4proto.schema``, ``ds4proto.codec``, ``ds4proto.trace``, ...).
"""

from typing import Final

__all__ = ["__version__"]

__version__: Final = "0.1.0"
