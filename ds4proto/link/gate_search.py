"""The search for the next gate header after a loss or a gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ds4proto.link.gate_form import COMMON, MAGICS, Due, Form, Header
from ds4proto.link.pair import TpPair

_MAGIC = 4
_CANDIDATES = 64
"""Headers looked at to confirm one; magics without end must not cost their square."""

Verdict = Literal["yes", "no", "wait"]


class GateSearch:
    """Looks for a header that is due now or soon, and makes sure of it.

    Where the numbers before the loss are known, a header whose number, layer and
    kind agree with the schedule is true: chance is out of question. Else the next
    header has to stand where the first one says, or to carry the next number.

    Parameters
    ----------
    form, due, pair
        Dialect, numbers due, and shared state.
    length : callable
        Payload length of a header, None where it is not certain.
    held : int
        Bytes that may be held while waiting for the next header.
    """

    def __init__(
        self,
        form: Form,
        due: Due,
        pair: TpPair,
        length: Callable[[Header], int | None],
        held: int,
    ) -> None:
        self._form = form
        self._due = due
        self._pair = pair
        self._length = length
        self._held = held

    def find(self, data: bytes, *, ended: bool) -> tuple[int | None, int]:
        """Return where the next header stands, and how many bytes can be let go."""
        form, where = self._form, 0
        keep = len(data) - min(len(data), form.size - 1)
        while (where := data.find(COMMON, where + 1)) > 0:
            begin = where - 1
            if data[begin : begin + _MAGIC] not in MAGICS:
                continue
            if begin + form.size > len(data):
                return None, min(keep, begin)
            header = form.read(data, begin)
            if header is None or form.spec(header.name) is None:
                continue
            if not self._due.fits(header, self._pair, far=True):
                continue
            verdict = self._confirm(data, begin, header, ended=ended)
            if verdict == "yes":
                return begin, begin
            if verdict == "wait":
                return None, min(keep, begin)
        return None, keep

    def _confirm(
        self, data: bytes, begin: int, header: Header, *, ended: bool
    ) -> Verdict:
        if not self._due.blind and self._pair.schedule is not None:
            return "yes"
        size = self._form.size
        want = self._length(header)
        if want is not None:
            if want > self._held:
                return "yes"  # too far to wait for, also where it is at hand
            behind = begin + size + want
            if behind + size <= len(data):
                # the two counters are independent: any gate may follow
                return "no" if self._form.read(data, behind) is None else "yes"
            if ended:
                return "yes" if behind <= len(data) else "no"
            return "wait"
        after = Due(self._due.row, self._due.batch, False, False, self._due.reach)
        after.advance(header, jumps=False)
        where, looked = begin + size, 0
        # as far as a search that gets single bytes would wait
        stop = min(len(data), begin + self._held + 1)
        while (where := data.find(COMMON, where)) > 0:
            at = where - 1
            where += 1
            if at + size > stop:
                break
            looked += 1
            if looked > _CANDIDATES:
                return "no"
            if data[at : at + _MAGIC] not in MAGICS:
                continue
            found = self._form.read(data, at)
            if found is not None and after.fits(found, self._pair):
                return "yes"
        return "no" if ended or len(data) - begin > self._held else "wait"


def later_gate(view: memoryview, form: Form, due: Due, pair: TpPair) -> bool:
    """Tell whether a header stands here that is due later than the next one."""
    data, where = bytes(view), 0
    while (where := data.find(COMMON, where + 1)) > 0:
        begin = where - 1
        if begin + form.size > len(data):
            return False
        header = form.read(data, begin)
        if header is None or due.fits(header, pair):
            continue
        if due.fits(header, pair, far=True):
            return True
    return False
