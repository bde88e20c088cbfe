"""What the DS4D machines say (events) and are told (commands).

Every machine has ``receive_data``, ``events``, ``send``, ``deadline`` and
``timeout``. Frames that a machine wants on the wire come as ``Transmit`` events, in
order with the others, or as the return value of ``send``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ds4proto.schema.problem import Buf, Problem

if TYPE_CHECKING:
    from ds4proto.link.ds4d_registry import WorkerEntry

FaultClass = Literal["remote", "transport"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, in the peer's words, and the clause that rules it."""

    clause: str
    text: str
    kind: FaultClass = "transport"

    def __str__(self) -> str:
        return self.text


# Events of every machine


@dataclass(frozen=True, slots=True)
class Transmit:
    """Buffers to write on this machine's connection, whole and in order.

    ``request`` names the WORK or RESULT they carry, where there is one.
    """

    buffers: list[Buf]
    request: int | None = None

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(len(part) for part in self.buffers)


@dataclass(frozen=True, slots=True)
class Close:
    """Close this connection once everything before has been written.

    ``reason`` is for the log. ``problem`` is set where a clause was broken.
    """

    reason: str
    problem: Problem | None = None


# Coordinator: registration


@dataclass(frozen=True, slots=True)
class HelloAccepted:
    """The HELLO passed every check; nothing is sent (DS4D-HELLO-16)."""

    hello: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HelloRefused:
    """The HELLO broke a rule; an ERROR (if any) and a Close follow.

    ``text`` is what the peer is told, or what the log says where it is told nothing.
    """

    fault: Fault
    answered: bool


# Coordinator: the first hop's connection


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """A RESULT that answers the oldest pending WORK and passed checks 1 to 9.

    Attributes
    ----------
    kind : int
        ``ACK``, ``HIDDEN_STATE`` or ``LOGITS``.
    payload : memoryview
        Wire bytes: ``n_tokens`` rows at ``bits``, or vocabulary x f32le.
    telemetry : tuple of mappings
        Last hop first; see ``TELEMETRY`` in the schema.
    waited : float
        Seconds since the WORK was handed out.
    """

    request: int
    kind: int
    payload: memoryview
    bits: int
    telemetry: tuple[Mapping[str, Any], ...]
    waited: float


@dataclass(frozen=True, slots=True)
class RemoteError:
    """RESULT with a status other than 0 (check 6); the connection stays usable."""

    request: int
    fault: Fault
    status: int
    telemetry: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Drained:
    """While draining: every WORK sent has been answered; the link is idle again."""

    discarded: int


@dataclass(frozen=True, slots=True)
class TransportError:
    """The connection can no longer be used; a Close follows."""

    fault: Fault


# Coordinator: one request over a route (``ds4d_request``)


@dataclass(frozen=True, slots=True)
class ResetLocal:
    """Empty the coordinator's own slice of the session before position 0."""


@dataclass(frozen=True, slots=True)
class EvaluateLocal:
    """Run the coordinator's own slice on one chunk; answer with ``LocalDone``."""

    index: int
    pos0: int
    tokens: tuple[int, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class RouteLost:
    """A transport error: drop these workers, close their connections, rebuild.

    Answer with ``Rerouted`` or ``NoRoute`` (DS4D-COORD-31); a chunk that is still
    with the own slice is awaited first. Where ``replay`` is False the request has
    failed for good and no answer is wanted.
    """

    workers: tuple[WorkerEntry, ...]
    fault: Fault
    replay: bool = True


@dataclass(frozen=True, slots=True)
class Replaying:
    """The whole transcript goes out once more with RESET."""

    fault: Fault
    tokens: int


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The request is done and the session's checkpoint has advanced.

    ``kind`` is ``LOGITS``, ``HIDDEN_STATE`` (run the own head on the last row) or
    None where nothing was sent (DS4D-COORD-10) or the slice is the whole model.
    """

    kind: int | None
    payload: memoryview
    bits: int
    n_tokens: int
    replayed: bool
    telemetry: tuple[tuple[int, tuple[Mapping[str, Any], ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed for good; the session's checkpoint is empty.

    ``text`` is what upstream would print, ``cause`` the first fault
    (DS4D-RESULT-52).
    """

    text: str
    cause: Fault


@dataclass(frozen=True, slots=True)
class LocalDone:
    """Command: the own slice has run chunk ``index``; ``hidden`` at wire width."""

    index: int
    hidden: Buf


@dataclass(frozen=True, slots=True)
class LocalFailed:
    """Command: the own slice failed; healthy workers are kept (DS4D-COORD-37)."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """Command: the buffers of ``request`` have left; frees a place in the queue."""

    request: int


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Command: the new route and the machine of its first hop."""

    route: Any
    link: Any


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Command: no complete route exists; ``text`` is the route's own."""

    text: str


# Snapshot client


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """The worker agreed to save; ``size`` bytes of ``ShardData`` follow."""

    size: int


@dataclass(frozen=True, slots=True)
class ShardData:
    """The next bytes of the shard, in order."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    """The transfer succeeded; close the connection."""


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The transfer failed; close the connection, keep route and sessions."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class LocalReply:
    """An answer of the private dialect; ``values`` by wire name."""

    name: str
    values: Mapping[str, Any]
