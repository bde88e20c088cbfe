"""From a finding to a conformance case: the bytes, and what the clauses ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto_fuzz.case import Case
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.oracle import WorkerOracle
from ds4proto_fuzz.effect import CLASSES
from ds4proto_fuzz.findings import Finding
from ds4proto_fuzz.promote_others import of_coordinator, of_rank

__all__ = ["FORMAT", "promoted", "write"]

FORMAT: Final = "ds4proto promoted case 1"
_CLAUSES: Final = {
    "wor": {
        "crash": "DS4D-WORKER-02",
        "hang": "DS4D-FRAME-13",
        "over-allocation": "DS4D-WORK-60",
        "leak": "DS4D-WORKER-35",
        "silent accept": "DS4D-WORK-45",
        "wrong answer": "DS4D-RESULT-27",
    },
    "coo": dict.fromkeys(CLASSES, "DS4D-COORD-31")
    | {"silent accept": "DS4D-HELLO-12", "hang": "DS4D-FRAME-13"},
    "tp-": dict.fromkeys(CLASSES, "DS4T-FAIL-11")
    | {"silent accept": "DS4T-CTRL-02", "hang": "DS4T-CTRL-02"},
}
"""Clause of an effect that names none, by role."""
_HOMES: Final = {
    "worker": "conformance/ds4proto_conformance/cases/worker_*.py",
    "tp-worker": "conformance/ds4proto_conformance/cases/tp_*.py",
    "tp-leader": "conformance/ds4proto_conformance/cases/tp_leader*.py",
}
_FACTS: Final = (
    "model_id", "model_name", "n_layers", "layer_start", "layer_end", "has_output",
    "quant_bits", "ctx", "hidden_values", "vocab",
)  # fmt: skip


def promoted(finding: Finding, *, clause: str = "", mutant: str = "") -> dict[str, Any]:
    """Return the case of a finding.

    Raises
    ------
    WrongUsage
        A case of the suite cannot hold it: it shows only when it is repeated, needs a
        next hop, a gate or a leader that asks, or a worker's control connection.
    """
    role, case = str(finding.peer.get("role")), finding.case
    why = _refusal(role, case)
    if why:
        raise WrongUsage(
            f"{finding.name}: no conformance case can be made of it: {why}. Next: keep "
            "its folder, 'ds4proto fuzz replay' shows the effect again; a case by hand "
            f"goes to {_HOMES.get(role, 'conformance/ds4proto_conformance/cases')}, "
            "with the bytes of frames.txt"
        )
    makers = {"worker": _worker, "coordinator": of_coordinator}
    parts = makers.get(role, of_rank)(finding)
    main = clause or finding.effect.clause or parts.get("clause", "")
    main = main or _CLAUSES[role[:3]][finding.effect.kind]
    state = re.sub(r"[^a-z0-9]+", "-", case.state)
    what = finding.effect.what
    return {
        "format": FORMAT,
        "role": role,
        "id": f"{role}/promoted/{state}-{finding.name.rpartition('-')[2]}",
        "title": f"A {role} does better than: {what}, state {case.state}.",
        "clauses": [main],
        "mutants": [mutant or "none"],
        "harm": "process" if finding.effect.kind in ("crash", "hang") else "none",
        **parts,
    }


def _refusal(role: str, case: Case) -> str:
    """Return why the suite has no means for a case; empty where it has."""
    sides = {step.on for step in case.steps}
    if case.repeat > 1:
        return f"it shows after {case.repeat} repetitions, and a case has one"
    if role == "worker" and sides & {"above", "next"}:
        return "it needs a next hop whose answers are made of what was forwarded"
    if role == "worker" and sides - {"data"}:
        return "it spoils the worker's control connection, which every case needs"
    if role.startswith("tp-") and "data" in sides:
        return "it is about a gate, whose bytes follow from the gates before it"
    if role == "tp-leader" and case.state != "hello":
        return "it answers what this leader asked, and another asks something else"
    if not case.steps:
        return "it has no frames"
    return ""


def _worker(finding: Finding) -> dict[str, Any]:
    facts = {name: finding.peer[name] for name in _FACTS}
    oracle = WorkerOracle(Facts(**{**facts, "port": 1}))
    steps = []
    for step in finding.case.steps:
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
    return {"facts": facts, "steps": steps}


def write(finding: Finding, folder: Path, **told: str) -> Path:
    """Write the case of a finding and return its file."""
    case = promoted(finding, **told)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.name}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(case, indent=1, sort_keys=True) + "\n", "utf-8")
    temporary.replace(path)
    return path
