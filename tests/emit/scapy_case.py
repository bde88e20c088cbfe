"""Scapy layers: build, dissect, and put streams together; run by ``make test-scapy``.

Scapy is GPL-2.0-only and not among the tools of development, so that this file is no
``test_*.py``: pytest runs it only where it is named.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from ds4proto.emit.strategies import valid_frames
from ds4proto.schema import frame, frames, read
from ds4proto.trace.decoder import decode
from tests.schema.forms import bounded
from tests.spec.chapters import SPEC, examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from scapy.layers.inet import TCP
    from scapy.sendrecv import sniff
    from scapy.sessions import TCPSession

    from ds4proto.emit.scapy_layers import DS4D, Ds4Packet, bind, layer, scapy_name

CAPTURES = Path(__file__).parents[2] / "conformance" / "captures"

FRAMES = [
    (spec.full_name, dialect)
    for dialect in (
        "upstream",
        "anyei",
        "local-decode",
        "v1",
        "v7",
        "v9w",
        "v14",
        "v15",
    )
    for spec in frames(dialect=dialect)
    if not spec.opaque
]


def value(packet: Any, path: str) -> Any:
    for part in path.split("."):
        packet = (
            packet[int(part)]
            if part.isdigit()
            else packet.getfieldval(scapy_name(part))
        )
    return packet


@pytest.mark.parametrize(("name", "dialect"), FRAMES)
def test_what_is_dissected_builds_the_same(name: str, dialect: str) -> None:
    spec = frame(name, dialect=dialect)

    @bounded(25)
    @given(valid_frames(spec, dialect))
    def check(data: bytes) -> None:
        packet = layer(name, dialect)(data)
        assert bytes(packet) == data
        values = read(spec, data, dialect=dialect).values
        for entry in spec.fixed(dialect):
            assert packet.getfieldval(entry.path) == values[entry.path], entry.path
        fresh = layer(name, dialect)(**packet.fields)
        assert bytes(fresh) == data

    check()


def test_the_examples_of_the_specification() -> None:
    for example in examples(SPEC / "02-ds4d.md"):
        packet = layer(example.frame, example.dialect)(example.data)
        for path, shown in example.values.items():
            found = value(packet, path)
            if isinstance(found, int):
                assert found == int(shown, 0), path
            elif isinstance(found, list):
                assert found == [int(word) for word in shown.split()], path
            else:
                assert found.decode() == shown, path


def test_lengths_are_computed_and_lies_are_kept() -> None:
    work = layer("DS4D.WORK", "upstream")
    packet = work(request=9, n_tokens=2, tokens=[3, 5])
    again = work(bytes(packet))
    assert (again.token_bytes, again.tokens, again.request) == (8, [3, 5], 9)
    assert again.header_bytes == len(bytes(packet)) - 12
    lie = work(request=9, n_tokens=2, tokens=[3, 5], token_bytes=4)
    assert bytes(lie)[12 + 56 : 12 + 60] == b"\0\0\0\4"


def test_streams_are_put_together() -> None:
    bind(21100)
    path = CAPTURES / "ds4d" / "g_kill_between_requests_s2.pcap"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packets = sniff(offline=str(path), session=TCPSession, quiet=True)
    seen = [
        (packet[TCP].payload.spec.name, packet[TCP].payload)
        for packet in packets
        if TCP in packet and isinstance(packet[TCP].payload, Ds4Packet)
    ]
    names = [name for name, _ in seen]
    assert names.count("HELLO") == 2
    assert names.count("WORK") == 7
    assert names.count("RESULT") == 7
    requests = [packet.request for name, packet in seen if name == "WORK"]
    assert requests == [1, 2, 3, 4, 5, 6, 7]


def test_a_hello_and_commands_of_the_pair_are_put_together() -> None:
    path = CAPTURES / "ds4t" / "v10_decode8.pcap"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = sniff(offline=str(path), quiet=True)
        port = next(p[TCP].dport for p in raw if TCP in p)
        bind(port, "DS4T")
        packets = sniff(offline=str(path), session=TCPSession, quiet=True)
    names = [
        packet[TCP].payload.spec.name
        for packet in packets
        if TCP in packet and isinstance(packet[TCP].payload, Ds4Packet)
    ]
    rows = [row.type for row in decode(str(path)) if "GATE" not in row.type]
    assert sorted(names) == sorted(rows)
    assert names.count("EVAL") == 8


def test_an_unknown_type_is_left_alone() -> None:
    assert DS4D.tcp_reassemble(b"DS4D" + b"\0\0\0\x63" + bytes(4), {}, {}) is None
    assert DS4D.tcp_reassemble(b"GET / HTTP/1.1\r\n\r\n", {}, {}) is None
