"""What a bring-up asks of the transport, and its decisions as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

from ds4proto.link.ds4t_rdma_info import RdmaInfo
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.link.rdma_attributes import SETUP_ATTEMPTS, WARM_ATTEMPTS, QpType

Outcome = Literal["ready", "again", "recreate", "fail"]


@dataclass(frozen=True, slots=True)
class ConnectQueuePair:
    """Bring the queue pair to RTS, then call ``connected``.

    Attributes
    ----------
    peer : RdmaInfo
    path_mtu : int
        Verbs number for RTR.
    arm_window : bool
        Post the receives of the first decode window before ``connected``.
    """

    peer: RdmaInfo
    path_mtu: int
    arm_window: bool


@dataclass(frozen=True, slots=True)
class ArmWarmUp:
    """Fill 16384 bytes of batch-out with 0x5A, clear batch-in, post one receive."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Send 16384 bytes if ``send``, poll ``seconds``, then call ``warmed``."""

    attempt: int
    send: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class RecreateQueuePair:
    """Destroy completion queue and queue pair, make new ones, call ``prepared``."""

    setup_attempt: int
    log: str


@dataclass(frozen=True, slots=True)
class RdmaReady:
    """The pair is up.

    Attributes
    ----------
    peer : RdmaInfo
    hold_first : bool
        Send nothing before the peer's first message has been received.
    rest : bytes
        Control bytes that already belong to the first command.
    """

    peer: RdmaInfo
    hold_first: bool
    rest: bytes = b""


class Step(Enum):
    """What is awaited."""

    PREPARE = auto()
    INFO = auto()
    CONNECT = auto()
    READY = auto()
    ARM = auto()
    POSTED = auto()
    WARM_UP = auto()
    WARM = auto()
    DONE = auto()
    FAILED = auto()


FRAME_OF: Final = {
    Step.INFO: "DS4T.RDMA_INFO",
    Step.READY: "DS4T.RDMA_READY",
    Step.POSTED: "DS4T.RDMA_POSTED",
    Step.WARM: "DS4T.RDMA_WARM",
}
CLAUSE_OF: Final = {
    Step.INFO: "DS4T-RDMA-42",
    Step.READY: "DS4T-RDMA-51",
    Step.POSTED: "DS4T-RDMA-54",
    Step.WARM: "DS4T-RDMA-56",
}


def warm_outcome(
    qp_type: QpType,
    mine: bool,
    theirs: bool,
    attempt: int,
    setup_attempt: int,
    *,
    recreates: bool,
) -> Outcome:
    """Return what follows one warm-up attempt; both ranks decide alike.

    Parameters
    ----------
    mine, theirs : bool
        The flags of both RDMA_WARM frames.
    attempt, setup_attempt : int
        From 1.
    recreates : bool
        The dialect makes a new queue pair after a failed warm-up (v14, UC).
    """
    if mine and theirs:
        return "ready"
    if attempt < WARM_ATTEMPTS[qp_type]:
        return "again"
    if recreates and qp_type == "UC" and setup_attempt < SETUP_ATTEMPTS[qp_type]:
        return "recreate"
    return "fail"


def holds_first(role: TpRole, first_sender: TpRole, *, barrier: bool) -> bool:
    """Tell whether a rank waits for the peer's first message (DS4T-RDMA-68).

    Between two of ours the leader goes first. Against a foreign worker, which posts
    its window at its own first gate, a leader waits too: ``first_sender`` is then
    the worker.
    """
    return not barrier and role != first_sender
