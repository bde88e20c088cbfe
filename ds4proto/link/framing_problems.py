"""How a framer words what is wrong with headers, lengths and ends."""

from __future__ import annotations

from collections.abc import Iterable

from ds4proto.link.limits import Limits
from ds4proto.link.table import Entry
from ds4proto.schema.declare import Layout, offsets_of
from ds4proto.schema.problem import Problem

_TOO_LONG = {"DS4D": "DS4D-FRAME-13", "DS4T": "DS4T-CTRL-17"}
_CUT_SHORT = {"DS4D": "DS4D-FRAME-07", "DS4T": "DS4T-CTRL-04"}
_CUT_HEADER = {"DS4D": "DS4D-FRAME-07", "DS4T": "DS4T-CTRL-06"}


class FramingProblems:
    """Problems of one protocol's framing; offsets come from the header's layout."""

    __slots__ = ("_at", "_clause", "_limits", "_protocol", "_size")

    def __init__(
        self, protocol: str, header: Layout, size: int, limits: Limits
    ) -> None:
        self._protocol = protocol
        self._size = size
        self._limits = limits
        self._at = offsets_of(header, "*")
        self._clause = {spec.path: spec.clause for spec in header.fields}

    def bad_magic(self, start: int, expected: int, found: int) -> Problem:
        """Say that something else stands where a header is due."""
        return self._make(
            (self._clause["magic"], "header.magic", start, self._at["magic"]),
            f"{expected:#010x}",
            f"{found:#010x}",
            "a length before it was wrong, or the peer speaks something else",
            fatal=True,
        )

    def too_long(self, start: int, name: str, most: int, size: int) -> Problem:
        """Say that a header announces more than the limit."""
        clause = _TOO_LONG[self._protocol]
        return self._make(
            (clause, f"{name}.header.bytes", start, self._at["bytes"]),
            f"at most {most} bytes in {name}",
            f"{size}",
            "raise the limit if the frame is real; else the stream is out of step",
            fatal=True,
        )

    def unknown(
        self, start: int, code: int, size: int, known: Iterable[int], dialect: str
    ) -> Problem:
        """Say that the dialect does not have a type."""
        return self._make(
            (
                self._clause["type"],
                f"TYPE_{code}.header.type",
                start,
                self._at["type"],
            ),
            f"one of {', '.join(str(number) for number in sorted(known))}",
            f"{code}",
            f"dialect {dialect} has no such frame: {size} bytes are skipped",
        )

    def retired(self, start: int, entry: Entry, dialect: str) -> Problem:
        """Say that a type ended with an older dialect."""
        where = f"{entry.spec.name}.header.type"
        return self._make(
            (self._clause["type"], where, start, self._at["type"]),
            f"a type of dialect {dialect}",
            f"{entry.spec.code}, which ended with dialect {entry.dialect}",
        )

    def surplus(self, start: int, entry: Entry, size: int) -> Problem:
        """Say that a body holds too much besides its bulk tails."""
        return self._make(
            (_TOO_LONG[self._protocol], entry.spec.name, start, self._size),
            f"at most {self._limits.small} bytes besides bulk tails",
            f"a body of {size} bytes with more",
            "its length fields do not fit its size, or raise the limit",
        )

    def no_room(self, start: int, entry: Entry, size: int) -> Problem:
        """Say that the system gives no address space for a body within the limit."""
        return self._make(
            (_TOO_LONG[self._protocol], entry.spec.name, start, self._at["bytes"]),
            f"room for a body of {size} bytes",
            "none: the system refuses the mapping",
            "free memory or lift the limit of this process (ulimit -v)",
        )

    def raw_too_long(self, start: int, entry: Entry, nbytes: int) -> Problem:
        """Say that a raw stream is above the limit."""
        return self._make(
            (_TOO_LONG[self._protocol], entry.spec.name, start, self._size),
            f"a raw stream of at most {self._limits.raw} bytes",
            f"{nbytes}",
            fatal=True,
        )

    def cut(
        self,
        start: int,
        length: int,
        within: tuple[str, int, int] | None,
        last: tuple[str, int] | None,
    ) -> Problem:
        """Say that the stream ends ``length`` bytes into a frame.

        ``within`` is (name, bytes due, bytes that came) of the part that was cut,
        None for the header; ``last`` names the last whole frame and its offset.
        """
        clause = _CUT_SHORT[self._protocol]
        if within is None:
            name, clause = "header", _CUT_HEADER[self._protocol]
            expected, came = f"a header of {self._size} bytes", length
        else:
            name, due, came = within
            expected = f"{due} bytes of {name}"
        before = "no frame came before it"
        if last is not None:
            before = f"the last complete frame is {last[0]} at {last[1]}"
        return self._make(
            (clause, name, start, length),
            expected,
            f"{came}, then the end of the stream",
            before,
            fatal=True,
        )

    @staticmethod
    def _make(
        where: tuple[str, str, int, int],
        expected: str,
        found: str,
        next_step: str = "",
        *,
        fatal: bool = False,
    ) -> Problem:
        clause, path, start, at = where
        return Problem(clause, path, at, start + at, expected, found, next_step, fatal)
