"""One gate while its payload arrives, and where the payload ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ds4proto.link.gate_form import Header
from ds4proto.link.sink import Sink
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.problem import Problem

PATH = "partial"


@dataclass(slots=True)
class Gate:
    """A gate whose header was read.

    The payload's length is certain where the header or the row width gives it. A
    bulk gate has only the length that the plan prefers; the next header that fits
    proves it, or shows another one.

    Attributes
    ----------
    header, spec, fields, problems
        What the header says.
    start : int
        Stream offset of the header.
    size : int
        Bytes of the header.
    stride : int
        The payload is a multiple of this.
    want : int or None
        Length of the payload, where it is certain.
    prefer : int or None
        Length that the plan expects.
    scan : int
        Payload offset at which the next header is looked for.
    early : int or None
        Offset before ``prefer`` where a header fits.
    got : int
        Payload bytes taken.
    proven : bool
        Whether a following header proved the length.
    """

    header: Header
    spec: FrameSpec
    fields: dict[str, Any]
    problems: tuple[Problem, ...]
    start: int
    size: int
    stride: int
    want: int | None
    prefer: int | None
    scan: int
    due: int
    sink: Sink | None = None
    kept: bytearray | None = None
    early: int | None = None
    got: int = 0
    missing: int = 0
    proven: bool = False
    holes: list[tuple[int, int]] = field(default_factory=list)

    def take(self, view: memoryview) -> None:
        """Take payload bytes."""
        if self.sink is not None:
            self.sink.write(view)
        elif len(view):
            if self.kept is None:
                self.kept = bytearray()
            self.kept += view
        self.got += len(view)

    def gap(self, nbytes: int) -> None:
        """Take payload bytes that are not at hand."""
        if self.sink is not None:
            self.sink.gap(nbytes)
        else:
            self.kept = (self.kept or bytearray()) + bytes(nbytes)
        self.missing += nbytes
        self.got += nbytes

    def weigh(self, *, fits: bool, magic: bool) -> int | None:
        """Judge what stands at ``scan``; return the length once it is settled.

        Parameters
        ----------
        fits : bool
            The header that is due next stands there.
        magic : bool
            At least a gate magic stands there.
        """
        at, prefer = self.scan, self.prefer
        if prefer is None:
            return at if fits else None
        if at < prefer:
            if fits and self.early is None:
                self.early = at
            return None
        if at == prefer:
            if fits:
                return prefer
            if self.early is not None:
                return self.early
            # a wrong header behind the due length is the sender's, not ours
            return prefer if magic else None
        return at if fits else None

    def early_stands(self, end: int) -> bool:
        """Judge an early header when a hole follows, up to payload offset ``end``.

        The hole would go past that header. Where it hides what stands behind the due
        length as well, the early header is the best there is, and gives the length.
        """
        if self.want is not None or self.early is None:
            return False
        if self.prefer is None or end > self.prefer:
            self.want, self.proven = self.early, True
            return True
        self.early = None
        return False

    def at_end(self, total: int) -> int | None:
        """Return the length when the stream ends after ``total`` payload bytes."""
        if self.early is not None:
            return self.early
        rows = total > 0 and total % self.stride == 0
        if self.prefer is not None and self.prefer >= self.got:
            if total < self.prefer:
                return None
            # no header stood behind the due length: more rows, or other bytes
            return total if rows else self.prefer
        return total if rows else None

    def free(self, total: int) -> int:
        """Return the payload offset up to which bytes are sure to be payload."""
        found = min(self.scan, total)
        for mark in (self.early, self.prefer):
            if mark is not None and mark < self.scan:
                found = min(found, mark)
        if self.missing:
            # behind a hole a later gate may stand at any offset, not at a multiple only
            found = min(found, total - self.size + 1)
        return max(found, self.got)
