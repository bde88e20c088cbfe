"""The words of the protocol: exact texts from the clauses, and what a failure says.

A text that a peer prints is a fact; it lives in the clause register alone and is
filled in here. A failure adds what the bare text leaves out: the phase, what was
expected, what was found, and the next step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ds4proto import clauses
from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto.schema.problem import Problem

TpRole = Literal["tp-leader", "tp-worker"]
"""Rank 0 is the leader, rank 1 the worker."""

_LONG = re.compile(r"%([-+ #0]*\d*)(?:ll|l|h)([diux])")


class LocalProtocolError(Ds4ProtoError):
    """Our own side asked for something that the protocol forbids here.

    Nothing was sent and no state changed. The text names the state and what may be
    sent in it.
    """

    exit_code = ExitCode.NOTHING_RAN


@cache
def _form(clause_id: str) -> str:
    error = clauses.get(clause_id).error
    if error is None:
        raise LookupError(f"clause {clause_id} has no text of its own")
    return _LONG.sub(r"%\1\2", error)


def text_of(clause_id: str, *values: object) -> str:
    """Return the exact text of a clause with its C format letters filled in.

    Raises
    ------
    LookupError
        If the clause prints no text.
    TypeError
        If ``values`` do not fit its letters.
    """
    form = _form(clause_id)
    return form % values if values else form


@dataclass(frozen=True, slots=True)
class PairFailed:
    """The pair is over for this rank: close both connections, exit non-zero.

    Attributes
    ----------
    time : float
        Seconds of the caller's clock.
    text : str
        What a ds4 peer prints in this place, without the program's prefix.
    problem : Problem
        The clause broken, what was expected and found, and the next step.
    phase : str
        What was going on, in words: ``hello``, ``prefill sync``, ``gate`` ...
    log : tuple of str
        Lines that a ds4 peer prints before ``text``.
    peer_lost : bool
        True where the peer went away or stayed silent (exit status 3 for a tool).
    """

    time: float
    text: str
    problem: Problem
    phase: str
    log: tuple[str, ...] = ()
    peer_lost: bool = False

    def line(self, role: TpRole) -> str:
        """Return the line that a ds4 process of that role prints."""
        if role == "tp-leader" or self.text.startswith("tp worker"):
            return self.text
        return f"tp worker: {self.text}"

    def __str__(self) -> str:
        return f"{self.text} (while: {self.phase}; {self.problem})"


def failed(
    now: float,
    clause_id: str,
    *values: object,
    phase: str,
    expected: str,
    found: str,
    next_step: str = "",
    text: str | None = None,
    path: str = "",
    log: tuple[str, ...] = (),
    peer_lost: bool = False,
) -> PairFailed:
    """Return a failure worded by its clause; ``text`` replaces the clause's words."""
    words = text if text is not None else text_of(clause_id, *values)
    problem = Problem(
        clause_id, path or phase, None, None, expected, found, next_step, fatal=True
    )
    return PairFailed(now, words, problem, phase, log, peer_lost)
