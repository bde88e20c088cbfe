"""Faults that a proxy injects: rules as data, read from a text or a small file.

A rule is ``KIND[=VALUE][,KEY=VALUE...]``:

=====================  ==========================================================
``delay=20ms``         bytes arrive that much later; ``jitter=5ms`` adds up to that
``rate=10M``           at most so many bytes a second (k, M, G: powers of ten)
``cut=4096``           the connection ends after so many bytes; ``reset=yes`` with RST
``stall=4096``         after so many bytes nothing is passed on any more
``flip=100``           the byte at this offset of the stream is inverted
``drop=WORK``          a frame is left out, ``nth=2``: the second one (default 1)
``corrupt=WORK.pos0``  a field is changed to ``value=N``, or to a seeded other one
=====================  ==========================================================

``way=up`` (towards the target) or ``way=down`` limits a rule to one direction, and
``conn=2`` to the second connection; ``kind=control`` or ``kind=hop`` to those of the
main address, or of a worker's data port. Without ``nth`` and with ``every=yes`` a frame
rule holds for every frame of its type.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ds4proto.errors import WrongUsage
from ds4proto.schema import frames

__all__ = ["FRAME_KINDS", "Rule", "Way", "bytes_of", "parse_rule", "read_rules"]

Way = Literal["up", "down"]
Kind = Literal["delay", "rate", "cut", "stall", "flip", "drop", "corrupt"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
FRAME_KINDS: Final = ("drop", "corrupt")
_KEYS: Final = {
    "jitter": ("delay",),
    "reset": ("cut",),
    "nth": FRAME_KINDS,
    "every": FRAME_KINDS,
    "value": ("corrupt",),
    "way": KINDS,
    "conn": KINDS,
    "kind": KINDS,
}
_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_TIMES: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "": 1.0}
_MOST_FILE: Final = 1 << 16
_YES: Final = {"yes": True, "no": False, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Rule:
    """One fault.

    Attributes
    ----------
    kind : str
    seconds, jitter : float
        Of a delay.
    size : int
        Bytes: offset of a cut, a stall or a flip; bytes a second of a rate.
    frame, field : str
        Of a frame rule: ``WORK`` and ``pos0``.
    value : int or None
        What a corrupted field becomes.
    nth : int
        Which frame of its type, from 1.
    every : bool
    reset : bool
        A cut ends with RST.
    way : {"up", "down"} or None
    conn : int or None
        Number of the connection, from 1.
    on : {"control", "hop"} or None
    text : str
        As it was given.
    """

    kind: Kind
    text: str
    seconds: float = 0.0
    jitter: float = 0.0
    size: int = 0
    frame: str = ""
    field: str = ""
    value: int | None = None
    nth: int = 1
    every: bool = False
    reset: bool = False
    way: Way | None = None
    conn: int | None = None
    on: Literal["control", "hop"] | None = None

    def holds(self, way: Way, conn: int, on: str) -> bool:
        """Tell whether the rule is about a direction of a connection."""
        return (
            self.way in (None, way)
            and self.conn in (None, conn)
            and self.on in (None, on)
        )

    def other(self, value: int, bits: int, draw: random.Random) -> int:
        """Return what a field becomes: the value given, or a seeded other one."""
        if self.value is not None:
            return self.value & ((1 << bits) - 1)
        return value ^ draw.randrange(1, 1 << bits)


def bytes_of(text: str) -> int:
    """Return a number of bytes from ``4096``, ``100k``, ``10M``.

    Raises
    ------
    ValueError
    """
    number = text.rstrip("kKmMgG")
    unit = text[len(number) :].lower()
    if not number.isdecimal() or len(number) > 15 or unit not in _UNITS:
        raise ValueError(f"{text!r} is no number of bytes: expected 4096, 100k or 10M")
    return int(number) * _UNITS[unit]


def _time_of(text: str) -> float:
    number = text.rstrip("ums")
    unit = text[len(number) :]
    try:
        value = float(number) * _TIMES[unit]
    except (ValueError, KeyError):
        value = -1.0
    if not 0 <= value <= 3600:
        raise ValueError(f"{text!r} is no time up to an hour: expected 20ms or 1.5s")
    return value


def parse_rule(text: str) -> Rule:
    """Return a rule.

    Raises
    ------
    WrongUsage
        With the rule and what is wrong with it.
    """
    first, *rest = text.split(",")
    kind, _, value = first.strip().partition("=")
    known_kind = next((one for one in KINDS if one == kind), None)
    if known_kind is None:
        raise WrongUsage(f"fault {text!r}: no kind {kind!r}; known: {', '.join(KINDS)}")
    found: dict[str, Any] = {}
    try:
        _main(kind, value, found)
        for part in rest:
            key, _, words = part.strip().partition("=")
            if kind not in _KEYS.get(key, ()):
                known = ", ".join(k for k, kinds in _KEYS.items() if kind in kinds)
                raise ValueError(f"no {key!r} for {kind}; known: {known}")
            _extra(key, words, found)
    except ValueError as error:
        raise WrongUsage(f"fault {text!r}: {error}") from None
    return Rule(known_kind, text, **found)


def _main(kind: str, value: str, found: dict[str, Any]) -> None:
    if kind == "delay":
        found["seconds"] = _time_of(value)
    elif kind in FRAME_KINDS:
        frame, _, field = value.partition(".")
        if not frame or (kind == "corrupt" and not field):
            form = "WORK.pos0" if kind == "corrupt" else "WORK"
            raise ValueError(f"expected {form}, found {value!r}")
        found["frame"] = frame.upper()
        names = {spec.name for spec in frames()}
        if found["frame"] not in names:
            raise ValueError(f"no frame {frame!r}; known: {', '.join(sorted(names))}")
        found["field"] = field
    else:
        found["size"] = bytes_of(value)
        if kind == "rate" and not found["size"]:
            raise ValueError("a rate is at least one byte a second")


def _extra(key: str, words: str, found: dict[str, Any]) -> None:
    if key == "jitter":
        found["jitter"] = _time_of(words)
    elif key in ("reset", "every"):
        if words not in _YES:
            raise ValueError(f"{key} is yes or no, found {words!r}")
        found[key] = _YES[words]
    elif key == "way":
        if words not in ("up", "down"):
            raise ValueError(f"way is up or down, found {words!r}")
        found["way"] = words
    elif key == "kind":
        if words not in ("control", "hop"):
            raise ValueError(f"kind is control or hop, found {words!r}")
        found["on"] = words
    else:
        base = 16 if words.lower().startswith("0x") else 10
        number = int(words, base)
        if key in ("nth", "conn") and number < 1:
            raise ValueError(f"{key} counts from 1, found {words}")
        found[key] = number


def read_rules(path: str | Path) -> list[Rule]:
    """Return the rules of a file: ``faults = ["delay=20ms", ...]`` in TOML.

    Raises
    ------
    WrongUsage, OSError
    """
    with Path(path).open("rb") as file:
        raw = file.read(_MOST_FILE + 1)
    if len(raw) > _MOST_FILE:
        raise WrongUsage(f"{path}: a file of faults is at most {_MOST_FILE} bytes")
    try:
        values = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{path}: no sound TOML: {error}") from None
    texts: Sequence[Any] = values.get("faults", ())
    if set(values) != {"faults"} or not all(isinstance(t, str) for t in texts):
        raise WrongUsage(f'{path}: expected faults = ["delay=20ms", ...] alone')
    return [parse_rule(text) for text in texts]
