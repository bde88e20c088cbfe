"""Gates told apart in a stream without lengths: dropped, changed, passed on."""

from __future__ import annotations

import random
import sys

import pytest

from ds4proto.link.ds4t_gate_headers import gate_spec, read_gate_header
from ds4proto.peer import SYSTEM_CLOCK, listen
from ds4proto.peer.connect import free_ports
from ds4proto.peer.proxy import Proxy
from ds4proto.peer.proxy_faults import parse_rule
from ds4proto.peer.proxy_frames import FrameEditor
from ds4proto.peer.proxy_gates import GateEditor, PairFacts
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto.schema.fast import struct_of
from ds4proto.testing import spawn_peer

VECTOR = 64
SHAPES = {"row": DS4T_MAGIC, "batch": DS4B_MAGIC, "bulk": DS4B_MAGIC}


def head(shape: str, layer: int, third: int, seq: int) -> bytes:
    spec = gate_spec(shape, "v14")  # type: ignore[arg-type] -- one of SHAPES
    return struct_of(spec.body, "v14").pack(SHAPES[shape], layer, third, seq)


def stream() -> list[tuple[bytes, bytes]]:
    """Return gates of a prefill and of three tokens, as headers and payloads."""
    draw = random.Random(4)
    # a bulk payload that holds the magics, and headers that do not follow
    bulk = draw.randbytes(500) + head("row", 0, 0, 0) + head("bulk", 1, BULK_TAG, 900)
    bulk += DS4T_MAGIC.to_bytes(4, "little") + draw.randbytes(301)
    gates = [(head("bulk", 0, BULK_TAG, 1), bulk)]
    gates += [(head("bulk", 1, BULK_TAG, 2), draw.randbytes(1000))]
    for seq in range(1, 4):
        gates.append((head("row", seq % 2, 0, seq), draw.randbytes(VECTOR)))
    gates += [(head("batch", 0, 3, 3), draw.randbytes(3 * VECTOR))]
    gates += [(head("row", 0, 0, 4), draw.randbytes(VECTOR))]
    return gates


def editor(*texts: str) -> tuple[GateEditor, list[str]]:
    said: list[str] = []
    rules = [parse_rule(text) for text in texts]
    facts = PairFacts("v14", VECTOR)
    return GateEditor(facts, rules, random.Random(1), said.append), said


def fed(made: GateEditor | FrameEditor, data: bytes, step: int) -> bytes:
    out = bytearray()
    for at in range(0, len(data), step):
        for part in made.feed(data[at : at + step]):
            out += part
    return bytes(out) + made.rest()


def joined(gates: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(part for gate in gates for part in gate)


@pytest.mark.parametrize("step", [1, 7, 16, 100, 1 << 20])
def test_without_a_rule_that_meets_nothing_changes(step: int) -> None:
    made, said = editor("drop=GATE_ROW,nth=99")
    assert fed(made, joined(stream()), step) == joined(stream())
    assert not said
    assert not made.lost


def test_bytes_of_a_bulk_gate_are_never_held_back() -> None:
    made, _ = editor("drop=GATE_ROW,nth=99")
    first, second = stream()[:2]
    assert b"".join(made.feed(joined([first])[:-3])) == joined([first])[:-3]
    assert b"".join(made.feed(joined([first])[-3:])) == joined([first])[-3:]
    assert b"".join(made.feed(joined([second]))) == joined([second])


@pytest.mark.parametrize("step", [16, 100, 1 << 20])
@pytest.mark.parametrize(
    ("rule", "left_out"),
    [
        ("drop=GATE_ROW,nth=2", [3]),
        ("drop=GATE_BATCH", [5]),
        ("drop=GATE_BULK", [0]),
        ("drop=GATE_ROW,every=yes", [2, 3, 4, 6]),
    ],
)
def test_gates_are_left_out(rule: str, left_out: list[int], step: int) -> None:
    gates = stream()
    if step == 16:  # headers of 16 bytes behind a bulk gate of 847 + 16 would be cut
        gates[0] = (gates[0][0], gates[0][1][:512])
        gates[1] = (gates[1][0], gates[1][1][:992])
    made, said = editor(rule)
    kept = [gate for at, gate in enumerate(gates) if at not in left_out]
    assert fed(made, joined(gates), step) == joined(kept)
    assert len(said) == len(left_out)
    assert "dropped " in said[0]


def test_a_field_of_a_header_is_changed_by_name() -> None:
    made, said = editor("corrupt=GATE_ROW.seq,value=77,nth=3")
    found = fed(made, joined(stream()), 1 << 20)
    gates = stream()
    gates[4] = (head("row", 1, 0, 77), gates[4][1])
    assert found == joined(gates)
    assert said == ["DS4T.GATE_ROW 3 (layer 1, seq 3): seq 3 became 77"]
    made, said = editor("corrupt=GATE_ROW.colour")
    assert fed(made, joined(stream()), 1 << 20) == joined(stream())
    assert said == ["DS4T.GATE_ROW has no field 'colour'"]


def test_a_payload_is_changed_in_its_first_byte() -> None:
    made, said = editor("corrupt=GATE_BATCH.payload")
    gates = stream()
    found = fed(made, joined(gates), 1 << 20)
    at = len(joined(gates[:5])) + 16
    assert found[at] != joined(gates)[at]
    assert found[:at] + found[at + 1 :] == joined(gates)[:at] + joined(gates)[at + 1 :]
    assert len(said) == 2


def test_what_is_no_gate_ends_the_telling_apart() -> None:
    made, said = editor("drop=GATE_ROW,every=yes")
    data = joined(stream()[2:3]) + b"no header at all, but bytes"
    assert fed(made, data, 1 << 20) == b"no header at all, but bytes"
    assert made.lost
    assert "no gate header" in said[1]


def test_a_connection_that_begins_with_a_gate_needs_a_hello_before() -> None:
    for facts, passes in ((PairFacts(), True), (PairFacts("v14", VECTOR), False)):
        made = FrameEditor(
            [parse_rule("drop=GATE_ROW,every=yes")], random.Random(1), rewrite=None,
            until_hello=False, note=lambda _text: None, pair=facts,
        )  # fmt: skip
        data = joined(stream()[2:5])
        assert (fed(made, data, 100) == data) is passes


def test_a_live_pair_names_the_gate_that_was_changed() -> None:
    """The whole way: the width from the HELLO, the gates of the other connection."""
    base = [sys.executable, "-m", "ds4proto", "run", "--tensor-parallel",
            "--engine", "toy", "--transport", "tcp"]  # fmt: skip
    (port,) = free_ports(1)
    leading = [*base, "--role", "coordinator", "--listen", "127.0.0.1", str(port),
               "--script", "create;sync:1:1-10;eval:1:5,6", "--json"]  # fmt: skip
    following = [*base, "--role", "worker", "--coordinator"]
    rule = parse_rule("corrupt=GATE_ROW.seq,value=99,nth=3,way=up")
    until = SYSTEM_CLOCK.now() + 300.0
    with (
        spawn_peer(leading) as leader,
        Proxy(listen(), ("127.0.0.1", port), rules=[rule]) as proxy,
    ):
        leader.wait_line("waiting for worker on", deadline=until)
        with spawn_peer([*following, *map(str, proxy.address)]):
            assert leader.wait(deadline=until) == 1, leader.output()
    assert "seq=99, want" in leader.output()
    assert len(proxy.faults) == 1
    assert "seq 3 became 99" in proxy.faults[0]


def test_headers_are_those_of_the_declaration() -> None:
    header = read_gate_header(head("row", 3, 1, 12), "v14")
    assert header is not None
    assert (header.shape, header.layer, header.third, header.seq) == ("row", 3, 1, 12)
