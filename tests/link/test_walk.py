"""Frames of one buffer as columns."""

import random

import numpy as np
import pytest

from ds4proto.link.events import FrameReceived
from ds4proto.link.framing import Framer
from ds4proto.link.walk import fixed_columns, walk
from tests.link.streams import HELLO, ds4d, ds4t, result, work


def evals(count: int) -> bytes:
    return b"".join(
        ds4t("EVAL", session_id=1, seq=i + 1, token=i % 7) for i in range(count)
    )


def mixed(seed: int) -> bytes:
    chance = random.Random(seed)
    kinds = [work(1), result(2), ds4d("HELLO", **HELLO), ds4d("ERROR", text="x")]
    runs = [chance.choice(kinds) * chance.choice((1, 2, 30)) for _ in range(40)]
    return b"".join(runs)


@pytest.mark.parametrize("seed", range(3))
def test_columns_are_what_the_framer_finds(seed: int) -> None:
    data = mixed(seed)
    columns = walk(data, "DS4D")
    frames = Framer("DS4D", dialect="upstream").feed(data, 0.0)
    expected = [
        (e.stream_offset, e.spec.code, e.length)
        for e in frames
        if isinstance(e, FrameReceived)
    ]
    found = zip(
        columns.offsets.tolist(),
        columns.codes.tolist(),
        columns.lengths.tolist(),
        strict=True,
    )
    assert list(found) == expected
    assert columns.end == len(data)


def test_fixed_parts_of_equal_frames() -> None:
    data = evals(1000)
    rows = fixed_columns(data, walk(data, "DS4T"), 2, "DS4T", "v10")
    assert rows["seq"].tolist() == list(range(1, 1001))
    assert rows["token"].tolist() == [i % 7 for i in range(1000)]


def test_fixed_parts_among_other_frames() -> None:
    data = mixed(1)
    columns = walk(data, "DS4D")
    rows = fixed_columns(data, columns, 3, "DS4D", "upstream")
    assert len(rows) == int(np.count_nonzero(columns.codes == 3))
    assert set(rows["n_tokens"].tolist()) == {2}
    assert set(rows["session"].tolist()) == {77}


@pytest.mark.parametrize("cut", [1, 12, 13, 35])
def test_a_cut_frame_ends_the_walk(cut: int) -> None:
    data = evals(50)
    columns = walk(data[:-cut], "DS4T")
    assert len(columns.offsets) == 49
    assert columns.end == 49 * 36


def test_a_wrong_magic_ends_the_walk() -> None:
    data = evals(20) + b"????" + evals(1)
    assert walk(data, "DS4T").end == 20 * 36


def test_an_empty_buffer() -> None:
    columns = walk(b"", "DS4D")
    assert len(columns.offsets) == columns.end == 0


def test_a_type_that_the_dialect_lacks() -> None:
    with pytest.raises(KeyError, match="type 22"):
        fixed_columns(b"", walk(b"", "DS4T"), 22, "DS4T", "v10")
