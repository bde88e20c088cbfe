"""Making a coordinator or leader start a request; the library's own driver."""

from __future__ import annotations

from ds4proto.peer.drive import Driver

__all__ = ["Driver"]
