"""Known faults of coordinators, found in the frames of one WORK connection.

Pure functions over what an observer saw; nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ds4proto.link.ds4d_texts import text
from ds4proto.schema.ds4d_work import RESET_SESSION


@dataclass(frozen=True, slots=True)
class SeenWork:
    """One WORK on the wire."""

    session: int
    request: int
    pos0: int
    tokens: tuple[int, ...]
    flags: int

    @property
    def reset(self) -> bool:
        """Whether it carries RESET."""
        return bool(self.flags & RESET_SESSION)


@dataclass(frozen=True, slots=True)
class SeenResult:
    """One RESULT on the wire; ``message`` is the text of an error."""

    request: int
    status: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """The connection ended, or another one of the same route began."""


Seen = SeenWork | SeenResult | SeenEnd


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: its clause, the requests that show it, and what was seen."""

    clause: str
    requests: tuple[int, ...]
    text: str


@dataclass(slots=True)
class _Step:
    """A decode step whose answer was an error, or never came."""

    work: SeenWork
    failed: bool = False


def doubled_tokens(seen: Iterable[Seen]) -> Iterator[Finding]:
    """Yield replays that carry the last token of a failed decode step twice.

    A step of one token at pos0 n that fails is replayed as n + 1 tokens; builds of
    July 2026 send n + 2, the last two equal (DS4D-COORD-36).
    """
    steps: dict[int, _Step] = {}
    replays: dict[int, list[SeenWork]] = {}
    for item in seen:
        if isinstance(item, SeenEnd):
            for step in steps.values():
                step.failed = True
        elif isinstance(item, SeenResult):
            for session, step in list(steps.items()):
                if step.work.request == item.request:
                    step.failed = item.status != 0
                    if not step.failed:
                        del steps[session]
        elif item.reset:
            replays[item.session] = [item]
        elif item.session in replays and _joins(replays[item.session], item):
            replays[item.session].append(item)
        else:
            replays.pop(item.session, None)
            steps.pop(item.session, None)
            if len(item.tokens) == 1:
                steps[item.session] = _Step(item)
        if isinstance(item, SeenWork) and item.session in replays:
            step_ = steps.get(item.session)
            parts = replays[item.session]
            if step_ is not None and step_.failed and _doubles(step_.work, parts):
                requests = (step_.work.request, *(part.request for part in parts))
                yield Finding(
                    "DS4D-COORD-36",
                    requests,
                    f"the step at position {step_.work.pos0} failed and its replay"
                    f" carries {step_.work.pos0 + 2} tokens, the last one twice",
                )
                del steps[item.session], replays[item.session]


def _joins(parts: list[SeenWork], work: SeenWork) -> bool:
    return work.pos0 == sum(len(part.tokens) for part in parts)


def _doubles(step: SeenWork, parts: list[SeenWork]) -> bool:
    tokens = [token for part in parts for token in part.tokens]
    return len(tokens) == step.pos0 + 2 and tokens[-2:] == [step.tokens[0]] * 2


def refusal_loops(seen: Iterable[Seen], *, limit: int = 2) -> Iterator[Finding]:
    """Yield sessions whose continuations are refused again and again.

    A worker that lost its sessions refuses a suffix by its hash; a coordinator that
    never sends RESET from position 0 in answer is refused for ever (DS4D-COORD-35).
    ``limit`` refused attempts in a row make a finding. A short RESET replay of the
    attempt that never gets an answer does not break the row.
    """
    words = text("DS4D-WORK-26")
    open_: dict[int, SeenWork] = {}
    rows: dict[int, list[int]] = {}
    refused_at: dict[int, int] = {}
    for item in seen:
        if isinstance(item, SeenWork):
            open_[item.request] = item
        elif isinstance(item, SeenEnd):
            open_.clear()
            refused_at.clear()
        else:
            work = open_.pop(item.request, None)
            if work is None:
                continue
            if item.status == 0:
                rows.pop(work.session, None)
                refused_at.pop(work.session, None)
            elif item.message == words and not work.reset:
                row = rows.setdefault(work.session, [])
                # Later chunks of one attempt are refused with the first.
                if work.pos0 <= refused_at.get(work.session, work.pos0):
                    row.append(work.request)
                refused_at[work.session] = work.pos0
                if len(row) >= limit and row[-1] == work.request:
                    yield Finding(
                        "DS4D-COORD-35",
                        tuple(row),
                        f"{len(row)} attempts in a row began with a suffix that the"
                        f" worker refused: {words}",
                    )
