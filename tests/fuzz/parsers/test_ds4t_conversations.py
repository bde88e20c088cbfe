"""Whole DS4T conversations, rule by rule, against our own leader and worker.

A sound machine plays the other rank; what it says arrives whole, in drips, cut,
repeated, or is followed by something else. Whatever comes: no exception, every byte
that we send is a sound frame, at most one failure, and nothing but `Stop` behind it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import pytest
from ds4proto_fuzz.parsers.strategies import (
    counting_fields,
    drips,
    lying,
    out_of_vocabulary,
)
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ds4proto.emit.strategies import breakable, hostile, nearly_valid, valid_frames
from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed
from ds4proto.link.framing import Framer
from ds4proto.schema import frame, frames
from tests.fuzz.parsers.samples import finds_a_fault_in_drips, steady
from tests.link.ds4t.pair import HALF, MEETING, Pair

DIALECTS = {"v7": 6, "v9w": 6, "v10": 16, "v14": 8}
"""Dialects that differ in what a conversation is, and conversations with each."""


@cache
def from_the(role: str, dialect: str) -> st.SearchStrategy[bytes]:
    """Draw frames that a rank sends: sound, with one fault, hostile, with a lie."""
    parts: list[st.SearchStrategy[bytes]] = []
    for spec in frames("DS4T", dialect=dialect):
        if spec.header is None or role not in spec.sender:
            continue
        parts += [valid_frames(spec, dialect), hostile(spec, dialect)]
        if breakable(spec, dialect):
            parts.append(nearly_valid(spec, dialect).map(lambda one: one.data))
        if counting_fields(spec, dialect):
            parts.append(lying(spec, dialect).map(lambda one: one.data))
    return st.one_of(parts)


@cache
def senseless(dialect: str) -> st.SearchStrategy[bytes]:
    """Draw commands whose tokens are in no vocabulary."""
    specs = [frame(f"DS4T.{name}", dialect=dialect) for name in ("EVAL", "SYNC")]
    return st.one_of([out_of_vocabulary(spec, dialect) for spec in specs])


def sound(data: bytes, dialect: str) -> bool:
    """Tell whether bytes are whole frames without a problem."""
    framer = Framer("DS4T", dialect=dialect)
    events = framer.feed(data, 0.0)
    return framer.at_boundary and not any(
        getattr(event, "problems", True) for event in events
    )


class Conversation(RuleBasedStateMachine):
    """Both ranks; one of them is under test."""

    tested: ClassVar[str] = ""
    dialect: ClassVar[str] = "v10"

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self.pair = Pair(self.dialect)
        self.in_step = True
        self.told: list[Any] = []
        self.out = b""
        self.session = 0
        self.held: tuple[int, ...] = ()

    @property
    def machine(self) -> Any:
        """The rank under test."""
        return getattr(self.pair, self.tested)

    def _hear(self, *pieces: bytes | None) -> list[Any]:
        """Feed the rank under test; note what it makes of it."""
        heard: list[Any] = []
        for piece in pieces:
            self.machine.receive_data(piece, 1.0)
            heard += self.machine.events()
        self.told += heard
        for event in heard:
            if isinstance(event, say.Transmit):
                self.out += b"".join(bytes(part) for part in event.buffers)
        return heard

    def _other(self, event: Any) -> bytes:
        """Let the sound rank say something; return its bytes."""
        other = self.pair.leader if self.tested == "worker" else self.pair.worker
        return b"".join(bytes(part) for part in other.send(event, 0.0))

    def _own(self, event: Any) -> bytes:
        """Let the rank under test say something, as far as it may."""
        try:
            data = b"".join(bytes(part) for part in self.machine.send(event, 0.0))
        except LocalProtocolError:
            assert not self.in_step, f"{event} was due"
            return b""
        self.out += data
        self.told += self.machine.events()
        return data

    @invariant()
    def what_we_send_is_sound(self) -> None:
        assert sound(self.out, self.dialect)

    @invariant()
    def a_pair_fails_once_at_most(self) -> None:
        failed = [k for k, e in enumerate(self.told) if isinstance(e, PairFailed)]
        assert len(failed) <= 1

    @rule()
    def a_new_pair_where_this_one_is_lost(self) -> None:
        if not self.in_step:
            self._begin()

    @rule(junk=st.binary(max_size=40) | st.none())
    def bytes_without_sense_or_the_end(self, junk: bytes | None) -> None:
        self.in_step = self.in_step and junk == b""
        self._hear(junk)


class WorkerConversation(Conversation):
    """Rank 1 under test; the leader is sound, what arrives of it is not always."""

    tested = "worker"

    def _command(self, data: st.DataObject, event: Any, answer: Any) -> None:
        said = self._other(event)
        heard = self._hear(*data.draw(drips(said)))
        assert [type(e) for e in heard] == [type(event)]
        for point in _meetings(self.dialect, event):
            said = self._other(point)
            heard = self._hear(*data.draw(drips(said)))
            assert heard == [say.PeerCheckpoint(point)]
            self._reply(point)
        self._reply(answer)

    def _reply(self, event: Any) -> None:
        self.pair.leader.receive_data(self._own(event), 0.0)
        list(self.pair.leader.events())

    @rule(data=st.data(), token=st.integers(0, 127))
    def a_sound_command(self, data: st.DataObject, token: int) -> None:
        if not self.in_step:
            return
        if not self.session:
            self.session = 1
            event: Any = say.CreateSession(1, 256)
            self._command(data, event, say.SessionCreated(1))
        elif not self.held:
            self.held = (token, 7)
            event = say.RunSync(1, self.held)
            self._command(data, event, say.SyncDone(1, 0, HALF))
        else:
            self._command(data, say.RunEval(1, token), say.EvalDone(1, HALF))

    @rule(data=st.data())
    def any_frame(self, data: st.DataObject) -> None:
        self.in_step = False
        self._hear(data.draw(from_the("tp-leader", self.dialect)))

    @rule(data=st.data())
    def tokens_without_sense(self, data: st.DataObject) -> None:
        self.in_step = False
        self._hear(data.draw(senseless(self.dialect)))

    @rule(left=st.integers(0, 23))
    def a_command_cut_short(self, left: int) -> None:
        if self.in_step and self.session:
            self.in_step = False
            said = self._other(say.RunSync(1, (1, 2, 3)))
            heard = self._hear(said[:left], None)
            assert any(isinstance(event, PairFailed) for event in heard) or not left


class LeaderConversation(Conversation):
    """Rank 0 under test; the worker is sound, what arrives of it is not always."""

    tested = "leader"

    def _command(self, data: st.DataObject, event: Any, answer: Any) -> None:
        self._ask(event)
        for point in _meetings(self.dialect, event):
            self._ask(point)
            heard = self._hear(*data.draw(drips(self._other(point))))
            assert heard == [point]
        said = self._other(answer)
        heard = self._hear(*data.draw(drips(said)))
        assert [type(e) for e in heard] == [type(answer)]

    @rule(data=st.data(), token=st.integers(0, 127))
    def a_sound_command(self, data: st.DataObject, token: int) -> None:
        if not self.in_step:
            return
        if not self.session:
            self.session = 1
            self._command(data, say.CreateSession(1, 256), say.SessionCreated(1))
        elif not self.held:
            self.held = (token, 7)
            event: Any = say.RunSync(1, self.held)
            self._command(data, event, say.SyncDone(1, 0, HALF))
        else:
            self._command(data, say.RunEval(1, token), say.EvalDone(1, HALF))

    def _ask(self, event: Any) -> None:
        self.pair.worker.receive_data(self._own(event), 0.0)
        list(self.pair.worker.events())

    @rule(data=st.data(), asked=st.booleans())
    def any_answer(self, data: st.DataObject, asked: bool) -> None:
        if asked and self.in_step and self.held:
            self._own(say.RunEval(1, 3))
        self.in_step = False
        self._hear(data.draw(from_the("tp-worker", self.dialect)))

    @rule(twice=st.booleans())
    def an_answer_that_nobody_asked_for(self, twice: bool) -> None:
        if self.in_step and self.session:
            event = say.RunSync(1, (1, 2, 3))
            self._ask(event)
            for point in _meetings(self.dialect, event):
                self._ask(point)
                self._hear(self._other(point))
            answer = self._other(say.SyncDone(1, 0, HALF))
            self.in_step = False
            self._hear(answer)
            if twice:
                self._hear(answer)


def _meetings(dialect: str, event: Any) -> list[say.Checkpoint]:
    """Return where both ranks meet in a prefill."""
    if dialect not in MEETING or not isinstance(event, say.RunSync):
        return []
    total = len(event.tokens)
    return [say.Checkpoint(say.START, 0, total), say.Checkpoint(say.END, 0, total)]


def of(kind: type[Conversation], dialect: str) -> type[Conversation]:
    """Return the conversation in a dialect."""
    name = f"{kind.__name__}{dialect.title()}"
    return type(name, (kind,), {"dialect": dialect})


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", [WorkerConversation, LeaderConversation])
def test_conversations(kind: type[Conversation], dialect: str) -> None:
    run_state_machine_as_test(of(kind, dialect), settings=steady(DIALECTS[dialect]))


@pytest.mark.parametrize("dialect", ["v10", "v14"])
@pytest.mark.parametrize("kind", [WorkerConversation, LeaderConversation])
def test_a_planted_fault_is_found(
    kind: type[Conversation], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that raises where a sound command or answer comes in drips."""
    home = type(getattr(Pair(dialect), kind.tested))
    finds_a_fault_in_drips(of(kind, dialect), home, monkeypatch)
