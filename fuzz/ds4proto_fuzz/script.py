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
import json, pathlib, socket, sys
case = json.loads(pathlib.Path(__file__).with_name("finding.json").read_text())["case"]
at, wires, said = (sys.argv[1], int(sys.argv[2])), {{}}, b""
socket.setdefaulttimeout(60)
try:
'''
_MEET: Final = {
    "worker": """\
server = socket.create_server(at)
wires["control"], (host, _) = server.accept()
hello = wires["control"].makefile("rb").read({port_end})
port = int.from_bytes(hello[{port}:{port_end}], "big")
dial = lambda: socket.create_connection((host, port))
""",
    "coordinator": """\
dial = lambda: socket.create_connection(at)
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
            wire = wires[step["on"]] = wires.get(step["on"]) or dial()
            data = bytearray.fromhex(step["hex"])
            for a, n in step.get("vary", ()) if turn else ():
                new = (int.from_bytes(data[a:a+n], "big") + turn) % (1 << 8 * n)
                if a + n <= len(data): data[a:a+n] = new.to_bytes(n, "big")
            for a, n, b in step.get("copy", ()):
                if max(a - len(data), b - len(said)) <= -n: data[a:a+n] = said[b:b+n]
            wire.sendall(data); wire.settimeout(3)
            if step["then"] == "half-close": wire.shutdown(socket.SHUT_WR)
            if step["then"] == "wait": said = wire.recv(65536); print(said.hex())
        if turn + 1 < case["repeat"]: wires.pop(case["steps"][0]["on"]).close()
    for name in {step["on"] for step in case["steps"]}:
        print(name, wires[name].recv(65536).hex() or "closed")
except (OSError, IndexError) as error:
    print("then:", error)
"""


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
    return head + indent(meet, "    ") + _BODY
