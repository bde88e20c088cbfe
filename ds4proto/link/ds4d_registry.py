"""The workers that a coordinator knows: replacement, order, generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class WorkerEntry:
    """One registered worker.

    Parameters
    ----------
    host : str
        Numeric peer address of its control connection, with scope if it has one.
    port : int
        ``listen_port`` of its HELLO.
    model_id, layer_start, layer_end : int
    has_output, has_hidden : bool
    serial : int
        Counts registrations; the latest is the highest.
    handle : object
        The caller's own connection, never looked at.
    """

    host: str
    port: int
    model_id: int
    layer_start: int
    layer_end: int
    has_output: bool
    has_hidden: bool
    serial: int
    handle: Any = None

    @property
    def key(self) -> tuple[str, int, int, int, bool]:
        """What makes a later registration replace this one (DS4D-HELLO-31)."""
        raise NotImplementedError


class Registry:
    """Registered workers; every change bumps ``generation`` (DS4D-HELLO-33)."""

    def __init__(self) -> None:
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """Counts registrations and removals; a route of another one is stale."""
        raise NotImplementedError

    def register(
        self, hello: Mapping[str, Any], host: str, handle: Any = None
    ) -> tuple[WorkerEntry, WorkerEntry | None]:
        """Add a worker; return it, and the entry it replaced, if any.

        Close the connection of the replaced one (DS4D-HELLO-32).
        """
        raise NotImplementedError

    def remove(self, entries: Iterable[WorkerEntry]) -> None:
        """Forget workers; those already gone are passed over."""
        raise NotImplementedError

    def workers(self) -> tuple[WorkerEntry, ...]:
        """Return all workers in the order in which a route tries them."""
        raise NotImplementedError
