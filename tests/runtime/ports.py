"""Ports that stay a test's own until a process of it listens there."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Give a free port of the loopback interface that nobody else is given.

    On Linux a bound socket that does not listen keeps the system from giving its port
    away, and a listener with SO_REUSEADDR may still take it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port
