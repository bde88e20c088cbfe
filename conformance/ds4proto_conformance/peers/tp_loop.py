"""Small ranks in threads, with what they print."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from ds4proto.peer.api import ChannelName
from ds4proto.peer.channel import SocketChannel
from ds4proto_conformance.bench.base import Connections
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.net import LoopSession, PairNet
from ds4proto_conformance.peers.tp_rank import SmallRank
from ds4proto_conformance.settings import Settings

__all__ = ["TpLoopSession", "tp_loop_opener"]

_JOIN = 5.0


class TpLoopSession(LoopSession):
    """The tester's side, with the lines of the small rank as its output."""

    def __init__(self, net: PairNet, thread: threading.Thread, rank: SmallRank) -> None:
        super().__init__(net, thread, tester_listens=rank.role == "tp-worker")
        self.rank = rank
        self._opened: list[SocketChannel] = []

    def channel(
        self,
        name: ChannelName,
        *,
        deadline: float | None = None,
        port: int | None = None,
        fresh: bool = False,
    ) -> SocketChannel:
        """Return the named connection."""
        found = super().channel(name, deadline=deadline, port=port, fresh=fresh)
        self._opened.append(found)
        return found

    def accept(
        self, *, deadline: float | None = None, phase: str = "", data: bool = True
    ) -> SocketChannel:
        """Accept one more connection."""
        found = super().accept(deadline=deadline, phase=phase, data=data)
        self._opened.append(found)
        return found

    def close(self) -> None:
        """Close what is open, and what nobody took."""
        for channel in self._opened:
            channel.close()
        self._net.drop_untaken()

    def output(self) -> str:
        """Return what the rank printed."""
        return "\n".join(self.rank.lines)


def small_rank(net: PairNet, fault: Fault) -> SmallRank:
    """Return the rank that has a fault."""
    if fault.role == "tp-worker":
        from ds4proto_conformance.peers.tp_worker import SmallTpWorker

        return SmallTpWorker(net, fault=fault)
    from ds4proto_conformance.peers.tp_leader import SmallTpLeader

    return SmallTpLeader(net, fault=fault)


def tp_loop_opener(
    fault: Fault,
) -> Callable[[Settings], AbstractContextManager[Connections]]:
    """Return an opener that starts a small rank with a fault."""

    @contextlib.contextmanager
    def opener(_settings: Settings) -> Iterator[Connections]:
        net = PairNet()
        rank = small_rank(net, fault)
        thread = threading.Thread(target=rank.run, name="small rank", daemon=True)
        thread.start()
        session = TpLoopSession(net, thread, rank)
        try:
            yield session
        finally:
            rank.stop()
            net.ring()
            thread.join(_JOIN)
            session.close()
            net.close()

    return opener
