"""Planted faults that no case catches, and why."""

from __future__ import annotations

from typing import Final

__all__ = ["REASONS"]

REASONS: Final[dict[str, str]] = {}
"""Name of a fault -> why it lives."""
