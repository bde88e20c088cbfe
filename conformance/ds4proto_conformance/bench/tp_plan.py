"""One command of a leader, and which gates it causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4proto.link.plan import (
    Chunk,
    PlannedGate,
    PlanOptions,
    chunk_gates,
    plan_sync,
    token_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule

__all__ = ["Step", "command_gates"]


@dataclass(slots=True)
class Step:
    """One command of the leader.

    Attributes
    ----------
    gates : list of PlannedGate
        What it causes on the data connection.
    """

    name: str
    values: dict[str, Any]
    number: int
    gates: list[PlannedGate] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Session of the command; 0 for a batch."""
        return int(
            self.values.get("session_id", self.values.get("prefill_session_id", 0))
        )


def command_gates(
    name: str,
    values: Mapping[str, Any],
    held: Sequence[int],
    context: int,
    schedule: Schedule,
    options: PlanOptions,
    model: int,
) -> Iterator[PlannedGate]:
    """Yield the gates of a command, in order; those of a replay come later.

    Parameters
    ----------
    values : mapping
        Words of the command.
    held : sequence of int
        Tokens of its session.
    context : int
        Context of its session, in tokens.
    """
    if name in ("SYNC", "SYNC_MULTIMODAL"):
        plan = plan_sync(held, values["tokens"], context, options, model_id=model)
        for chunk in plan.chunks:
            yield from chunk_gates(chunk, schedule, options, model_id=model)
        for _ in range(plan.single_tokens):
            yield from token_gates(schedule)
    elif name == "EVAL":
        yield from token_gates(schedule)
    elif name == "VERIFY":
        yield from verify_gates(len(values["tokens"]), schedule)
    elif name in ("EVAL_BATCH", "MIXED_BATCH"):
        if name == "MIXED_BATCH":
            new = Chunk(len(held), len(values["tokens"]) - len(held))
            yield from chunk_gates(new, schedule, options, model_id=model)
        for _ in values["items"]:
            yield from token_gates(schedule)
