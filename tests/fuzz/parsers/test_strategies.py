"""What the strategies promise: lies that are seen, payloads that stay sound."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from ds4proto_fuzz.parsers.drawing import drawn
from ds4proto_fuzz.parsers.schemas import FORMS
from ds4proto_fuzz.parsers.strategies import (
    DISTURBANCES,
    SPOILERS,
    counting_fields,
    disturbed,
    drips,
    lying,
    out_of_vocabulary,
    spoiled,
)

from ds4proto.schema import frame, read

WORK = frame("DS4D.WORK", dialect="upstream")
COUNTED = [form for form in FORMS if counting_fields(*form)]


@pytest.mark.parametrize(
    ("spec", "dialect"), COUNTED, ids=[f"{s.full_name}-{d}" for s, d in COUNTED]
)
def test_a_length_that_lies_is_a_problem(spec: Any, dialect: str) -> None:
    lies = drawn(lying(spec, dialect), 12)
    told = [lie for lie in lies if lie.told != lie.true]
    assert told
    for lie in told:
        values = read(spec, lie.data, dialect=dialect).values
        assert {path: values[path] for path in lie.told} == lie.told
    if spec.name.startswith("GATE_"):
        return  # a gate's length counts a payload that its frame does not hold
    found = [read(spec, lie.data, dialect=dialect).problems for lie in told]
    assert sum(map(bool, found)) >= len(found) // 2, "most lies do not add up"


def test_lengths_lie_alone_and_together() -> None:
    lies = drawn(lying(WORK, "upstream"), 80)
    paths = {path for lie in lies for path in lie.told}
    assert paths >= {"token_bytes", "input_hc_bytes", "route_bytes", "n_tokens"}
    assert {len(lie.told) for lie in lies} > {1, 2}
    agreed = [
        lie
        for lie in lies
        if {"token_bytes", "n_tokens"} <= lie.told.keys()
        and lie.told["token_bytes"] == 4 * lie.told["n_tokens"]
        and lie.told["n_tokens"] > lie.true["n_tokens"]
    ]
    assert agreed, "count and length agree with each other, against the bytes"


def test_a_frame_without_lengths_has_none_to_lie_with() -> None:
    stop = frame("DS4T.STOP", dialect="v10")
    with pytest.raises(ValueError, match=r"DS4T.STOP says no length in v10"):
        drawn(lying(stop, "v10"), 1)


@pytest.mark.parametrize("name", ["DS4D.WORK", "DS4D.RESULT"])
def test_spoiled_payloads_are_sound_frames_of_no_sound_numbers(name: str) -> None:
    spec = frame(name, dialect="upstream")
    made = drawn(spoiled(spec, "upstream"), 40)
    assert all(not read(spec, data, dialect="upstream").problems for data in made)
    joined = b"".join(made)
    assert sum(struct.pack("<I", word) in joined for word in SPOILERS) >= 4


def test_tokens_are_outside_of_every_vocabulary() -> None:
    made = drawn(out_of_vocabulary(WORK, "upstream"), 40)
    readings = [read(WORK, data, dialect="upstream").values for data in made]
    tokens = {token for values in readings for token in values.get("tokens", ())}
    assert tokens >= {129_280, 154_880}
    assert all(not 0 <= token < 256 for token in tokens)
    batch = frame("DS4T.EVAL_BATCH", dialect="v10")
    items = [
        item["token"]
        for data in drawn(out_of_vocabulary(batch, "v10"), 40)
        for item in read(batch, data, dialect="v10").values.get("items", ())
    ]
    assert {-1, 129_280} <= set(items)


def test_conversations_are_disturbed_in_every_way() -> None:
    frames = [bytes((65 + k,)) * (k + 3) for k in range(5)]
    made = drawn(disturbed(frames), 250)
    assert {one.kind for one in made} == set(DISTURBANCES)
    whole = b"".join(frames)
    for one in made:
        data = b"".join(one.pieces)
        if one.kind in ("none", "drip"):
            assert data == whole
            assert not one.ended
        if one.kind in ("cut", "half-close"):
            assert whole.startswith(data)
            assert one.ended
        if one.kind == "missing":
            assert data == whole.replace(frames[one.at], b"")
        if one.kind == "repeated":
            assert data.count(frames[one.at]) > 1
    dripped = [one for one in made if one.kind == "drip"]
    assert any(all(len(p) == 1 for p in one.pieces[one.at :][:3]) for one in dripped)


def test_drips_lose_nothing() -> None:
    for data in (b"", b"x", b"DS4D frame"):
        for pieces in drawn(drips(data), 30):
            assert b"".join(pieces) == data
