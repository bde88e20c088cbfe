"""Planted faults through real tshark: one broken frame a connection, one expert item.

Every fault that ``emit.faults`` knows how to plant in a DS4D frame of upstream, and in
a DS4T frame of the main dialect, is written into one capture. Wireshark has to name the
clause of each, but for the few whose rule Lua cannot say.
"""

from pathlib import Path

import pytest
from hypothesis import Phase, find, settings

from ds4proto.cli._spec_coverage import _clause_of
from ds4proto.emit.faults import Fault, faults
from ds4proto.emit.lua import lua_dissector
from ds4proto.emit.lua_rules import lua_test
from ds4proto.emit.strategies import nearly_valid
from ds4proto.pcap.build import TcpConversation
from ds4proto.pcap.types import Endpoint
from ds4proto.pcap.writer import PcapWriter
from ds4proto.schema import frames
from ds4proto.schema.declare import FrameSpec, Rule
from tests.emit.tshark import by_tshark
from tests.link.tp import hello
from tests.schema.forms import bounded

Planted = tuple[FrameSpec, str, Fault, str]


def planted() -> list[Planted]:
    """Return every fault with a clause: frame, dialect, fault, clause."""
    found = []
    for dialect in ("upstream", "v14"):
        for spec in frames(dialect=dialect):
            if spec.header is None or spec.opaque:
                continue  # gates have no header of their own
            for fault in faults(spec, dialect):
                clause = _clause_of(fault, spec)
                if clause:
                    found.append((spec, dialect, fault, clause))
    return found


PLANTED = planted()
FIRST_PORT = 20000


def broken(spec: FrameSpec, dialect: str, fault: Fault, clause: str) -> bytes:
    """Return a frame with one fault, the same in every run."""
    found = find(
        nearly_valid(spec, dialect, fault=fault),
        lambda f: f.clause == clause,
        settings=settings(bounded(300), phases=[Phase.generate]),
    )
    return found.data


def capture(path: Path) -> Path:
    """Write one connection for each fault; its port tells which."""
    with PcapWriter(path) as sink:
        for number, one in enumerate(PLANTED):
            spec, dialect, _, _ = one
            data = broken(*one)
            if spec.protocol == "DS4T" and spec.name != "HELLO":
                data = hello(dialect, 1) + data
            a, b = Endpoint("10.0.0.1", FIRST_PORT + number), Endpoint("10.0.0.2", 1000)
            talk = TcpConversation(sink, a, b)
            talk.open(number)
            talk.data(number, "a>b", data)
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capture(tmp_path_factory.mktemp("faults") / "faults.pcap")


def missed(script: str, faulty: Path) -> set[str]:
    """Return the clauses of faults that tshark does not name, where Lua could."""
    path = faulty.with_suffix(".lua")
    path.write_text(script, "utf-8")
    seen: dict[int, set[str]] = {}
    for (source, _), shown in by_tshark(path, faulty).items():
        number = int(source.rpartition(":")[2]) - FIRST_PORT
        seen[number] = {clause for one in shown for clause in one.clauses}
    return {
        clause
        for number, (_, _, fault, clause) in enumerate(PLANTED)
        if said_in_lua(fault) and clause not in seen.get(number, set())
    }


def said_in_lua(fault: Fault) -> bool:
    """Tell whether Lua can judge what is broken."""
    return not isinstance(fault, Rule) or lua_test(fault.test) is not None


def test_tshark_names_the_clause_of_every_planted_fault(faulty: Path) -> None:
    assert missed(lua_dissector(), faulty) == set()


def test_a_dissector_that_names_another_clause_is_caught(faulty: Path) -> None:
    script = lua_dissector()
    for clause in ("DS4D-WORK-07", "DS4T-STOP-01"):
        assert clause in {one[-1] for one in PLANTED}
        script = script.replace(clause, "DS4D-NONE-00")
    assert missed(script, faulty) == {"DS4D-WORK-07", "DS4T-STOP-01"}


def test_most_planted_faults_can_be_said_in_lua() -> None:
    assert len(PLANTED) > 100
    said = sum(said_in_lua(fault) for *_, fault, _ in PLANTED)
    assert said > 0.8 * len(PLANTED)
