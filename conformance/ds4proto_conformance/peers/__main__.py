"""``python -m ds4proto_conformance.peers ROLE MUTANT HOST PORT``: a small peer."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from typing import Any

from ds4proto_conformance.mutants import find
from ds4proto_conformance.peers.net import TcpNet


def main() -> int:
    """Run one small peer until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("worker", "coordinator"))
    parser.add_argument("mutant")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    try:
        fault = find(options.role, options.mutant)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    peer: Any
    if options.role == "worker":
        from ds4proto_conformance.peers.worker import SmallWorker

        net = TcpNet()
        peer = SmallWorker(net, fault=fault, coordinator=(options.host, options.port))
        peer.redial = 1.0
    else:
        from ds4proto_conformance.peers.coordinator import SmallCoordinator

        net = TcpNet((options.host, options.port))
        peer = SmallCoordinator(net, fault=fault)
    signal.signal(signal.SIGTERM, lambda *_: peer.stop())
    signal.signal(signal.SIGINT, lambda *_: peer.stop())
    peer.run()
    net.close()
    if peer.crash is not None:
        print(f"crashed: {peer.crash!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with socket.socket():  # a platform without sockets says so at once
        pass
    sys.exit(main())
