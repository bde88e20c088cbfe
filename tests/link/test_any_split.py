"""What was reported once in one way and once in another, by how the bytes came."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.link import Framer, Limits, Skipped, TpPair, Violation, open_observer
from ds4proto.link.gate_stream import GateStream
from tests.link.streams import ds4d, ds4t, names, plain
from tests.link.tp import hello as tp_hello


def framed(parts: list[bytes]) -> list[Any]:
    limits = Limits(frames={}, small=600, held=150)
    framer = Framer("DS4D", dialect="upstream", limits=limits, auto_resync=True)
    found: list[Any] = []
    for part in [*parts, None]:
        found += plain(framer.feed(part, 0.0))
    return found


def single(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_a_candidate_too_long_to_wait_for_is_judged_alone() -> None:
    # The ERROR behind the damage is longer than what a search may hold, and has no
    # length of its own that would prove it; what follows it must not matter.
    long = ds4d("ERROR", text="x" * 200)
    stream = b"junk" + long + ds4d("ERROR", text="y") * 2
    whole = framed([stream])
    assert framed(single(stream)) == whole
    skipped = 4 + len(long)
    assert [e.length for e in whole if isinstance(e, Skipped)] == [skipped]
    assert [e[0] for e in whole if isinstance(e, tuple)] == ["DS4D.ERROR"] * 2


def gates(parts: list[bytes | int], dialect: str = "v10") -> list[Any]:
    stream = GateStream(TpPair(), "a>b", dialect=dialect)
    found: list[Any] = []
    for part in [*parts, None]:
        if isinstance(part, int):
            found += plain(stream.gap(part, 0.0))
        else:
            found += plain(stream.feed(part, 0.0))
    return found


def test_what_is_no_gate_is_shown_up_to_the_byte_that_tells() -> None:
    for data, shown in ((b"\0\0\0\0", "00"), (b"T4x?", "543478")):
        found = gates([data])
        assert gates(single(data)) == found
        problem = next(e.problem for e in found if isinstance(e, Violation))
        assert problem.clause == "DS4T-GATE-01"
        assert problem.found == f"bytes that begin with {shown}"


@pytest.mark.parametrize("odd", range(4))
def test_a_later_gate_behind_a_hole_is_seen_at_any_offset(odd: int) -> None:
    # The header behind the hole is two numbers ahead: gates are missing, and their
    # payloads end anywhere.
    first = ds4t("DS4B.GATE_BULK", layer=0, tag=0x0B16, seq=0, partial=b"")
    later = ds4t("DS4B.GATE_BULK", layer=0, tag=0x0B16, seq=5, partial=b"")
    before = first + bytes(8)
    behind = bytes(40 + odd) + later + bytes(30)
    whole = gates([before, 256, behind])
    assert gates([*single(before), 256, *single(behind)]) == whole
    skipped = [e.reason for e in whole if isinstance(e, Skipped)]
    assert skipped[:1] == ["gap"]


def told(data: bytes, parts: list[bytes]) -> list[Any]:
    observer = open_observer({"a>b": data[:4]}, dialect="v10")
    assert observer is not None
    found: list[Any] = []
    for part in [*parts, None]:
        found += plain(observer.feed("a>b", part, 0.0))
    return found


def test_a_big_endian_hello_is_told_from_a_stranger_byte_by_byte() -> None:
    # The first byte differs already; only all four say which of the two it is.
    data = bytes.fromhex("44533454") + bytes(20)
    found = told(data, single(data))
    assert found == told(data, [data])
    assert names(found)[0] == "DS4T-DIALECT-09"


def test_the_length_of_a_hello_does_not_depend_on_what_came_with_it() -> None:
    other = tp_hello("v1", 1)
    hello = bytearray(tp_hello("v9", 2))
    hello[4:8] = (30_992_314).to_bytes(4, "little")  # a version that nobody has
    data = bytes(hello) + ds4t("STOP") * 8
    lengths = []
    for parts in ([data], single(data), [data[:60], data[60:]]):
        observer = open_observer({"a>b": data, "b>a": other})
        assert observer is not None
        list(observer.feed("b>a", other, 0.0))
        found = [e for part in parts for e in observer.feed("a>b", part, 0.0)]
        lengths.append(found[0].length)
    assert lengths == [len(other)] * 3  # the rule: an unknown one is as long as theirs
