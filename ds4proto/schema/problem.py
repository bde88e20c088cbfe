"""What is wrong with some bytes, said so that a person can act on it.

This module is light (standard library only): the command line and the codecs
import it without pulling in the declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Buf = bytes | bytearray | memoryview
"""Any contiguous buffer of bytes that the library accepts."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One rule that some bytes break.

    Parameters
    ----------
    clause : str
        Id of the clause that is broken, such as ``DS4D-WORK-02``.
    path : str
        Where, in the field's own words: ``WORK.route[1].host_len``.
    frame_offset : int or None
        Offset in bytes from the first byte of the frame, its 12-byte header
        included where it has one. None where no single byte is to blame.
    stream_offset : int or None
        The same place counted from the start of the direction of the stream.
    expected, found : str
        What the rule asks for and what the bytes hold.
    next_step : str
        What the reader can do about it.
    fatal : bool
        True where the rest of the frame cannot be read.
    """

    clause: str
    path: str
    frame_offset: int | None
    stream_offset: int | None
    expected: str
    found: str
    next_step: str = ""
    fatal: bool = False

    def at(self, stream_offset: int) -> Problem:
        """Return the same problem for a frame that starts at ``stream_offset``."""
        where = None
        if self.frame_offset is not None:
            where = stream_offset + self.frame_offset
        return replace(self, stream_offset=where)

    def __str__(self) -> str:
        places = []
        if self.frame_offset is not None:
            places.append(f"frame offset {self.frame_offset}")
        if self.stream_offset is not None:
            places.append(f"stream offset {self.stream_offset}")
        place = f" ({', '.join(places)})" if places else ""
        text = (
            f"{self.path}{place}: expected {self.expected}, found {self.found}"
            f" [{self.clause}]"
        )
        return f"{text}; {self.next_step}" if self.next_step else text


class SchemaError(ValueError):
    """Bytes that do not follow a declaration, or values that cannot be sent.

    Attributes
    ----------
    problem : Problem
        The first problem met, with its place and its clause.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem
