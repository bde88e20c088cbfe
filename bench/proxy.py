"""The proxy against a direct connection, and its latency against bare Python hops.

Two processes talk over loopback: directly, through ``ds4proto proxy``, through one that
records, and through bare relays (read, write, nothing else), one and two in a row. What
counts are the ratios of one run: at least half of the direct throughput, 0.3 of it
recorded, and no more added latency than two bare hops add.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

from bench._timing import measure, report

BULK = 64 << 20
PIECE = 1 << 20
ROUNDS = 15
PINGS = 400
PING = 256
PATIENCE = 60.0
Address = tuple[str, int]


def relay(listener: socket.socket, target: Address) -> None:
    """Pass bytes on, as plainly as Python can."""

    def copy(source: socket.socket, goal: socket.socket) -> None:
        buffer = memoryview(bytearray(PIECE))
        while count := source.recv_into(buffer):
            goal.sendall(buffer[:count])
        goal.shutdown(socket.SHUT_WR)

    while True:
        client = listener.accept()[0]
        server = socket.create_connection(target)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((client, server), (server, client)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def peer(listener: socket.socket) -> None:
    """Answer pings with pings, and a bulk with one byte."""
    while True:
        sock = listener.accept()[0]
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def serve(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(PIECE))
    while order := sock.recv(1):
        if order == b"p":
            exactly(sock, buffer[: PING - 1])
            sock.sendall(buffer[:PING])
        else:
            left = BULK
            while left:
                left -= sock.recv_into(buffer[: min(left, PIECE)])
            sock.sendall(b"d")


def exactly(sock: socket.socket, view: memoryview) -> None:
    while len(view):
        count = sock.recv_into(view)
        if not count:
            raise ConnectionError("the other side has gone")
        view = view[count:]


@contextmanager
def process(*words: str) -> Iterator[Address]:
    """Start a child that says its port in a line."""
    child = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        port = line.split("listening on ")[1].split(",")[0].rpartition(":")[2]
        threading.Thread(target=child.stdout.read, daemon=True).start()
        yield ("127.0.0.1", int(port))
    finally:
        child.terminate()
        child.wait(PATIENCE)


def child(kind: str, target: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on 127.0.0.1:{listener.getsockname()[1]},", flush=True)
    if kind == "peer":
        peer(listener)
    else:
        relay(listener, ("127.0.0.1", int(target)))


def ping(sock: socket.socket, view: memoryview) -> float:
    start = perf_counter()
    sock.sendall(b"p" + bytes(PING - 1))
    exactly(sock, view[:PING])
    return perf_counter() - start


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def through(target: Address, *extra: str) -> Address:
            to = f"{target[0]}:{target[1]}"
            words = ("-m", "ds4proto", "proxy", "--to", to, *extra)
            return stack.enter_context(process(*words))

        def bare(target: Address) -> Address:
            words = (__file__, "--child", "relay", str(target[1]))
            return stack.enter_context(process(*words))

        goal = stack.enter_context(process(__file__, "--child", "peer", "0"))
        hop = bare(goal)
        places = {
            "direct": goal,
            "proxy": through(goal),
            "proxy, recording": through(goal, "--record", str(folder / "x.pcapng")),
            "one bare Python hop": hop,
            "two bare Python hops": bare(hop),
        }
        socks = {}
        for name, place in places.items():
            sock = stack.enter_context(socket.create_connection(place, PATIENCE))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks[name] = sock
        data = memoryview(bytes(PIECE))
        answer = memoryview(bytearray(PIECE))

        def bulk(name: str) -> Callable[[], None]:
            def run() -> None:
                socks[name].sendall(b"b")
                for _ in range(BULK // PIECE):
                    socks[name].sendall(data)
                exactly(socks[name], answer[:1])

            return run

        rows = measure(
            {name: bulk(name) for name in socks}, baseline="direct", work=BULK,
            rounds=ROUNDS,
        )  # fmt: skip
        for row in rows:  # several processes: wall time decides
            object.__setattr__(row, "rate", BULK / row.wall_seconds)
        report(
            "64 MiB over loopback (by wall; read the wall ratio)", rows,
            baseline="direct", unit="GB/s", scale=1e9,
        )  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in socks}
        for _ in range(PINGS):
            for name, sock in socks.items():
                times[name].append(ping(sock, answer))
        plain = sorted(times["direct"])[PINGS // 2]
        for name, found in times.items():
            found.sort()
            middle, late = found[PINGS // 2], found[int(0.99 * PINGS)]
            micro = {
                "p50_us": 1e6 * middle,
                "p99_us": 1e6 * late,
                "added_us": 1e6 * (middle - plain),
            }
            if "--json" in sys.argv[1:]:
                title = f"{PING} B there and back"
                print(json.dumps({"benchmark": title, "case": name, **micro}))
                continue
            print(
                f"{name}: {PING} B there and back, p50 {micro['p50_us']:.1f} us, p99 "
                f"{micro['p99_us']:.1f} us, added {micro['added_us']:.1f} us"
            )


if __name__ == "__main__":
    main()
