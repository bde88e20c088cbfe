"""A leader and a worker wired together in memory."""

from __future__ import annotations

from typing import Any

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_limits import CONTROL_LIMITS, ControlLimits
from ds4proto.link.ds4t_worker import WorkerControl

V4_FLASH = Identity(0x123456789, 0, 43, 4096, 129280, 2, 0, 1, 86)
SMALL = Identity(999, 0, 4, 64, 128, 2, 0, 1, 8)
HALF = bytes(range(64)) * 4
"""One LOGITS payload of SMALL: 64 f32 values."""


def settings(role: str, dialect: str = "v14", **more: Any) -> TpSettings:
    values = {"identity": SMALL, **more}
    return TpSettings(role=role, dialect=dialect, **values)  # type: ignore[arg-type]


class Pair:
    """Both machines; ``say`` and ``answer`` carry bytes across and return events."""

    def __init__(
        self,
        dialect: str = "v14",
        *,
        limits: ControlLimits = CONTROL_LIMITS,
        **more: Any,
    ) -> None:
        self.leader = LeaderControl(
            settings("tp-leader", dialect, **more), limits=limits
        )
        self.worker = WorkerControl(
            settings("tp-worker", dialect, **more), limits=limits
        )
        self.aside: list[Any] = []
        """What the last ``say`` or ``answer`` meant on the sender's own side."""
        self.to_worker = b""
        self.to_leader = b""

    def say(self, event: Any, now: float = 0.0) -> list[Any]:
        data = b"".join(self.leader.send(event, now))
        self.aside = list(self.leader.events())
        self.to_worker += data
        self.worker.receive_data(data, now)
        return list(self.worker.events())

    def answer(self, event: Any, now: float = 0.0) -> list[Any]:
        data = b"".join(self.worker.send(event, now))
        self.aside = list(self.worker.events())
        self.to_leader += data
        self.leader.receive_data(data, now)
        return list(self.leader.events())


MEETING = ["v12", "v14"]
"""Dialects with checkpoints."""
START, END = say.Checkpoint(0, 0, 3), say.Checkpoint(3, 0, 3)
PROMPT = (7, 19, 5)


def opened(dialect: str = "v14", **more: Any) -> Pair:
    pair = Pair(dialect, **more)
    assert pair.say(say.CreateSession(1, 256)) == [say.CreateSession(1, 256)]
    assert pair.answer(say.SessionCreated(1)) == [say.SessionCreated(1)]
    return pair


def synced(dialect: str = "v14", prompt: tuple[int, ...] = PROMPT) -> Pair:
    pair = opened(dialect)
    assert pair.say(say.RunSync(1, prompt)) == [say.RunSync(1, prompt)]
    if dialect in MEETING:
        meet(pair, say.Checkpoint(0, 0, len(prompt)))
        meet(pair, say.Checkpoint(3, 0, len(prompt)))
    (done,) = pair.answer(say.SyncDone(1, 0, HALF))
    assert bytes(done.logits) == HALF
    return pair


def meet(pair: Pair, checkpoint: say.Checkpoint) -> list[Any]:
    """Both ranks say the same checkpoint; return what both agreed on."""
    assert pair.say(checkpoint) == [say.PeerCheckpoint(checkpoint)]
    agreed = pair.answer(checkpoint)
    assert pair.aside == agreed
    return agreed


def three(dialect: str) -> Pair:
    """Sessions 1 (holding PROMPT) and 3."""
    pair = synced(dialect)
    pair.say(say.CreateSession(3, 64))
    pair.answer(say.SessionCreated(3))
    return pair
