"""Every declared frame: the fast reader, the reference reader and the builder.

Invariants: any bytes give a reading, never an exception; both readers agree; `parse`
raises `SchemaError` exactly where the reading is not whole; every problem lies inside
the frame; what is read without a problem is built again to the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from ds4proto.schema.declare import FrameSpec, rest_of
from ds4proto.schema.fingerprint import distinct
from ds4proto.schema.problem import SchemaError
from ds4proto.schema.registry import Reading, parse, read, to_bytes
from ds4proto_fuzz.parsers.comparing import lasting
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["FORMS", "SCHEMA", "check_frame", "check_reading"]

FORMS: Final[tuple[tuple[FrameSpec, str], ...]] = tuple(distinct())
"""Every frame in every dialect in which its bytes differ."""
POOL: Final = Path(__file__).with_name("frames.json")
MOST_FRAMES: Final = 6
LONGEST_SHORT: Final = 400
OFFSET: Final = 1_000_003
"""Where in its stream a frame is said to start."""


def check(data: bytes) -> None:
    """Take the form from the first byte, and the frame from the rest."""
    if data:
        spec, dialect = FORMS[data[0] % len(FORMS)]
        check_frame(spec, dialect, data[1:])


def check_frame(spec: FrameSpec, dialect: str, data: bytes) -> Reading:
    """Check all that is promised of one frame; return its reading."""
    reading = read(spec, data, dialect=dialect, stream_offset=OFFSET)
    exact = read(spec, data, dialect=dialect, stream_offset=OFFSET, reference=True)
    same("both readers agree", lasting(reading.values), lasting(exact.values))
    same("both readers agree", list(reading.problems), list(exact.problems))
    try:
        parse(spec, data, dialect=dialect)
        refused = False
    except SchemaError:
        refused = True
    if refused == reading.whole:
        broken("parse raises where a reading is not whole", problems=reading.problems)
    check_reading(spec, dialect, data, reading)
    return reading


def check_reading(
    spec: FrameSpec, dialect: str, data: bytes, reading: Reading, *, build: bool = True
) -> None:
    """Check what can be told of a reading without a second one."""
    values, problems = reading
    for problem in problems:
        at = problem.frame_offset
        if at is not None and not 0 <= at <= len(data):
            broken("a problem lies inside its frame", at=at, problem=str(problem))
    if problems or not build or rest_of(spec.body) in values or _has_nan(values):
        return
    again = to_bytes(spec, values, dialect=dialect)
    if again != data:
        broken("a sound frame is built again", frame=data.hex(), again=again.hex())


def _has_nan(values: Any) -> bool:
    """Tell whether a number is a NaN: its payload bits do not survive a float."""
    if isinstance(values, float):
        return math.isnan(values)
    if isinstance(values, dict):
        return any(map(_has_nan, values.values()))
    return isinstance(values, list) and any(map(_has_nan, values))


@cache
def pool() -> dict[tuple[FrameSpec, str], tuple[bytes, ...]]:
    """Return sound frames of every form, the same on every machine.

    They are read from a file: what Hypothesis draws depends on its version and on the
    modules that are loaded. A form that the file lacks is drawn.
    """
    kept = json.loads(POOL.read_text("utf-8")) if POOL.exists() else {}
    found = {}
    for spec, dialect in FORMS:
        texts = kept.get(f"{spec.full_name} {dialect}")
        made = [bytes.fromhex(text) for text in texts or ()]
        found[spec, dialect] = tuple(made or _draw(spec, dialect))
    return found


def _draw(spec: FrameSpec, dialect: str) -> list[bytes]:
    """Draw a few sound frames of different lengths, at most one of them long."""
    from ds4proto.emit.strategies import valid_frames
    from ds4proto_fuzz.parsers.drawing import drawn

    made = sorted(set(drawn(valid_frames(spec, dialect), 16)), key=len)
    short = [frame for frame in made if len(frame) <= LONGEST_SHORT]
    by_size = {len(frame): frame for frame in short}
    few = list(dict.fromkeys((*by_size.values(), *short)))[:MOST_FRAMES]
    return few or made[:1]


def write_pool() -> int:
    """Draw the frames anew and write them; return the bytes of the file."""
    rows = [
        f"{json.dumps(f'{spec.full_name} {dialect}')}: "
        + json.dumps([frame.hex() for frame in _draw(spec, dialect)])
        for spec, dialect in FORMS
    ]
    text = "{\n" + ",\n".join(rows) + "\n}\n"
    POOL.write_text(text, "utf-8")
    pool.cache_clear()
    return len(text)


def seeds() -> Iterator[bytes]:
    """Yield sound frames of every form, none long."""
    for index, form in enumerate(FORMS):
        for frame in pool()[form]:
            if len(frame) < SCHEMA.most:
                yield bytes((index,)) + frame


SCHEMA: Final = Target(
    "schema", "every declared frame, in every dialect", check, seeds, most=1200
)
