"""What an answer says about its WORK: the record of each hop, held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ds4proto.link.events import FrameReceived
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.problem import Problem

Fields = Mapping[str, Any]


def problem_in(
    frame: FrameReceived,
    clause: str,
    path: str,
    expected: object,
    found: object,
    next_step: str = "",
) -> Problem:
    """Return a problem of one field of ``frame``, placed where the field stands."""
    spec = frame.spec
    at = None
    name = path.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0]
    offsets = offsets_of(spec.body, frame.dialect.rstrip("?"))
    if name == path and name in offsets:
        at = spec.header_size + offsets[name]
    where = None if at is None else frame.stream_offset + at
    return Problem(
        clause,
        f"{spec.name}.{path}",
        at,
        where,
        str(expected),
        str(found),
        next_step,
    )


def hex64(value: int) -> str:
    """Return a hash as the tools print it."""
    return f"0x{value:016x}"


@dataclass(slots=True)
class Outstanding:
    """A WORK that waits for its RESULT, without its tails.

    ``held`` is what the session's hash was by this connection's frames, where the
    WORK starts from another one.
    """

    request: int
    session: int = 0
    result_hash: int = 0
    n_tokens: int = 0
    pos0: int = 0
    flags: int = 0
    width: int = 32
    layers: tuple[int, int] = (0, 0)
    hops_left: int = 0
    wants_logits: bool | None = None
    input_bytes: int = 0
    odd: bool = True
    held: int | None = None
    prefix_hash: int = 0


def judge_telemetry(
    frame: FrameReceived, v: Fields, work: Outstanding
) -> Iterator[Problem]:
    """Yield what the telemetry of a RESULT says otherwise than its WORK."""
    records = v.get("telemetry")
    if records is None or work.odd:
        return
    if len(records) != work.hops_left:
        yield problem_in(
            frame,
            "DS4D-TELEM-02",
            "telemetry_count",
            f"{work.hops_left}, one record for each hop from this one on",
            len(records),
        )
        return
    for index, record in enumerate(records):
        for path in ("pos0", "n_tokens"):
            due = getattr(work, path)
            if record[path] != due:
                yield problem_in(
                    frame,
                    "DS4D-TELEM-04",
                    f"telemetry[{index}].{path}",
                    f"{due}, as in WORK {work.request}",
                    record[path],
                )
    own, last = records[-1], records[0]
    where = f"telemetry[{len(records) - 1}]"
    if (own["layer_start"], own["layer_end"]) != work.layers:
        yield problem_in(
            frame,
            "DS4D-TELEM-04",
            f"{where}.layer_start",
            f"layers {work.layers[0]}..{work.layers[1]}",
            f"{own['layer_start']}..{own['layer_end']}",
        )
    if own["input_bytes"] != work.input_bytes:
        yield problem_in(
            frame,
            "DS4D-TELEM-05",
            f"{where}.input_bytes",
            work.input_bytes,
            own["input_bytes"],
        )
    if last["downstream_wait_usec"] or last["forward_send_usec"]:
        yield problem_in(
            frame,
            "DS4D-TELEM-03",
            "telemetry[0].downstream_wait_usec",
            "0 on the last hop",
            max(last["downstream_wait_usec"], last["forward_send_usec"]),
        )
    if last["output_bytes"] != v["payload_bytes"]:
        yield problem_in(
            frame,
            "DS4D-TELEM-06",
            "telemetry[0].output_bytes",
            f"{v['payload_bytes']}, the payload that the last hop made",
            last["output_bytes"],
        )
