"""Small ranks in threads, with what they print."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

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
        try:
            yield TpLoopSession(net, thread, rank)
        finally:
            rank.stop()
            net.ring()
            thread.join(_JOIN)
            net.close()

    return opener
