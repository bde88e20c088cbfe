"""Ten thousand mutated frames of each message type; the lane of its own does more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds4proto_fuzz.parsers import million, schemas
from ds4proto_fuzz.parsers.million import TYPES, Escaped, address, run, run_type
from ds4proto_fuzz.parsers.schemas import FORMS

from ds4proto.schema.dsv4 import CONTAINERS
from ds4proto.schema.registry import frames, read

FRAMES = 10_000


def test_every_message_type_is_there() -> None:
    declared = {spec.full_name for spec in (*frames(), *CONTAINERS)}
    assert set(TYPES) == declared
    assert {spec.full_name for spec, _ in FORMS} == declared


@pytest.mark.parametrize("name", TYPES)
def test_mutated_frames_of_a_type_give_readings(name: str) -> None:
    tally = run_type(name, FRAMES, seed=1)
    assert tally.frames == FRAMES
    assert tally.sound + tally.odd + tally.unreadable == FRAMES
    assert tally.sound > 0  # some come through unharmed, or nothing would be aimed
    assert tally.odd + tally.unreadable > 0


def test_a_frame_is_made_again_from_its_address() -> None:
    name, seed = "DS4D.WORK", 3
    made = [frame for _, _, frame in million.frames_of(name, 2_005, seed)]
    assert address(name, seed, 2_004) == made[2_004]
    assert len(set(made)) > 1_500
    with pytest.raises(KeyError, match=r"no message type 'DS4D\.NONE'"):
        address("DS4D.NONE", 1, 1)


def test_a_frame_that_breaks_the_decoder_is_told_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, seed, number = "DS4T.EVAL", 5, 77
    culprit = address(name, seed, number)

    def planted(spec: Any, data: Any, **options: Any) -> Any:
        if bytes(data) == culprit:
            raise KeyError("planted")
        return read(spec, data, **options)

    monkeypatch.setattr(million, "read", planted)
    with pytest.raises(
        Escaped, match=rf"DS4T.EVAL .*seed {seed}, number \d+: KeyError"
    ):
        run_type(name, 200, seed)


def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "deep" / "journal.jsonl"
    types = ("DS4T.EVAL", "DS4T.STOP")
    first = run(300, seed=2, types=types[:1], journal=journal)
    with journal.open("a") as lines:
        lines.write('{"type": "DS4T.STOP", "fra')  # cut in the middle of a line
    monkeypatch.setattr(
        million, "run_type", lambda name, *_: pytest.fail(name) if name == types[0]
        else run_type(name, 300, 2),
    )  # fmt: skip
    both = run(300, seed=2, types=types, journal=journal)
    assert both[0] == first[0]
    assert [row.type for row in both] == list(types)
    kept = [line for line in journal.read_text().splitlines() if line.endswith("}")]
    assert {json.loads(line[line.rfind("{") :])["type"] for line in kept} == set(types)


def test_the_sound_frames_are_those_of_the_file() -> None:
    kept = json.loads(schemas.POOL.read_text("utf-8"))
    assert list(kept) == [f"{spec.full_name} {dialect}" for spec, dialect in FORMS], (
        "draw them anew: python -m ds4proto_fuzz.parsers corpus --frames"
    )
    for (spec, dialect), made in schemas.pool().items():
        assert [frame.hex() for frame in made] == kept[f"{spec.full_name} {dialect}"]
        for frame in made:
            assert not read(spec, frame, dialect=dialect).problems
