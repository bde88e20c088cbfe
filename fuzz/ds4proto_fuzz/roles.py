"""The roles that can be put under fire: what to play against each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from ds4proto.errors import WrongUsage
from ds4proto_fuzz.target import Settings, Target

__all__ = ["ROLES", "states_of", "target_of"]

_HOMES: Final = {
    "worker": ("ds4proto_fuzz.ds4d.worker:WorkerTarget", "ds4d.worker_cases"),
    "coordinator": (
        "ds4proto_fuzz.ds4d.coordinator:CoordinatorTarget",
        "ds4d.coordinator_cases",
    ),
    "tp-worker": ("ds4proto_fuzz.tp.worker:TpWorkerTarget", "tp.worker"),
    "tp-leader": ("ds4proto_fuzz.tp.leader:TpLeaderTarget", "tp.leader"),
}
ROLES: Final = tuple(_HOMES)


def target_of(settings: Settings) -> Target:
    """Return the target for the role of the settings.

    Raises
    ------
    WrongUsage
        There is none for this role.
    """
    if settings.role not in _HOMES:
        raise WrongUsage(f"no fuzzing of a {settings.role}; roles: {', '.join(_HOMES)}")
    module, _, name = _HOMES[settings.role][0].partition(":")
    made = getattr(import_module(module), name)(settings)
    assert isinstance(made, Target)
    return made


def states_of(role: str) -> Mapping[str, str]:
    """Return the states that the cases of a role try to reach, with a line each."""
    module = import_module(f"ds4proto_fuzz.{_HOMES[role][1]}")
    states: Mapping[str, str] = module.STATES
    return states
