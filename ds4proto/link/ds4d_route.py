"""Routes: the choice among registered workers, and the blob that WORK carries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ds4proto.link.ds4d_registry import WorkerEntry


class RouteError(Exception):
    """No complete route; the message is upstream's text.

    Attributes
    ----------
    missing : int or None
        Deepest layer for which no worker was found.
    """

    missing: int | None


@dataclass(frozen=True, slots=True)
class Route:
    """A complete chain of workers behind the coordinator's own slice.

    Parameters
    ----------
    workers : tuple of WorkerEntry
        In hop order; empty where the coordinator runs everything itself.
    logits : bool
        Whether the last worker ends with the output head.
    blob : bytes
        Route records and return record, as every WORK carries them.
    """

    workers: tuple[WorkerEntry, ...]
    logits: bool
    blob: bytes


def build_route(
    local: tuple[int, int],
    workers: Iterable[WorkerEntry],
    n_layers: int,
    *,
    coordinator_has_head: bool,
) -> Route:
    """Choose the first chain that a depth-first search in upstream's order finds.

    Each start layer is searched once, so the time grows with the number of workers
    (DS4D-ROUTE-39).

    Parameters
    ----------
    local : tuple of int
        First and last layer of the coordinator's own slice.
    workers : iterable of WorkerEntry
        In any order.

    Raises
    ------
    RouteError
        ``distributed route incomplete: missing layer N`` (DS4D-ROUTE-36) or
        ``coordinator route does not start at layer 0`` (DS4D-ROUTE-37).
    """
    raise NotImplementedError
