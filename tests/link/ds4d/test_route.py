"""Registration, registry and the choice of a route."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.link import ds4d_route
from ds4proto.link.ds4d_events import Close, HelloAccepted, HelloRefused
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_registration import Expected, Registration, check_all
from ds4proto.link.ds4d_registry import Registry, WorkerEntry
from ds4proto.link.ds4d_route import RouteError, build_route
from tests.link.ds4d import toy
from tests.link.ds4d.build import make, raw

EXPECTED = Expected(0, "Toy V4", 8, 256)


def hello(start: int, end: int, *, head: bool = False, **lies: Any) -> dict[str, Any]:
    return {**toy.facts(start, end, head=head).hello(7000), **lies}


def entry(
    start: int,
    end: int,
    *,
    head: bool = False,
    hidden: bool = True,
    serial: int = 0,
    host: str = "h",
) -> WorkerEntry:
    return WorkerEntry(host, 7000, 0, start, end, head, hidden, serial)


def test_a_preflight_sees_all_faults_a_coordinator_the_first() -> None:
    bad = hello(
        9, 8, model_id=3, model_name="x", n_layers=1, quant_bits=5, has_output=2,
        has_hidden=2, ctx_size=1, listen_port=0,
    )  # fmt: skip
    faults = check_all(bad, EXPECTED)
    assert [fault.clause[-2:] for fault in faults] == [
        *("06", "07", "08", "09", "10", "11", "12", "13", "14", "15")
    ]
    assert faults[0].text == "model id mismatch: worker=3 coordinator=0"
    registration = Registration(EXPECTED, now=0.0)
    registration.receive_data(make("HELLO", **bad), 0.0)
    refused = [e for e in registration.events() if isinstance(e, HelloRefused)]
    assert [event.fault for event in refused] == [faults[0]]


def test_a_coordinator_without_context_takes_any() -> None:
    assert not check_all(hello(2, 7, ctx_size=0), Expected(0, "Toy V4", 8, 0))


def test_bytes_behind_a_hello_are_kept_for_the_first_result() -> None:
    registration = Registration(EXPECTED, now=0.0)
    registration.receive_data(make("HELLO", **hello(2, 7)) + b"early", 0.0)
    assert isinstance(next(registration.events()), HelloAccepted)
    assert registration.trailing_data == b"early"
    assert len(registration.get_buffer()) == 0


@pytest.mark.parametrize(
    ("data", "log"),
    [
        (b"\xa5" * 64, "bad frame magic 0xa5a5a5a5"),
        (raw(3, b"abc"), "expected HELLO frame, got type 3"),
        (raw(1, bytes(39)), "invalid HELLO payload length 39"),
        (raw(1, bytes(168)), "invalid HELLO payload length 168"),
        (
            make("HELLO", **hello(2, 7, model_name_len=5)),
            "invalid HELLO model name length 5",
        ),
        (
            make("HELLO", **hello(2, 7, model_name="a\0b")),
            "HELLO model family contains NUL bytes",
        ),
    ],
)
def test_what_the_log_says_of_an_unreadable_hello(data: bytes, log: str) -> None:
    registration = Registration(EXPECTED, now=0.0)
    registration.receive_data(data, 0.0)
    refused, _, close = registration.events()
    assert isinstance(refused, HelloRefused)
    assert (refused.fault.text, refused.answered) == (log, False)
    assert isinstance(close, Close)


def test_a_late_hello_ends_the_connection() -> None:
    registration = Registration(EXPECTED, now=1.0, limits=LinkLimits(hello_s=4.0))
    registration.receive_data(b"DS4D", 4.0)
    assert registration.deadline() == 5.0
    registration.timeout(5.0)
    assert isinstance(list(registration.events())[-1], Close)


@pytest.mark.parametrize("last", [make("HELLO", **hello(2, 7)), b"X" * 12])
def test_a_bare_coordinator_skips_frames_until_a_second_hello(last: bytes) -> None:
    registration = Registration(EXPECTED, now=0.0, bare=True)
    registration.receive_data(make("HELLO", **hello(2, 7)) + raw(4, bytes(99)), 0.0)
    assert not any(isinstance(e, Close) for e in registration.events())
    registration.receive_data(last, 0.0)
    assert isinstance(list(registration.events())[-1], Close)


def test_equal_registrations_replace_and_every_change_counts() -> None:
    registry = Registry()
    first, none = registry.register(hello(2, 7), "10.0.0.1")
    second, replaced = registry.register(hello(2, 7, listen_port=9), "10.0.0.1")
    assert (none, replaced) == (None, first)
    assert registry.workers() == (second,)
    registry.register(hello(2, 7), "10.0.0.2")
    assert registry.generation == 3
    registry.remove([first])
    assert registry.generation == 3
    registry.remove([second])
    assert registry.generation == 4
    assert len(registry) == 1


def test_candidates_stand_in_the_order_of_upstream() -> None:
    registry = Registry()
    for host, (start, end), head in (
        ("short", (2, 4), False),
        ("long", (2, 6), False),
        ("standby1", (2, 7), True),
        ("standby2", (2, 7), True),
        ("first", (0, 7), False),
    ):
        registry.register(hello(start, end, head=head), host)
    names = [worker.host for worker in registry.workers()]
    assert names == ["first", "standby2", "standby1", "long", "short"]


def route(workers: list[WorkerEntry], *, head: bool = False) -> list[tuple[int, int]]:
    found = build_route((0, 1), workers, 8, coordinator_has_head=head)
    return [(worker.layer_start, worker.layer_end) for worker in found.workers]


def missing(workers: list[WorkerEntry], *, head: bool = False) -> int | None:
    with pytest.raises(RouteError) as caught:
        route(workers, head=head)
    number = caught.value.missing
    assert str(caught.value) == f"distributed route incomplete: missing layer {number}"
    return number


def test_choices() -> None:
    a, b, c = entry(2, 4), entry(5, 7, head=True), entry(2, 7)
    assert route([b, a]) == [(2, 4), (5, 7)]
    assert route([a, b, c], head=True) == [(2, 7)]
    # c is longer and comes first, but cannot finish without a head.
    assert route([a, b, c]) == [(2, 4), (5, 7)]
    assert route([entry(2, 4), entry(2, 5), b]) == [(2, 4), (5, 7)]
    blind = entry(5, 7, head=True, hidden=False)
    assert route([a, blind]) == [(2, 4), (5, 7)]


def test_missing_layers() -> None:
    assert missing([]) == 2
    assert missing([entry(2, 4)]) == 5
    assert missing([entry(2, 3), entry(2, 5)]) == 6
    assert missing([entry(2, 7)]) == 2
    assert missing([entry(2, 4, hidden=False), entry(5, 7, head=True)]) == 2
    assert missing([entry(3, 7, head=True)]) == 2


def test_the_coordinator_alone_and_a_wrong_start() -> None:
    assert build_route((0, 7), [], 8, coordinator_has_head=True).workers == ()
    with pytest.raises(RouteError, match="coordinator route does not start at layer 0"):
        build_route((1, 7), [], 8, coordinator_has_head=True)


def test_many_overlapping_workers_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[WorkerEntry] = []

    def usable(worker: WorkerEntry, *_: Any) -> bool:
        seen.append(worker)
        return True

    monkeypatch.setattr(ds4d_route, "_usable", usable)
    layers = 60
    crowd = [
        entry(start, end)
        for start in range(2, layers)
        for end in range(start, min(start + 6, layers - 1))
    ]
    with pytest.raises(RouteError, match="missing layer 59"):
        build_route((0, 1), crowd, layers, coordinator_has_head=False)
    assert len(seen) == len(crowd) > 300


def search(
    start: int, workers: list[WorkerEntry], layers: int, *, head: bool
) -> list[WorkerEntry] | None:
    """Search as upstream does: depth first, in order, without memory."""
    for worker in workers:
        if worker.layer_start != start:
            continue
        last = worker.layer_end >= layers - 1
        if last and (worker.has_output or (worker.has_hidden and head)):
            return [worker]
        if not last and worker.has_hidden:
            rest = search(worker.layer_end + 1, workers, layers, head=head)
            if rest is not None:
                return [worker, *rest]
    return None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 7), st.integers(0, 4), st.booleans(), st.booleans()),
        max_size=12,
    ),
    st.booleans(),
)
def test_the_route_is_that_of_a_plain_search(
    rows: list[tuple[int, int, bool, bool]], head: bool
) -> None:
    workers = [
        entry(s, min(7, s + n), head=h and s + n >= 7, hidden=hid, serial=i)
        for i, (s, n, h, hid) in enumerate(rows)
    ]
    ordered = sorted(workers, key=lambda worker: worker.order)
    wanted = search(2, ordered, 8, head=head)
    try:
        found = build_route((0, 1), workers, 8, coordinator_has_head=head)
    except RouteError:
        assert wanted is None
        return
    assert list(found.workers) == wanted
    for before, after in pairwise(found.workers):
        assert after.layer_start == before.layer_end + 1
