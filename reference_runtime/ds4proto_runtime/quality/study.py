"""The study: cells of (measurement, boundaries, format), each done once.

Finished cells are lines of a journal, so that a stopped study goes on where it was.
A journal belongs to one set of choices; another one is refused, never mixed in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds4proto.errors import WrongUsage
from ds4proto_runtime.engines.base import F32, Engine
from ds4proto_runtime.engines.tokenizer import ReadsText
from ds4proto_runtime.quality import measure
from ds4proto_runtime.quality.tasks import ENOUGH, TASKS, Question, is_right
from ds4proto_runtime.quality.wire import (
    REFERENCE,
    SlicedModel,
    boundaries,
    format_of,
)

Cell = dict[str, Any]

_ANY = 0
"""Number of boundaries under which the one uncompressed pass is noted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All choices of a study; together they name it.

    Attributes
    ----------
    model, text : str
        Names; ``model_hash`` and ``text_hash`` say what was behind them.
    counts : tuple of int
        Numbers of boundaries.
    formats : tuple of str
    windows, window : int
        Non-overlapping windows of the text, and tokens in each.
    prompts, continuation, segment : int
        Frozen greedy continuations, their length, and tokens a segment.
    questions : int
        Questions of the exact-match task; 0 leaves it out.
    seed : int
    """

    model: str
    model_hash: str
    text: str
    text_hash: str
    counts: tuple[int, ...]
    formats: tuple[str, ...]
    windows: int = 24
    window: int = 1024
    prompts: int = 4
    continuation: int = 512
    segment: int = 128
    questions: int = 50
    seed: int = 1

    @property
    def key(self) -> str:
        """A short name of the choices that results depend on."""
        facts = asdict(self)
        # more cells may join a study; each depends on its own format and count alone
        for name in ("counts", "formats"):
            del facts[name]
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """Finished cells, one JSON line each; a line cut by a kill is dropped."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self.cells: dict[tuple[str, int, str], Cell] = {}
        if path.exists():
            self._load(key)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)

    def _load(self, key: str) -> None:
        try:
            text = self._path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            head, *rows = [json.loads(line) for line in whole.splitlines()] or [{}]
            known = head["study"]
            cells = {(c["kind"], c["boundaries"], c["format"]): c for c in rows}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise WrongUsage(
                f"{self._path} is no journal of a study: {type(error).__name__}:"
                f" {error}; give another --out, or remove the file"
            ) from None
        if known != key:
            raise WrongUsage(
                f"{self._path} belongs to a study with other choices; give another"
                " --out, or the same model, text, windows and seed"
            )
        self.cells.update(cells)
        if whole != text:
            self._path.write_text(whole, encoding="utf-8")

    def add(self, cell: Cell) -> None:
        """Note a finished cell."""
        self.cells[cell["kind"], cell["boundaries"], cell["format"]] = cell
        # With the first cell: a study that was refused must not block the next one.
        head = "" if self._path.exists() else json.dumps({"study": self._key}) + "\n"
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(f"{head}{json.dumps(cell)}\n")


class Study:
    """One model, one text, many wires.

    Parameters
    ----------
    engine : Engine
        All layers.
    tokenizer : ReadsText
    tokens : sequence of int
        The text.
    plan : Plan
    journal : Journal
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: ReadsText,
        tokens: Sequence[int],
        plan: Plan,
        journal: Journal,
    ) -> None:
        needed = plan.windows * plan.window
        if len(tokens) < needed:
            raise WrongUsage(
                f"the text has {len(tokens)} tokens; {plan.windows} windows of"
                f" {plan.window} need {needed}: give a longer text or fewer windows"
            )
        self._engine = engine
        self._tokenizer = tokenizer
        self._tokens = list(tokens[:needed])
        self._plan = plan
        self._journal = journal
        self._first: dict[int, list[F32]] = {}
        self._questions: list[Question] | None = None
        self._task = ""

    def todo(self) -> list[tuple[str, int, str]]:
        """Return the cells that are not done yet, references first."""
        kinds = ["nll", "agreement"] + ["exact"] * (self._plan.questions > 0)
        order = [REFERENCE, *(f for f in self._plan.formats if f != REFERENCE)]
        cells = [
            (kind, count, name)
            for kind in kinds
            for count in self._plan.counts
            for name in order
        ]
        return [cell for cell in cells if cell not in self._journal.cells]

    def run(self) -> Iterator[Cell]:
        """Do what is left; yields each cell as it is finished."""
        work = {"nll": self._nll, "agreement": self._agreement, "exact": self._exact}
        for kind, count, name in self.todo():
            facts = work[kind](count, name)
            cell = {"kind": kind, "boundaries": count, "format": name, **facts}
            self._journal.add(cell)
            yield cell

    def _model(self, count: int, name: str) -> SlicedModel:
        cuts = boundaries(self._engine.shape.n_layers, count)
        return SlicedModel(self._engine, cuts, format_of(name))

    def _windows(self) -> Iterator[list[int]]:
        size = self._plan.window
        for index in range(self._plan.windows):
            yield self._tokens[index * size : (index + 1) * size]

    def _nll(self, count: int, name: str) -> dict[str, Any]:
        if name == REFERENCE:
            return self._reference(count)
        model = self._model(count, name)
        seen = [measure.Boundary() for _ in range(count)]
        model.watch = lambda index, before, behind: seen[index].add(before, behind)
        return self._scored(model, self._firsts(count, model), name, count, seen)

    def _reference(self, count: int) -> dict[str, Any]:
        """Return the uncompressed cell: one pass serves every number of boundaries.

        Its wire changes nothing, so that the boundaries of all counts can be watched
        at once.
        """
        known = self._journal.cells.get(("nll", _ANY, REFERENCE))
        layers = self._engine.shape.n_layers
        places = {c: boundaries(layers, c) for c in self._plan.counts}
        if known is None or not set(places[count]) <= set(known["cuts"]):
            cuts = sorted({cut for found in places.values() for cut in found})
            model = SlicedModel(self._engine, cuts, format_of(REFERENCE))
            seen = [measure.Boundary() for _ in cuts]
            model.watch = lambda index, before, behind: seen[index].add(before, behind)
            facts = self._scored(model, None, REFERENCE, count, seen)
            known = {"kind": "nll", "boundaries": _ANY, "format": REFERENCE, **facts}
            known["cuts"] = cuts
            self._journal.add(known)
        at = [known["at"][known["cuts"].index(cut)] for cut in places[count]]
        kept = {k: known[k] for k in ("nll", "scored", "windows", "best_hash", "best")}
        return {**kept, "top1": 1.0, "at": at}

    def _firsts(self, count: int, model: SlicedModel) -> list[F32]:
        """Return what each window sends over the first boundary of ``count``."""
        if count not in self._first:
            # one count at a time: these are the windows' hidden states, kept in memory
            self._first = {count: [model.first(window) for window in self._windows()]}
        return self._first[count]

    def _scored(
        self,
        model: SlicedModel,
        firsts: list[F32] | None,
        name: str,
        count: int,
        seen: list[measure.Boundary],
    ) -> dict[str, Any]:
        means, total, best = [], 0.0, []
        for index, window in enumerate(self._windows()):
            first = firsts[index] if firsts is not None else None
            losses, tops = measure.log_likelihoods(model, window, first)
            means.append(float(losses.mean()))
            total += float(losses.sum())
            best.extend(tops)
        scored = self._plan.windows * (self._plan.window - 1)
        return {
            "nll": total / scored,
            "scored": scored,
            "windows": means,
            "best_hash": _hash(best),
            "best": best if name == REFERENCE else None,
            "top1": self._same(count, best, name),
            "at": [boundary.summary() for boundary in seen],
        }

    def _same(self, count: int, best: list[int], name: str) -> float | None:
        """Return the share of tokens whose best guess the wire left alone."""
        if name == REFERENCE:
            return 1.0
        reference = self._journal.cells.get(("nll", count, REFERENCE))
        if reference is None:
            return None
        known: list[int] = reference["best"]
        agreeing = sum(a == b for a, b in zip(best, known, strict=True))
        return agreeing / len(best)

    def _prompts(self) -> list[list[int]]:
        """Return the first tokens of evenly spaced places of the text."""
        count = self._plan.prompts
        step = len(self._tokens) // max(1, count)
        return [self._tokens[step * i : step * i + 64] for i in range(count)]

    def _frozen(self) -> list[list[int]]:
        """Return the greedy continuations of the uncompressed wire, made once."""
        key = ("frozen", 0, REFERENCE)
        if key not in self._journal.cells:
            model = self._model(0, REFERENCE)
            found = [
                measure.greedy(model, prompt, self._plan.continuation)
                for prompt in self._prompts()
            ]
            self._journal.add(
                {
                    "kind": "frozen",
                    "boundaries": 0,
                    "format": REFERENCE,
                    "tokens": found,
                }
            )
        tokens: list[list[int]] = self._journal.cells[key]["tokens"]
        return tokens

    def _agreement(self, count: int, name: str) -> dict[str, Any]:
        model = self._model(count, name)
        totals: dict[int, list[int]] = {}
        for prompt, frozen in zip(self._prompts(), self._frozen(), strict=True):
            found = measure.agreement(model, prompt, frozen, self._plan.segment)
            for index, (same, scored) in enumerate(found):
                slot = totals.setdefault(index, [0, 0])
                slot[0] += same
                slot[1] += scored
        shares = [same / scored for same, scored in totals.values()]
        return {"segments": shares, "agreement": float(np.mean(shares))}

    def _exact(self, count: int, name: str) -> dict[str, Any]:
        questions = self._chosen(count)
        answers = self._answers(self._model(count, name), questions)
        right = [is_right(a, q.answer) for a, q in zip(answers, questions, strict=True)]
        reference = self._journal.cells.get(("exact", count, REFERENCE))
        base = reference["answers"] if reference else answers
        same = [a == b for a, b in zip(answers, base, strict=True)]
        return {
            "task": self._task,
            "fit": self._journal.cells["task", 0, REFERENCE]["fit"],
            "correct": sum(right) / len(right),
            "same_answer": sum(same) / len(same),
            "answers": answers,
        }

    def _answers(self, model: SlicedModel, questions: list[Question]) -> list[str]:
        found = []
        for question in questions:
            ids = self._tokenizer.encode(question.prompt)
            out = measure.greedy(model, ids, 4)
            found.append(self._tokenizer.decode(out).split("\n")[0].strip())
        return found

    def _chosen(self, count: int) -> list[Question]:
        """Return the questions of the first task that the plain wire answers."""
        del count
        key = ("task", 0, REFERENCE)
        if key not in self._journal.cells:
            self._journal.add(self._choose())
        cell = self._journal.cells[key]
        if self._questions is None:
            self._task = cell["task"]
            make = TASKS[self._task]
            self._questions = make(self._plan.seed, self._plan.questions)
        return self._questions

    def _choose(self) -> Cell:
        scores: dict[str, float] = {}
        model = self._model(0, REFERENCE)
        for name, make in TASKS.items():
            questions = make(self._plan.seed, self._plan.questions)
            answers = self._answers(model, questions)
            right = [
                is_right(answer, question.answer)
                for answer, question in zip(answers, questions, strict=True)
            ]
            scores[name] = sum(right) / len(right)
            if scores[name] >= ENOUGH:
                break
        best = max(scores, key=lambda name: scores[name])
        return {
            "kind": "task",
            "boundaries": 0,
            "format": REFERENCE,
            "task": best,
            "scores": scores,
            "fit": scores[best] >= ENOUGH,
        }


def _hash(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()[:16]


def table(plan: Plan, cells: Mapping[tuple[str, int, str], Cell]) -> list[Cell]:
    """Return one row a (boundaries, format), with everything measured of it."""
    rows: list[Cell] = []
    for count in plan.counts:
        base = cells.get(("nll", count, REFERENCE))
        for name in plan.formats:
            cell = cells.get(("nll", count, name))
            if cell is None or base is None:
                continue
            deltas = [
                a - b for a, b in zip(cell["windows"], base["windows"], strict=True)
            ]
            low, high = measure.bootstrap(deltas, plan.seed)
            kept = cells.get(("agreement", count, name), {})
            exact = cells.get(("exact", count, name), {})
            rows.append(
                {
                    "boundaries": count,
                    "format": name,
                    "nll": cell["nll"],
                    "delta": cell["nll"] - base["nll"],
                    "relative": cell["nll"] / base["nll"] - 1,
                    "delta_low": low,
                    "delta_high": high,
                    "top1": cell["top1"],
                    "agreement": kept.get("agreement"),
                    "segments": kept.get("segments"),
                    "task": exact.get("task"),
                    "correct": exact.get("correct"),
                    "same_answer": exact.get("same_answer"),
                    "at": cell["at"],
                }
            )
    return rows
