"""What is odd in the rows of a capture, counted by kind, with the places seen first."""

from __future__ import annotations

from typing import Final

from ds4proto.printable import counted
from ds4proto.trace.pictures.model import Place, Remark
from ds4proto.trace.rows import FrameRow

__all__ = ["Oddity", "place_of"]

_PLACES: Final = 4


class Oddity:
    """One kind of oddity: how often, and where first."""

    def __init__(self, severity: str, text: str) -> None:
        self.severity, self.text = severity, text
        self.count = 0
        self.bytes = 0
        self.places: list[Place] = []
        self.at: list[str] = []

    def add(self, row: FrameRow) -> None:
        """Count a row."""
        self.count += 1
        self.bytes += row.length
        if len(self.places) < _PLACES:
            self.places.append(place_of(row))
            self.at.append(f"{row.time:.6f} s")

    def remark(self, name: str) -> Remark:
        """Return the finding that a page lists, under its name."""
        if self.severity == "error":
            text = (
                f"{self.text} ({counted(self.count, 'time')})"
                if self.count > 1
                else self.text
            )
        else:
            text = f"{counted(self.bytes, 'byte', 'belong')} to no frame: {self.text}"
        seen = ", ".join(self.at[:3]) + (", ..." if self.count > 3 else "")
        return Remark(
            self.severity, text, evidence=(f"{name}, at {seen}",),
            places=tuple(self.places),
        )  # fmt: skip


def place_of(row: FrameRow) -> Place:
    """Return where a row is."""
    return Place(row.stream, row.direction, row.stream_offset, row.first_packet)
