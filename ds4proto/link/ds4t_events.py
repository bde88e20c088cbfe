"""Commands and answers of a tensor-parallel pair, as both machines see them.

Verbs are commands: ``LeaderControl.send`` takes them, ``WorkerControl.events`` yields
them. Nouns are answers and go the other way. ``Checkpoint`` goes both ways. The engine
of each rank runs what the command says and hands the answer to its own machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ds4proto.schema.problem import Buf

OK, FAILED, INTERRUPTED = 0, 1, 2
"""Statuses of COMMAND_ACK: any other number is a failure too."""

START, CHUNK, PROGRESS, END = 0, 1, 2, 3
"""Points of a SYNC_CHECKPOINT."""

REPLAY, KEEP_ALL, KEEP_PREFIX = 0, 1, 2
"""Verdicts on a draft block (VERIFY_COMMIT mode)."""


@dataclass(frozen=True, slots=True)
class Top2:
    """The two best logits of the worker's half, best first (v9w, feature bit 5).

    Attributes
    ----------
    ids : tuple of int
        Vocabulary ids, not positions inside the half.
    values : tuple of float
        Their logits.
    """

    ids: tuple[int, int]
    values: tuple[float, float]


Logits = memoryview | Top2
"""``n_vocab / 2`` f32 values of the upper half, or the two best of them."""


@dataclass(frozen=True, slots=True)
class Transmit:
    """Buffers that the machine itself wants on the control connection, in order."""

    buffers: list[Buf] = field(repr=False)


@dataclass(frozen=True, slots=True)
class CreateSession:
    """SESSION_CREATE: open a session; answered by ``SessionCreated``."""

    session_id: int
    ctx_size: int


@dataclass(frozen=True, slots=True)
class DestroySession:
    """SESSION_DESTROY: close a session; answered by ``SessionDestroyed``."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a multimodal sync: ``token_count * n_embd`` f32 rows.

    Attributes
    ----------
    token_start, token_count : int
        Span in the prompt.
    rows : buffer
        Embeddings, row major, f32.
    width, height, content_width, content_height : int
        Pixels.
    fingerprint : bytes
        32 bytes, an opaque identity of the picture.
    """

    token_start: int
    token_count: int
    rows: Buf = field(repr=False)
    width: int = 1
    height: int = 1
    content_width: int = 1
    content_height: int = 1
    fingerprint: bytes = bytes(32)


@dataclass(frozen=True, slots=True)
class RunSync:
    """SYNC, or SYNC_MULTIMODAL where there are images: bring a session to a prompt.

    ``tokens`` is the whole prefix. Answered by ``SyncDone``; from v12 on both ranks
    meet at ``Checkpoint`` START, after each chunk, and at END.
    """

    session_id: int
    tokens: tuple[int, ...] = field(repr=False)
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """SYNC_CHECKPOINT: where this rank's prefill stands, and whether it wants to stop.

    Attributes
    ----------
    point : int
        START, CHUNK, PROGRESS or END.
    current, total : int
        Progress and prompt length; at END ``current`` is the return code.
    cancelled : bool
        As sent: the own wish. As an event: what both ranks agreed on.
    """

    point: int
    current: int
    total: int
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class PeerCheckpoint:
    """The peer reached a checkpoint before this rank sent its own.

    A rank without the peer's engine answers by sending the same ``Checkpoint``.
    """

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RunEval:
    """EVAL: decode one token; answered by ``EvalDone``. ``seq`` is filled in."""

    session_id: int
    token: int
    seq: int = 0


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One session's token of a batch."""

    session_id: int
    token: int


@dataclass(frozen=True, slots=True)
class RunBatch:
    """EVAL_BATCH: one token in each of several sessions; ``BatchDone`` answers."""

    items: tuple[BatchItem, ...]


@dataclass(frozen=True, slots=True)
class RunMixed:
    """MIXED_BATCH: prefill one session, decode in others; ``MixedDone`` answers."""

    session_id: int
    tokens: tuple[int, ...] = field(repr=False)
    items: tuple[BatchItem, ...] = ()


@dataclass(frozen=True, slots=True)
class RunVerify:
    """VERIFY: run a draft block; the leader follows it with ``CommitBlock``."""

    session_id: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitBlock:
    """VERIFY_COMMIT: the verdict on the block that has just run.

    Attributes
    ----------
    mode : int
        REPLAY, KEEP_ALL or KEEP_PREFIX.
    token_count : int
        Drafts to replay or keep; as an event already cut to what the block holds.
    """

    mode: int
    token_count: int = 0


@dataclass(frozen=True, slots=True)
class RunMtp:
    """GLM_MTP: one GLM speculative cycle; answered by ``MtpDone``."""

    session_id: int
    token: int
    limit: int
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Rewind:
    """REWIND: shorten a session; no answer. As an event already cut to its length."""

    session_id: int
    position: int


@dataclass(frozen=True, slots=True)
class Invalidate:
    """INVALIDATE: drop what a session holds; no answer."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Stop:
    """STOP: the end, exit status 0; no answer."""


@dataclass(frozen=True, slots=True)
class SessionCreated:
    """Status 0, or 1: id 0 or used, context not positive, over a bound."""

    session_id: int
    status: int = OK
    text: str = ""


@dataclass(frozen=True, slots=True)
class SessionDestroyed:
    """Status 1 where the worker did not hold the session."""

    session_id: int
    status: int = OK
    text: str = ""


@dataclass(frozen=True, slots=True)
class SyncDone:
    """The end of a prefill.

    Attributes
    ----------
    status : int
        OK, INTERRUPTED after an agreed cancel, or a return code.
    logits : buffer, Top2 or None
        Upper half for the last prompt row; None where none is due.
    text : str
        From the engine: the reason of a failure, printed by the worker. From the
        machine of a leader: what a ds4 leader prints.
    """

    session_id: int
    status: int = OK
    logits: Buf | Top2 | None = field(default=None, repr=False)
    text: str = ""


@dataclass(frozen=True, slots=True)
class EvalDone:
    """The end of one decoded token; ``logits`` as in ``SyncDone``."""

    session_id: int
    logits: Buf | Top2 | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The end of a batch: one logits entry per item, or a status other than 0."""

    status: int = OK
    logits: tuple[Buf | Top2, ...] = field(default=(), repr=False)
    text: str = ""


@dataclass(frozen=True, slots=True)
class MixedDone:
    """The end of a mixed batch: logits of the prefill first, then of the items."""

    session_id: int
    status: int = OK
    logits: tuple[Buf | Top2, ...] = field(default=(), repr=False)
    text: str = ""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """The gates of a draft block are done (worker's engine to its own machine)."""


@dataclass(frozen=True, slots=True)
class BlockCommitted:
    """The verdict has been applied; logits only after a replay of at least one."""

    session_id: int
    logits: Buf | Top2 | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MtpDone:
    """The end of a GLM speculative cycle; status 0 or 1."""

    session_id: int
    status: int = OK
    text: str = ""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot go on with the running operation.

    A worker then ends: without a frame after EVAL and VERIFY, with an ack of
    ``status`` where the command has one.
    """

    text: str
    status: int = FAILED


@dataclass(frozen=True, slots=True)
class HashReceived:
    """HASH, the lockstep check of old builds (``seq``, 64-bit ``hash``)."""

    seq: int
    hash: int


Command = (
    CreateSession
    | DestroySession
    | RunSync
    | RunEval
    | RunBatch
    | RunMixed
    | RunVerify
    | CommitBlock
    | RunMtp
    | Rewind
    | Invalidate
    | Stop
)
Answer = (
    SessionCreated
    | SessionDestroyed
    | SyncDone
    | EvalDone
    | BatchDone
    | MixedDone
    | BlockCommitted
    | MtpDone
)
OPERATION: dict[
    type,
    Literal[
        "session create",
        "session destroy",
        "prefill sync",
        "decode batch",
        "mixed prefill/decode batch",
        "GLM MTP",
    ],
] = {
    CreateSession: "session create",
    DestroySession: "session destroy",
    RunSync: "prefill sync",
    RunBatch: "decode batch",
    RunMixed: "mixed prefill/decode batch",
    RunMtp: "GLM MTP",
}
"""The words for an operation in leader texts (DS4T-ACK-11)."""
