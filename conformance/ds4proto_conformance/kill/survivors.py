"""Planted faults that no case catches, and why."""

from __future__ import annotations

from typing import Final

__all__ = ["REASONS"]

_ROLE: Final = (
    "real ranks do so and the clause is a SHOULD: noticed as a conceptual pass"
)
REASONS: Final[dict[str, str]] = {
    "tpl-any-role": _ROLE,
    "tpw-any-role": _ROLE,
    "tpw-bulk-failure-hidden": (
        "the failed gate shows at the next token, as in real workers: noticed as a"
        " conceptual pass"
    ),
}
"""Name of a fault -> why it lives. Cases that name one notice it all the same."""
