"""A sequence diagram in text: a lane a peer, an arrow a frame, gates in bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ds4proto.printable import counted
from ds4proto.trace.rows import FrameRow

__all__ = ["Arrow", "arrows", "draw"]

_LANE: Final = 28
_LEFT: Final = 12


@dataclass(slots=True)
class Arrow:
    """One line of the diagram; ``both`` where frames crossed in both directions."""

    time: float
    src: str
    dst: str
    label: str
    both: bool = False


def arrows(rows: Iterable[FrameRow]) -> Iterator[Arrow]:
    """Yield an arrow a frame; gates that follow each other become one arrow."""
    bundle: list[FrameRow] = []
    for row in rows:
        if row.type.startswith("GATE"):
            if bundle and bundle[0].type != row.type:
                yield _bundled(bundle)
                bundle = []
            bundle.append(row)
            continue
        if bundle:
            yield _bundled(bundle)
            bundle = []
        yield Arrow(row.time, row.src_role, row.dst_role, _label(row))
    if bundle:
        yield _bundled(bundle)


def _bundled(rows: list[FrameRow]) -> Arrow:
    first = rows[0]
    kind = first.type.removeprefix("GATE_").lower()
    one_way = sum(row.direction == first.direction for row in rows)
    both = one_way < len(rows)
    count = max(one_way, len(rows) - one_way)
    label = f"{count} {kind} gate{'s' if count > 1 else ''}"
    return Arrow(first.time, first.src_role, first.dst_role, label, both)


def _label(row: FrameRow) -> str:
    f = row.fields
    text = row.type
    if row.type == "WORK":
        text += f" {f['request']} +{f['n_tokens']}"
    elif row.type == "RESULT":
        text += f" {f['request']}"
    elif "tokens" in f:
        text += f" {counted(len(f['tokens']), 'token')}"
    return text


def draw(found: Iterable[Arrow], lanes: list[str]) -> Iterator[str]:
    """Yield the lines of the diagram, its heading first.

    Parameters
    ----------
    found : iterable of Arrow
    lanes : list of str
        Peers from left to right; an arrow between others is left out.
    """
    places = {name: _LEFT + 4 + _LANE * i for i, name in enumerate(lanes)}
    width = max(places.values()) + _LANE
    heading = [" "] * width
    heading[:_LEFT] = f"{'time':>{_LEFT}}"
    for name, at in places.items():
        heading[at : at + len(name)] = name
    yield "".join(heading).rstrip()
    for arrow in found:
        if arrow.src not in places or arrow.dst not in places:
            continue
        line = [" "] * width
        line[:_LEFT] = f"{arrow.time:{_LEFT}.6f}"
        for at in places.values():
            line[at] = "│"
        low, high = sorted((places[arrow.src], places[arrow.dst]))
        rightward = places[arrow.src] < places[arrow.dst]
        line[low + 1 : high] = f" {arrow.label} ".center(high - low - 1, "─")
        if rightward or arrow.both:
            line[high - 1] = "▶"
        if not rightward or arrow.both:
            line[low + 1] = "◀"
        yield "".join(line).rstrip()
