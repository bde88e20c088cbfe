"""Which width pays: the arithmetic of a hop, with given coding times."""

from __future__ import annotations

import math

import pytest

from ds4proto import codec
from ds4proto.codec.cost import Cost, as_rows, crossover, measure, pays, rule

WIDE = Cost("f32", 4_000_000, 0.0, 0.0)
HALF = Cost("f16", 2_000_000, 0.001, 0.001)
SLOW = Cost("slow", 1_000_000, 0.5, 0.5)


def test_a_hop_in_turn_adds_and_overlapped_takes_the_slowest() -> None:
    # 2 MB at 1 Gbit/s take 16 ms
    assert HALF.hop(1, overlapped=False) == pytest.approx(0.018)
    assert HALF.hop(1, overlapped=True) == pytest.approx(0.016)
    assert SLOW.hop(1, overlapped=True) == pytest.approx(0.5)


def test_what_pays_depends_on_the_link() -> None:
    slow_link = pays([WIDE, HALF], 1, overlapped=False)
    assert slow_link[0] == ("f16", pytest.approx(32 / 18))
    fast_link = pays([WIDE, HALF], 80, overlapped=False)
    assert fast_link[0][0] == "f32"
    assert dict(fast_link)["f16"] < 1


def test_the_crossover_is_where_both_take_the_same() -> None:
    limit = crossover(HALF, WIDE, overlapped=False)
    assert limit is not None
    assert HALF.hop(limit, overlapped=False) == pytest.approx(
        WIDE.hop(limit, overlapped=False)
    )
    side_by_side = crossover(HALF, WIDE, overlapped=True)
    assert side_by_side is not None
    assert HALF.hop(side_by_side, overlapped=True) == pytest.approx(
        WIDE.hop(side_by_side, overlapped=True)
    )


def test_a_format_that_is_not_smaller_never_pays() -> None:
    assert crossover(WIDE, WIDE, overlapped=False) is None
    free = Cost("free", 1, 0.0, 0.0)
    assert crossover(free, WIDE, overlapped=False) == math.inf
    assert crossover(free, WIDE, overlapped=True) == math.inf


def test_the_rule_says_the_limit_in_words() -> None:
    (line,) = rule([WIDE, HALF], overlapped=False)
    assert line == "f16: pays up to about 8 Gbit/s (0.50 of the bytes)"


def test_rows_hold_every_link() -> None:
    (row,) = as_rows([HALF], (1.0, 2.5), overlapped=False)
    assert row["bytes"] == 2_000_000
    assert row["hop_ms_at_1"] == pytest.approx(18.0)
    assert row["hop_ms_at_2.5"] == pytest.approx(8.4)


def test_an_unknown_base_is_refused() -> None:
    with pytest.raises(ValueError, match="no cost of 'f32'; measured: f16"):
        pays([HALF], 1, overlapped=False)


def test_measured_bytes_are_those_of_the_codec() -> None:
    cost = measure(codec.get("e4m3"), 3, 40, rounds=1)
    assert (cost.name, cost.wire_bytes) == ("e4m3", 120)
    assert cost.encode > 0
    assert cost.decode > 0
