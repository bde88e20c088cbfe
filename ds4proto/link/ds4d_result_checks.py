"""RESULT checks 7 to 9 of a coordinator: width, hash, kind and size, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ds4proto.link.ds4d_events import Fault
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_texts import text
from ds4proto.schema.ds4d_private import value_bytes
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS


@dataclass(frozen=True, slots=True)
class Asked:
    """What one WORK asked for.

    ``last`` is about the chunks of a pipelined prefill; ``route_logits`` is the flag
    of the last route record; ``has_head`` tells whether the coordinator can finish a
    hidden state itself.
    """

    request: int
    result_hash: int
    n_tokens: int
    pipelined: bool
    last: bool
    route_logits: bool
    has_head: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """One RESULT beside what was asked."""

    model: ModelFacts
    asked: Asked
    words: Mapping[str, int]

    @property
    def bits(self) -> int:
        """Width of the payload, 0 read as 32."""
        return self.words["payload_bits"] or 32

    @property
    def hidden(self) -> bool:
        """Whether the payload is said to be hidden state."""
        return self.words["result_kind"] == HIDDEN_STATE

    @property
    def logits(self) -> bool:
        """Whether the payload is one row of logits; bits are not judged."""
        return (
            self.words["result_kind"] == LOGITS
            and self.words["payload_bytes"] == self.model.logits_bytes
        )

    @property
    def all_rows(self) -> bool:
        """Whether the payload has the size of a hidden state of all tokens."""
        wanted = self.model.hidden_bytes(self.asked.n_tokens, self.bits)
        return self.words["payload_bytes"] == wanted

    @property
    def fits_pipeline(self) -> bool:
        """Whether a pipelined chunk may be answered so."""
        ack = self.words["result_kind"] == ACK and not self.words["payload_bytes"]
        return (
            self.logits
            or (ack and not self.asked.last)
            or (self.hidden and self.all_rows and not self.asked.route_logits)
        )


class Check(NamedTuple):
    """One line of the table: clause, when broken, values of its text."""

    clause: str
    broken: Callable[[Answer], bool]
    values: Callable[[Answer], tuple[object, ...]] | None = None


CHECKS: Final = (
    Check(
        "DS4D-RESULT-07",
        lambda a: a.hidden and not a.model.widths.holds(a.words["payload_bits"]),
        lambda a: (a.words["payload_bits"],),
    ),
    Check(
        "DS4D-RESULT-35",
        lambda a: a.hidden and a.words["payload_bytes"] % value_bytes(a.bits) != 0,
    ),
    Check(
        "DS4D-RESULT-08",
        lambda a: not a.asked.pipelined and _other_hash(a),
    ),
    Check(
        "DS4D-RESULT-39",
        lambda a: a.asked.pipelined and _other_hash(a),
    ),
    Check(
        "DS4D-RESULT-36",
        lambda a: a.asked.pipelined and not a.fits_pipeline,
    ),
    Check(
        "DS4D-RESULT-34",
        lambda a: not a.asked.pipelined and a.hidden and not a.all_rows,
    ),
    Check(
        "DS4D-RESULT-09",
        lambda a: (
            not a.asked.pipelined
            and not a.logits
            and not (a.hidden and a.asked.has_head)
        ),
    ),
)


def _other_hash(answer: Answer) -> bool:
    return answer.words["result_hash"] != answer.asked.result_hash


def judge_result(
    model: ModelFacts, asked: Asked, words: Mapping[str, int]
) -> Fault | None:
    """Return the first of checks 7 to 9 that a successful RESULT fails, or None."""
    answer = Answer(model, asked, words)
    for clause, broken, values in CHECKS:
        if broken(answer):
            return Fault(clause, text(clause, *(values(answer) if values else ())))
    return None
