"""Checkpoints: both ranks send, both read, and agree, or the pair is over."""

from __future__ import annotations

import struct

import pytest

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_texts import LocalProtocolError
from tests.link.ds4t.pair import END, HALF, MEETING, PROMPT, START, Pair, meet, opened

ACK = struct.pack("<IIIQiI", 0x44533454, 17, 16, 1, 0, 0)


@pytest.mark.parametrize("dialect", MEETING)
class TestCheckpoints:
    def begin(self, dialect: str) -> Pair:
        pair = opened(dialect)
        pair.say(say.RunSync(1, PROMPT))
        return pair

    def test_both_may_be_first(self, dialect: str) -> None:
        pair = self.begin(dialect)
        meet(pair, START)
        chunk = say.Checkpoint(1, 3, 3)
        assert pair.answer(chunk) == [say.PeerCheckpoint(chunk)]
        assert pair.say(chunk) == [chunk]
        assert pair.aside == [chunk]
        assert meet(pair, END) == [END]

    def test_a_cancel_of_either_side_is_agreed(self, dialect: str) -> None:
        for mine, theirs in ((True, False), (False, True), (True, True)):
            pair = self.begin(dialect)
            pair.say(say.Checkpoint(0, 0, 3, mine))
            agreed = say.Checkpoint(0, 0, 3, True)
            assert pair.answer(say.Checkpoint(0, 0, 3, theirs)) == [agreed]
            with pytest.raises(LocalProtocolError, match="END"):
                pair.leader.send(say.Checkpoint(1, 3, 3), 0.0)
            pair.say(END)
            # an agreed cancel turns 0 into 2 on both sides
            assert pair.answer(END) == [say.Checkpoint(3, 2, 3, True)]
            assert pair.to_leader[-12:-8] == struct.pack("<i", 2)
            answer, transmit = pair.answer(say.SyncDone(1, 2))
            assert (answer.status, answer.text) == (2, "")
            assert b"".join(transmit.buffers)[4:8] == b"\x04\0\0\0"
            assert pair.leader.sessions[1].tokens == []

    def test_status_two_needs_an_agreed_cancel(self, dialect: str) -> None:
        pair = self.begin(dialect)
        meet(pair, START)
        with pytest.raises(LocalProtocolError, match="END"):
            pair.worker.send(say.SyncDone(1, 0, HALF), 0.0)
        meet(pair, END)
        with pytest.raises(LocalProtocolError, match="agreed cancel"):
            pair.worker.send(say.SyncDone(1, 2), 0.0)
        ack = struct.pack("<IIIQiI", 0x44533454, 17, 16, 1, 2, 0)
        pair.leader.receive_data(ack, 0.0)
        done, _ = pair.leader.events()
        assert done.text == "tp: worker prefill sync failed (session 1, status 2)"

    @pytest.mark.parametrize(
        ("field", "at", "clause"),
        [("seq", 0, "02"), ("point", 8, "03"), ("current", 12, "04"),
         ("total", 16, "04"), ("cancelled", 20, "05")],
    )  # fmt: skip
    def test_any_difference_fails_the_pair(
        self, dialect: str, field: str, at: int, clause: str
    ) -> None:
        pair = self.begin(dialect)
        data = bytearray(b"".join(pair.leader.send(START, 0.0)))
        pair.worker.send(START, 0.0)
        data[12 + at] = 2
        pair.worker.receive_data(bytes(data), 0.0)
        (failure,) = pair.worker.events()
        assert failure.text == "tp: prefill synchronization failed"
        assert failure.problem.clause == f"DS4T-CKPT-{clause}"
        assert failure.problem.path.endswith(field)

    def test_unequal_return_codes_are_no_status(self, dialect: str) -> None:
        pair = self.begin(dialect)
        meet(pair, START)
        pair.say(say.Checkpoint(3, 1, 3))
        (failure,) = pair.answer(END)
        assert failure.problem.clause == "DS4T-CKPT-14"

    def test_another_frame_in_its_place(self, dialect: str) -> None:
        pair = self.begin(dialect)
        pair.leader.send(START, 0.0)
        pair.leader.receive_data(ACK, 0.0)
        (failure,) = pair.leader.events()
        assert failure.text == "tp: prefill synchronization failed"
        assert failure.problem.clause == "DS4T-CKPT-08"

    def test_the_order_of_points_is_ours_to_keep(self, dialect: str) -> None:
        pair = self.begin(dialect)
        for wrong in (END, say.Checkpoint(0, 1, 3), say.Checkpoint(0, 0, 4)):
            with pytest.raises(LocalProtocolError):
                pair.leader.send(wrong, 0.0)
        meet(pair, START)
        with pytest.raises(LocalProtocolError, match="CHUNK"):
            pair.leader.send(START, 0.0)

    def test_bytes_behind_an_early_checkpoint_wait_their_turn(
        self, dialect: str
    ) -> None:
        wrong = struct.pack("<III", 0x44533454, 2, 24)
        for role in ("leader", "worker"):
            pair = self.begin(dialect)
            machine, other = pair.leader, pair.worker
            if role == "worker":
                machine, other = other, machine  # type: ignore[assignment]
            early = b"".join(other.send(START, 0.0))
            machine.receive_data(early + wrong, 0.0)
            assert list(machine.events()) == [say.PeerCheckpoint(START)]
            assert machine.send(START, 0.0)
            agreed, failure = machine.events()
            assert agreed == START
            assert failure.problem.clause == "DS4T-CKPT-08"

    def test_numbers_go_on_from_sync_to_sync(self, dialect: str) -> None:
        pair = self.begin(dialect)
        meet(pair, START)
        meet(pair, END)
        pair.answer(say.SyncDone(1, 0, HALF))
        pair.say(say.RunSync(1, (1, 2, 3)))
        (frame_,) = pair.leader.send(START, 0.0)
        assert bytes(frame_)[12:20] == struct.pack("<Q", 3)


@pytest.mark.parametrize("dialect", ["v7", "v9w", "v10"])
def test_there_are_no_checkpoints_before_v12(dialect: str) -> None:
    pair = opened(dialect)
    pair.say(say.RunSync(1, PROMPT))
    with pytest.raises(LocalProtocolError):
        pair.leader.send(START, 0.0)
    with pytest.raises(LocalProtocolError):
        pair.worker.send(START, 0.0)
    with pytest.raises(LocalProtocolError, match="v12"):
        pair.worker.send(say.SyncDone(1, 2), 0.0)
