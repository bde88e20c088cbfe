"""Detectors of known coordinator faults, on frames as an observer sees them."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.link.ds4d_detect import (
    SeenEnd,
    SeenResult,
    SeenWork,
    doubled_tokens,
    refusal_loops,
)
from tests.link.ds4d.build import frames
from tests.link.ds4d.cluster import Cluster
from tests.link.ds4d.test_request import CAP, LONG, TWO, refuse

STEP = SeenWork(1, 4, 3, (9,), 3)
REPLAY = SeenWork(1, 5, 0, (1, 2, 3, 9), 7)
DOUBLED = SeenWork(1, 5, 0, (1, 2, 3, 9, 9), 7)
HALF = [SeenWork(1, 5, 0, (1, 2, 3), 15), SeenWork(1, 6, 3, (9, 9), 3)]
NO = SeenResult(4, 1, "worker KV prefix hash mismatch")


@pytest.mark.parametrize(
    ("seen", "requests"),
    [
        ([STEP, NO, DOUBLED], [(4, 5)]),
        ([STEP, SeenEnd(), DOUBLED], [(4, 5)]),
        ([STEP, NO, *HALF], [(4, 5, 6)]),
        ([STEP, NO, REPLAY], []),
        ([STEP, SeenResult(4, 0), DOUBLED], []),
        ([STEP, SeenResult(4, 0), SeenEnd(), DOUBLED], []),
        ([STEP, NO, SeenWork(1, 5, 0, (1, 2, 3, 9, 8), 7)], []),
        ([STEP, NO, SeenWork(2, 5, 0, (1, 2, 3, 9, 9), 7)], []),
    ],
)
def test_doubled_tokens_are_found(
    seen: list[Any], requests: list[tuple[int, ...]]
) -> None:
    assert [found.requests for found in doubled_tokens(seen)] == requests


def attempt(first: int, pos0: int, *, ok: bool = False) -> list[Any]:
    works = [SeenWork(1, first + i, pos0 + 8 * i, (1,) * 8, 11) for i in range(2)]
    text = "worker KV prefix hash mismatch"
    answers = [SeenResult(first + i, int(not ok), text) for i in range(2)]
    return [*works, *answers]


RESET = [SeenWork(1, 50, 0, (1,) * 8, 15)]


@pytest.mark.parametrize(
    ("seen", "rows"),
    [
        ([*attempt(1, 8), SeenEnd(), *attempt(9, 16)], [(1, 9)]),
        ([*attempt(1, 8), *RESET, SeenEnd(), *attempt(9, 16)], [(1, 9)]),
        ([*attempt(1, 8), *attempt(9, 8)], [(1, 9)]),
        ([*attempt(1, 8)], []),
        ([*attempt(1, 8), *RESET, SeenResult(50, 0), *attempt(9, 16)], []),
        ([*attempt(1, 8), *attempt(9, 8, ok=True), *attempt(20, 24)], []),
    ],
)
def test_endless_refusals_are_found(
    seen: list[Any], rows: list[tuple[int, ...]]
) -> None:
    assert [found.requests for found in refusal_loops(seen)] == rows


def test_our_own_recovery_raises_no_finding() -> None:
    cluster = Cluster(*TWO, settings=CAP)
    cluster.sync(LONG[:8])
    cluster.tamper = refuse({2, 4})
    cluster.eval(9)
    cluster.sync((*LONG[:8], 9, *LONG))
    seen: list[Any] = []
    for _, v in frames(cluster.sent):
        seen.append(SeenWork(v["session"], v["request"], v["pos0"], v["tokens"],
                             v["flags"]))  # fmt: skip
        seen.append(SeenResult(v["request"], int(v["request"] in (2, 4)), "no"))
    assert not list(doubled_tokens(seen))
    assert not list(refusal_loops(seen))
