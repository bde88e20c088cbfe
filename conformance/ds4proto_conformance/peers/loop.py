"""Small peers in threads, opened as a runner opens a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ds4proto_conformance.bench.base import Connections
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.net import PairNet, threaded
from ds4proto_conformance.settings import Settings

__all__ = ["loop_opener"]


def loop_opener(
    fault: Fault,
) -> Callable[[Settings], AbstractContextManager[Connections]]:
    """Return an opener that starts a small peer with a fault."""
    if fault.role in ("tp-leader", "tp-worker"):
        from ds4proto_conformance.peers.tp_loop import tp_loop_opener

        return tp_loop_opener(fault)
    if fault.role in ("tp-leader", "tp-worker"):
        from ds4proto_conformance.peers.tp_loop import tp_loop_opener

        return tp_loop_opener(fault)

    @contextmanager
    def opener(_settings: Settings) -> Iterator[Connections]:
        net = PairNet()
        if fault.role == "worker":
            from ds4proto_conformance.peers.worker import SmallWorker

            worker = SmallWorker(net, fault=fault)
            with threaded(net, worker.run, worker.stop, tester_listens=True) as found:
                yield found
        elif fault.role == "coordinator":
            from ds4proto_conformance.peers.coordinator import SmallCoordinator

            peer = SmallCoordinator(net, fault=fault)
            with threaded(net, peer.run, peer.stop, tester_listens=False) as found:
                yield found
        elif fault.role == "codec":
            from ds4proto_conformance.peers.codec import codec_session

            with codec_session(fault) as session:
                yield session
        else:
            raise ValueError(f"no small peer of role {fault.role}")

    return opener
