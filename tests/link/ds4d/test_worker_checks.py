"""WORK checks of a worker: their order, and those that no recording reaches."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.link.ds4d_limits import LinkLimits
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, raw, record, texts, work
from tests.link.ds4d.host import Host

LAST = toy.facts(5, 7, head=True)


def answer(data: bytes, facts: Any = LAST, **options: Any) -> str:
    host = Host(facts, **options)
    link = host.open()
    host.give(link, data)
    (text,) = texts(host.wrote[link])
    assert link not in host.closed
    return text


FIRST = toy.facts(0, 3, head=False)

CHECKS: list[tuple[str, dict[str, Any], Any]] = [
    # Every line has the faults of all lines below it as well, as far as they can
    # stand together, so that the text shows which check came first.
    ("invalid distributed WORK payload sizes", {"route_bytes": 99}, LAST),
    ("WORK frame is missing distributed route", {"route_count": 0}, LAST),
    ("invalid distributed WORK route metadata", {"route_index": 4}, LAST),
    ("model id mismatch: work=3 worker=0", {"model_id": 3}, LAST),
    (
        "worker is assigned layers 5:7 but request asked for 5:6",
        {"layer_end": 6},
        LAST,
    ),
    ("invalid distributed WORK flags", {"flags": 0x40}, LAST),
    ("WORK token span exceeds worker context", {"pos0": 257}, LAST),
    ("nonzero layer WORK requires input hidden-state", {"flags": 2}, LAST),
    ("WORK token id is outside the model vocabulary", {"tokens": (300,)}, LAST),
    ("WORK token prefix hash metadata mismatch", {"result_hash": 1}, LAST),
    ("invalid distributed activation width", {"input_hc_bits": 5}, LAST),
    (
        "input hidden-state size does not match token span",
        {"hidden": bytes(4)},
        LAST,
    ),
    ("truncated route entry", {"route_count": 2}, LAST),
    (
        "WORK layer range does not match route entry",
        {"route": [record(4, 7, flags=1)]},
        LAST,
    ),
    ("worker KV prefix hash mismatch", {"before": (1, 2)}, LAST),
]


@pytest.mark.parametrize("first", range(len(CHECKS)), ids=lambda i: CHECKS[i][0])
def test_the_first_of_many_faults_decides(first: int) -> None:
    values: dict[str, Any] = {}
    for _, fault, _ in reversed(CHECKS[first:]):
        values.update(fault)
    assert answer(work(**values)) == CHECKS[first][0]


def test_a_frame_without_tokens_is_judged_before_its_span() -> None:
    data = work((), hidden=b"", pos0=257)
    assert answer(data) == "WORK frame has no tokens"


@pytest.mark.parametrize(
    ("text", "facts", "values"),
    [
        (
            "layer 0 WORK must not provide input hidden-state",
            FIRST,
            {"flags": 1, "slice_": (0, 3)},
        ),
        (
            "worker was not assigned the output head",
            toy.facts(5, 7, head=False),
            {"flags": 3},
        ),
        (
            "WORK logits require final transformer layer",
            toy.facts(2, 4, head=True),
            {"flags": 3, "slice_": (2, 4)},
        ),
        (
            "WORK frame has hidden bytes without input flag",
            FIRST,
            {"flags": 0, "slice_": (0, 3)},
        ),
        (
            "route payload is missing",
            LAST,
            {"route": [], "route_count": 1, "route_bytes": 0, "route_return": None},
        ),
    ],
)
def test_checks_that_no_probe_reaches(
    text: str, facts: Any, values: dict[str, Any]
) -> None:
    assert answer(work(**values), facts) == text


def test_logits_of_a_hop_that_is_not_last_fail_the_route_check_before() -> None:
    # Check 23 cannot be reached from the wire: the logits flag needs the last layer,
    # behind which no further record is contiguous.
    route = [record(5, 7, flags=1), record(5, 7)]
    assert answer(work(route=route)) == "route layer ranges are not contiguous"


def test_return_host_with_nul() -> None:
    back = {"kind": 1, "host_len": 1, "port": 0, "host": "\0"}
    found = answer(work(route_return=back, route_bytes=41))
    assert found == "route final destination host contains NUL bytes"


def test_a_hidden_state_beyond_4_gib_is_refused_from_the_fixed_part() -> None:
    model = ModelFacts(0, "Toy V4", 8, 1 << 20, 256, 1 << 20)
    facts = WorkerFacts(model, 5, 7, True)
    data = work((1,) * 1024, hidden=b"")
    assert answer(data, facts) == "distributed hidden-state payload is too large"


def test_an_announced_length_claims_no_memory() -> None:
    host = Host(LAST)
    link = host.open()
    host.give(link, raw(3, work()[12:92], size=0xFFFFFFFF))
    assert len(link._intake.kept) == 80  # the fixed part contradicts the length


def test_a_body_above_our_cap_is_out_of_memory_and_closes() -> None:
    host = Host(LAST, limits=LinkLimits(max_body=200))
    link = host.open()
    host.give(link, work())
    ((name, values),) = frames(host.wrote[link])
    assert (name, values["request"]) == ("RESULT", 0)
    assert texts(host.wrote[link]) == ["out of memory reading distributed WORK frame"]
    assert link in host.closed


def test_a_long_route_is_judged_by_the_part_that_matters() -> None:
    route = [record(5, 7, flags=1, host="h" * 1024)] * 30
    host = Host(LAST)
    link = host.open()
    data = work(route=route)
    host.give(link, data)
    assert texts(host.wrote[link]) == ["route layer ranges are not contiguous"]
    trailing = work(route_bytes=33 + 8 + 40000)
    body = trailing[12:] + bytes(40000)
    host.give(link, raw(3, body))
    assert texts(host.wrote[link])[1] == "invalid distributed WORK payload sizes"
    exact = work(route_bytes=40 + 40000) + bytes(40000)
    host.give(link, raw(3, exact[12:]))
    assert texts(host.wrote[link])[2] == "route payload has trailing bytes"
