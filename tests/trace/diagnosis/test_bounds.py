"""Words of the wire that never repeat: what is kept of them does not grow."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from ds4proto.pcap import Endpoint
from ds4proto.testing import capture_path
from ds4proto.trace import bounds
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis import (
    Finding,
    diagnose,
    hops,
    routes,
    tp_answers,
    tp_gates,
)
from ds4proto.trace.diagnosis.front import Examiner
from ds4proto.trace.diagnosis.kept import OF_A_KIND, first_of_each_kind
from ds4proto.trace.diagnosis.spread import Spread
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.runs import MOST_NOTES, RunTable
from ds4proto.trace.stats import CaptureStats
from tests.link.streams import ds4d, work
from tests.trace.diagnosis.built import HELLO as WORDS
from tests.trace.diagnosis.built import STATE
from tests.trace.diagnosis.script import Script, one, worker

FEW = 40
"""What the tables may hold in these tests."""
MANY = 4 * FEW
CONTAINERS = (dict, set, list, deque, OrderedDict, Bounded)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST", FEW)
    monkeypatch.setattr(routes, "_MOST", FEW)
    monkeypatch.setattr(hops, "_MOST_OPEN", FEW)
    monkeypatch.setattr(hops, "_FEW", FEW)
    monkeypatch.setattr(tp_gates, "_MOST_OPEN", FEW)
    monkeypatch.setattr(tp_answers, "_MOST", FEW)


def rows_of(name: str) -> list[FrameRow]:
    return list(CaptureDecoder(capture_path(f"{name}.pcap")))


def one_row(name: str, kind: str) -> FrameRow:
    return next(row for row in rows_of(name) if row.type == kind)


def changed(row: FrameRow, **words: Any) -> FrameRow:
    return with_fields(row, fields={**row.fields, **words})


WORK = one_row("ds4d/a_s2_decode_f32", "WORK")
RESULT = one_row("ds4d/a_s2_decode_f32", "RESULT")
HELLO = one_row("ds4d/a_s2_decode_f32", "HELLO")
TP = [row for row in rows_of("ds4t/v10_decode8") if row.type == "HELLO"]
CREATE = one_row("ds4t/v10_decode8", "SESSION_CREATE")
GATES = [row for row in rows_of("ds4t/v10_decode8") if row.type == "GATE_ROW"][:2]
HASH = one_row("ds4t/v10_to_worker_type_6", "HASH")


def sessions(number: int) -> Iterator[FrameRow]:
    yield changed(WORK, session=number, request=number)


def stray_answers(number: int) -> Iterator[FrameRow]:
    yield changed(WORK, request=1)
    yield changed(RESULT, request=2 + number)


def layers(number: int) -> Iterator[FrameRow]:
    yield changed(WORK, request=number, layer_start=number)
    record = {**RESULT.fields["telemetry"][0], "layer_start": number}
    yield changed(RESULT, request=number, telemetry=[record])


def hellos(number: int) -> Iterator[FrameRow]:
    words = changed(HELLO, layer_start=number, layer_end=number + 1)
    yield with_fields(words, src_role=f"worker {number}")


def refusals(number: int) -> Iterator[FrameRow]:
    yield changed(RESULT, request=number, status=1, error=f"no {number}")


def tp_sessions(number: int) -> Iterator[FrameRow]:
    yield from TP
    yield changed(CREATE, session_id=number + 1)


def gates(number: int) -> Iterator[FrameRow]:
    yield from TP
    for gate in GATES:
        yield changed(gate, layer=number, seq=number)


def lone_gates(number: int) -> Iterator[FrameRow]:
    yield from TP
    yield changed(GATES[0], layer=number, seq=number)


def hashes(number: int) -> Iterator[FrameRow]:
    yield changed(HASH, seq=number, hash=number)


def largest(root: object) -> tuple[int, str]:
    """Return the length of the largest container that an object reaches.

    A `Spread` grows with the range of its numbers alone.
    """
    found, seen, waiting = (0, ""), set(), [(root, "")]
    while waiting:
        item, path = waiting.pop()
        if id(item) in seen or isinstance(item, FrameRow | Spread):
            continue
        seen.add(id(item))
        if isinstance(item, CONTAINERS):
            found = max(found, (len(item), path))
            inner = item.values() if isinstance(item, dict | Bounded) else item
            waiting += [(value, f"{path}[]") for value in inner]
        elif type(item).__module__.startswith("ds4proto.trace"):
            names = {n for c in type(item).__mro__ for n in getattr(c, "__slots__", ())}
            names |= set(getattr(item, "__dict__", {}))
            waiting += [(getattr(item, n, None), f"{path}.{n}") for n in names]
    return found


@pytest.mark.parametrize(
    ("rows", "kind"),
    [(sessions, "sessions"), (stray_answers, ""), (layers, "payloads"),
     (hellos, "slices of workers"), (refusals, ""), (tp_sessions, "sessions"),
     (gates, "gates"), (lone_gates, "payloads"), (hashes, "")],
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
def test_a_diagnosis_keeps_no_more_for_more_words(
    rows: Callable[[int], Iterator[FrameRow]], kind: str
) -> None:
    examiner = Examiner("hostile.pcap")
    kept = []
    for number in range(MANY):
        for row in rows(number):
            examiner.add(row)
        kept.append(largest(examiner)[0])
    assert kept[-1] <= FEW + 1, largest(examiner)
    assert kept[-1] == kept[MANY // 2]
    told = [f for f in examiner.findings() if f.code == "unknown.not-tracked"]
    assert [kind in f.sentence for f in told] == ([True] if kind else [])
    if told:
        lost = float(told[0].numbers[kind])
        assert MANY - FEW <= lost <= 2 * MANY


def test_a_count_of_frames_keeps_no_more_for_more_words() -> None:
    counter = CaptureStats(CaptureDecoder(capture_path("ds4d/a_s2_decode_f32.pcap")))
    for number in range(MANY):
        counter.add(with_fields(WORK, dst_role=f"worker {number}"))
    assert largest(counter._hops)[0] == FEW


def test_runs_keep_no_more_for_more_words() -> None:
    table = RunTable()
    here, there = Endpoint("10.0.0.1", 9000), Endpoint("10.0.0.2", 40000)
    words = {**HELLO.fields}
    for number in range(MANY):
        table.hello(1, there, here, "a", {**words, "listen_port": 1000 + number})
        hop = {**WORK.fields["route"][0], "port": 5000 + number}
        route = {"route": [hop], "session": number, "request": number}
        table.work(1, here, "b", {**WORK.fields, **route})
        table.work(1, here, "b", {**WORK.fields, "request": 7, "session": number})
        table.runs[0].note(f"note {number}")
    run = table.runs[0]
    sizes = [len(run.sessions), len(run.workers), len(table._by_address)]
    assert max(sizes) <= FEW
    assert len(run.notes) == MOST_NOTES
    assert run.told[-1].endswith("more notes are left out")
    assert f"more than {FEW} addresses: the rest are not told apart" in run.told
    assert f"more than {FEW} sessions: the rest are not told apart" in run.told


def test_what_is_not_tracked_is_said_of_a_capture(script: Script) -> None:
    line = worker(script)
    for number in range(1, MANY):
        script.say(line, "b>a", work(number, STATE, session=number))
    found = one(script.done(), "unknown.not-tracked")
    assert f"{MANY - 1 - FEW} sessions" in found.sentence
    assert f"At most {FEW} different ones" in found.sentence
    assert found.severity == "note"


def test_very_many_findings_of_a_kind_are_counted(script: Script) -> None:
    line = worker(script)
    for number in range(1, 70):
        script.say(line, "a>b", ds4d("ERROR", text=f"no room for {number}"))
    findings = script.done()
    assert len([f for f in findings if f.code == "route.error"]) == FEW


def test_findings_beyond_the_first_few_of_a_kind_are_counted() -> None:
    made = [Finding("a.b", "severe", "certain", str(n)) for n in range(OF_A_KIND + 3)]
    told = list(first_of_each_kind([*made, made[0]], "x.pcap"))
    assert told[:OF_A_KIND] == made[:OF_A_KIND]
    assert [f.sentence for f in told[OF_A_KIND:]] == [
        "4 more findings of the kind a.b are left out"
    ]


def test_a_table_forgets_the_oldest_or_takes_no_more() -> None:
    newest: Bounded[int, int] = Bounded(3)
    for number in range(5):
        newest.put(number, number)
    assert (list(newest), newest.lost) == ([2, 3, 4], 2)
    first: Bounded[int, int] = Bounded(3)
    taken = [first.offer(number, lambda n=number: n) for number in range(5)]  # type: ignore[misc]  # binds the number
    assert taken == [0, 1, 2, None, None]
    assert (list(first), first.lost) == ([0, 1, 2], 2)


def test_connections_to_many_listeners_are_settled_each_at_its_own(
    tmp_path: Path,
) -> None:
    from tests.link.streams import ds4d

    made = Script(tmp_path / "many.pcap")
    for number in range(MANY):
        ends = Endpoint("10.9.0.1", 40000 + number), Endpoint("10.8.0.1", 9000 + number)
        made.say(made.dial(*ends), "a>b", ds4d("HELLO", **WORDS))
    made.sink.close()
    decoder = CaptureDecoder(made.path)
    assert len([row for row in decoder if row.is_frame]) == MANY
    assert decoder.decoder._open_at == {}
    assert diagnose([made.path])
