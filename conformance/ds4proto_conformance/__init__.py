"""Is this peer right? Cases, verdicts and reports on live peers, captures, codecs."""

from __future__ import annotations

__all__ = ["case"]


def __getattr__(name: str) -> object:
    """Load the decorator on first use, so that importing the package stays light."""
    if name != "case":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ds4proto_conformance.registry import case

    return case
