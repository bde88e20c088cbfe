"""What ends a command: the answer's class, and what the session holds afterwards."""

from __future__ import annotations

from typing import Any

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import OK, OPERATION
from ds4proto.link.ds4t_sessions import Sessions

_QUIET = {
    say.RunEval: "decode",
    say.RunVerify: "verify block",
    say.Rewind: "rewind",
    say.Invalidate: "invalidate",
    say.Stop: "stop",
}


def operation_of(command: object) -> str:
    """Return the words for an operation: a ds4 leader's, or ours where it has none."""
    return OPERATION.get(type(command)) or _QUIET.get(
        type(command), "idle time between commands"
    )


def answer_to(command: Any, status: int = OK, text: str = "") -> Any:
    """Return the answer to a command, without logits."""
    if isinstance(command, say.CreateSession):
        return say.SessionCreated(command.session_id, status, text)
    if isinstance(command, say.DestroySession):
        return say.SessionDestroyed(command.session_id, status, text)
    if isinstance(command, say.RunSync):
        return say.SyncDone(command.session_id, status, None, text)
    if isinstance(command, say.RunBatch):
        return say.BatchDone(status, (), text)
    if isinstance(command, say.RunMixed):
        return say.MixedDone(command.session_id, status, (), text)
    if isinstance(command, say.RunMtp):
        return say.MtpDone(command.session_id, status, text)
    if isinstance(command, say.RunVerify):
        return say.BlockCommitted(command.session_id)
    return say.EvalDone(command.session_id)


def note(sessions: Sessions, command: Any, status: int = OK) -> None:
    """Bring the sessions up to date with a finished operation.

    A verdict is noted when it is known, and GLM_MTP by the caller, because only its
    engine knows the accepted tokens (``sessions.extend``).
    """
    if status != OK:
        if isinstance(command, say.RunSync) and command.session_id in sessions:
            sessions.invalidate(command.session_id)
        return
    if isinstance(command, say.CreateSession):
        sessions.create(command.session_id, command.ctx_size)
    elif isinstance(command, say.DestroySession):
        sessions.destroy(command.session_id)
    elif isinstance(command, say.RunSync | say.RunMixed):
        sessions.synced(command.session_id, command.tokens)
    elif isinstance(command, say.RunEval):
        sessions.extend(command.session_id, command.token)
    for item in getattr(command, "items", ()):
        sessions.extend(item.session_id, item.token)
