"""The planted faults, by name; ``reference:ROLE:NAME`` starts a peer that has one."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final, cast

from ds4proto.peer.api import Role
from ds4proto_conformance.peers.faults import Fault

__all__ = [
    "all_mutants",
    "coordinator",
    "find",
    "following_rank",
    "home",
    "leading_rank",
    "sound_names",
    "worker",
]

_SOUND: Final = {
    "worker": ("none-last", "none-middle", "none-first"),
    "coordinator": ("none", "none-apart"),
    "tp-leader": ("none-v14", "none-v10", "none-v9w", "none-v7"),
    "tp-worker": ("none-v14", "none-v10", "none-v9w", "none-v7"),
}


@cache
def all_mutants() -> dict[str, Fault]:
    """Return every planted fault of every module here.

    Raises
    ------
    ValueError
        Two of one role share a name.
    """
    return {name: fault for name, (fault, _) in _found().items()}


@cache
def _found() -> dict[str, tuple[Fault, str]]:
    """Return every planted fault and the module that declares it."""
    found: dict[str, tuple[Fault, str]] = {}
    for module in pkgutil.iter_modules(__path__):
        name = f"{__name__}.{module.name}"
        for fault in getattr(importlib.import_module(name), "MUTANTS", ()):
            if fault.name in found:
                raise ValueError(f"mutant {fault.name!r} is declared twice")
            found[fault.name] = fault, name
    return found


def home(role: str, name: str) -> str:
    """Return the module that declares a fault; empty for ``none``."""
    found = _found().get(name)
    return found[1] if found is not None and found[0].role == role else ""


def sound_names(role: str) -> tuple[str, ...]:
    """Return the names under which a role has peers without a fault.

    One for each position of a worker, for each way of a coordinator to send WORK, and
    for each dialect of a rank.
    """
    return _SOUND.get(role, ("none",))


def find(role: str, name: str) -> Fault:
    """Return one fault; ``none``, ``none-middle``, ``none-first`` have none.

    Raises
    ------
    ValueError
        The role has no mutant of that name.
    """
    if name == "none" or name.startswith("none-"):
        position = name.partition("-")[2]
        return Fault(name, cast(Role, role), "none", "no fault", position)
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


def leading_rank(name: str | None = None) -> Sequence[str]:
    """Return the command of a tensor-parallel leader with a planted fault."""
    return _argv("tp-leader", name)


def following_rank(name: str | None = None) -> Sequence[str]:
    """Return the command of a tensor-parallel worker with a planted fault."""
    return _argv("tp-worker", name)
