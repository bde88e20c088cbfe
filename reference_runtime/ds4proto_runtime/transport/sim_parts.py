"""What the simulated queue pairs are made of."""

from __future__ import annotations

from dataclasses import dataclass

from ds4proto_runtime.transport.verbs import Post


@dataclass(slots=True)
class SimMemory:
    """A registered buffer."""

    view: memoryview
    key: int
    open: bool = True

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.view.nbytes

    def close(self) -> None:
        """Deregister it."""
        self.open = False

    def holds(self, post: Post) -> bool:
        """Tell whether a request lies inside it."""
        end = post.offset + post.length
        return self.open and 0 <= post.offset <= end <= self.nbytes


@dataclass(slots=True)
class Receive:
    """A posted receive, numbered on its queue pair from 1."""

    number: int
    post: Post
    memory: SimMemory


@dataclass(slots=True)
class Message:
    """A message under way, with its repeats after silence and after RNR."""

    number: int
    wr_id: int
    data: bytes
    signalled: bool
    psn: int = 0
    repeats: int = 0
    refusals: int = 0


@dataclass(slots=True)
class Missed:
    """A message that met no receive, and how late one was posted."""

    number: int
    time: float
    why: str
    late: float | None = None
    wr_id: int | None = None


@dataclass(slots=True)
class Route:
    """What RTR set: where to, from which index, in which packets."""

    qpn: int = 0
    gid: bytes = bytes(16)
    index: int = 0
    mtu: int = 3
