"""What a peer under fire may do to the fuzzer: end early, say too little, flood."""

import socket
from typing import Any

import pytest
from ds4proto_fuzz import campaign
from ds4proto_fuzz.case import Case
from ds4proto_fuzz.ds4d.coordinator import CoordinatorTarget
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import Frames
from ds4proto_fuzz.ds4d.wire import Wire, seen_of
from ds4proto_fuzz.ds4d.worker import WorkerTarget
from ds4proto_fuzz.target import Outcome, Settings
from ds4proto_fuzz.tp.wire import HEADER, control_frame

from ds4proto.link.ds4d_frames import CODE, HEADER_SIZE, result_frame
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_work import WORK
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.registry import frame

FACTS = Facts(0, "Toy V4", 8, 5, 7, True, 2, 256, 1, 64, 256)
SETTINGS = Settings("exec:x", "worker", patience=60.0)
LATE = 0.0
"""A deadline that is over."""


def ends() -> tuple[Wire, socket.socket]:
    ours, theirs = socket.socketpair()
    return Wire(ours), theirs


def test_frames_without_end_end_at_the_deadline() -> None:
    wire, peer = ends()
    with peer:
        peer.sendall(Frames(FACTS).chunk(b"x") * 10)
        assert len(list(wire.frames(LATE))) == 1
        assert wire.frame(LATE) is not None
    wire.close()


def test_a_shard_without_end_is_not_kept() -> None:
    wire, peer = ends()
    target = WorkerTarget(SETTINGS)
    target.facts = FACTS
    target._wires["data"] = wire
    with peer:
        peer.sendall(b"".join(map(bytes, result_frame(1))))
        peer.sendall(Frames(FACTS).chunk(bytes(1 << 13)) * 12)
        assert target._shard(Frames(FACTS)) == b""
        assert wire.frame(LATE) is not None  # the rest was not waited for
    target.stop()


def test_a_work_that_ends_early_awaits_no_result() -> None:
    target = CoordinatorTarget(Settings("exec:x", "coordinator"))
    target.facts = FACTS
    whole = memoryview(Frames(FACTS).probe)[HEADER_SIZE:]
    assert target._asked(seen_of(CODE[WORK], whole)) is not None
    for size in (0, 10, len(whole) - 1):
        assert target._asked(seen_of(CODE[WORK], whole[:size])) is None


def test_a_hello_that_ends_early_is_no_worker() -> None:
    target = WorkerTarget(SETTINGS)
    with pytest.raises(PeerLost, match="HELLO that ends early"):
        target._hello(seen_of(CODE[HELLO], memoryview(bytes(10))))


@pytest.mark.parametrize(("size", "known"), [(0, False), (4, False), (16, True)])
def test_a_control_frame_that_ends_early_has_no_words(size: int, known: bool) -> None:
    code = frame("DS4T.COMMAND_ACK", dialect="v14").code
    data = HEADER.pack(DS4T_MAGIC, code, size) + bytes(size)
    seen = control_frame(data, "v14")
    assert (seen.name, bool(seen.words)) == ("COMMAND_ACK", known)


class Dying(WorkerTarget):
    """Takes two cases; then it cannot be met any more."""

    left = 2

    def start(self) -> None:
        """Do nothing."""

    def make(self, seed: int, index: int) -> Case:
        """Return a case without steps."""
        return Case(seed, index, "live", "bits", ())

    def play(self, case: Case, *, sure: bool = False) -> Outcome:
        """Take it, or be gone."""
        del case, sure
        self.left -= 1
        if self.left < 0:
            raise PeerLost("refused", phase="dialling", address="exec:x", reason="gone")
        return Outcome(None, "served")


def test_cases_before_a_loss_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_HUNTS", {})
    monkeypatch.setattr(campaign, "target_of", Dying)
    told: dict[str, Any] = {"peer": "exec:x", "role": "worker"}
    found = campaign.carry_out(told, 1, (256, 512), [], None)
    assert "gone" in found["lost"]
    assert found["tally"]["cases"] == 2
    assert found["next"] == 256 + 2
    again = campaign.carry_out(told, 1, (258, 512), [], None)
    assert (again["tally"]["cases"], again["next"]) == (0, 258)
