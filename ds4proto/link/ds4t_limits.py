"""Limits of a tensor-parallel pair: caps on lengths and seconds, all ours."""

from __future__ import annotations

from dataclasses import dataclass, field

from ds4proto.link.limits import DEFAULT_LIMITS, Limits


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """Caps and seconds of a control connection.

    Real peers have none of them (DS4T-ROBUST-03, -04, -13; DS4T-FAIL-19).

    Attributes
    ----------
    caps : Limits
        Largest payload by frame, applied before anything is reserved.
    stall : float
        Seconds that a frame may take between its first and its last byte without
        progress.
    answer : float
        Seconds that a leader waits for an ack, LOGITS or checkpoint.
    verdict : float
        Seconds that a worker waits for VERIFY_COMMIT.
    sessions : int
        Sessions that a worker holds at once.
    context : int
        Largest context of one session.
    """

    caps: Limits = field(default_factory=lambda: DEFAULT_LIMITS)
    stall: float = 30.0
    answer: float = 600.0
    verdict: float = 120.0
    sessions: int = 4096
    context: int = 1 << 22


@dataclass(frozen=True, slots=True)
class GateLimits:
    """Seconds of a gate.

    Attributes
    ----------
    idle : float or None
        Longest time without progress; None takes the dialect's (750 ms from upstream
        v9 on), and where real peers have none, ``total`` alone holds.
    bulk_grace : float or None
        What a bulk header may take beyond ``idle``; None takes the dialect's.
    total : float
        Longest time of one row or batch gate (ours, DS4T-ROBUST-05).
    bulk_total : float
        Longest time of one bulk gate.
    """

    idle: float | None = None
    bulk_grace: float | None = None
    total: float = 60.0
    bulk_total: float = 600.0


CONTROL_LIMITS = ControlLimits()
GATE_LIMITS = GateLimits()
