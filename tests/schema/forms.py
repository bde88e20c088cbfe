"""What the schema tests share: every form of every frame, and how readings compare."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from ds4proto.schema import FrameSpec, read
from ds4proto.schema.fingerprint import distinct

FORMS = distinct()
IDS = [f"{spec.full_name}-{dialect}" for spec, dialect in FORMS]


def bounded(examples: int) -> Callable[[Any], Any]:
    """Return settings under which a property takes the same few examples each time."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def plain(value: Any) -> Any:
    """Return ``value`` with views as bytes, sequences as lists and NaN as a word."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def within(part: Any, whole: Any) -> bool:
    """Tell whether ``whole`` holds all of ``part``; computed fields may come on top."""
    if isinstance(part, dict):
        return all(name in whole and within(part[name], whole[name]) for name in part)
    if isinstance(part, list | tuple):
        return len(part) == len(whole) and all(map(within, part, whole))
    return bool(plain(part) == plain(whole))


def both_forms(spec: FrameSpec, data: bytes, dialect: str, offset: int = 0) -> Any:
    """Read with both readers, require them to agree, and return the reading."""
    fast = read(spec, data, dialect=dialect, stream_offset=offset)
    slow = read(spec, data, dialect=dialect, stream_offset=offset, reference=True)
    assert plain(fast.values) == plain(slow.values)
    assert fast.problems == slow.problems
    return fast


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
