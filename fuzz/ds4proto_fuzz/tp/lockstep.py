"""What a leader sends, in order: commands of our own machines, gates of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.plan import (
    GLM_MODELS,
    PlannedGate,
    PlanOptions,
    plan_sync,
    sync_gates,
    token_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto.schema.fast import struct_of
from ds4proto.schema.registry import frame
from ds4proto_fuzz.case import Step, Then
from ds4proto_fuzz.tp.wire import control_frame

__all__ = ["CONTEXT", "GATE", "Lockstep", "rank_settings"]

CONTEXT: Final = 256
GATE: Final = struct_of(frame("DS4B.GATE_BULK", dialect="v14").body, "v14")
"""Header of a gate; row, batch and bulk gates have the same words."""
_VALUE: Final = 4
_KINDS: Final = {"ATTN": 0, "FFN": 1}


def rank_settings(hello: Mapping[str, Any], dialect: str, role: TpRole) -> TpSettings:
    """Return the settings of one rank of the pair that a hello belongs to."""
    return TpSettings(
        role,
        Identity.of(hello),
        dialect,
        vocabulary_split=hello["model_id"] not in GLM_MODELS,
        ctx_size=CONTEXT,
        transport="tcp",
    )


class Lockstep:
    """Both ranks in memory, one command after the other.

    Attributes
    ----------
    steps : list of Step
        What the leader has sent so far.
    """

    def __init__(self, hello: Mapping[str, Any], dialect: str) -> None:
        self.steps: list[Step] = []
        self._hello, self._dialect = hello, dialect
        leader = rank_settings(hello, dialect, "tp-leader")
        self._leader = LeaderControl(leader)
        self._worker = WorkerControl(rank_settings(hello, dialect, "tp-worker"))
        self._half = bytes(leader.logits_bytes) if leader.vocabulary_split else None
        self._checkpoints = leader.rules.checkpoints
        self._schedule = Schedule.from_hello(hello)
        self._rows = self._batches = 0
        self._block = False

    # commands

    def _command(self, event: Any, then: Then = "") -> None:
        data = b"".join(map(bytes, self._leader.send(event, 0.0)))
        name = control_frame(data, self._dialect).name
        self.steps.append(Step("control", name, data, then=then))
        self._worker.receive_data(data, 0.0)
        list(self._worker.events())

    def _answer(self, event: Any) -> None:
        data = b"".join(map(bytes, self._worker.send(event, 0.0)))
        self._leader.receive_data(data, 0.0)
        list(self._leader.events())

    def create(self, known: int) -> None:
        """Open a session."""
        self._command(say.CreateSession(known, CONTEXT), "wait")
        self._answer(say.SessionCreated(known))

    def sync(self, known: int, prompt: Sequence[int]) -> list[PlannedGate]:
        """Begin a prefill; return the gates that are due."""
        self._command(say.RunSync(known, tuple(prompt)))
        self._meet(say.START, 0, len(prompt))
        options, model = PlanOptions(), self._hello["model_id"]
        plan = plan_sync((), prompt, CONTEXT, options, model_id=model)
        return list(sync_gates(plan, self._schedule, options, model_id=model))

    def synced(self, known: int, prompt: Sequence[int]) -> None:
        """End the prefill, all of whose gates have passed."""
        self._meet(say.CHUNK, len(prompt), len(prompt))
        self._meet(say.END, say.OK, len(prompt))
        self.steps[-1] = _waited(self.steps[-1])
        self._answer(say.SyncDone(known, say.OK, self._half))

    def _meet(self, point: int, current: int, total: int) -> None:
        if self._checkpoints:
            checkpoint = say.Checkpoint(point, current, total)
            self._command(checkpoint)
            self._answer(checkpoint)

    def decode(self, known: int, token: int) -> list[PlannedGate]:
        """Begin a token."""
        self._command(say.RunEval(known, token))
        return list(token_gates(self._schedule))

    def decoded(self, known: int) -> None:
        """End it."""
        self._answer(say.EvalDone(known, self._half))

    def batch(self, known: int, token: int) -> list[PlannedGate]:
        """Begin a token by way of a batch of one."""
        self._command(say.RunBatch((say.BatchItem(known, token),)))
        return list(token_gates(self._schedule))

    def verify(self, known: int, drafts: Sequence[int]) -> list[PlannedGate]:
        """Begin a block of drafts."""
        self._block = True
        self._command(say.RunVerify(known, tuple(drafts)))
        return list(verify_gates(len(drafts), self._schedule))

    def went_on(self, gates: Sequence[PlannedGate], prompt: Sequence[int]) -> None:
        """Say what shows that the last gate of a command has passed, if it is ours.

        Behind a token the rank answers by itself.
        """
        if gates[-1].kind == "row":
            return
        if self._block:
            self._answer(say.BlockRun())
            self._command(say.CommitBlock(say.REPLAY, 1))
        elif self._checkpoints:
            self._command(say.Checkpoint(say.CHUNK, len(prompt), len(prompt)))

    # gates

    def gate(self, planned: PlannedGate) -> bytes:
        """Return the next gate: its header, and partials that are zero."""
        if planned.kind == "row":
            self._rows += 1
            words = (DS4T_MAGIC, planned.layer, _KINDS[planned.gate], self._rows)
        else:
            self._batches += 1
            word = BULK_TAG if planned.kind == "bulk" else planned.rows
            words = (DS4B_MAGIC, planned.layer, word, self._batches)
        return GATE.pack(*words) + bytes(_VALUE * planned.rows * self._hello["n_embd"])

    def passed(self, gates: Iterable[PlannedGate]) -> None:
        """Answer gates as a sound leader does."""
        for planned in gates:
            data = self.gate(planned)
            self.steps.append(Step("data", "gate", data, "", data))


def _waited(step: Step) -> Step:
    from dataclasses import replace

    return replace(step, then="wait")
