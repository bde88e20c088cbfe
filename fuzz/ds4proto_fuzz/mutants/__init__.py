"""Peers with planted faults: what the fuzzer has to find, and proof that it does.

``python -m ds4proto_fuzz.mutants ROLE NAME HOST PORT`` starts one.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ds4proto.peer import Role

__all__ = ["ROLES", "spec_of", "table_of"]

ROLES: Final[tuple[Role, ...]] = ("worker", "coordinator", "tp-worker", "tp-leader")


def table_of(role: str) -> dict[str, Any]:
    """Return the peers of a role by name; each has ``about`` and ``kind``.

    Raises
    ------
    KeyError
        There is no such role.
    """
    if role == "worker":
        from ds4proto_fuzz.mutants.worker_faults import WORKERS
        from ds4proto_fuzz.mutants.worker_routes import ROUTERS

        return {**WORKERS, **ROUTERS}
    if role == "coordinator":
        from ds4proto_fuzz.mutants.small_coordinator import COORDINATORS

        return dict(COORDINATORS)
    if role == "tp-worker":
        from ds4proto_fuzz.mutants.small_tp_gates import GATED
        from ds4proto_fuzz.mutants.small_tp_worker import TP_WORKERS

        return {**TP_WORKERS, **GATED}
    if role == "tp-leader":
        from ds4proto_fuzz.mutants.small_tp_leader import TP_LEADERS

        return dict(TP_LEADERS)
    raise KeyError(role)


def spec_of(role: str, name: str) -> str:
    """Return the ``--peer`` text that starts a peer with a planted fault."""
    words = (sys.executable, "-m", "ds4proto_fuzz.mutants", role, name)
    return "exec:" + shlex.join(words) + " {host} {port}"
