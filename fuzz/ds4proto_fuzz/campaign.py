"""A campaign: chunks of cases over processes, merged once each, resumed at will.

A case is addressed by (seed, index); a chunk is a run of indices. Whoever carries out
a chunk returns what it found, and only the campaign's own process writes files, so
that nothing is counted twice whichever engine spreads the chunks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from dataclasses import asdict, dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Final, Protocol

from ds4proto.errors import Ds4ProtoError, WrongUsage
from ds4proto.peer import PeerLost
from ds4proto_fuzz.findings import Finding, Store
from ds4proto_fuzz.hunt import Hunt, Tally
from ds4proto_fuzz.roles import target_of
from ds4proto_fuzz.target import Settings

__all__ = ["CHUNK", "Campaign", "Engine", "Plan", "Pool", "carry_out", "overdue"]

CHUNK: Final = 256
"""Cases a chunk."""
PORTION_S: Final = 30.0
"""Seconds after which a chunk comes back unfinished, so that little is ever lost."""
SILENCE_S: Final = 900.0
"""Seconds that the last case of a chunk may take more: proof, reduction, restarts."""
_RESTARTS: Final = 20
"""Starts of the peer that are allowed for on top of that."""
_FAREWELL_S: Final = 10.0
"""Seconds that a process of the pool gets to end by itself."""
_FORMAT: Final = "ds4proto fuzz campaign 1"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign is to do.

    Attributes
    ----------
    cases : int or None
        Indices 0 to ``cases`` - 1; None goes on until ``seconds`` are over.
    """

    settings: Settings
    seed: int = 1
    cases: int | None = None
    seconds: float | None = None

    @property
    def mark(self) -> dict[str, Any]:
        """What has to be the same when a campaign is resumed."""
        told = self.settings
        return {"peer": told.peer, "role": told.role, "seed": self.seed}


@dataclass(slots=True)
class _Memory:
    """Findings of one chunk, kept until the campaign writes them."""

    known: set[str]
    found: dict[str, Finding] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return what is known."""
        return self.known | set(self.found)

    def add(self, finding: Finding) -> None:
        """Keep one."""
        self.found[finding.name] = finding

    def again(self, name: str, count: int) -> None:
        """Count more."""
        self.repeated[name] = self.repeated.get(name, 0) + count


_HUNTS: dict[str, Hunt] = {}
"""The peer of this process, kept from chunk to chunk."""


def carry_out(
    settings: Mapping[str, Any],
    seed: int,
    span: tuple[int, int],
    known: list[str],
    seconds: float | None,
) -> dict[str, Any]:
    """Give one chunk to this process's peer; return tally, findings, cases done.

    Everything that goes in and out can be pickled, whatever carries it.
    """
    key = json.dumps([dict(settings), seed], sort_keys=True)
    hunt = _HUNTS.get(key)
    if hunt is None:
        hunt = _HUNTS[key] = Hunt(target_of(Settings(**settings)), seed)
    memory = _Memory(set(known))
    hunt.begin(memory)
    hunt.next_index = span[0]
    until = float("inf") if seconds is None else monotonic() + seconds
    try:
        tally = hunt.run(range(*span), until)
        lost = ""
    except PeerLost as error:
        tally, lost = hunt.tally, str(error)
    return {
        "tally": tally.as_json(),
        "found": [finding.as_json() for finding in memory.found.values()],
        "repeated": memory.repeated,
        "next": hunt.next_index,
        "lost": lost,
    }


def end_peers() -> None:
    """End the peers of this process."""
    for hunt in _HUNTS.values():
        hunt.target.stop()
    _HUNTS.clear()


class Engine(Protocol):
    """Carries out chunks somewhere; `Pool`, and `ds4proto_fuzz.cluster`."""

    width: int

    def submit(self, *args: Any) -> Any:
        """Start `carry_out` with these arguments; return a handle."""
        ...

    def wait(
        self, handles: list[Any], seconds: float
    ) -> list[tuple[Any, dict[str, Any]]]:
        """Return at least one handle that is done, with its result.

        Raises
        ------
        Ds4ProtoError
            None is, after that many seconds, or who had it in hand is gone.
        """
        ...

    def close(self) -> None:
        """End the processes and their peers."""
        ...


@dataclass(eq=False, frozen=True, slots=True)
class _Later:
    args: tuple[Any, ...]


class Here:
    """Carries chunks out in this process, one after the other."""

    width = 1

    def submit(self, *args: Any) -> Any:
        """Keep the arguments."""
        return _Later(args)

    def wait(
        self, handles: list[Any], seconds: float
    ) -> list[tuple[Any, dict[str, Any]]]:
        """Carry the first one out; each of its waits has a deadline of its own."""
        del seconds
        return [(handles[0], carry_out(*handles[0].args))]

    def close(self) -> None:
        """End the peer."""
        end_peers()


class Pool:
    """Carries chunks out in processes of this machine.

    Each process keeps one peer; it ends with the process, for the library's watchdog
    ends the peers of a process that is gone.

    Parameters
    ----------
    width : int
        Processes, each with a peer of its own.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._others = set(active_children())
        self._pool = ProcessPoolExecutor(width, mp_context=get_context("spawn"))
        self._farewell = _FAREWELL_S

    def submit(self, *args: Any) -> Future[dict[str, Any]]:
        """Hand a chunk to the pool."""
        return self._pool.submit(carry_out, *args)

    def wait(
        self, handles: list[Any], seconds: float
    ) -> list[tuple[Any, dict[str, Any]]]:
        """Return what is done."""
        done, _ = wait(handles, seconds, return_when=FIRST_COMPLETED)
        if not done:
            self._farewell = 0.0
            raise overdue(seconds)
        try:
            return [(handle, handle.result()) for handle in done]
        except BrokenExecutor:
            raise Ds4ProtoError(
                "a process of the campaign has ended by itself; what it had in hand "
                "is not counted. Next: --resume, with fewer --workers if memory ran out"
            ) from None

    def close(self) -> None:
        """Let every process end, or end it; each takes its peer with it."""
        ending = Thread(target=self._pool.shutdown, daemon=True,
                        kwargs={"wait": True, "cancel_futures": True})  # fmt: skip
        ending.start()
        ending.join(self._farewell)
        if ending.is_alive():  # nobody waits for what they have in hand
            for process in set(active_children()) - self._others:
                process.kill()
            ending.join(_FAREWELL_S)


def overdue(seconds: float) -> Ds4ProtoError:
    """Return what is told when no chunk comes back."""
    return Ds4ProtoError(
        f"no part of the campaign has come back for {seconds:.0f} s; expected one "
        f"after {PORTION_S:.0f} s and what its last case takes. What was in hand is "
        "not counted. Next: --resume, with fewer --workers on a busy machine"
    )


class Campaign:
    """Runs a plan with an engine and keeps its state in a folder.

    Parameters
    ----------
    root : Path
        Gets ``campaign.json`` and the folders of the findings.
    resume : bool
        Go on with what the folder holds.

    Raises
    ------
    WrongUsage
        The folder holds another campaign, or one that is not to be resumed.
    """

    def __init__(self, plan: Plan, root: Path | str, *, resume: bool = False) -> None:
        self.plan = plan
        self.root = Path(root)
        self.store = Store(self.root)
        self.tally = Tally()
        self.done: dict[int, int] = {}
        self.lost = ""
        self._state = self.root / "campaign.json"
        if self._state.is_file():
            self._load(resume)
        elif resume:
            raise WrongUsage(f"{self.root}: nothing to resume; leave --resume out")

    def _load(self, resume: bool) -> None:
        if not resume:
            raise WrongUsage(
                f"{self.root} holds a campaign. Next: --resume, or another --out"
            )
        try:
            found = json.loads(self._state.read_text("utf-8"))
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']!r}")
            mark = found["plan"]
            self.done = {int(k): int(v) for k, v in found["done"].items()}
            self.tally = Tally.from_json(found["tally"])
        except (
            OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
        ) as error:  # fmt: skip
            raise WrongUsage(f"{self._state}: cannot be resumed ({error})") from None
        if mark != self.plan.mark:
            raise WrongUsage(
                f"{self._state}: expected {self.plan.mark}, found {mark}; "
                "resume with the same --peer, --role and --seed"
            )

    def _save(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        state = {
            "format": _FORMAT,
            "plan": self.plan.mark,
            "done": {str(k): v for k, v in sorted(self.done.items())},
            "tally": self.tally.as_json(),
        }
        temporary = self._state.with_name(".campaign.json.new")
        temporary.write_text(json.dumps(state, sort_keys=True) + "\n", "utf-8")
        temporary.replace(self._state)

    @property
    def silence(self) -> float:
        """Seconds after which a chunk that has not come back is given up."""
        told = self.plan.settings
        return PORTION_S + SILENCE_S + _RESTARTS * (told.connect + told.patience)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield runs of indices that are still to be done."""
        number, cases = 0, self.plan.cases
        while cases is None or number * CHUNK < cases:
            start, end = number * CHUNK, (number + 1) * CHUNK
            if cases is not None:
                end = min(end, cases)
            start = max(start, self.done.get(number, 0))
            if start < end:
                yield start, end
            number += 1

    def run(
        self,
        engine: Engine,
        *,
        tell: Callable[[Finding], None] = lambda _finding: None,
        step: Callable[[int], None] = lambda _cases: None,
    ) -> None:
        """Carry the plan out; may be stopped at any time and resumed."""
        limit = self.plan.seconds
        until = None if limit is None else monotonic() + limit
        spans = self.spans()
        unfinished: list[tuple[int, int]] = []
        running: dict[Any, tuple[int, int]] = {}
        try:
            while True:
                left = None if until is None else until - monotonic()
                while len(running) < engine.width and (left is None or left > 0):
                    span = unfinished.pop() if unfinished else next(spans, None)
                    if span is None or self.lost:
                        break
                    portion = PORTION_S if left is None else min(left, PORTION_S)
                    handle = engine.submit(
                        asdict(self.plan.settings), self.plan.seed, span,
                        sorted(self.store.names()), portion,
                    )  # fmt: skip
                    running[handle] = span
                if not running:
                    break
                for handle, result in engine.wait(list(running), self.silence):
                    span = running.pop(handle)
                    self._take(span, result, tell)
                    step(result["tally"]["cases"])
                    if result["next"] < span[1]:
                        unfinished.append((result["next"], span[1]))
        finally:
            engine.close()

    def _take(
        self,
        span: tuple[int, int],
        result: Mapping[str, Any],
        tell: Callable[[Finding], None],
    ) -> None:
        """Merge one chunk, once."""
        self.done[span[0] // CHUNK] = result["next"]
        for row in result["found"]:
            finding = Finding.from_json(row)
            fresh = self.store.get(finding.name) is None
            self.store.add(finding)
            if fresh:
                tell(finding)
        for name, count in result["repeated"].items():
            self.store.again(name, count)
        self.tally.merge(Tally.from_json(result["tally"]))
        self.lost = self.lost or result["lost"]
        self._save()
