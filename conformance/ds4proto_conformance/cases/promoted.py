"""Cases that the fuzzer found: data, not code.

``ds4proto fuzz promote`` writes one file a case. They are read from the folder
``promoted`` of this package and from the folder that ``DS4PROTO_PROMOTED`` names. A
case holds bytes for a peer with certain facts and applies to no other. Coordinators and
ranks are in ``promoted_others``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.cases.promoted_others import for_coordinator, for_rank
from ds4proto_conformance.registry import Harm, case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Wire

__all__ = ["FORMAT", "load_folder"]

FORMAT: Final = "ds4proto promoted case 1"
FOLDER: Final = Path(__file__).parents[1] / "promoted"
_FACTS: Final = ("model_id", "n_layers", "layer_start", "layer_end", "hidden_values")


def load_folder(folder: Path) -> list[str]:
    """Declare the case of every file of a folder and return their ids.

    Raises
    ------
    WrongUsage
        A file is no promoted case.
    """
    return [_declare(path) for path in sorted(folder.glob("*.json"))]


def _declare(path: Path) -> str:
    try:
        told = json.loads(path.read_text("utf-8"))
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']!r}, expected {FORMAT!r}")
        role = told.get("role", "worker")
        makers = {"worker": _body, "coordinator": for_coordinator,
                  "tp-worker": for_rank, "tp-leader": for_rank}  # fmt: skip
        if role not in makers:
            raise ValueError(f"role {role!r}, expected one of {', '.join(makers)}")
        body = makers[role](told)
        harm: Harm = (
            "process" if role.startswith("tp-") else told["harm"]
        )  # a pair ends
        case(
            told["id"],
            clauses=tuple(told["clauses"]),
            role=role,
            category="liveness",
            mutants=tuple(told["mutants"]),
            harm=harm,
            needs_restart=harm != "none",
        )(body)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise WrongUsage(f"{path}: no promoted case ({error})") from None
    return str(told["id"])


def _body(told: Mapping[str, Any]) -> Any:
    def body(peer: WorkerBench) -> None:
        for name in _FACTS:
            here, there = getattr(peer.facts, name), told["facts"][name]
            if here != there:
                raise NotApplicable(f"written for {name} {there}, this is {here}")
        wire = peer.dial("promoted")
        for step in told["steps"]:
            if not _step(wire, step, told["clauses"][0]):
                break
        wire.close()
        peer.check_alive()
        peer.work(1, ack=True).served(told["clauses"][0])

    body.__doc__ = str(told["title"])
    body.__qualname__ = str(told["id"])
    return body


def _step(wire: Wire, step: Mapping[str, Any], clause: str) -> bool:
    """Give one step and judge its answers; False when the connection is over."""
    data = bytes.fromhex(step["hex"])
    if step["then"] == "drip":
        wire.send_pieces(data, (1,) * 24 + (1 << 20,))
    else:
        wire.send(data)
    if step["then"] == "half-close":
        wire.half_close()
    for due in step["due"]:
        found = wire.next()
        if isinstance(found, Ended):
            if found.how == "silence":
                raise Deviation(due["clause"] or clause, due["name"], str(found))
            if due["refuses"] or due["either"] or step["closed"]:
                return False
            raise Deviation(due["clause"] or clause, due["name"], str(found))
        refused = found.name == "ERROR" or bool(found.values.get("status"))
        if refused != due["refuses"] and not due["either"]:
            word = "a refusal" if due["refuses"] else f"a {due['name']} that serves"
            raise Deviation(due["clause"] or clause, word, str(found))
    if step["closed"]:
        wire.closed(step["clause"] or clause)
        return False
    return True


load_folder(FOLDER)
if os.environ.get("DS4PROTO_PROMOTED"):
    load_folder(Path(os.environ["DS4PROTO_PROMOTED"]))
