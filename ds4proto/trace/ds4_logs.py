"""Plain logs of ds4 processes: lines in, what they mean out.

A line is understood where a clause of the specification declares its text, or where it
has one of the forms below. Gate numbers become places in the model by the schedule,
which a log does not carry: it is given, or found from what the lines themselves say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ds4proto.link.schedule import GatePlace, Schedule, gate_of
from ds4proto.model.known import KNOWN_MODELS, GateSchedule, KnownModel
from ds4proto.schema.ds4t_gates import ATTN, FFN
from ds4proto.schema.slab import slab_size

__all__ = [
    "MOST_LINE",
    "GateLine",
    "KnownSchedule",
    "LogLine",
    "infer_schedule",
    "parse_log",
    "schedule_of_model",
]

Kind = Literal[
    "gate-timeout", "gate-desync", "gate-failed", "connected", "refused", "waiting",
    "registered", "dropped", "route-ready", "rejected", "coordinator-lost", "slab",
    "rdma", "text",
]  # fmt: skip
MOST_LINE: Final = 8192
"""Characters of a line that are looked at."""

_N: Final = r"(\d{1,20})"
"""A number of at most 64 bits; of more digits it is none."""
_FORMS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("gate-timeout", re.compile(
        rf"timeout waiting gate seq {_N}(?: \(recv_done {_N}\))?")),
    ("gate-timeout", re.compile(rf"(?<!\w)gate seq {_N} \(recv_done {_N}\)")),
    ("gate-desync", re.compile(
        rf"(?<!batch )(?<!big )gate desync: got l={_N} g={_N} seq={_N}, "
        rf"want l={_N} g={_N} seq={_N}")),
    ("gate-desync", re.compile(
        rf"batch gate desync: got l={_N} rows={_N} seq={_N}, "
        rf"want l={_N} rows={_N} seq={_N}")),
    ("gate-desync", re.compile(
        rf"big gate desync: got l={_N} tag=([0-9a-f]+) seq={_N}, "
        rf"want l={_N} seq={_N}")),
    ("gate-failed", re.compile(
        rf"(row|batch|big|gate) exchange failed \(layer {_N} gate {_N} seq {_N}\)")),
    ("connected", re.compile(
        rf"(worker|leader) connected, transport=(\w+)(?: gate-timeout={_N}ms)?")),
    ("waiting", re.compile(r"waiting for worker on (\S+)")),
    ("refused", re.compile(r"connecting to (\S+) .*\(([^)]*)\)")),
    ("slab", re.compile(rf"bound: rank {_N}, slab {_N} bytes, (\w+) transport")),
    ("rejected", re.compile(r"rejecting (\S+): (.*)")),
    ("registered", re.compile(
        r"registered worker (\S+) .*?layers=(\S+)(?:.*?ctx=(\d+))?")),
    ("dropped", re.compile(r"dropped stale worker (\S+) layers=(\S+)")),
    ("route-ready", re.compile(r"complete route ready: (.*)")),
    ("coordinator-lost", re.compile(
        r"coordinator disconnected( after error)?; reconnecting")),
    ("rdma", re.compile(
        r"rdma (?:device|GID index|gate vectors|decode message) ?(.*)")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that is understood.

    Attributes
    ----------
    number : int
        From 1.
    kind : str
        ``text`` for a line that a clause may explain.
    text : str
        The line, without the end.
    values : tuple of str
        Its numbers, in order; empty text where one is missing.
    """

    number: int
    kind: Kind
    text: str
    values: tuple[str, ...] = ()


class GateLine(NamedTuple):
    """A gate that a line names.

    Attributes
    ----------
    seq : int
    layer, gate : int or None
        Where the line says them too: gate 0 is ATTN, 1 FFN.
    """

    seq: int
    layer: int | None = None
    gate: int | None = None


class KnownSchedule(NamedTuple):
    """A schedule, and how it is known."""

    schedule: Schedule
    why: str
    certain: bool


def parse_log(lines: Iterable[str]) -> Iterator[LogLine]:
    """Yield the lines that have a known form; every other one as ``text``.

    Empty lines are passed over.
    """
    for number, line in enumerate(lines, 1):
        text = line.strip()[:MOST_LINE]
        if not text:
            continue
        for kind, form in _FORMS:
            match = form.search(text)
            if match is not None:
                values = tuple(value or "" for value in match.groups())
                yield LogLine(number, kind, text, values)
                break
        else:
            yield LogLine(number, "text", text)


def gate_of_line(line: LogLine) -> GateLine | None:
    """Return the row gate that a line names, None where it names none."""
    v = line.values
    if line.kind == "gate-timeout":
        return GateLine(int(v[0]))
    if line.kind == "gate-failed" and v[0] in ("row", "gate"):
        if int(v[2]) not in (ATTN, FFN):
            return None
        return GateLine(int(v[3]), int(v[1]), int(v[2]))
    if line.kind == "gate-desync" and len(v) == 6 and "batch" not in line.text:
        return GateLine(int(v[5]), int(v[3]), int(v[4]))
    return None


def schedule_of_model(model: KnownModel, gates: GateSchedule | None = None) -> Schedule:
    """Return the schedule of a known model; `gates` picks another one of its."""
    gates = gates or model.gates
    return Schedule(
        model.layers, gates.gates_per_token, gates.start, gates.step, gates.mask
    )


def infer_schedule(lines: Iterable[LogLine]) -> KnownSchedule:
    """Return the schedule that the lines of a log point to.

    The slab's size names the model. Else the known models are tried against lines that
    say both the number and the place of a gate. With neither, it is that of DeepSeek V4
    Flash, and not certain.
    """
    held = list(lines)
    for line in held:
        if line.kind == "slab":
            for model in KNOWN_MODELS:
                if slab_size(model.layers, model.width) == int(line.values[1]):
                    why = f"the slab of {line.values[1]} bytes is that of {model.name}"
                    return KnownSchedule(schedule_of_model(model), why, certain=True)
    gates = [gate for gate in map(gate_of_line, held) if gate is not None]
    placed = [gate for gate in gates if gate.layer is not None]
    fits = [
        (model, schedule)
        for model, schedule in _known()
        if placed and all(_agrees(gate, schedule) for gate in placed)
    ]
    if fits:
        model, schedule = fits[0]
        names = ", ".join(dict.fromkeys(m.name for m, _ in fits))
        return KnownSchedule(
            schedule, f"numbers and layers in the log fit {names}", len(fits) == 1
        )
    model = KNOWN_MODELS[0]
    return KnownSchedule(
        schedule_of_model(model),
        f"nothing in the log names the model; {model.name} is assumed",
        certain=False,
    )


def place_of(gate: GateLine, schedule: Schedule) -> GatePlace | None:
    """Return the place of a gate, None where the schedule has no gates."""
    if gate.seq < 1 or not schedule.slots:
        return None
    return gate_of(gate.seq, schedule)


def _known() -> Iterator[tuple[KnownModel, Schedule]]:
    for model in KNOWN_MODELS:
        yield model, schedule_of_model(model)
        if model.gates_streaming is not None:
            yield model, schedule_of_model(model, model.gates_streaming)


def _agrees(gate: GateLine, schedule: Schedule) -> bool:
    place = place_of(gate, schedule)
    kind = FFN if place is not None and place.kind == "FFN" else ATTN
    return place is not None and (place.layer, kind) == (gate.layer, gate.gate)
