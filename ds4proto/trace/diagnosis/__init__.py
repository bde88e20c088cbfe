"""Captures and logs in, answers in sentences out: why a run was slow, wrong or over.

`diagnose` reads files; an `Examiner` rides along where rows pass anyway. Names load on
first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.trace.diagnosis.finding import Evidence, Finding
    from ds4proto.trace.diagnosis.front import Diagnosis, Examiner, diagnose, examine

_HOMES = {
    "Diagnosis": "front",
    "Evidence": "finding",
    "Examiner": "front",
    "Finding": "finding",
    "diagnose": "front",
    "examine": "front",
}

__all__ = ["Diagnosis", "Evidence", "Examiner", "Finding", "diagnose", "examine"]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
