"""Gates over TCP between two processes on loopback, through the full link layer.

What counts are the ratios of one run: the link layer against a bare ping-pong of the
same bytes in plain Python, blocking and spinning, and a bulk gate against a plain
socket copy. Run with ``--json`` for one line a table.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
from ds4proto_runtime.tp.gates import TcpGates
from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.tp.waiting import AdaptiveWait, SpinChoice, usable_cores

from bench._timing import measure, report
from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_limits import GateLimits
from ds4proto.link.ds4t_texts import TpRole

LAYERS, WIDTH = 8, 4096
SLOTS = 2 * LAYERS
GATE = 16 + 4 * WIDTH
GATES = 2000
BULK = 32 << 20
BUFFERS = 4 << 20
ROUNDS = 7
PATIENCE = 30.0
IDENTITY = Identity(1, 0, LAYERS, WIDTH, 32, 2, gates_per_token=SLOTS)


class Side:
    """One process: the same cases on both ends of one connection."""

    def __init__(self, data: socket.socket, control: socket.socket, rank: int) -> None:
        self.data, self.control = data, control
        for sock in (data, control):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERS)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFERS)
        self.out = memoryview(bytearray(GATE))
        self.back = memoryview(bytearray(GATE))
        self.bulk_out = memoryview(bytearray(BULK))
        self.bulk_in = memoryview(bytearray(BULK))
        self.times = np.zeros(GATES)
        self.slab = Slab(LAYERS, WIDTH)
        role: TpRole = "tp-leader" if rank == 0 else "tp-worker"
        limits = GateLimits(idle=PATIENCE, total=PATIENCE, bulk_total=PATIENCE)
        self.link = GateLink(TpSettings(role, IDENTITY), limits=limits)
        self.waits: dict[SpinChoice, AdaptiveWait] = {
            "auto": AdaptiveWait("auto"),
            "on": AdaptiveWait("on"),
            "off": AdaptiveWait("off"),
        }
        self.cases: dict[str, Callable[[], None]] = {
            "bare blocking ping-pong": self.blocking,
            "bare spinning ping-pong": self.spinning,
            "link layer, adaptive": lambda: self.gates("auto"),
            "link layer, spin": lambda: self.gates("on"),
            "link layer, block": lambda: self.gates("off"),
            "plain socket copy": self.copy,
            "bulk gate": self.bulk,
        }

    def blocking(self) -> None:
        """Exchange gates with blocking calls."""
        data, out, back = self.data, self.out, self.back
        data.setblocking(True)
        times = self.times
        for at in range(GATES):
            start = perf_counter()
            data.sendall(out)
            got = 0
            while got < GATE:
                got += data.recv_into(back[got:] if got else back)
            times[at] = perf_counter() - start

    def spinning(self) -> None:
        """Exchange gates by asking again and again."""
        data, out, back = self.data, self.out, self.back
        data.setblocking(False)
        times = self.times
        for at in range(GATES):
            start = perf_counter()
            sent = got = 0
            while sent < GATE or got < GATE:
                if sent < GATE:
                    try:  # noqa: SIM105 -- a context manager costs as much as the call
                        sent += data.send(out[sent:] if sent else out)
                    except BlockingIOError:
                        pass
                if got < GATE:
                    try:  # noqa: SIM105
                        got += data.recv_into(back[got:] if got else back)
                    except BlockingIOError:
                        pass
            times[at] = perf_counter() - start

    def transport(self, choice: SpinChoice) -> TcpGates:
        """Return gates over this connection."""
        wait = self.waits[choice]
        return TcpGates(self.data, self.control, self.link, self.slab, wait)

    def gates(self, choice: SpinChoice) -> None:
        """Exchange gates through the link layer."""
        transport, link, times = self.transport(choice), self.link, self.times
        for at in range(GATES):
            slot = (link.row_seq - 1) % SLOTS
            start = perf_counter()
            transport.row(slot // 2, slot % 2)
            times[at] = perf_counter() - start

    def copy(self) -> None:
        """Copy the bulk bytes both ways, two threads."""
        data = self.data
        data.setblocking(True)
        sender = threading.Thread(target=data.sendall, args=(self.bulk_out,))
        sender.start()
        got = 0
        while got < BULK:
            got += data.recv_into(self.bulk_in[got:])
        sender.join()

    def bulk(self) -> None:
        """Exchange one bulk gate."""
        self.transport("off").bulk(0, self.bulk_out, self.bulk_in)


def overhead() -> list[float]:
    """Return p50, p99, p99.9 of what the link layer adds to a gate, microseconds.

    Without sockets; the copy of the payload that stands for them is the size of a
    vector and counted in.
    """
    slab = Slab(LAYERS, WIDTH)
    link = GateLink(TpSettings("tp-leader", IDENTITY))
    best = [float("inf")] * 3
    times = np.zeros(GATES)
    for _ in range(5):
        for at in range(GATES):
            start = perf_counter()
            slot = (link.row_seq - 1) % SLOTS
            own, peer = slab.row_out[slot], slab.row_in[slot]
            link.begin_row(slot // 2, slot % 2, own, peer, 1.0)
            link.sent(GATE, 1.0)
            link.receive_view[:] = link.send_views[0]
            link.received(16, 1.0)
            link.received(GATE - 16, 1.0)
            times[at] = perf_counter() - start
        found = np.percentile(times * 1e6, (50, 99, 99.9)).tolist()
        best = [min(pair) for pair in zip(best, found, strict=True)]
    return best


def child(port: int) -> None:
    control = socket.create_connection(("127.0.0.1", port), PATIENCE)
    data = socket.create_connection(("127.0.0.1", port), PATIENCE)
    side = Side(data, control, 1)
    names = list(side.cases)
    control.setblocking(True)
    while word := control.recv(1):
        side.cases[names[word[0]]]()


def show(title: str, side: Side, run: Callable[[str], None]) -> None:
    names = [n for n in side.cases if "ping-pong" in n or "link" in n]
    rows: list[tuple[str, list[float]]] = []
    for name in names:
        run(name)
        micro = np.percentile(side.times * 1e6, (50, 99, 99.9))
        rows.append((name, [round(float(value), 1) for value in micro]))
    if "--json" in sys.argv[1:]:
        flat = [[name, *values] for name, values in rows]
        print(json.dumps({"benchmark": title, "rows": flat}))
        return
    print(f"\n{title}")
    for name, values in rows:
        print(f"  {name:26} " + "  ".join(f"{value:9.1f}" for value in values))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]))
        return
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(PATIENCE)
    port = listener.getsockname()[1]
    peer = subprocess.Popen([sys.executable, __file__, "--child", str(port)])
    try:
        control, data = listener.accept()[0], listener.accept()[0]
        side = Side(data, control, 0)
        names = list(side.cases)

        def run(name: str) -> None:
            control.sendall(bytes([names.index(name)]))
            side.cases[name]()

        def cases(wanted: list[str]) -> dict[str, Callable[[], None]]:
            return {name: partial(run, name) for name in wanted}

        rows = measure(cases(names[:5]), baseline=names[1], work=GATES, rounds=ROUNDS)
        for row in rows:  # two processes: wall time decides, not this thread's CPU
            object.__setattr__(row, "rate", GATES / row.wall_seconds)
        report(
            f"row gates, n_embd {WIDTH}, {usable_cores()} cores, load "
            f"{os.getloadavg()[0]:.1f} (thousand gates/s by wall; read the wall ratio)",
            rows,
            baseline=names[1],
            unit="kgates/s",
            scale=1e3,
        )
        show("one gate: p50, p99, p99.9 in us", side, run)
        alone = dict(zip(("p50", "p99", "p99.9"), overhead(), strict=True))
        if "--json" in sys.argv[1:]:
            print(json.dumps({"benchmark": "link layer alone, us a gate", **alone}))
        else:
            words = ", ".join(f"{name} {us:.2f}" for name, us in alone.items())
            print(f"link layer alone, us a gate: {words}")
        rows = measure(cases(names[5:]), baseline=names[5], work=BULK, rounds=5)
        for row in rows:
            object.__setattr__(row, "rate", BULK / row.wall_seconds)
        report(
            "bulk of 32 MiB, full duplex (bytes of one direction, by wall)",
            rows,
            baseline=names[5],
            unit="GB/s",
            scale=1e9,
        )
        control.close()
    finally:
        listener.close()
        try:
            peer.wait(5)
        except subprocess.TimeoutExpired:
            peer.kill()


if __name__ == "__main__":
    main()
