"""Rows of the matrix in a file, so that a stopped run goes on where it was."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ds4proto_conformance.kill.meet import Row
from ds4proto_conformance.mutants import all_mutants, home
from ds4proto_conformance.registry import Case, all_cases
from ds4proto_conformance.verdicts import Verdict

__all__ = ["Journal", "case_digest", "due"]

_WORDS: Final = ("clauses", "category", "smoke", "slow")
"""Arguments of ``case`` that change no verdict."""


@cache
def _module_digest(name: str) -> str:
    """Return a digest of a module's code, without docstrings and clauses."""
    path = importlib.import_module(name).__file__
    tree = ast.parse(Path(str(path)).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords = [k for k in node.keywords if k.arg not in _WORDS]
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def case_digest(case: Case) -> str:
    """Return a digest of the module that a case comes from."""
    return _module_digest(case.body.__module__)


def mutant_digest(role: str, name: str) -> str:
    """Return a digest of the module that a fault comes from; "" for none."""
    module = home(role, name)
    return _module_digest(module) if module else ""


class Journal:
    """Rows written as they end, and read again.

    A line that was cut short by a stop is dropped. Verdicts of a case or a fault whose
    module has changed since count as missing, and so do a fault of ours and a doubt
    about a fault that the case names. Changes of the benches, the small peers and the
    library are not noticed: begin a new file then.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        for case in all_cases():  # what is run now, not what is edited meanwhile
            case_digest(case)
        for fault in all_mutants().values():
            mutant_digest(fault.role, fault.name)
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        if path is not None and path.exists():
            for text in path.read_text("utf-8").splitlines():
                try:
                    line = json.loads(text)
                    self._lines[line["role"], line["mutant"]] = line
                except (ValueError, KeyError, TypeError):
                    continue
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
            if path.stat().st_size:
                self._file.write("\n")  # behind a line that was cut short

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def known(self, role: str, mutant: str) -> Row:
        """Return what is known of a fault; perhaps nothing."""
        row = Row(mutant, role)
        line = self._lines.get((role, mutant))
        if line is None or line["source"] != mutant_digest(role, mutant):
            return row
        row.seconds = line["seconds"]
        for case in all_cases(role):
            found = line["verdicts"].get(case.id)
            if found is None or found[1] != case_digest(case):
                continue
            doubt = found[0] == Verdict.FLAKY and mutant in case.mutants
            if not doubt and found[0] != Verdict.SUITE_ERROR:
                row.verdicts[case.id] = found[0]
        return row

    def write(self, row: Row) -> None:
        """Add a row, the newest for its fault."""
        digests = {case.id: case_digest(case) for case in all_cases(row.role)}
        line = {
            "role": row.role,
            "mutant": row.mutant,
            "source": mutant_digest(row.role, row.mutant),
            "seconds": row.seconds,
            "verdicts": {k: [v, digests[k]] for k, v in row.verdicts.items()},
        }
        self._lines[row.role, row.mutant] = line
        if self._file is not None:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()


def due(row: Row, cases: Iterable[Case]) -> list[str]:
    """Return the ids of the cases that a row does not hold yet."""
    held: Mapping[str, str] = row.verdicts
    return [case.id for case in cases if case.id not in held]
