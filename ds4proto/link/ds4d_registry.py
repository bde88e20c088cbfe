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
    abilities : int
        Of a worker of the private dialect (``schema.ds4d_private.ABILITIES``).
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
    abilities: int = 0

    @property
    def key(self) -> tuple[str, int, int, int, bool]:
        """What makes a later registration replace this one (DS4D-HELLO-31)."""
        return (
            self.host,
            self.model_id,
            self.layer_start,
            self.layer_end,
            self.has_output,
        )

    @property
    def order(self) -> tuple[int, bool, int, int]:
        """Place among the candidates of a route (DS4D-ROUTE-31, -32)."""
        return self.layer_start, not self.has_output, -self.layer_end, -self.serial

    def __str__(self) -> str:
        end = "output" if self.has_output else str(self.layer_end)
        return f"{self.host}:{self.port} {self.layer_start}:{end}"


class Registry:
    """Registered workers; every change bumps ``generation`` (DS4D-HELLO-33)."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int, int, int, bool], WorkerEntry] = {}
        self._serial = 0
        self._generation = 0

    @property
    def generation(self) -> int:
        """Counts registrations and removals; a route of another one is stale."""
        return self._generation

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: WorkerEntry) -> bool:
        return self._entries.get(entry.key) is entry

    def register(
        self, hello: Mapping[str, Any], host: str, handle: Any = None
    ) -> tuple[WorkerEntry, WorkerEntry | None]:
        """Add a worker; return it, and the entry it replaced, if any.

        Close the connection of the replaced one (DS4D-HELLO-32).
        """
        self._serial += 1
        self._generation += 1
        entry = WorkerEntry(
            host,
            hello["listen_port"],
            hello["model_id"],
            hello["layer_start"],
            hello["layer_end"],
            bool(hello["has_output"]),
            bool(hello["has_hidden"]),
            self._serial,
            handle,
            hello.get("abilities", 0),
        )
        replaced = self._entries.pop(entry.key, None)
        self._entries[entry.key] = entry
        return entry, replaced

    def remove(self, entries: Iterable[WorkerEntry]) -> None:
        """Forget workers; those already gone, or replaced, are passed over."""
        for entry in entries:
            if entry in self:
                del self._entries[entry.key]
                self._generation += 1

    def workers(self) -> tuple[WorkerEntry, ...]:
        """Return all workers in the order in which a route tries them."""
        return tuple(sorted(self._entries.values(), key=lambda entry: entry.order))
