"""Gates of a rank, one after the other: rows, blocks and bulk, sound until one is not.

A sound link plays the other rank. A gate that fits brings its rows over to the last
bit; one that does not ends the link for good, and no byte of it reaches the rows.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from ds4proto_fuzz.parsers.strategies import drips
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ds4proto.link.ds4t_gate_state import GateFailed
from ds4proto.link.ds4t_gates import HEADER, GateLink
from tests.fuzz.parsers.samples import steady, unreduced
from tests.link.ds4t.pair import SMALL, settings

DIALECTS = {"v7": 6, "v9w": 6, "v10": 10, "v14": 10}
ROW = 4 * SMALL.n_embd
LAYERS, SLOTS = SMALL.n_layer, 2 * SMALL.n_layer
FLOATS = st.sampled_from((b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\0\0\x80\x3f"))
"""NaN, minus infinity, one."""


class Gates(RuleBasedStateMachine):
    """Two links; what arrives at one of them is not always what the other sent."""

    dialect: ClassVar[str] = "v14"

    @initialize()
    def begin(self) -> None:
        """Have a pair whose first gate is due."""
        self.ours = GateLink(settings("tp-worker", self.dialect))
        self.theirs = GateLink(settings("tp-leader", self.dialect))
        self.failed = False
        self.rows = bytearray()

    def _open(self, link: GateLink, how: tuple[str, int, int], own: bytes) -> Any:
        kind, layer, rows = how
        peer = memoryview(bytearray(len(own)))
        if kind == "row":
            slot = (link.row_seq - 1) % SLOTS
            link.begin_row(slot // 2, slot % 2, memoryview(own), peer, 0.0)
        elif kind == "batch":
            link.begin_batch(layer, rows, memoryview(own), peer, 0.0)
        else:
            link.begin_bulk(layer, memoryview(own), peer, 0.0)
        return peer

    def _sent(self, link: GateLink) -> bytes:
        said = b"".join(map(bytes, link.send_views))
        link.sent(len(said), 0.0)
        return said

    def _gate(self, data: st.DataObject) -> tuple[Any, Any, bytes, bytes]:
        """Open the same gate on both links; return both places, and what was said."""
        kind = data.draw(st.sampled_from(("row", "batch", "bulk")))
        rows = {"row": 1, "batch": 1 + data.draw(st.integers(0, 7))}.get(
            kind, 1 + data.draw(st.integers(0, 20))
        )
        how = (kind, data.draw(st.integers(0, LAYERS - 1)), rows)
        size = rows * ROW
        mine, other = (data.draw(FLOATS) * (size // 4) for _ in range(2))
        places = self._open(self.ours, how, mine), self._open(self.theirs, how, other)
        return *places, self._sent(self.ours), self._sent(self.theirs)

    def _hear(self, link: GateLink, pieces: list[bytes]) -> None:
        for piece in pieces:
            view = memoryview(piece)
            while view and link.receiving:
                place = link.receive_view
                part = view[: len(place)]
                place[: len(part)] = part
                link.received(len(part), 0.0)
                view = view[len(part) :]

    @rule(data=st.data())
    def a_sound_gate(self, data: st.DataObject) -> None:
        if self.failed:
            return
        place, there, mine, said = self._gate(data)
        self._hear(self.ours, data.draw(drips(said)))
        self._hear(self.theirs, [mine])
        assert self.ours.done
        assert self.theirs.done
        assert bytes(place) == said[HEADER:]
        assert bytes(there) == mine[HEADER:]

    @rule(data=st.data(), at=st.integers(0, HEADER - 1), bit=st.integers(0, 7))
    def a_gate_that_does_not_fit(self, data: st.DataObject, at: int, bit: int) -> None:
        if self.failed:
            return
        place, _, _, said = self._gate(data)
        bad = bytearray(said)
        bad[at] ^= 1 << bit
        with pytest.raises(GateFailed):
            self._hear(self.ours, data.draw(drips(bytes(bad))))
        assert not any(place), "no byte of a gate that does not fit is taken"
        self.failed = True

    @rule(data=st.data())
    def a_gate_cut_short(self, data: st.DataObject) -> None:
        if self.failed:
            return
        _, _, _, said = self._gate(data)
        size = data.draw(st.integers(0, len(said) - 1))
        self._hear(self.ours, [said[:size]])
        assert not self.ours.done
        with pytest.raises(GateFailed):
            self.ours.received(0, 0.0)
        self.failed = True

    @rule(data=st.data())
    def nothing_goes_on_behind_a_failure(self, data: st.DataObject) -> None:
        if self.failed:
            with pytest.raises(GateFailed):
                self._gate(data)
            self.begin()

    @invariant()
    def both_count_alike(self) -> None:
        if not self.failed:
            assert self.ours.row_seq == self.theirs.row_seq
            assert self.ours.batch_seq == self.theirs.batch_seq


def of(dialect: str) -> type[Gates]:
    """Return the conversation in a dialect."""
    return type(f"Gates{dialect.title()}", (Gates,), {"dialect": dialect})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_gates(dialect: str) -> None:
    run_state_machine_as_test(of(dialect), settings=steady(DIALECTS[dialect]))


def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that takes a header whose number differs."""
    real = GateLink.received

    def lenient(self: GateLink, nbytes: int, now: float) -> bool:
        if self._heading and nbytes == len(self.receive_view):
            self._head_in[8:] = self._head_out[8:]
        return real(self, nbytes, now)

    monkeypatch.setattr(GateLink, "received", lenient)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run_state_machine_as_test(of("v14"), settings=unreduced(30))
