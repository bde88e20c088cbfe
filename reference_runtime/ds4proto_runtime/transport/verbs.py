"""The one verbs interface that the RDMA transport is written against.

Small on purpose: a device with one port, one queue pair with its own completion queue
for both directions, memory by key, SEND and RECV. Providers translate.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.ds4t_rdma_windows import Post
from ds4proto.link.rdma_attributes import QpAttributes
from ds4proto.link.rdma_choice import Device

Status = Literal[
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "OTHER",
]
Call = Literal[
    "open", "query_gid", "alloc_pd", "create_cq", "create_qp", "reg_mr",
    "INIT", "RTR", "RTS", "ERR", "post_recv", "post_send", "poll_cq",
]  # fmt: skip
PSN_MASK: Final = 0xFFFFFF

MEANING: Final[dict[Status, str]] = {
    "RETRY_EXC_ERR": "the peer's port acknowledged nothing: wrong GID index on one "
    "side, cable, port down, or the peer's queue pair is gone",
    "RNR_RETRY_EXC_ERR": "the peer had no receive posted for this message",
    "WR_FLUSH_ERR": "the queue pair was in the error state before this request ran",
    "REM_OP_ERR": "the peer's receive was too short or its memory key was wrong",
    "REM_INV_REQ_ERR": "the peer refused the request: message longer than its receive",
    "LOC_QP_OP_ERR": "memory key or range of this request is wrong",
    "LOC_LEN_ERR": "the message was longer than the posted receive",
    "LOC_PROT_ERR": "memory key or range of this request is wrong",
    "REM_ACCESS_ERR": "the peer's memory key forbids this",
}
"""What a completion status tells a person."""


class VerbsError(Ds4ProtoError):
    """A verbs call that failed.

    Attributes
    ----------
    call : str
        As the peer's texts name it: ``create_qp``, ``RTR`` ...
    number : int
        errno, 0 where there is none.
    done : int
        Requests of a post that were accepted before the failure.
    """

    def __init__(
        self, call: Call, number: int = 0, reason: str = "", *, done: int = 0
    ) -> None:
        self.call: Call = call
        self.number = number
        self.done = done
        words = reason or os.strerror(number)
        if number and reason:
            words = f"{reason} (errno {number})"
        self.reason = words
        super().__init__(f"{call}: {words}")


class NoLibraryError(Ds4ProtoError):
    """The verbs library, or its binding, cannot be loaded.

    Attributes
    ----------
    tried : tuple of str
    """

    def __init__(self, *tried: str) -> None:
        self.tried = tried
        super().__init__(f"no verbs library: tried {', '.join(tried) or 'nothing'}")


class Completion(NamedTuple):
    """One entry of the completion queue.

    ``receive`` is False for a send, and without meaning where ``status`` is not
    SUCCESS (providers do not say then).
    """

    wr_id: int
    status: Status
    receive: bool
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that a provider knows it dropped; only the simulated one can tell.

    Attributes
    ----------
    number : int
        Which message of its direction, from 1, on this queue pair.
    why : str
    late : float or None
        Seconds from its arrival to the moment when a receive was posted for it.
    wr_id : int or None
        The receive that it should have met.
    """

    number: int
    why: str
    late: float | None = None
    wr_id: int | None = None


class Memory(Protocol):
    """Registered memory; requests name offsets into it."""

    @property
    def nbytes(self) -> int:
        """Its length."""

    @property
    def key(self) -> int:
        """Local key; the remote one is given to nobody (DS4T-RDMA-47)."""

    def close(self) -> None:
        """Deregister it; the buffer stays with its owner."""


class QueuePair(Protocol):
    """One queue pair and its completion queue.

    Attributes
    ----------
    number : int
        24 bits.
    granted : tuple of (int, int)
        Sends and receives that the provider says it holds.
    cq_entries : int
        Completions that the provider says it holds.
    """

    number: int
    granted: tuple[int, int]
    cq_entries: int

    def to_init(self) -> None:
        """RESET to INIT."""

    def to_rtr(
        self, *, qpn: int, psn: int, gid: bytes, lid: int, gid_index: int, mtu: int
    ) -> None:
        """INIT to RTR: the peer's numbers, the own index to send from.

        Parameters
        ----------
        mtu : int
            Verbs number of the path MTU.
        """

    def to_rts(self, *, psn: int) -> None:
        """RTR to RTS: the own first packet number."""

    def to_error(self) -> None:
        """Any state to ERR: what is posted comes back as WR_FLUSH_ERR."""

    def post_receives(self, memory: Memory, posts: Sequence[Post]) -> None:
        """Post receives in order.

        Raises
        ------
        VerbsError
            ENOMEM where the queue is full; ``done`` says how many were taken.
        """

    def post_sends(self, memory: Memory, posts: Sequence[Post]) -> None:
        """Post SENDs in order; raises as above."""

    def poll(self, most: int = 16) -> list[Completion]:
        """Take up to ``most`` completions; an empty list where there are none."""

    def evidence(self) -> tuple[Lost, ...]:
        """Return what the provider knows of messages to here that it dropped."""

    def counters(self) -> dict[str, int]:
        """Return the port's counters that have moved since this was created."""

    def close(self) -> None:
        """Destroy queue pair and completion queue. Idempotent."""


class OpenDevice(Protocol):
    """A device that was opened, with a protection domain."""

    name: str

    def query(self) -> Device:
        """Read state and GID table, anew each time (DS4T-RDMA-38)."""

    def register(self, buffer: memoryview) -> Memory:
        """Register memory for local write, and for nothing remote."""

    def create(self, attributes: QpAttributes, depth: tuple[int, int]) -> QueuePair:
        """Make a completion queue and a queue pair of that type and depth."""

    def close(self) -> None:
        """Close it, after everything made from it."""


class Provider(Protocol):
    """A verbs library.

    Attributes
    ----------
    name : str
    system : {"linux", "macos"}
        Whose rules of device and GID choice hold.
    """

    name: str
    system: Literal["linux", "macos"]

    def devices(self) -> tuple[Device, ...]:
        """List devices with port 1 and GID table, in the library's order.

        Raises
        ------
        NoLibraryError
        """

    def open(self, name: str) -> OpenDevice:
        """Open a device."""


def create_queue_pair(device: OpenDevice, attributes: QpAttributes) -> QueuePair:
    """Make a queue pair with the first depth that is granted (DS4T-RDMA-14).

    Raises
    ------
    VerbsError
        Of the last depth tried.
    """
    refusal: VerbsError | None = None
    for depth in attributes.depths:
        try:
            return device.create(attributes, depth)
        except VerbsError as error:
            if error.call != "create_qp" or error.number == errno.EMFILE:
                raise
            refusal = error
    assert refusal is not None
    raise refusal


__all__ = [
    "MEANING",
    "PSN_MASK",
    "Call",
    "Completion",
    "Device",
    "Lost",
    "Memory",
    "NoLibraryError",
    "OpenDevice",
    "Post",
    "Provider",
    "QueuePair",
    "Status",
    "VerbsError",
    "create_queue_pair",
]
