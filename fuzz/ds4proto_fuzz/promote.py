"""From a finding to a conformance case: the bytes, and what the clauses ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.oracle import WorkerOracle
from ds4proto_fuzz.findings import Finding

__all__ = ["FORMAT", "promoted", "write"]

FORMAT: Final = "ds4proto promoted case 1"
_CLAUSES: Final = {
    "crash": "DS4D-WORKER-02",
    "hang": "DS4D-FRAME-13",
    "over-allocation": "DS4D-WORK-60",
    "leak": "DS4D-WORKER-35",
    "silent accept": "DS4D-WORK-45",
    "wrong answer": "DS4D-RESULT-27",
}
"""Clause of an effect that names none."""
_FACTS: Final = (
    "model_id", "model_name", "n_layers", "layer_start", "layer_end", "has_output",
    "quant_bits", "ctx", "hidden_values", "vocab",
)  # fmt: skip


def promoted(finding: Finding, *, clause: str = "", mutant: str = "") -> dict[str, Any]:
    """Return the case of a finding about a worker.

    Raises
    ------
    WrongUsage
        The finding is about another role, needs the control connection, or shows
        only when it is repeated.
    """
    role, case = finding.peer.get("role"), finding.case
    if role != "worker" or {step.on for step in case.steps} - {"data"}:
        raise WrongUsage(
            f"{finding.name}: only findings about a worker's data connection can be "
            f"promoted, this is one about a {role}"
        )
    if case.repeat > 1:
        raise WrongUsage(
            f"{finding.name} shows after {case.repeat} repetitions; a case has one. "
            "Next: write it by hand with the frames of frames.txt"
        )
    facts = {name: finding.peer[name] for name in _FACTS}
    oracle = WorkerOracle(Facts(**{**facts, "port": 1}))
    steps = []
    for step in case.steps:
        oracle.feed("data", step.data)
        if step.then == "half-close":
            oracle.feed("data", None)
        due = oracle.take("data")
        frames = [
            {"name": d.frame.name, "refuses": d.frame.refuses, "clause": d.clause,
             "either": d.either or due.loose}
            for d in due.frames
        ]  # fmt: skip
        steps.append(
            {"hex": step.data.hex(), "then": step.then, "due": frames,
             "closed": due.closed, "clause": due.clause if due.closed else ""}
        )  # fmt: skip
    main = clause or finding.effect.clause or _CLAUSES[finding.effect.kind]
    state = re.sub(r"[^a-z0-9]+", "-", case.state)
    what = finding.effect.what
    return {
        "format": FORMAT,
        "id": f"worker/promoted/{state}-{finding.name.rpartition('-')[2]}",
        "title": f"A worker does better than: {what}, state {case.state}.",
        "clauses": [main],
        "mutants": [mutant or "none"],
        "harm": "process" if finding.effect.kind in ("crash", "hang") else "none",
        "facts": facts,
        "steps": steps,
    }


def write(finding: Finding, folder: Path, **told: str) -> Path:
    """Write the case of a finding and return its file."""
    case = promoted(finding, **told)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.name}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(case, indent=1, sort_keys=True) + "\n", "utf-8")
    temporary.replace(path)
    return path
