"""Do our own parsers survive? Targets, their invariants, corpora and long runs.

Each parser has one check: a function of bytes that returns where the invariants hold
and raises `Broken` (or whatever undocumented exception escapes) where they do not.
The atheris targets, the Hypothesis tests and the long lanes all call the same one.
"""

from __future__ import annotations

from ds4proto_fuzz.parsers.target import NAMES, Broken, Target, target

__all__ = ["NAMES", "Broken", "Target", "target"]
