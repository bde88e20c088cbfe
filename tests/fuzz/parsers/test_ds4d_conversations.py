"""Whole DS4D conversations, rule by rule, against our own machines without a socket.

Whatever a peer does, in whatever order: no exception, every byte that we send is a
sound frame, nothing is said behind a close, what is kept is bounded, and who does
nothing wrong is served.
"""

from __future__ import annotations

from typing import Any

import pytest
from ds4proto_fuzz.parsers.strategies import (
    counting_fields,
    disturbed,
    drips,
    lying,
    out_of_vocabulary,
    spoiled,
)
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from ds4proto.emit.strategies import hostile, nearly_valid, valid_frames
from ds4proto.link.ds4d_events import (
    Close,
    HelloAccepted,
    RemoteError,
    ResultReceived,
)
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.link.ds4d_worker import WorkerLink
from ds4proto.schema import frame
from tests.fuzz.parsers.samples import finds_a_fault_in_drips, steady
from tests.link.ds4d import toy
from tests.link.ds4d.build import UP, frames, make, result, work
from tests.link.ds4d.host import Host
from tests.link.ds4d.test_work_link import GOOD, ask

WORK = frame("DS4D.WORK", dialect=UP)
RESULT = frame("DS4D.RESULT", dialect=UP)
HELLO = frame("DS4D.HELLO", dialect=UP)
SAVE = frame("DS4D.SNAPSHOT_SAVE_REQ", dialect=UP)
LOAD = frame("DS4D.SNAPSHOT_LOAD_BEGIN", dialect=UP)
CHUNK = frame("DS4D.SNAPSHOT_CHUNK", dialect=UP)
ERROR = frame("DS4D.ERROR", dialect=UP)
SLICE = toy.facts(5, 7, head=True)
INNOCENT = 4_000


def anything(*specs: Any) -> st.SearchStrategy[bytes]:
    """Draw frames of some kinds: sound, with one fault, hostile, with a lie."""
    parts: list[st.SearchStrategy[bytes]] = []
    for spec in specs:
        parts += [valid_frames(spec, UP), hostile(spec, UP)]
        if spec is not ERROR:
            parts.append(nearly_valid(spec, UP).map(lambda one: one.data))
        if counting_fields(spec, UP):
            parts.append(lying(spec, UP).map(lambda one: one.data))
    return st.one_of(parts)


class WorkerConversation(RuleBasedStateMachine):
    """A worker of layers 5 to 7, and a coordinator that is at times out of its mind."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(SLICE, stub=True)
        self.link = self.host.open()
        self.held: tuple[int, ...] = ()
        self.request = 0
        self.answers = 0

    def _link(self) -> Any:
        if self.link in self.host.closed:
            self.link, self.held, self.answers = self.host.open(), (), 0
        return self.link

    def _give(self, *pieces: bytes | None) -> None:
        link = self._link()
        for piece in pieces:
            if link not in self.host.closed:
                self.host.give(link, piece)

    def _sound(self, tokens: tuple[int, ...]) -> bytes:
        self._link()
        self.request += 1
        return work(
            tokens, before=self.held, request=self.request, session=9,
            hidden=bytes(4 * len(tokens) * toy.HIDDEN),
        )  # fmt: skip

    def _results(self) -> list[dict[str, Any]]:
        told = frames(self.host.wrote[self.link])
        return [values for name, values in told if name == "RESULT"]

    @rule(tokens=st.lists(st.integers(0, 255), min_size=1, max_size=3).map(tuple))
    def a_sound_request(self, tokens: tuple[int, ...]) -> None:
        self._give(self._sound(tokens))
        self.held += tokens

    @rule(data=st.data())
    def a_sound_request_that_drips(self, data: st.DataObject) -> None:
        self._give(*data.draw(drips(self._sound((1, 2)))))
        self.held += (1, 2)

    @rule(data=st.data())
    def requests_out_of_order(self, data: st.DataObject) -> None:
        sent = [self._sound((k,)) for k in range(3)]
        one = data.draw(disturbed(sent))
        self._give(*one.pieces, *([None] if one.ended else []))

    @rule(frame=anything(WORK, SAVE, LOAD, CHUNK, ERROR, HELLO, RESULT))
    def any_frame(self, frame: bytes) -> None:
        self._give(frame)

    @rule(frame=spoiled(WORK, UP) | out_of_vocabulary(WORK, UP))
    def numbers_without_sense(self, frame: bytes) -> None:
        self._give(frame)

    @rule(junk=st.binary(max_size=40))
    def bytes_without_sense(self, junk: bytes) -> None:
        self._give(junk)

    @rule()
    def the_end_of_the_stream(self) -> None:
        self._give(None)

    @invariant()
    def every_answer_is_a_sound_frame(self) -> None:
        for written in self.host.wrote.values():
            assert all(frames(written))

    @invariant()
    def sessions_are_bounded(self) -> None:
        assert len(self.host.worker.sessions) <= self.host.worker.limits.max_sessions

    def teardown(self) -> None:
        """Serve a second client that did nothing wrong."""
        link = self.host.open()
        self.host.give(link, work((3,), session=INNOCENT, request=1))
        (answer,) = frames(self.host.wrote[link])
        assert answer[0] == "RESULT"
        assert answer[1]["status"] == 0


class CoordinatorConversation(RuleBasedStateMachine):
    """The connection to a first hop whose answers are at times none."""

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self.link = WorkLink(toy.MODEL)
        self.closed = False
        self.clean = True  # nothing came that was not due
        self.request = 0
        self.asked: list[int] = []

    def _hear(self, *pieces: bytes | None, due: bool = False) -> list[Any]:
        told: list[Any] = []
        self.clean = self.clean and due
        for piece in pieces:
            self.link.receive_data(piece, 1.0)
            told += self.link.events()
        for event in told:
            assert not self.closed, f"{event} behind the close"
            self.closed = isinstance(event, Close)
            if isinstance(event, ResultReceived | RemoteError):
                assert event.request == self.asked.pop(0)
        assert self.link.pending == len(self.asked) or self.closed
        if self.closed:
            self._begin()
        return told

    @rule()
    def a_request(self) -> None:
        if not self.asked:
            self.request += 1
            self.asked.append(self.request)
            ask(self.link, self.request)

    @rule(pieces=st.data())
    def the_answer_that_is_due(self, pieces: st.DataObject) -> None:
        if self.asked and self.clean:
            due = result(self.asked[0], **GOOD)
            told = self._hear(*pieces.draw(drips(due)), due=True)
            assert [type(event) for event in told] == [ResultReceived]

    @rule()
    def the_answer_of_another_request(self) -> None:
        sure = bool(self.asked) and self.clean
        told = self._hear(result(self.request + 7, **GOOD))
        assert not any(isinstance(event, ResultReceived) for event in told)
        assert not sure or isinstance(told[-1], Close)

    @rule(frame=anything(RESULT, WORK, ERROR, HELLO) | spoiled(RESULT, UP))
    def any_frame(self, frame: bytes) -> None:
        self._hear(frame)

    @rule(junk=st.binary(max_size=40))
    def bytes_without_sense(self, junk: bytes) -> None:
        self._hear(junk)

    @rule()
    def the_end_of_the_stream(self) -> None:
        self._hear(None)


class RegistrationConversation(RuleBasedStateMachine):
    """The control connection of a coordinator, up to the end of its HELLO."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Registration(Expected(0, "Toy V4", 8, 256), now=0.0)
        self.told: list[Any] = []

    def _hear(self, piece: bytes | None) -> None:
        if any(isinstance(event, Close) for event in self.told):
            return
        self.machine.receive_data(piece, 1.0)
        self.told += self.machine.events()

    @rule(data=st.data())
    def a_sound_hello(self, data: st.DataObject) -> None:
        sound = make(
            "HELLO", model_id=0, quant_bits=2, layer_start=5, layer_end=7,
            has_output=1, ctx_size=256, n_layers=8, listen_port=5, model_name="Toy V4",
        )  # fmt: skip
        for piece in data.draw(drips(sound)):
            self._hear(piece)

    @rule(frame=anything(HELLO, WORK, ERROR))
    def any_frame(self, frame: bytes) -> None:
        self._hear(frame)

    @rule(junk=st.binary(max_size=40) | st.none())
    def bytes_without_sense_or_the_end(self, junk: bytes | None) -> None:
        self._hear(junk)

    @invariant()
    def a_worker_is_accepted_once_at_most(self) -> None:
        accepted = [e for e in self.told if isinstance(e, HelloAccepted)]
        assert len(accepted) <= 1
        assert all(e.hello["n_layers"] == 8 for e in accepted)


for machine, turns in (
    (WorkerConversation, 12),
    (CoordinatorConversation, 14),
    (RegistrationConversation, 10),
):
    machine.TestCase.settings = steady(turns)

TestWorkerConversation = WorkerConversation.TestCase
TestCoordinatorConversation = CoordinatorConversation.TestCase
TestRegistrationConversation = RegistrationConversation.TestCase


@pytest.mark.parametrize(
    ("machine", "home"),
    [
        (WorkerConversation, WorkerLink),
        (CoordinatorConversation, WorkLink),
        (RegistrationConversation, Registration),
    ],
)
def test_a_planted_fault_is_found(
    machine: Any, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that raises where a sound frame comes in drips."""
    finds_a_fault_in_drips(machine, home, monkeypatch)
