"""Gate streams: lengths that no header tells, wrong headers, RDMA, other dialects."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.link.events import FrameReceived, Skipped, Violation
from ds4proto.link.observer import open_observer
from ds4proto.link.pair import TpPair
from ds4proto.link.plan import PlanOptions
from tests.link.streams import (
    KeepSink,
    accounted,
    contiguous,
    ds4t,
    names,
    plain,
    problems,
)
from tests.link.tp import DOWN, UP, Paper, observe_pair, sizes


def script(options: PlanOptions | None = None, **shape: Any) -> Paper:
    """A prefill from zero, two continuations, decode, two draft blocks."""
    paper = Paper(options=options or PlanOptions(), shape=shape)
    paper.create()
    paper.sync(range(10))
    paper.eval(3)
    paper.eval(4)
    paper.verify((5, 6, 7))
    paper.sync([*paper.tokens[1], *range(2)])
    paper.sync([*paper.tokens[1], *range(60)])
    paper.verify(range(9))
    paper.create(2)
    paper.sync(range(90), 2)
    return paper


HIDDEN_OPTIONS = [
    PlanOptions(),
    PlanOptions(chunk=8),
    PlanOptions(split_min=2),
    PlanOptions(split_min=1 << 30),
    PlanOptions(odd_swap=False),
    PlanOptions(chunk=33, split_min=20),
    PlanOptions(resume_min=1),
]


@pytest.mark.parametrize("options", HIDDEN_OPTIONS, ids=str)
def test_bulk_lengths_are_found_whatever_the_options(options: PlanOptions) -> None:
    paper = script(options)
    _, data, _ = observe_pair(paper)
    for direction in (UP, DOWN):
        assert sizes(data, direction) == paper.lengths
    assert problems(data) == []
    assert not any(isinstance(e, Skipped | Violation) for e in data)


@pytest.mark.parametrize("seed", range(3))
def test_the_split_does_not_matter(seed: int) -> None:
    paper = script(PlanOptions(chunk=8))
    whole = observe_pair(paper)

    def cuts() -> Iterator[int]:
        chance = random.Random(seed)
        while True:
            yield chance.choice((1, 3, 7, 16, 100, 5000))

    again = observe_pair(paper, cuts())
    for one, two in zip(whole[:2], again[:2], strict=True):
        for way in (UP, DOWN):
            assert [x for x in plain(one) if _way(x) == way] == [
                x for x in plain(two) if _way(x) == way
            ]


def _way(event: Any) -> str:
    return event[2] if isinstance(event, tuple) else event.direction  # type: ignore[no-any-return]


def test_data_that_comes_before_its_command() -> None:
    """The two connections have no common order (DS4T-FLOW-04)."""
    paper = script()
    paper.order.sort(
        key=lambda item: item[0] == "control" and len(item[2]) not in (64, 88)
    )
    _, data, _ = observe_pair(paper)
    for direction in (UP, DOWN):
        assert sizes(data, direction) == paper.lengths


def test_the_options_are_learned_and_settle_the_last_gate() -> None:
    paper = Paper(options=PlanOptions(chunk=8))
    paper.create()
    paper.sync(range(30))
    paper.create(2)
    paper.sync(range(15), 2)
    paper.create(3)
    # the capture ends in the last gate of a chunk of seven rows
    cut = Paper(options=PlanOptions(chunk=8))
    cut.order = [item for item in paper.order if item[0] == "control"]
    _, data, _ = observe_pair(paper)
    assert sizes(data, UP)[-1] == 7 * 64
    assert sizes(data, UP) == paper.lengths


def test_a_last_gate_that_is_cut_is_truncated() -> None:
    paper = Paper()
    paper.create()
    paper.sync(range(10))
    name, direction, data = paper.order[-4]
    assert (name, direction) == ("data", DOWN)
    paper.order[-4] = (name, direction, data[:-20])
    _, events, _ = observe_pair(paper)
    cut = [e for e in events if isinstance(e, Violation)]
    assert [e.problem.clause for e in cut] == ["DS4T-GATE-06"]
    assert cut[0].problem.expected == "640 bytes of payload"
    assert cut[0].problem.found == "620, then the end of the stream"
    assert [e.reason for e in events if isinstance(e, Skipped)] == ["truncated"]


def test_a_payload_that_holds_the_next_header_fools_nobody() -> None:
    paper = Paper()
    paper.create()
    paper.sync(range(10))
    decoy = ds4t("DS4B.GATE_BULK", layer=1, tag=0x0B16, seq=2, partial=b"")
    for index, (name, direction, data) in enumerate(paper.order):
        if name == "data" and data[8] == 1:
            forged = data[: 16 + 192] + decoy + data[16 + 208 :]
            paper.order[index] = (name, direction, forged)
    _, events, _ = observe_pair(paper)
    assert sizes(events, UP) == sizes(events, DOWN) == [640, 640]


def test_a_sink_gets_every_partial() -> None:
    paper = script(PlanOptions(chunk=8))
    asked: list[tuple[str, str]] = []

    def sink(spec: Any, _fields: Any, path: str, _nbytes: int | None) -> KeepSink:
        asked.append((spec.full_name, path))
        return KeepSink()

    _, data, _ = observe_pair(paper, sink=sink)
    frames = [e for e in data if isinstance(e, FrameReceived) and e.direction == UP]
    sent = paper.stream("data", UP)
    for frame in frames:
        kept = frame.fields["partial"]
        start = frame.stream_offset + 16
        assert kept == ("kept", sent[start : start + frame.length - 16], 0)
    assert {path for _, path in asked if path != "logits"} == {"partial"}


# -- ranks that disagree and headers that lie ------------------------------------------


def test_ranks_with_different_chunks_are_named() -> None:
    ours, theirs = Paper(options=PlanOptions()), Paper(options=PlanOptions(chunk=8))
    for paper in (ours, theirs):
        paper.create()
        paper.sync(range(20))
    mixed = Paper()
    mixed.order = [i for i in ours.order if i[0] == "control"]
    mixed.order += [i for i in theirs.order if i[:2] == ("data", DOWN)]
    mixed.order += [i for i in ours.order if i[:2] == ("data", UP)]
    _, data, _ = observe_pair(mixed)
    assert "DS4B-BULK-05" in problems(data)
    assert sizes(data, DOWN)[:2] == [512, 512]
    assert sizes(data, UP)[:2] == [1280, 1280]


def replaced(changes: dict[str, int], first: str = "DS4T.GATE_ROW") -> list[Any]:
    """Return the worker's events where its first gate has a wrong header."""
    paper = Paper()
    paper.create()
    paper.eval(3)
    values = {"layer": 0, "gate": 0, "seq": 1} | changes
    for index, (name, direction, data) in enumerate(paper.order):
        if name == "data" and direction == UP:
            wrong = ds4t(first, partial=data[16:], **values)
            paper.order[index] = (name, direction, wrong)
            break
    _, events, _ = observe_pair(paper)
    return [e for e in events if e.direction == UP]


@pytest.mark.parametrize(
    ("changes", "clauses"),
    [
        ({"seq": 0}, ["DS4T-GATE-04"]),
        ({"seq": 2}, ["DS4T-GATE-04"]),
        ({"layer": 1}, ["DS4T-GATE-02"]),
        ({"gate": 1}, ["DS4T-GATE-03"]),
    ],
)
def test_a_wrong_row_header_is_a_problem_of_that_gate_alone(
    changes: dict[str, int], clauses: list[str]
) -> None:
    events = replaced(changes)
    assert problems(events) == clauses
    assert [e.spec.name for e in events if isinstance(e, FrameReceived)] == [
        "GATE_ROW"
    ] * 4


def test_a_wrong_magic_loses_one_gate() -> None:
    paper = Paper()
    paper.create()
    paper.eval(3)
    index = next(i for i, o in enumerate(paper.order) if o[:2] == ("data", UP))
    name, direction, data = paper.order[index]
    paper.order[index] = (name, direction, b"\xde\xad\xbe\xef" + data[4:])
    _, events, _ = observe_pair(paper)
    up = [e for e in events if e.direction == UP]
    assert names(up) == ["DS4T-GATE-01", "not a frame", *["GATE_ROW"] * 3]
    assert up[1] == Skipped(0.0, 0, 80, "not a frame", UP)


@pytest.mark.parametrize("rows", [0, 9, 65535])
def test_a_batch_header_without_rows_is_no_header(rows: int) -> None:
    paper = Paper()
    paper.create()
    paper.verify((1, 2))
    index = next(i for i, o in enumerate(paper.order) if o[:2] == ("data", UP))
    name, direction, data = paper.order[index]
    wrong = data[:6] + rows.to_bytes(2, "little") + data[8:]
    paper.order[index] = (name, direction, wrong)
    _, events, _ = observe_pair(paper)
    up = [e for e in events if e.direction == UP]
    assert names(up) == ["DS4B-BATCH-03", "not a frame", "GATE_BATCH"]


def test_surplus_bytes_behind_a_gate() -> None:
    paper = Paper()
    paper.create()
    paper.eval(3)
    index = next(i for i, o in enumerate(paper.order) if o[:2] == ("data", UP))
    name, direction, data = paper.order[index]
    paper.order[index] = (name, direction, data + b"\0\0\0\0")
    _, events, _ = observe_pair(paper)
    up = [e for e in events if e.direction == UP]
    assert names(up)[:4] == ["GATE_ROW", "DS4T-GATE-01", "not a frame", "GATE_ROW"]
    assert up[2] == Skipped(0.0, 80, 4, "not a frame", UP)


# -- without the control connection ------------------------------------------


def test_the_width_is_found_without_a_control_connection() -> None:
    paper = Paper()
    paper.create()
    paper.eval(3)
    paper.eval(5)
    _, data, observer = observe_pair(paper, control=False)
    assert sizes(data, UP) == sizes(data, DOWN) == [64] * 8
    assert observer.protocol == "DS4B"


def test_a_capture_that_begins_in_mid_stream() -> None:
    paper = script()
    for name in ("data", "control"):
        stream = paper.stream(name, UP)
        observer = open_observer({UP: stream[300:812]}, complete=False, pair=TpPair())
        assert observer is not None
        assert observer.protocol == ("DS4B" if name == "data" else "DS4T")
        events = list(observer.feed(UP, stream[300:], 0.0))
        events += observer.feed(UP, None, 0.0)
        assert accounted(events) == len(stream) - 300
        frames = [e for e in events if isinstance(e, FrameReceived)]
        assert len(frames) > 5


# -- gaps ------------------------------------------


def gapped(paper: Paper, at: int, size: int) -> list[Any]:
    """Return the worker's gate events where ``size`` bytes from ``at`` on are lost."""
    pair = TpPair()
    control = open_observer({DOWN: paper.stream("control", DOWN)}, pair=pair)
    assert control is not None
    for way in (DOWN, UP):
        list(control.feed(way, paper.stream("control", way), 0.0))
    stream = paper.stream("data", UP)
    observer = open_observer({UP: stream}, pair=pair)
    assert observer is not None
    events = list(observer.feed(UP, stream[:at], 0.0))
    events += observer.gap(UP, size, 0.0)
    events += observer.feed(UP, stream[at + size :], 0.0)
    events += observer.feed(UP, None, 0.0)
    assert accounted(events) == len(stream)
    assert contiguous(events)
    return events


def test_a_gap_inside_a_payload_keeps_the_gate() -> None:
    paper = script()
    events = gapped(paper, 100, 300)  # the first bulk gate has 640 bytes
    assert sizes(events, UP) == paper.lengths
    first = events[0]
    assert isinstance(first, FrameReceived)
    assert first.missing == 300


def test_a_gap_inside_a_row_gate() -> None:
    paper = script()
    at = 2 * 656 + 40
    events = gapped(paper, at, 20)
    assert sizes(events, UP) == paper.lengths
    assert [e.missing for e in events if isinstance(e, FrameReceived)][2] == 20


def test_an_old_header_in_a_lost_payload_is_not_taken_for_the_next() -> None:
    paper = script()
    old = ds4t("GATE_ROW", layer=1, gate=1, seq=1, partial=b"")
    for index, (name, direction, data) in enumerate(paper.order):
        if name == "data" and data[8:16] == (2).to_bytes(8, "little"):
            forged = data[:300] + old + data[300 + len(old) :]
            paper.order[index] = (name, direction, forged)
            break
    where = paper.order[index]
    assert where[1] == DOWN
    paper.order = [
        (n, {DOWN: UP, UP: DOWN}[w] if n == "data" else w, d) for n, w, d in paper.order
    ]
    events = gapped(paper, 600, 100)
    assert sizes(events, UP) == paper.lengths[2:]
    assert problems(events) == []


def test_a_gap_behind_a_header_inside_a_payload_comes_to_an_end() -> None:
    paper = Paper()
    paper.create()
    paper.sync(range(10))  # two bulk gates of 640 bytes each way
    decoy = ds4t("DS4B.GATE_BULK", layer=1, tag=0x0B16, seq=2, partial=b"")
    for index, (name, direction, data) in enumerate(paper.order):
        if name == "data" and data[8] == 1:
            forged = data[: 16 + 192] + decoy + data[16 + 208 :]
            paper.order[index] = (name, direction, forged)
    # the header at the due length was seen: the gate keeps that length
    assert sizes(gapped(paper, 16 + 300, 100), UP) == [640, 640]
    # it was not: the header inside is the best there is
    assert sizes(gapped(paper, 16 + 600, 100), UP)[0] == 192


@pytest.mark.parametrize(("at", "size"), [(600, 100), (2 * 656 + 70, 30), (10, 1000)])
def test_a_gap_over_a_header_resumes_at_the_next_gate(at: int, size: int) -> None:
    paper = script()
    events = gapped(paper, at, size)
    lost = len(paper.lengths) - len(sizes(events, UP))
    assert 1 <= lost <= 3
    assert sizes(events, UP) == (
        paper.lengths[: 0 if at < 700 else 2]
        + paper.lengths[-len(sizes(events, UP)) + (0 if at < 700 else 2) :]
    )
    assert [e.reason for e in events if isinstance(e, Skipped)] == ["gap"]


# -- nothing hangs, nothing is lost ------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 5000),
    st.integers(0, 5000),
    st.binary(max_size=60),
    st.integers(0, 1 << 30),
    st.sampled_from([UP, DOWN]),
)
def test_damaged_streams_are_accounted_for(
    at: int, drop: int, noise: bytes, seed: int, direction: Any
) -> None:
    paper = script(PlanOptions(chunk=8))
    pair = TpPair()
    observers: dict[str, Any] = {}
    chance = random.Random(seed)
    total = {"control": 0, "data": 0}
    found: dict[str, list[Any]] = {"control": [], "data": []}
    for name in ("control", "data"):
        for way in (DOWN, UP):
            stream = paper.stream(name, way)
            if way == direction:
                stream = stream[:at] + noise + stream[at + drop % 700 :]
            if name not in observers:
                observers[name] = open_observer({way: stream[:512]}, pair=pair)
                if observers[name] is None:
                    return
            total[name] += len(stream)
            events: list[Any] = []
            while stream:
                size = chance.choice((1, 7, 64, 3000))
                events += observers[name].feed(way, stream[:size], 0.0)
                stream = stream[size:]
            events += observers[name].feed(way, None, 0.0)
            assert contiguous(events)
            found[name] += events
    assert {name: accounted(events) for name, events in found.items()} == total
