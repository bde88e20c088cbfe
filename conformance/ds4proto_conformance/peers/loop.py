"""Small peers in threads, opened as a runner opens a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ds4proto_conformance.bench.base import Connections
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.net import PairNet, threaded
from ds4proto_conformance.settings import Settings

__all__ = ["loop_opener"]

Opener = Callable[[Settings], AbstractContextManager[Connections]]


def loop_opener(fault: Fault) -> Opener:
    """Return an opener that starts a small peer with a fault.

    Raises
    ------
    ValueError
        There is no small peer of the fault's role.
    """
    if fault.role in ("tp-leader", "tp-worker"):
        from ds4proto_conformance.peers.tp_loop import tp_loop_opener

        return tp_loop_opener(fault)
    try:
        open_one = {"worker": _worker, "coordinator": _coordinator, "codec": _codec}[
            fault.role
        ]
    except KeyError:
        raise ValueError(f"no small peer of role {fault.role}") from None

    @contextmanager
    def opener(_settings: Settings) -> Iterator[Connections]:
        with open_one(fault) as session:
            yield session

    return opener


@contextmanager
def _worker(fault: Fault) -> Iterator[Connections]:
    from ds4proto_conformance.peers.worker import SmallWorker

    net = PairNet()
    peer = SmallWorker(net, fault=fault)
    with threaded(net, peer.run, peer.stop, tester_listens=True) as session:
        yield session


@contextmanager
def _coordinator(fault: Fault) -> Iterator[Connections]:
    from ds4proto_conformance.peers.coordinator import SmallCoordinator

    net = PairNet()
    peer = SmallCoordinator(net, fault=fault)
    with threaded(net, peer.run, peer.stop, tester_listens=False) as session:
        session.ask = peer.ask
        yield session


@contextmanager
def _codec(fault: Fault) -> Iterator[Connections]:
    from ds4proto_conformance.peers.codec import codec_session

    with codec_session(fault) as session:
        yield session
