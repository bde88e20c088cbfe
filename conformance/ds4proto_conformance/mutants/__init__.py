"""The planted faults, by name; ``reference:ROLE:NAME`` starts a peer that has one."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache

from ds4proto_conformance.peers.faults import Fault

__all__ = ["all_mutants", "coordinator", "find", "worker"]


@cache
def all_mutants() -> dict[str, Fault]:
    """Return every planted fault of every module here.

    Raises
    ------
    ValueError
        Two of one role share a name.
    """
    found: dict[str, Fault] = {}
    for module in pkgutil.iter_modules(__path__):
        faults = getattr(
            importlib.import_module(f"{__name__}.{module.name}"), "MUTANTS", ()
        )
        for fault in faults:
            if fault.name in found:
                raise ValueError(f"mutant {fault.name!r} is declared twice")
            found[fault.name] = fault
    return found


def find(role: str, name: str) -> Fault:
    """Return one fault; ``none``, ``none-middle``, ``none-first`` have none.

    Raises
    ------
    ValueError
        The role has no mutant of that name.
    """
    if name == "none" or name.startswith("none-"):
        position = name.partition("-")[2]
        return Fault(name, role, "none", "no fault", position)  # type: ignore[arg-type]
    fault = all_mutants().get(name)
    if fault is None or fault.role != role:
        known = sorted(n for n, f in all_mutants().items() if f.role == role)
        raise ValueError(f"no mutant {name!r}; known: {', '.join(known)}")
    return fault


def _argv(role: str, name: str | None) -> Sequence[str]:
    fault = find(role, name or "none")
    module = "ds4proto_conformance.peers"
    return (sys.executable, "-m", module, role, fault.name, "{host}", "{port}")


def worker(name: str | None = None) -> Sequence[str]:
    """Return the command of a worker with a planted fault."""
    return _argv("worker", name)


def coordinator(name: str | None = None) -> Sequence[str]:
    """Return the command of a coordinator with a planted fault."""
    return _argv("coordinator", name)
