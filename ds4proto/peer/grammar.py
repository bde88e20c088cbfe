"""The ``--peer`` grammar: one string names any peer, for every command. Pure parsing.

The shape ``kind:rest`` follows the connectables of other protocol test beds. Nothing is
opened, resolved or started here; that is `ds4proto.peer.open_peer`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ds4proto.peer.api import ROLES, Role
from ds4proto.peer.errors import PeerSpecError

GRAMMAR = """\
a peer is one of
  tcp:HOST:PORT           dial it                     tcp:127.0.0.1:5555
  listen:HOST:PORT        wait for it, 0 = any port   listen:[::1]:0
  exec:COMMAND            start it                    exec:./ds4 --listen {host} {port}
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
        """Return the highest ``{portN}`` of the command, at least 1."""
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
    if len(spec) > MAX_SPEC:
        raise PeerSpecError(
            f"the peer text has {len(spec)} characters, at most {MAX_SPEC} are read",
            spec=spec[:40] + "...",
        )
    kind, colon, rest = spec.partition(":")
    parser = _PARSERS.get(kind)
    if not colon or parser is None:
        kinds = ", ".join(f"{name}:" for name in _PARSERS)
        raise PeerSpecError(
            f"{kind!r} is not a kind of peer; expected one of {kinds}",
            spec=spec,
            end=len(kind),
        )
    return parser(_Text(spec, len(kind) + 1, len(spec)), rest)


def fill(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Replace ``{host}``, ``{port}``, ``{port2}`` .. ``{port9}``; other braces stay.

    Raises
    ------
    KeyError
        A placeholder that `values` lacks.
    """
    return [_PLACEHOLDER.sub(lambda m: values[m[1]], word) for word in argv]


def wanted_ports(argv: Sequence[str]) -> int:
    """Return the highest port number named in `argv`, at least 1."""
    numbers = [m[2] for word in argv for m in _PLACEHOLDER.finditer(word)]
    return max((int(n) for n in numbers if n), default=1)


_PLACEHOLDER = re.compile(r"\{(host|port([2-9])?)\}")
_MUTANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class _Text:
    """A part of the whole text, for pointing at it."""

    spec: str
    start: int
    end: int

    def refuse(self, message: str, start: int = 0, end: int | None = None) -> NoReturn:
        last = self.end if end is None else self.start + end
        raise PeerSpecError(message, spec=self.spec, start=self.start + start, end=last)


def _host_port(text: _Text, rest: str, lowest: int) -> tuple[str, int]:
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket:
            text.refuse("the bracket of the IPv6 address is not closed")
        at = len(host) + 2
        if not tail.startswith(":"):
            text.refuse("expected ':PORT' after the bracket", at)
        port_at, port = at + 1, tail[1:]
    else:
        host, colon, port = rest.rpartition(":")
        if not colon:
            text.refuse("expected HOST:PORT")
        if ":" in host:
            text.refuse(
                "an IPv6 address needs brackets, as in [::1]:5555", 0, len(host)
            )
        port_at = len(host) + 1
    if not host or any(c.isspace() or not c.isprintable() for c in host):
        text.refuse("expected a host name or address", 0, port_at - 1)
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        text.refuse("expected a decimal port number", port_at)
    number = int(port)
    if not lowest <= number <= 65535:
        text.refuse(f"expected a port in {lowest}..65535", port_at)
    return host, number


def _tcp(text: _Text, rest: str) -> Tcp:
    return Tcp(*_host_port(text, rest, 1))


def _listen(text: _Text, rest: str) -> Listen:
    return Listen(*_host_port(text, rest, 0))


def _words(text: _Text, rest: str) -> tuple[str, ...]:
    if "\0" in rest:
        text.refuse("a command cannot hold a NUL character", rest.index("\0"))
    try:
        words = shlex.split(rest)
    except ValueError as error:
        text.refuse(f"the command cannot be split into words ({error})")
    if not words or not words[0]:
        text.refuse("expected a command")
    return tuple(words)


def _exec(text: _Text, rest: str) -> Exec:
    return Exec(_words(text, rest))


def _codec(text: _Text, rest: str) -> CodecCommand:
    return CodecCommand(_words(text, rest))


def _reference(text: _Text, rest: str) -> Reference:
    name, colon, mutant = rest.partition(":")
    for role in ROLES:
        if role == name:
            break
    else:
        roles = ", ".join(ROLES)
        text.refuse(f"expected a role: {roles}", 0, len(name))
    if colon and not _MUTANT.fullmatch(mutant):
        text.refuse("expected a mutant's name", len(name) + 1)
    return Reference(role, mutant if colon else None)


def _capture(text: _Text, rest: str) -> Capture:
    if not rest or "\0" in rest:
        text.refuse("expected the path of a capture file")
    return Capture(rest)


_PARSERS: Mapping[str, Callable[[_Text, str], PeerSpec]] = {
    "tcp": _tcp,
    "listen": _listen,
    "exec": _exec,
    "reference": _reference,
    "capture": _capture,
    "codec": _codec,
}
