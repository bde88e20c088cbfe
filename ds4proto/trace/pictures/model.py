"""What a picture shows, as plain values: nodes, frames as columns, series, maps."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ds4proto.printable import printable

__all__ = ["FORMAT", "FRAMES", "SEVERITIES", "Picture", "Place", "Remark"]

FORMAT: Final = 1
FRAMES: Final = 150_000
"""Frames that a picture holds one by one unless told otherwise."""


SEVERITIES: Final = ("error", "warning", "note")


class Place(msgspec.Struct, frozen=True):
    """Where a frame is: by connection, direction and offset there is one alone.

    Attributes
    ----------
    stream : int
    direction : {"a>b", "b>a"}
    offset : int
        In its direction of the stream.
    packet : int
        For the reader.
    """

    stream: int
    direction: str
    offset: int
    packet: int


class Remark(msgspec.Struct, frozen=True):
    """One finding that a picture lists.

    Attributes
    ----------
    severity : {"error", "warning", "note"}
    text : str
        The finding in a sentence.
    confidence : str
    evidence : tuple of str
        Numbers and places that prove it.
    next_step : str
    places : tuple of Place
        Frames that prove it; the page leads there.
    """

    severity: str
    text: str
    confidence: str = ""
    evidence: tuple[str, ...] = ()
    next_step: str = ""
    places: tuple[Place, ...] = ()

    def printable(self) -> Remark:
        """Return it without characters that steer who shows it."""
        return Remark(
            self.severity if self.severity in SEVERITIES else "note",
            printable(self.text),
            printable(self.confidence),
            tuple(map(printable, self.evidence)),
            printable(self.next_step),
            self.places,
        )


class Picture(msgspec.Struct, frozen=True):
    """A capture, ready to be drawn.

    Attributes
    ----------
    title : str
    summary : dict
        Counts over the whole capture: frames, bytes, problems, seconds.
    types : list of dict
        Every type of frame: ``name``, ``frames``, ``bytes``.
    nodes : list of dict
        Lanes: ``run``, ``role``, ``address``, ``name``.
    frames : dict
        Columns, one value a frame held: ``time``, ``first``, ``length``, ``type``,
        ``source``, ``target``, ``stream``, ``offset``, ``packet``, ``first_packet``,
        ``flags``.
    details : list of bytes
        zlib'd JSON of 1,000 frames each: [line, fields, problems, head in hex].
    spans : list of list
        [lane, begin, passed on, end, request], seconds.
    series : dict
        ``width`` (seconds of a bin), ``bytes`` by lane that sends, ``frames``,
        ``in_flight``.
    heat : list of dict
    remarks : list of Remark
    notes : list of str
        What the picture does not show, and warnings.
    heads : bool
        Whether any frame has bytes to show.
    """

    title: str
    summary: dict[str, Any]
    types: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    frames: dict[str, Any]
    details: list[bytes]
    spans: list[list[float]]
    series: dict[str, Any]
    heat: list[dict[str, Any]]
    remarks: list[Remark]
    notes: list[str]
    heads: bool = False
    format: int = FORMAT

    def document(self) -> dict[str, Any]:
        """Return all but the frames one by one as JSON can hold it."""
        built = msgspec.to_builtins(
            {
                "format": self.format,
                "title": self.title,
                "summary": self.summary,
                "types": self.types,
                "nodes": self.nodes,
                "series": self.series,
                "heat": self.heat,
                "findings": self.remarks,
                "notes": self.notes,
            }
        )
        assert isinstance(built, dict)
        return built
