"""Routes: the choice among registered workers, and the blob that WORK carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ds4proto.link.ds4d_frames import RETURN_PART, ROUTE_PART
from ds4proto.link.ds4d_registry import WorkerEntry
from ds4proto.link.ds4d_route_blob import LOGITS, UPSTREAM
from ds4proto.link.ds4d_texts import text


class RouteError(Exception):
    """No complete route; the message is upstream's text.

    Attributes
    ----------
    missing : int or None
        Deepest layer for which no worker was found.
    """

    def __init__(self, words: str, missing: int | None = None) -> None:
        super().__init__(words)
        self.missing = missing


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

    def __str__(self) -> str:
        return " -> ".join(map(str, self.workers)) or "local"


def route_blob(workers: Sequence[WorkerEntry]) -> bytes:
    """Return the blob of a route: one record a hop, then the return record."""
    parts = []
    for worker in workers:
        host = worker.host.encode("utf-8", "surrogateescape")
        record = {
            "host_len": len(host),
            "port": worker.port,
            "layer_start": worker.layer_start,
            "layer_end": worker.layer_end,
            "flags": LOGITS if worker.has_output else 0,
        }
        parts += [ROUTE_PART.build(record), host]
    parts.append(RETURN_PART.build({"kind": UPSTREAM, "host_len": 0, "port": 0}))
    return b"".join(parts)


def _usable(worker: WorkerEntry, n_layers: int, local_head: bool) -> bool:
    """Tell whether a worker may stand at its place (DS4D-ROUTE-33, -34)."""
    if worker.layer_end < n_layers - 1:
        return worker.has_hidden
    return worker.has_output or (worker.has_hidden and local_head)


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
    start, end = local
    if start != 0:
        raise RouteError(text("DS4D-ROUTE-37"))
    if end >= n_layers - 1 and coordinator_has_head:
        return Route((), logits=False, blob=b"")
    ahead = defaultdict(list)
    for worker in sorted(workers, key=lambda entry: entry.order):
        if _usable(worker, n_layers, coordinator_has_head):
            ahead[worker.layer_start].append(worker)
    # Whether a layer leads to the end depends on that layer alone, so going from the
    # last layer back settles each once; the first candidate that leads there is the
    # one a depth-first search would take.
    choice: dict[int, WorkerEntry] = {}
    for layer in sorted(ahead, reverse=True):
        for worker in ahead[layer]:
            if worker.layer_end >= n_layers - 1 or worker.layer_end + 1 in choice:
                choice[layer] = worker
                break
    if end + 1 not in choice:
        missing = _deepest_gap(end + 1, ahead)
        raise RouteError(text("DS4D-ROUTE-36", missing), missing)
    chain = [choice[end + 1]]
    while chain[-1].layer_end < n_layers - 1:
        chain.append(choice[chain[-1].layer_end + 1])
    return Route(tuple(chain), chain[-1].has_output, route_blob(chain))


def _deepest_gap(first: int, ahead: dict[int, list[WorkerEntry]]) -> int:
    """Return the deepest layer that the search reaches and nobody serves."""
    seen, todo, gap = {first}, [first], first
    while todo:
        layer = todo.pop()
        if not ahead.get(layer):
            gap = max(gap, layer)
        for worker in ahead.get(layer, ()):
            after = worker.layer_end + 1
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return gap
