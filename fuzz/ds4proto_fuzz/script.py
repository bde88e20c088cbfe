"""``replay.py`` of a finding: standard library only, under 30 lines."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ds4proto_fuzz.findings import Finding

__all__ = ["script"]

_HEAD: Final = '''\
"""{what}
Usage: replay.py HOST PORT   {use}"""
import json, pathlib, socket, sys; socket.setdefaulttimeout(60)
case = json.loads(pathlib.Path(__file__).with_name("finding.json").read_text())["case"]
at, wires, said = (sys.argv[1], int(sys.argv[2])), {{}}, b""
try:
'''
_MEET: Final = {
    "worker": """\
server = socket.create_server(at)
wires["control"], (host, _) = server.accept()
hello = wires["control"].makefile("rb").read({port_end})
port = int.from_bytes(hello[{port}:{port_end}], "big")
dial = lambda on: socket.create_connection((host, port))
""",
    "coordinator": """\
dial = lambda on: socket.create_connection(at)
""",
    "tp-worker": """\
server = socket.create_server(at)
wire = wires["control"] = server.accept()[0]
hello = bytearray(wire.makefile("rb").read({size}))
if case["steps"][0]["type"] != "HELLO":
    hello[{role}] ^= 3; wire.sendall(hello); wires["data"] = server.accept()[0]
""",
    "tp-leader": """\
wires["control"] = socket.create_connection(at)
wires["control"].makefile("rb").read({size})
wires["data"] = socket.create_connection(at)
""",
}
_USE: Final = {
    "worker": "(where the worker is told to dial its coordinator)",
    "coordinator": "(where the coordinator listens)",
    "tp-worker": "(where the worker is told to dial its leader)",
    "tp-leader": "(where the leader listens)",
}
_BODY: Final = """\
    for turn in range(case["repeat"]):
        for step in case["steps"]:
            wire = wires[step["on"]] = wires.get(step["on"]) or dial(step["on"])
            data = bytearray.fromhex(step["hex"])
{change}            wire.sendall(data); wire.settimeout(3)
            if step["then"] in {ends}: wire.shutdown(socket.SHUT_WR)
            if step["then"] == "wait"{waits}: said = wire.recv(65536); print(said.hex())
        if turn + 1 == case["repeat"]: break
        for name in {{s["on"] for s in case["steps"]}}: wires.pop(name).close()
    for name in {{step["on"] for step in case["steps"]}}:
        print(name, wires[name].recv(65536).hex() or "closed")
except (OSError, IndexError) as error:
    print("then:", error)
"""
_CHANGE: Final = """\
            for a, n in step.get("vary", ()) if turn else ():
                new = (int.from_bytes(data[a:a+n], "big") + turn) % (1 << 8 * n)
                if a + n <= len(data): data[a:a+n] = new.to_bytes(n, "big")
            for a, n, b in step.get("copy", ()):
                if max(a - len(data), b - len(said)) <= -n: data[a:a+n] = said[b:b+n]
"""
_NEXT: Final = """\
below = socket.create_server(("127.0.0.1", 0))
ports = {"own": port, "next": below.getsockname()[1]}
dial = lambda on: below.accept()[0] if on == "next" else \\
    socket.create_connection((host, port))
"""
_PORTS: Final = """\
            for a, whose in step.get("ports", ()):
                if a + 4 <= len(data): data[a:a+4] = ports[whose].to_bytes(4, "big")
"""
_ENDS: Final = ("half-close", "close", "reset")


def script(finding: Finding) -> str:
    """Return the text of ``replay.py``."""
    role = str(finding.peer.get("role", "worker"))
    head = _HEAD.format(what=str(finding.effect).replace('"', "'").replace("\\", "/"),
                        use=_USE[role])  # fmt: skip
    meet = _MEET[role]
    if role == "worker":
        from ds4proto.schema.declare import offsets_of
        from ds4proto.schema.ds4d_hello import HELLO

        at = HELLO.header_size + offsets_of(HELLO.body, "upstream")["listen_port"]
        meet = meet.format(port=at, port_end=at + 4)
    elif role != "coordinator":
        from ds4proto.schema.declare import offsets_of
        from ds4proto.schema.ds4t_hello import HELLO as PAIR

        dialect = str(finding.peer.get("dialect", "v14"))
        at = offsets_of(PAIR.body, dialect)["role"]
        meet = meet.format(size=PAIR.fixed_size(dialect), role=at)
    change, waits = _CHANGE, ""
    if any(step.on in ("above", "next") for step in finding.case.steps):
        # what has gone on to the next hop has no answer until the next hop gives one
        change, waits = _PORTS, ' and step["on"] != "above"'
        meet = "".join(meet.splitlines(keepends=True)[:-1]) + _NEXT
    body = _BODY.format(change=change, waits=waits, ends=_ENDS)
    return head + indent(meet, "    ") + body
