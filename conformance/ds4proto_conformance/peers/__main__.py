"""``python -m ds4proto_conformance.peers ROLE MUTANT HOST PORT``: a small peer."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

from ds4proto_conformance.mutants import find
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.net import HOST, TcpNet

ROLES = ("worker", "coordinator", "tp-leader", "tp-worker")
REDIAL = 1.0
"""Seconds between two tries of a worker to reach its coordinator."""


def _peer(role: str, fault: Fault, address: tuple[str, int]) -> tuple[Any, TcpNet]:
    listens = role in ("coordinator", "tp-leader")
    near = "::1" if ":" in address[0] else HOST
    net = TcpNet(address if listens else (near, 0))
    if role == "worker":
        from ds4proto_conformance.peers.worker import SmallWorker

        worker = SmallWorker(net, fault=fault, coordinator=address)
        worker.redial = REDIAL
        return worker, net
    if role == "coordinator":
        from ds4proto_conformance.peers.coordinator import SmallCoordinator

        return SmallCoordinator(net, fault=fault), net
    if role == "tp-worker":
        from ds4proto_conformance.peers.tp_worker import SmallTpWorker

        return SmallTpWorker(net, fault=fault, coordinator=address), net
    from ds4proto_conformance.peers.tp_leader import SmallTpLeader

    return SmallTpLeader(net, fault=fault), net


def main() -> int:
    """Run one small peer until it ends, or is ended."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m ds4proto_conformance.peers worker skip-WORK-07"
        " 127.0.0.1 5555",
    )
    parser.add_argument("role", choices=ROLES, help="what the peer is")
    parser.add_argument("mutant", help="its fault; none for a sound one")
    parser.add_argument("host", help="where to dial, or to listen")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    try:
        fault = find(options.role, options.mutant)
        peer, net = _peer(options.role, fault, (options.host, options.port))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: peer.stop())
    signal.signal(signal.SIGINT, lambda *_: peer.stop())
    peer.run()
    net.close()
    for line in getattr(peer, "lines", ()):  # what a rank says of its end
        print(line, file=sys.stderr)
    if peer.crash is not None:
        print(f"crashed: {peer.crash!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
