"""From an event of an observer to a row: plain values, payload, roles, shapes."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from ds4proto.link.events import FrameReceived
from ds4proto.model.known import KNOWN_MODELS
from ds4proto.printable import counted
from ds4proto.schema.declare import (
    FieldSpec,
    FrameSpec,
    Layout,
    One,
    Payload,
    Records,
    Text,
    walk_tails,
)
from ds4proto.schema.ds4d_result import HIDDEN_STATE, LOGITS
from ds4proto.trace.payload import PayloadSummary, Summarizer
from ds4proto.trace.rows import plain
from ds4proto.trace.runs import Request, Run

__all__ = ["fields_and_payload"]

_KNOWN_HIDDEN: Final = frozenset(model.hidden_values for model in KNOWN_MODELS)


class _Plan(NamedTuple):
    """Which values of a frame need a look before they can go into a row."""

    payloads: tuple[str, ...]
    texts: tuple[str, ...]
    others: tuple[str, ...]


@cache
def _plan(spec: FrameSpec) -> _Plan:
    payloads, texts, others = [], [], []
    for tail in walk_tails(spec.body.tails):
        if isinstance(tail, Payload):
            payloads.append(tail.path)
        elif isinstance(tail, Text):
            texts.append(tail.path)
        elif isinstance(tail, Records | One) and _has_odd(tail.record):
            others.append(tail.path)
    others += [f.path for f in spec.body.fields if _is_raw(f)]
    return _Plan(tuple(payloads), tuple(texts), tuple(others))


def _has_odd(record: Layout) -> bool:
    """Tell whether a record holds text or raw bytes."""
    return any(map(_is_raw, record.fields)) or any(
        isinstance(tail, Payload | Text | Records | One) for tail in record.tails
    )


def _is_raw(spec: FieldSpec) -> bool:
    return spec.code.endswith("s")


def fields_and_payload(
    event: FrameReceived, run: Run | None, asked: Request | None
) -> tuple[dict[str, Any], PayloadSummary | None]:
    """Return the plain fields of a frame, and what its payload looks like.

    Parameters
    ----------
    event : FrameReceived
    run : Run or None
        Knows shapes and the widths of other frames.
    asked : Request or None
        For a RESULT: what it answers.
    """
    plan = _plan(event.spec)
    fields = dict(event.fields)
    payload = None
    for path in plan.payloads:
        held = fields.pop(path, None)
        if isinstance(held, Summarizer):
            shape, notes = _shape(event.spec, fields, held, run, asked)
            payload = held.finish(shape=shape, notes=notes)
        elif isinstance(held, memoryview | bytes) and len(held):
            text = bytes(held).decode("utf-8", "surrogateescape")
            fields["error"] = plain(text)
    for path in plan.texts:
        value = fields.get(path)
        if value is not None and not (value.isascii() and value.isprintable()):
            fields[path] = plain(value)
    for path in plan.others:
        if path in fields:
            fields[path] = _finished(fields[path])
    return fields, payload


def _finished(value: Any) -> Any:
    if isinstance(value, Summarizer):
        return value.finish()
    if isinstance(value, list):
        return [_finished(item) for item in value]
    if isinstance(value, dict):
        return {key: _finished(item) for key, item in value.items()}
    return plain(value)


def _shape(
    spec: FrameSpec,
    fields: dict[str, Any],
    held: Summarizer,
    run: Run | None,
    asked: Request | None,
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    size = {"f32": 4, "f16": 2, "bf16": 2}.get(held.width, 1)
    total = (held.bytes + held.absent) // size
    if held.width == "bytes":
        return (), ()
    if spec.name == "WORK":
        return _hidden(int(fields["n_tokens"]), total, held, run)
    if spec.name == "RESULT":
        if fields["result_kind"] == LOGITS:
            return (total,), ()  # logits cross at 32 bits alone
        if fields["result_kind"] == HIDDEN_STATE:
            return _hidden(_answered(fields, asked), total, held, run)
    width = int(run.hello.get("n_embd", 0)) if run is not None else 0
    if spec.name.startswith("GATE") and width and total % width == 0:
        rows = total // width
        return ((rows, width) if spec.name != "GATE_ROW" else (width,)), ()
    return (total,), ()


def _answered(fields: dict[str, Any], asked: Request | None) -> int:
    if asked is not None:
        return asked.n_tokens
    hops = fields.get("telemetry") or []
    return int(hops[0]["n_tokens"]) if hops else 1


def _hidden(
    rows: int, total: int, held: Summarizer, run: Run | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if rows < 1 or total % rows:
        return (total,), _unsafe(held)
    width = total // rows
    notes = _unsafe(held)
    if held.width == "e4m3":
        known = run.hidden_values if run is not None else None
        if width - 4 == known or (known is None and width - 4 in _KNOWN_HIDDEN):
            low, high = held.as_int8()
            notes = (
                *notes,
                f"ambiguous: 4 bytes a row more than {counted(width - 4, 'value')}: "
                "INT8 with an "
                f"f32 scale (codes {low}..{high}), or e4m3",
            )
    elif run is not None and run.hidden_values is None:
        run.hidden_values = width
    return (rows, width), notes


def _unsafe(held: Summarizer) -> tuple[str, ...]:
    over = held.over_f16
    if held.width == "f32" and over:
        return (f"16-bit unsafe: {counted(over, 'value')} above 65504",)
    return ()
