"""A toy peer for the tests: greets, echoes, misbehaves on request. Raw sockets only.

usage: toy_peer.py ACTION [HOST PORT [PORT2]]
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading


def echo(sock: socket.socket, greeting: bytes) -> None:
    sock.sendall(greeting)
    while data := sock.recv(65536):
        sock.sendall(data)
    sock.close()


def dial(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address)


def serve(address: tuple[str, int]) -> socket.socket:
    listener = socket.create_server(address)
    print("listening", flush=True)
    return listener


def block() -> None:
    threading.Event().wait()


def main() -> None:
    action, *rest = sys.argv[1:]
    address = (rest[0], int(rest[1])) if len(rest) > 1 else ("", 0)
    if action == "worker":
        data = serve((rest[0], int(rest[2])))
        control = dial(address)
        threading.Thread(target=echo, args=(control, b"HELLO"), daemon=True).start()
        while True:
            echo(data.accept()[0], b"DATA!")
    elif action == "coordinator":
        listener = serve(address)
        control = listener.accept()[0]
        port = int.from_bytes(control.recv(2), "big")
        echo(dial((rest[0], port)), b"FETCH")
    elif action == "tp-worker":
        control = dial(address)
        control.sendall(b"HELLO")
        control.recv(1)
        echo(dial(address), b"DATA!")
    elif action == "tp-leader":
        listener = serve(address)
        control = listener.accept()[0]
        control.sendall(b"HELLO")
        echo(listener.accept()[0], b"DATA!")
    elif action == "codec":
        print("ready to code", file=sys.stderr, flush=True)
        while vector := os.read(0, 4096):
            os.write(1, vector[::-1])
    elif action == "crash":
        print("cannot load model", file=sys.stderr, flush=True)
        sys.exit(7)
    elif action == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        block()
    elif action == "parent":
        child = subprocess.Popen([sys.executable, __file__, "stubborn"])
        print("child", child.pid, flush=True)
        block()
    elif action == "leaves-child":
        child = subprocess.Popen([sys.executable, __file__, "stubborn"])
        print("child", child.pid, flush=True)
    elif action == "chatter":
        for n in range(int(rest[0])):
            print(f"line {n:06}", flush=n % 100 == 0)
        print("done", flush=True)
        block()
    elif action == "spawner":
        # Starts a guarded peer, says so, and is then killed by the test.
        from ds4proto.peer import spawn

        peer = spawn([sys.executable, __file__, "stubborn"])
        peer.wait_line("ready", deadline=float("inf"))
        print("peer", peer.pid, flush=True)
        block()


main()
