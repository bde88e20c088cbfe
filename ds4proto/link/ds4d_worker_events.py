"""What the worker's machines say and are told; see ``ds4d_events`` for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ds4proto.schema.problem import Buf

if TYPE_CHECKING:
    from ds4proto.link.ds4d_forward import Forwarder

Want = Literal["ack", "hidden", "logits", "forward"]
"""What a hop owes for one WORK; ``forward`` is hidden state for the next hop."""


@dataclass(frozen=True, slots=True)
class ResetSession:
    """Empty the engine's state of this session now (WORK check 25)."""

    session: int


@dataclass(frozen=True, slots=True)
class KvOrder:
    """Send what the span adds to the KV to ``host``:``port`` (DS4D-OURS-10)."""

    host: str
    port: int
    prefix_hash: int
    result_hash: int


@dataclass(frozen=True, slots=True)
class LocalFrame:
    """A frame of the private dialect's local decode; answer it on this connection."""

    name: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluateWork:
    """Run the slice on one span; answer with ``WorkEvaluated`` or ``WorkFailed``.

    Attributes
    ----------
    tokens : tuple of int
    hidden : memoryview or None
        ``n_tokens`` rows of H values packed at ``bits``; None on layer 0.
    bits : int
        Width of what came and of any hidden state that leaves: 32, 16 or 8.
    want : {"ack", "hidden", "logits", "forward"}
        Payload owed: none; all rows at ``bits``; f32le logits of the last token;
        all rows at ``bits`` for the next hop.
    kv : KvOrder or None
        Where the KV of the span goes as well (private dialect).
    """

    session: int
    request: int
    pos0: int
    tokens: tuple[int, ...]
    hidden: memoryview | None
    bits: int
    want: Want
    kv: KvOrder | None = None


@dataclass(frozen=True, slots=True)
class WorkEvaluated:
    """Command: the span is done; ``payload`` as ``want`` says, empty for ``ack``."""

    payload: Buf
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Command: the engine refused or failed (WORK check 27).

    ``touched`` is False for refusals before anything was evaluated (position, chunk
    cap, context): the session stays as it was (DS4D-WORK-47). True leaves it served
    by RESET or a load only (DS4D-SESS-08).
    """

    text: str
    touched: bool = False


@dataclass(frozen=True, slots=True)
class SaveShard:
    """Write the shard of this session; answer ``ShardSaved`` or ``ShardFailed``."""

    session: int
    request: int
    token_count: int


@dataclass(frozen=True, slots=True)
class ShardSaved:
    """Command: the shard, as pieces of any size that add up to ``size`` bytes.

    ``pieces`` may be a generator over a file: it is drawn on as events are taken.
    """

    pieces: Iterable[Buf]
    size: int


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """Command: the shard could not be saved or restored; ``text`` is the reason.

    ``touched`` is True where a restore had already begun to change the session.
    """

    text: str
    touched: bool = False


@dataclass(frozen=True, slots=True)
class LoadStarted:
    """A load passed its header checks; ``size`` bytes of ``LoadData`` follow."""

    session: int
    request: int
    size: int


@dataclass(frozen=True, slots=True)
class LoadData:
    """The next bytes of the shard, in order."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class LoadAborted:
    """The transfer ended early; throw away what ``LoadData`` brought."""

    reason: str


@dataclass(frozen=True, slots=True)
class RestoreShard:
    """Restore the received shard; answer ``ShardRestored`` or ``ShardFailed``."""

    session: int
    request: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardRestored:
    """Command: the session now holds the shard."""


@dataclass(frozen=True, slots=True)
class DropSessions:
    """The control connection ended: free these sessions (DS4D-WORKER-22)."""

    sessions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenForward:
    """Dial ``host``:``port`` and give the connection to ``forwarder``.

    Call ``forwarder.opened(now)``, or ``forwarder.failed(reason, now)``.
    """

    forwarder: Forwarder
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PeerError:
    """The peer sent ERROR; a Close follows. ``text`` is cut at 511 bytes."""

    text: str
