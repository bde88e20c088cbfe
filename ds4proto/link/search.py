"""The search for the next true header after a loss.

A magic alone proves nothing: hidden states hold any four bytes. A candidate needs a
known type, a plausible length, length fields that add up where the frame has any,
and a header of the same kind right behind it; where the stream ends first, it has to
end exactly there.
"""

from __future__ import annotations

from struct import Struct
from typing import Literal

from ds4proto.link.table import Entry, adds_up

Verdict = Literal["yes", "no", "wait"]


class Search:
    """Bytes since a loss, and where the next header is among them.

    Parameters
    ----------
    start : int
        Stream offset from which nothing is accounted for.
    at : int
        Stream offset of the first byte that will be taken; bytes between ``start``
        and ``at`` are known not to hold a header.
    reason : str
        Reason for ``Skipped``.
    """

    __slots__ = ("_held", "_scan", "at", "reason", "start")

    def __init__(self, start: int, at: int, reason: str) -> None:
        self.start = start
        self.at = at
        self.reason = reason
        self._held = bytearray()
        self._scan = 0

    @property
    def end(self) -> int:
        """Stream offset behind the last byte taken."""
        return self.at + len(self._held)

    def take(self, view: memoryview) -> None:
        """Take more bytes."""
        self._held += view

    def break_at(self, nbytes: int) -> None:
        """Jump a gap: what is held does not continue behind it."""
        self.at = self.end + nbytes
        self._held = bytearray()
        self._scan = 0

    def find(self, form: HeaderForm, *, ended: bool) -> bytes | None:
        """Return the held bytes from the next header on, or None so far."""
        held = self._held
        while True:
            at = held.find(form.magic_bytes, self._scan)
            if at < 0:
                # a magic may begin in the last three bytes
                self._drop(max(0, len(held) - 3))
                return None
            self._drop(at)
            verdict = form.judge(held, ended=ended)
            if verdict == "yes":
                return bytes(held)
            if verdict == "wait":
                return None
            self._scan = 1

    def _drop(self, count: int) -> None:
        if count:
            del self._held[:count]
            self.at += count
        self._scan = 0


class HeaderForm:
    """What a header looks like in one protocol and dialect."""

    __slots__ = ("_form", "_held", "_table", "magic_bytes")

    def __init__(
        self, form: Struct, magic_bytes: bytes, table: dict[int, Entry], held: int
    ) -> None:
        self._form = form
        self._table = table
        self._held = held
        self.magic_bytes = magic_bytes

    def plausible(self, held: bytearray, at: int) -> tuple[Entry, int] | None:
        """Return entry and body size of the header at ``at``, if it may be one."""
        _, code, size = self._form.unpack_from(held, at)
        entry = self._table.get(code)
        if not held.startswith(self.magic_bytes, at) or entry is None:
            return None
        if not entry.least <= size <= entry.most:
            return None
        return entry, size

    def judge(self, held: bytearray, *, ended: bool) -> Verdict:
        """Tell whether ``held`` begins with a true header."""
        later: Verdict = "no" if ended else "wait"
        head = self._form.size
        if len(held) < head:
            return later
        found = self.plausible(held, 0)
        if found is None:
            return "no"
        entry, size = found
        if len(held) < head + entry.least:
            return later
        with memoryview(held) as view:
            agrees = adds_up(entry, view[head : head + entry.least], size)
        if agrees is False:
            return "no"
        behind = head + size
        if behind > self._held:
            # too far to wait for, so that its own length fields have to do, also where
            # all of it happens to be at hand: the split must not decide
            return "yes" if agrees else "no"
        rest = len(held) - behind
        if rest >= head:
            return "yes" if self.plausible(held, behind) is not None else "no"
        if ended:
            if rest < 0:
                return "no"
            return "yes" if self.magic_bytes.startswith(held[behind:][:4]) else "no"
        return "wait"
