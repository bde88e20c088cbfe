"""The --peer grammar: every form, every refusal, and where the pointer stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4proto.peer import GRAMMAR, PeerSpecError, parse_peer
from ds4proto.peer.grammar import (
    Capture,
    CodecCommand,
    Exec,
    Listen,
    Reference,
    Tcp,
    fill,
    wanted_ports,
)

GOOD = {
    "tcp:127.0.0.1:5555": Tcp("127.0.0.1", 5555),
    "tcp:node-3.local:65535": Tcp("node-3.local", 65535),
    "tcp:[fe80::1%eth0]:1": Tcp("fe80::1%eth0", 1),
    "listen:127.0.0.1:0": Listen("127.0.0.1", 0),
    "listen:[::1]:5555": Listen("::1", 5555),
    "exec:./ds4 --listen {host} {port}": Exec(
        ("./ds4", "--listen", "{host}", "{port}")
    ),
    "exec:sh -c 'a b; c:d'": Exec(("sh", "-c", "a b; c:d")),
    "reference:worker": Reference("worker", None),
    "reference:tp-leader:stale-hash": Reference("tp-leader", "stale-hash"),
    "capture:runs/a:b.pcap": Capture("runs/a:b.pcap"),
    "codec:./shim --e4m3": CodecCommand(("./shim", "--e4m3")),
}


@pytest.mark.parametrize("spec", GOOD)
def test_every_form(spec: str) -> None:
    assert parse_peer(spec) == GOOD[spec]


BAD = {
    # spec: (part that the pointer marks, words of the message)
    "": ("", "not a kind of peer"),
    "localhost:5555": ("localhost", "not a kind of peer; expected one of tcp:"),
    "tcp": ("tcp", "not a kind of peer"),
    "TCP:a:1": ("TCP", "not a kind of peer"),
    "tcp:": ("", "HOST:PORT"),
    "tcp:host": ("host", "HOST:PORT"),
    "tcp::5555": ("", "host name"),
    "tcp:ho st:5": ("ho st", "host name"),
    "tcp:host:": ("", "decimal port"),
    "tcp:host:http": ("http", "decimal port"),
    "tcp:host:+80": ("+80", "decimal port"),
    "tcp:host:٣": ("٣", "decimal port"),
    "tcp:host:0": ("0", "port in 1..65535"),
    "tcp:host:65536": ("65536", "port in 1..65535"),
    "listen:h:65536": ("65536", "port in 0..65535"),
    "tcp:::1:80": ("::1", "needs brackets"),
    "tcp:[::1": ("[::1", "not closed"),
    "tcp:[::1]80": ("80", "':PORT' after"),
    "tcp:[]:80": ("[]", "host name"),
    "exec:": ("", "expected a command"),
    "exec:''": ("''", "expected a command"),
    "exec:a 'b": ("a 'b", "No closing quotation"),
    "exec:a\0b": ("\0b", "NUL"),
    "reference:boss": ("boss", "expected a role: coordinator, worker"),
    "reference:worker:": ("", "mutant's name"),
    "reference:worker:a b": ("a b", "mutant's name"),
    "capture:": ("", "path of a capture"),
    "codec:": ("", "expected a command"),
}


@pytest.mark.parametrize("spec", BAD)
def test_refusals_point_at_the_part_and_list_the_grammar(spec: str) -> None:
    part, words = BAD[spec]
    with pytest.raises(PeerSpecError) as caught:
        parse_peer(spec)
    error = caught.value
    assert spec[error.start : error.end] == part
    assert words in error.message
    assert GRAMMAR in str(error)
    assert error.exit_code == 2
    if "\0" not in spec:
        shown, marks = str(error).splitlines()[1:3]
        assert shown == f"  {spec}"
        assert marks == "  " + " " * error.start + "^" * max(1, len(part))


def test_long_text_is_refused_without_repeating_it() -> None:
    with pytest.raises(PeerSpecError) as caught:
        parse_peer("exec:" + "x" * 100_000)
    assert "100005 characters" in str(caught.value)
    assert len(str(caught.value)) < 2000


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for prefix in ("", "tcp:", "listen:[", "exec:", "reference:", "codec:"):
        try:
            parse_peer(prefix + text)
        except PeerSpecError:
            continue


def test_placeholders() -> None:
    argv = ("w", "--c={host}:{port}", "{port3}", "{other} {}", "{port1}")
    assert wanted_ports(argv) == 3
    assert wanted_ports(("x",)) == 1
    values = {"host": "::1", "port": "1", "port2": "2", "port3": "3"}
    assert fill(argv, values) == ["w", "--c=::1:1", "3", "{other} {}", "{port1}"]
    # A filled value is not filled again.
    assert fill(("{host}",), {"host": "{port}"}) == ["{port}"]
