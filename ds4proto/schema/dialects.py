"""The register of dialects: every protocol text that is known, as data.

Standard library only, so that ``ds4proto --version`` can list it. Nothing keys on
a version number alone: see ``recognise.py``.
"""

from __future__ import annotations

from ds4proto.schema.dialect_spec import Dialect
from ds4proto.schema.dialects_ds4d import DS4D_DIALECTS
from ds4proto.schema.dialects_ds4t import DS4T_DIALECTS

DEFAULT_DS4D = "upstream"
DEFAULT_DS4T = "v14"

_ALL = DS4D_DIALECTS + DS4T_DIALECTS
_BY_NAME = {dialect.name: dialect for dialect in _ALL}


def all_dialects() -> tuple[Dialect, ...]:
    """Return every registered dialect, DS4D first, each in order of age."""
    return _ALL


def dialect(name: str) -> Dialect:
    """Return the dialect called ``name``; a trailing ``?`` (nearest) is dropped.

    Raises
    ------
    KeyError
        With the known names, if there is none.
    """
    try:
        return _BY_NAME[name.rstrip("?")]
    except KeyError:
        known = ", ".join(_BY_NAME)
        raise KeyError(f"no dialect {name!r}; known: {known}") from None


def dialects_of(protocol: str) -> tuple[Dialect, ...]:
    """Return the dialects of a protocol; DS4B belongs to DS4T."""
    wanted = "DS4D" if protocol == "DS4D" else "DS4T"
    return tuple(d for d in _ALL if d.protocol == wanted)
