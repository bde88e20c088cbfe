"""The reference peers, as commands: ``reference:ROLE[:MUTANT]`` starts them.

Each function returns an argv in which ``{host}``, ``{port}`` .. stand for addresses.
Nothing of the runtime is imported here; torch is never needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

_ADDRESS = ("--address", "{host}", "{port}")


def _peer(role: str, mutant: str | None, *words: str) -> Sequence[str]:
    if mutant is not None:
        raise ValueError(f"{role} {mutant!r}: this package has no mutants")
    return (sys.executable, "-m", "ds4proto_runtime.peer_main", role, *_ADDRESS, *words)


def _tensor_parallel(name: str, mutant: str | None) -> Sequence[str]:
    peers = import_module("ds4proto_runtime.tp.peers")
    return tuple(getattr(peers, name)(mutant))


def coordinator(mutant: str | None = None) -> Sequence[str]:
    """Return the command of a coordinator that listens on the address.

    It owns layers 0 and 1 of the toy model and, once the route is complete, prefills
    and decodes without end, a new session each time; see ``peer_main``.
    """
    return _peer("coordinator", mutant)


def worker(mutant: str | None = None) -> Sequence[str]:
    """Return the command of a worker that dials the address.

    It owns the last three layers of the toy model and the output head.
    """
    return _peer("worker", mutant)


def tp_leader(mutant: str | None = None) -> Sequence[str]:
    """Return the command of a tensor-parallel leader that listens on the address."""
    return _tensor_parallel("leader", mutant)


def tp_worker(mutant: str | None = None) -> Sequence[str]:
    """Return the command of a tensor-parallel worker that dials the address."""
    return _tensor_parallel("worker", mutant)
