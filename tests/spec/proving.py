"""Checks that show a clause, each with a planted fault that makes it fail.

A proof is a function that asserts what a clause demands, and a fault: the code with
that one rule broken. ``test_proofs.py`` runs every proof twice, sound and with its
fault; a proof that its fault does not fail proves nothing and is an error. This is for
clauses that bind decoders, command lines and the inside of an endpoint, which no peer
on a connection can be asked about; what a peer can be asked belongs to the conformance
cases.

::

    @proof("DS4D-FRAME-04", "a header of two words", patch.object(framing, ...))
    def a_header_has_three_words() -> None:
        assert ...

Modules called ``recorded_*`` hold proofs on recordings of real builds
(``recordings.py``): the fault is in the recording, and the index says so.

One function may show several clauses: one decorator, and one fault, for each. The
index that ``ds4proto spec coverage`` reads is package data:
``python -m tests.spec.proving`` writes it, and a test compares it.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = Path(__file__).parents[2] / "ds4proto" / "data" / "proofs.json"

Check = Callable[[], None]
Fault = AbstractContextManager[Any] | Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Proof:
    """One clause, the check that shows it and the fault that the check catches."""

    clause: str
    check: Check
    fault_words: str
    fault: Fault

    @property
    def name(self) -> str:
        """Module and function of the check."""
        module = self.check.__module__.rpartition(".")[2]
        return f"{module}.{self.check.__name__}"

    @property
    def recorded(self) -> bool:
        """Whether recordings of real builds show the clause, not our own code."""
        return self.name.startswith("recorded_")

    def broken(self) -> AbstractContextManager[Any]:
        """Return the context in which the fault is planted."""
        fault = self.fault
        return fault if isinstance(fault, AbstractContextManager) else fault()

    def __str__(self) -> str:
        return f"{self.clause}-{self.name}"


_PROOFS: list[Proof] = []


def proof(clause: str, fault_words: str, fault: Fault) -> Callable[[Check], Check]:
    """Register a check of ``clause`` and the fault that it catches."""

    def register(check: Check) -> Check:
        _PROOFS.append(Proof(clause, check, fault_words, fault))
        return check

    return register


def all_proofs() -> list[Proof]:
    """Return every proof of ``tests/spec/proofs``, sorted by clause."""
    folder = Path(__file__).parent / "proofs"
    for module in sorted(m.name for m in pkgutil.iter_modules([str(folder)])):
        importlib.import_module(f"tests.spec.proofs.{module}")
    return sorted(_PROOFS, key=lambda p: (p.clause, p.name))


def index() -> str:
    """Return the text of the index."""
    found: dict[str, list[str]] = {}
    for entry in all_proofs():
        kind = "recording" if entry.recorded else "check"
        what = f"{kind} {entry.name}, caught: {entry.fault_words}"
        found.setdefault(entry.clause, []).append(what)
    rows = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    from tests.spec import proving  # the proofs register themselves there

    INDEX.write_text(proving.index(), "utf-8")
    print(f"written: {INDEX}")
