"""A finding in words: its frames field by field, what was expected, what came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ds4proto.cli import printable
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.registry import frame, read
from ds4proto_fuzz.case import Step

if TYPE_CHECKING:
    from ds4proto_fuzz.findings import Finding

__all__ = ["decoded"]

_SHOWN = 64


def decoded(finding: Finding) -> str:
    """Return the text of ``frames.txt``."""
    effect, case, peer = finding.effect, finding.case, finding.peer
    lines = [
        str(effect),
        f"clause {effect.clause}" if effect.clause else "",
        f"severity {effect.severity}",
        f"peer {peer.get('role')} {peer.get('spec')}",
        f"state {case.state}, {case.kind}, seed {case.seed}, case {case.index}",
        f"given {case.repeat} times" if case.repeat > 1 else "",
        "",
    ]
    for number, step in enumerate(case.steps, 1):
        lines += _step(number, step, str(peer.get("dialect", "upstream")))
    return "\n".join(printable(line) for line in lines if line is not None) + "\n"


def _step(number: int, step: Step, dialect: str) -> Iterator[str]:
    how = f" [{step.how}]" if step.how else ""
    yield f"{number}. {step.on}: {step.name}, {len(step.data)} bytes{how}"
    spec = _spec(step.name, dialect)
    if spec is not None:
        now = _values(spec, step.data, dialect)
        before: Mapping[str, Any] = {}
        if step.base and step.base != step.data:
            before = _values(spec, step.base, dialect)
        for name, value in now.items():
            told = f"   {name} = {_short(value)}"
            if name in before and before[name] != value:
                told += f"   (sound: {_short(before[name])})"
            yield told
    if step.then:
        yield f"   then {step.then}"
    for at, size in step.vary:
        yield f"   bytes {at}..{at + size - 1} differ each time"
    yield ""


def _spec(name: str, dialect: str) -> FrameSpec | None:
    for protocol in ("DS4D", "DS4T"):
        try:
            if (protocol == "DS4D") != (dialect == "upstream"):
                continue
            return frame(f"{protocol}.{name}", dialect=dialect)
        except (LookupError, ValueError):
            continue
    return None


def _values(spec: FrameSpec, data: bytes, dialect: str) -> Mapping[str, Any]:
    try:
        reading = read(spec, data, dialect=dialect)
    except (ValueError, LookupError, TypeError):
        return {}
    return reading.values


def _short(value: Any) -> str:
    if isinstance(value, memoryview | bytes | bytearray):
        data = bytes(value)
        more = "..." if len(data) > _SHOWN else ""
        return f"{len(data)} bytes {data[:_SHOWN].hex()}{more}"
    text = str(value)
    return text if len(text) <= 4 * _SHOWN else text[: 4 * _SHOWN] + "..."
