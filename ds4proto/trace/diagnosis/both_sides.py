"""Two recordings of one pair, one on each side, aligned by gate and not by clock.

On one side d is how long after the leader's partial the worker's passed, by the clock
of that side. Between the leader's side and the worker's side d differs by the way there
and back, and the mean of both says which rank was late. Clocks cancel out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ds4proto.link.schedule import Schedule
from ds4proto.printable import counted
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.check import up_to_damage
from ds4proto.trace.diagnosis.finding import Evidence, Finding, proof
from ds4proto.trace.diagnosis.spread import Spread, milli, ms
from ds4proto.trace.diagnosis.tp_gates import PairRun, gate_name, place_of
from ds4proto.trace.rows import FrameRow

__all__ = ["align", "same_run"]

_WINDOW: Final = 65_536
_LISTED: Final = 5
SLOW: Final = 0.002
LATE: Final = 0.001
_NOTHING: Final = 1e-7
Key = tuple[str, int]


class Sight(NamedTuple):
    """One gate as one recording saw it."""

    key: Key
    leader: FrameRow | None
    worker: FrameRow | None


@dataclass(slots=True)
class Aligned:
    """What the gates of both recordings say together; times in seconds."""

    gates: int = 0
    trip: Spread = field(default_factory=Spread)
    signed: float = 0.0
    late: dict[str, Spread] = field(default_factory=dict)
    places: dict[tuple[str, int, str], Spread] = field(default_factory=dict)
    best: tuple[float, float] | None = None
    shown: tuple[FrameRow, FrameRow] | None = None
    one_side: list[tuple[str, FrameRow]] = field(default_factory=list)
    changed: int = 0
    first_changed: tuple[FrameRow, FrameRow] | None = None


def same_run(one: PairRun, two: PairRun) -> bool:
    """Tell whether two recordings show one run: equal hellos, ports and partials."""
    if not one.hello or one.hello != two.hello or one.ports != two.ports:
        return False
    shared = set(one.first_partials) & set(two.first_partials)
    equal = sum(one.first_partials[key] == two.first_partials[key] for key in shared)
    return 2 * equal > len(shared)  # some may have been changed on the way


def align(
    files: tuple[str, str], runs: tuple[int, int], schedule: Schedule | None = None
) -> Iterator[Finding]:
    """Answer from the recordings of both sides of one run.

    Parameters
    ----------
    files : two paths
    runs : two int
        Number of the run in each file.
    schedule : Schedule, optional
        Gives numbers of gates their tokens and layers.
    """
    found = Aligned()
    for one, two in _together(_sights(files[0], runs[0]), _sights(files[1], runs[1])):
        _take(found, one, two)
    if not found.gates:
        return
    yield from _changed(found, files, schedule)
    if found.trip.high < _NOTHING:
        yield Finding(
            "both.one-place", "note", "certain",
            f"{files[0]} and {files[1]} show one run from one place (or are copies): "
            f"{counted(found.gates, 'gate')} with the same times",
            {"gates": found.gates}, (),
            "record on the machine of each rank to tell a slow rank from a slow link",
        )  # fmt: skip
        return
    first_leads = found.signed >= 0
    sides = files if first_leads else (files[1], files[0])
    yield from _link(found, sides)
    yield from _ranks(found, sides)
    yield from _clocks(found, sides, first_leads=first_leads)
    yield from _lost(found, files, schedule, first_leads=first_leads)


def _sights(file: str, run: int) -> Iterator[Sight]:
    """Yield the gates of a run in order; those with one partial at the end."""
    held: OrderedDict[Key, FrameRow] = OrderedDict()
    for row in up_to_damage(CaptureDecoder(file)):
        if row.run != run or not row.type.startswith("GATE") or not row.is_frame:
            continue
        key = (row.type, int(row.fields.get("seq", 0)))
        first = held.get(key)
        if first is None or first.direction == row.direction:
            held[key] = row
            if len(held) > _WINDOW:
                held.popitem(last=False)
            continue
        del held[key]
        pair = {first.src_role: first, row.src_role: row}
        yield Sight(key, pair.get("leader"), pair.get("worker"))
    for key, row in held.items():
        leads = row.src_role == "leader"
        yield Sight(key, row if leads else None, None if leads else row)


def _together(
    one: Iterator[Sight], two: Iterator[Sight]
) -> Iterator[tuple[Sight | None, Sight | None]]:
    """Yield the gates of two recordings side by side, in a bounded window."""
    waiting: tuple[OrderedDict[Key, Sight], OrderedDict[Key, Sight]] = (
        OrderedDict(), OrderedDict(),
    )  # fmt: skip
    sources, over = [one, two], [False, False]
    while not all(over):
        for side in (0, 1):
            sight = None if over[side] else next(sources[side], None)
            if sight is None:
                over[side] = True
                continue
            other = waiting[1 - side].pop(sight.key, None)
            if other is not None:
                yield (sight, other) if side == 0 else (other, sight)
                continue
            waiting[side][sight.key] = sight
            if len(waiting[side]) > _WINDOW:
                waiting[side].popitem(last=False)
    for sight in waiting[0].values():
        yield sight, None
    for sight in waiting[1].values():
        yield None, sight


def _take(found: Aligned, one: Sight | None, two: Sight | None) -> None:
    for side, sight, other in (("first", one, two), ("second", two, one)):
        if sight is None or len(found.one_side) >= _LISTED:
            continue
        for rank in ("leader", "worker"):
            mine: FrameRow | None = getattr(sight, rank)
            theirs = None if other is None else getattr(other, rank)
            if mine is not None and theirs is None:
                found.one_side.append((side, mine))
    if one is None or two is None:
        return
    _compare(found, one, two)
    if one.leader is None or one.worker is None:
        return
    if two.leader is None or two.worker is None:
        return
    here = one.worker.first_time - one.leader.first_time
    there = two.worker.first_time - two.leader.first_time
    found.gates += 1
    found.signed += here - there
    found.trip.add(abs(here - there))
    late = (here + there) / 2
    rank = "worker" if late >= 0 else "leader"
    layer, kind = place_of(one.worker)
    found.late.setdefault(rank, Spread()).add(abs(late))
    found.places.setdefault((rank, layer, kind), Spread()).add(abs(late))
    if found.best is None or abs(here - there) < found.best[0]:
        # of the quickest gate the way there and back are nearest to each other
        down = two.leader.epoch - one.leader.epoch
        up = one.worker.epoch - two.worker.epoch
        found.best = (abs(here - there), (down - up) / 2)
        found.shown = (one.worker, two.worker)


def _compare(found: Aligned, one: Sight, two: Sight) -> None:
    """Note partials whose bytes differ between both places."""
    for mine, theirs in ((one.leader, two.leader), (one.worker, two.worker)):
        if mine is None or theirs is None or not mine.payload or not theirs.payload:
            continue
        whole = mine.payload.captured is None and theirs.payload.captured is None
        if whole and mine.payload.hash != theirs.payload.hash:
            found.changed += 1
            found.first_changed = found.first_changed or (mine, theirs)


def _changed(
    found: Aligned, files: tuple[str, str], schedule: Schedule | None
) -> Iterator[Finding]:
    if found.first_changed is None:
        return
    mine, theirs = found.first_changed
    yield Finding(
        "both.changed", "severe", "certain",
        f"{counted(found.changed, 'partial', 'are')} not the same on both sides, first "
        "the "
        f"{mine.src_role}'s of {gate_name(mine, schedule)}: its bytes changed between "
        "both places of recording",
        {"changed": found.changed, "seq": int(mine.fields.get("seq", 0))},
        (proof(mine, files[0]), proof(theirs, files[1])),
        "TCP's checksum lets such changes through rarely: a proxy or a network card "
        "that rewrites, or memory that is overwritten while it is sent",
        mine.run, files[0],
    )  # fmt: skip


def _link(found: Aligned, sides: tuple[str, str]) -> Iterator[Finding]:
    trip = found.trip
    slow = trip.median >= SLOW
    yield Finding(
        "both.link", "warning" if slow else "note", "certain",
        f"{counted(found.gates, 'gate')} seen from both sides ({sides[0]} at the "
        "leader's, "
        f"{sides[1]} at the worker's): the link takes {ms(trip.median)} there and back "
        f"(median; {ms(trip.quantile(0.99))} at 99 %, {ms(trip.low)} at best), without "
        "trusting either clock",
        {"gates": found.gates, "trip_p50_ms": milli(trip.median),
         "trip_p99_ms": milli(trip.quantile(0.99)), "trip_least_ms": milli(trip.low)},
        _shown(found, sides),
        "the link is slow: a direct cable, or RDMA" if slow else "",
    )  # fmt: skip


def _ranks(found: Aligned, sides: tuple[str, str]) -> Iterator[Finding]:
    late = found.late
    if not late:
        return
    rank = max(late, key=lambda name: late[name].total)
    spread = late[rank]
    places = sorted(
        ((s, layer, kind) for (who, layer, kind), s in found.places.items()
         if who == rank), key=lambda item: -item[0].total,
    )[:_LISTED]  # fmt: skip
    listed = ", ".join(f"layer {n} {kind} {ms(s.median)}" for s, n, kind in places)
    heavy = spread.median >= LATE and spread.count > 0.6 * found.gates
    slower = (
        "the rank is slow, not the link"
        if spread.median > found.trip.median
        else ("the link costs more than that")
    )
    yield Finding(
        "both.late-rank", "warning" if heavy else "note", "certain",
        f"the {rank} is the later one in {spread.count} of "
        f"{counted(found.gates, 'gate')}, by "
        f"{ms(spread.median)} (median; {ms(spread.quantile(0.99))} at 99 %), the link "
        f"taken out: {slower}; most in {listed}",
        {"rank": rank, "gates": spread.count, "late_p50_ms": milli(spread.median),
         "late_p99_ms": milli(spread.quantile(0.99))},
        _shown(found, sides),
        f"look at the {rank}'s machine: its clock, heat, memory, and share of experts"
        if heavy else "",
    )  # fmt: skip


def _clocks(
    found: Aligned, sides: tuple[str, str], *, first_leads: bool
) -> Iterator[Finding]:
    if found.best is None:
        return
    trip, offset = found.best
    offset = offset if first_leads else -offset
    yield Finding(
        "both.clocks", "note", "likely",
        f"the clock of {sides[1]} is {ms(abs(offset))} "
        f"{'ahead of' if offset > 0 else 'behind'} that of {sides[0]} (within "
        f"{ms(trip / 2)})",
        {"offset_ms": milli(offset), "within_ms": milli(trip / 2)},
        _shown(found, sides),
        f"ds4proto trace merge --shift 1={-offset:.6f} puts both on one clock",
    )  # fmt: skip


def _lost(
    found: Aligned,
    files: tuple[str, str],
    schedule: Schedule | None,
    *,
    first_leads: bool,
) -> Iterator[Finding]:
    """Name partials that the sender's side recorded and the other one did not."""
    for side, row in found.one_side:
        at_leader = (side == "first") == first_leads
        own = (row.src_role == "leader") == at_leader
        if not own:
            continue
        file = files[0] if side == "first" else files[1]
        yield Finding(
            "both.lost", "severe", "likely",
            f"the {row.src_role}'s partial of {gate_name(row, schedule)} left its "
            "machine and is not in the other side's recording: it was lost on the way, "
            "or that recording ended before",
            {"seq": int(row.fields.get("seq", 0))}, (proof(row, file),),
            "look at the network between them (cable, switch, firewall), and whether "
            "both recordings ran to the end", row.run, file,
        )  # fmt: skip
        return


def _shown(found: Aligned, sides: tuple[str, str]) -> tuple[Evidence, ...]:
    if found.shown is None:
        return ()
    text = "quickest gate"
    return tuple(
        proof(row, file, text) for row, file in zip(found.shown, sides, strict=True)
    )
