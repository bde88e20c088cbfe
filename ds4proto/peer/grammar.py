"""The ``--peer`` grammar: one string names any peer, for every command. Pure parsing.

The shape ``kind:rest`` follows the connectables of other protocol test beds. Nothing is
opened, resolved or started here; that is `ds4proto.peer.open_peer`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ds4proto.peer.api import ROLES, Role
from ds4proto.peer.errors import PeerSpecError

GRAMMAR = """\
a peer is one of
  tcp:HOST:PORT           dial it                     tcp:127.0.0.1:5555
  listen:HOST:PORT        wait for it, 0 = any port   listen:[::1]:0
  exec:COMMAND            start it                    exec:./ds4 --coordinator {host} {port}
  reference:ROLE[:MUTANT] our own peer                reference:worker
  capture:FILE            judge a recording           capture:run.pcap
  codec:COMMAND           a codec shim on its stdin   codec:./shim
HOST is a name, an IPv4 address, or an IPv6 address in brackets; PORT is 0..65535 for
listen and 1..65535 for tcp; COMMAND is split into words without a shell, and {host},
{port}, {port2} .. {port9} are filled in; ROLE is coordinator, worker, tp-leader,
tp-worker or codec."""

MAX_SPEC = 65536
"""Longest accepted text: far over any command line, far under any harm."""


@dataclass(frozen=True, slots=True)
class Tcp:
    """``tcp:HOST:PORT``: a peer that listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listen:
    """``listen:HOST:PORT``: a peer that will dial us; port 0 lets the system choose."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Exec:
    """``exec:COMMAND``: a peer that we start; `argv` still holds the placeholders."""

    argv: tuple[str, ...]

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """Return the words with ``{host}``, ``{port}``, ``{port2}`` .. replaced."""
        return fill(self.argv, values)

    def ports(self) -> int:
        """Return how many ports the command wants: the highest ``{portN}``, at least 1."""
        return wanted_ports(self.argv)


@dataclass(frozen=True, slots=True)
class Reference:
    """``reference:ROLE[:MUTANT]``: a peer registered in ``ds4proto.peers``."""

    role: Role
    mutant: str | None


@dataclass(frozen=True, slots=True)
class Capture:
    """``capture:FILE``: a recording, judged passively."""

    path: str


@dataclass(frozen=True, slots=True)
class CodecCommand:
    """``codec:COMMAND``: a program that answers codec vectors on stdin and stdout."""

    argv: tuple[str, ...]


PeerSpec = Tcp | Listen | Exec | Reference | Capture | CodecCommand


def parse_peer(spec: str) -> PeerSpec:
    """Parse one ``--peer`` text.

    Raises
    ------
    PeerSpecError
        Names the offending part and lists the grammar.
    """
    raise NotImplementedError


def fill(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Replace ``{host}``, ``{port}``, ``{port2}`` .. ``{port9}``; other braces stay."""
    raise NotImplementedError


def wanted_ports(argv: Sequence[str]) -> int:
    """Return the highest port number named in `argv`, at least 1."""
    raise NotImplementedError
