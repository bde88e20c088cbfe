"""What the RDMA transport of a rank is started with, and how it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto.link.ds4t_rules import BULK_GRACE, Transport
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.link.rdma_attributes import QpAttributes, QpType, attributes_for
from ds4proto.link.rdma_choice import NoChoice

SLOW_GATE_SECONDS: Final = 300.0
"""Gate timeout of dialects without one of their own (DS4_TP_TIMEOUT_SEC)."""


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """Options of a rank's RDMA transport.

    Attributes
    ----------
    transport : {"auto", "tcp", "rdma"}
        ``rdma`` fails closed; ``auto`` falls back to TCP before the hello, never
        after it.
    device : str or None
        ``--rdma-device``.
    gid_index : int or None
        ``--rdma-gid-index``.
    qp_type : {"UC", "RC"} or None
        Overrides what the dialect takes on this system.
    gate_seconds : float or None
        None takes the dialect's.
    warm_up, verify_window : bool
        False where DS4_TP_DISABLE_RDMA_WARMUP or DS4_TP_DISABLE_VERIFY_WINDOW is set,
        on both ranks.
    first_sender : {"tp-leader", "tp-worker"}
        Who sends first where no barrier byte holds both back (v7, v9w). A leader of
        ours that meets a foreign worker waits: ``--rdma-first-sender worker``.
    bringup_seconds : float
        Longest wait for a frame of the bring-up.
    overrides : mapping
        Attributes of the queue pair to change, for trials.
    """

    transport: Transport = "auto"
    device: str | None = None
    gid_index: int | None = None
    qp_type: QpType | None = None
    gate_seconds: float | None = None
    warm_up: bool = True
    verify_window: bool = True
    first_sender: TpRole = "tp-leader"
    bringup_seconds: float = 60.0
    overrides: Mapping[str, Any] | None = None

    def attributes(
        self, dialect: str, system: Literal["linux", "macos"], device: str
    ) -> QpAttributes:
        """Return the queue pair attributes for a device."""
        found = attributes_for(dialect, system, device=device, qp_type=self.qp_type)
        return replace(found, **self.overrides) if self.overrides else found


class NoRdmaError(Ds4ProtoError):
    """RDMA was asked for and cannot be used on this machine.

    Attributes
    ----------
    choice : NoChoice
        One of four verdicts, the peer's text, and what to do.
    """

    exit_code = ExitCode.NOTHING_RAN

    def __init__(self, choice: NoChoice) -> None:
        super().__init__(str(choice))
        self.choice = choice


__all__ = ["BULK_GRACE", "SLOW_GATE_SECONDS", "NoRdmaError", "RdmaOptions"]
