"""How a pair ends when it does not end well."""

from __future__ import annotations

from ds4proto.errors import Ds4ProtoError, ExitCode, PeerLost
from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_texts import PairFailed, TpRole


class PairError(Ds4ProtoError):
    """The pair is over for this rank.

    Attributes
    ----------
    failure : PairFailed
        Exact text, log lines, clause, phase and next step.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, failure: PairFailed, role: TpRole) -> None:
        lines = [*failure.log, failure.line(role)]
        problem = failure.problem
        what = f"while: {failure.phase}; expected {problem.expected}"
        lines.append(f"{what}; found {problem.found} ({problem.clause})")
        if problem.next_step and "Next:" not in failure.phase:
            lines.append(f"next: {problem.next_step}")
        super().__init__("\n".join(lines))
        self.failure = failure


class PairLost(PairError, PeerLost):
    """The peer went away, or stayed silent past a deadline."""

    exit_code = ExitCode.PEER_LOST


class SyncRefused(Ds4ProtoError):
    """A prefill failed on the worker; the session is empty and the pair goes on."""


class Terminated(BaseException):
    """SIGTERM; raised wherever the process is, also inside a gate."""


def pair_error(failure: PairFailed, role: TpRole) -> PairError:
    """Return the error for a failure: lost, or failed."""
    kind = PairLost if failure.peer_lost else PairError
    return kind(failure, role)


def gate_error(error: GateFailed, role: TpRole) -> PairError:
    """Return the error for a failed gate; its text holds the diagnosis."""
    return pair_error(error.failure, role)
