"""The two control machines as tables; this file knows no bytes.

Rules
-----
* One command at a time. The leader may send the next one only when every answer of
  the last has come (DS4T-FLOW-01).
* An answer may overtake the gates of its operation: the two connections have no
  common order (DS4T-LOGITS-07).
* From v12 on both ranks meet during a sync: each sends its checkpoint, then waits for
  the other's. A checkpoint that comes early is kept until the own one is sent.
* A leader may say STOP at any time, also after a failure (DS4T-STOP-03,
  DS4T-FAIL-13): it waits for no answer any more. Nothing else leaves FAILED, and
  nothing leaves STOPPED.

Reading the tables
------------------
``LEADER[state][trigger]`` is the next state. A trigger is a command or an answer, and
a switch where the outcome depends on the dialect or on what was said:

=============  ===========================================================
``meet``       the dialect has checkpoints
``logits``     logits are vocabulary-split and due here
``more``       further LOGITS are due
``end``        checkpoint END, or the last answer
``bad``        status other than 0 where the worker ends (all but create, destroy)
=============  ===========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Literal

from ds4proto.link import ds4t_events as say

Switch = Literal["", "meet", "logits", "more", "end", "bad"]
Trigger = tuple[type, Switch]


class Leader(Enum):
    """Where a leader is."""

    IDLE = auto()
    """May send a command."""
    SYNC = auto()
    """Prefills; its own next checkpoint is due."""
    MEETING = auto()
    """Sent a checkpoint; the worker's is due."""
    ACK = auto()
    """Waits for COMMAND_ACK."""
    LOGITS = auto()
    """Waits for LOGITS."""
    BLOCK = auto()
    """Runs a draft block; its verdict is due."""
    STOPPED = auto()
    FAILED = auto()


class Worker(Enum):
    """Where a worker is."""

    COMMAND = auto()
    """Waits for a command."""
    CREATE = auto()
    DESTROY = auto()
    SYNC = auto()
    """Prefills; its own next checkpoint, or the result, is due."""
    MEETING = auto()
    """Sent a checkpoint; the leader's is due."""
    EVAL = auto()
    BATCH = auto()
    MIXED = auto()
    MTP = auto()
    BLOCK = auto()
    """Runs a draft block."""
    VERDICT = auto()
    """Waits for VERIFY_COMMIT."""
    COMMIT = auto()
    """Applies the verdict."""
    STOPPED = auto()
    FAILED = auto()


_L = Leader
LEADER: Final[Mapping[Leader, Mapping[Trigger, Leader]]] = {
    _L.IDLE: {
        (say.CreateSession, ""): _L.ACK,
        (say.DestroySession, ""): _L.ACK,
        (say.RunSync, ""): _L.ACK,
        (say.RunSync, "meet"): _L.SYNC,
        (say.RunEval, ""): _L.IDLE,
        (say.RunEval, "logits"): _L.LOGITS,
        (say.RunBatch, ""): _L.ACK,
        (say.RunMixed, ""): _L.ACK,
        (say.RunMtp, ""): _L.ACK,
        (say.RunVerify, ""): _L.BLOCK,
        (say.Rewind, ""): _L.IDLE,
        (say.Invalidate, ""): _L.IDLE,
        (say.Stop, ""): _L.STOPPED,
    },
    _L.SYNC: {(say.Checkpoint, ""): _L.MEETING, (say.Stop, ""): _L.STOPPED},
    _L.MEETING: {
        (say.Stop, ""): _L.STOPPED,
        (say.Checkpoint, ""): _L.SYNC,
        (say.Checkpoint, "end"): _L.ACK,
    },
    _L.ACK: {
        (say.Stop, ""): _L.STOPPED,
        (say.SessionCreated, ""): _L.IDLE,
        (say.SessionDestroyed, ""): _L.IDLE,
        (say.SyncDone, ""): _L.IDLE,
        (say.SyncDone, "logits"): _L.LOGITS,
        (say.BatchDone, ""): _L.IDLE,
        (say.BatchDone, "logits"): _L.LOGITS,
        (say.MixedDone, ""): _L.IDLE,
        (say.MixedDone, "logits"): _L.LOGITS,
        (say.MtpDone, ""): _L.IDLE,
    },
    _L.LOGITS: {
        (say.Stop, ""): _L.STOPPED,
        (say.Top2, "more"): _L.LOGITS,
        (say.Top2, "end"): _L.IDLE,
    },
    _L.BLOCK: {
        (say.Stop, ""): _L.STOPPED,
        (say.CommitBlock, ""): _L.IDLE,
        (say.CommitBlock, "logits"): _L.LOGITS,
    },
    _L.STOPPED: {},
    _L.FAILED: {(say.Stop, ""): _L.STOPPED},
}

_W = Worker
WORKER: Final[Mapping[Worker, Mapping[Trigger, Worker]]] = {
    _W.COMMAND: {
        (say.CreateSession, ""): _W.CREATE,
        (say.CreateSession, "bad"): _W.COMMAND,
        (say.DestroySession, ""): _W.DESTROY,
        (say.DestroySession, "bad"): _W.COMMAND,
        (say.RunSync, ""): _W.SYNC,
        (say.RunEval, ""): _W.EVAL,
        (say.RunBatch, ""): _W.BATCH,
        (say.RunMixed, ""): _W.MIXED,
        (say.RunMtp, ""): _W.MTP,
        (say.RunVerify, ""): _W.BLOCK,
        (say.Rewind, ""): _W.COMMAND,
        (say.Invalidate, ""): _W.COMMAND,
        (say.Stop, ""): _W.STOPPED,
    },
    _W.CREATE: {(say.SessionCreated, ""): _W.COMMAND},
    _W.DESTROY: {(say.SessionDestroyed, ""): _W.COMMAND},
    _W.SYNC: {
        (say.Checkpoint, ""): _W.MEETING,
        (say.SyncDone, ""): _W.COMMAND,
        (say.SyncDone, "bad"): _W.FAILED,
    },
    _W.MEETING: {(say.Checkpoint, ""): _W.SYNC},
    _W.EVAL: {(say.EvalDone, ""): _W.COMMAND},
    _W.BATCH: {(say.BatchDone, ""): _W.COMMAND, (say.BatchDone, "bad"): _W.FAILED},
    _W.MIXED: {(say.MixedDone, ""): _W.COMMAND, (say.MixedDone, "bad"): _W.FAILED},
    _W.MTP: {(say.MtpDone, ""): _W.COMMAND, (say.MtpDone, "bad"): _W.FAILED},
    _W.BLOCK: {(say.BlockRun, ""): _W.VERDICT},
    _W.VERDICT: {(say.CommitBlock, ""): _W.COMMIT},
    _W.COMMIT: {(say.BlockCommitted, ""): _W.COMMAND},
    _W.STOPPED: {},
    _W.FAILED: {},
}
