"""The search for a gate header after a loss: bounded work on hostile bytes."""

from __future__ import annotations

from typing import Any

from ds4proto.link.gate_form import Due, Form, Header
from ds4proto.link.gate_search import GateSearch
from ds4proto.link.pair import TpPair


class CountingForm(Form):
    """Counts the headers that are read."""

    __slots__ = ("reads",)

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)
        self.reads = 0

    def read(self, data: Any, at: int = 0) -> Header | None:
        self.reads += 1
        return super().read(data, at)


def _reads(headers: int) -> int:
    # every header fits a blind start, none is followed by the number it asks for
    data = (b"T4SD" + bytes(4) + (5).to_bytes(8, "little")) * headers
    form = CountingForm("v10")
    due = Due.unknown()
    search = GateSearch(form, due, TpPair(), lambda _header: None, held=1 << 22)
    search.find(b"\0" + data, ended=True)
    return form.reads


def test_dense_magics_cost_their_number_and_not_its_square() -> None:
    few, many = _reads(200), _reads(800)
    assert few > 200
    assert many < 5 * few
