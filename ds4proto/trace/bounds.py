"""A table whose keys are words from the wire, and which does not grow with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["MOST", "Bounded"]

MOST: Final = 4096
"""Entries of one table. A run that is honest has a few sessions, workers and hops."""
K = TypeVar("K")
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """A dict of at most so many entries.

    `put` makes room for what is new by forgetting the oldest; `offer` keeps what is
    there and takes nothing more.

    Attributes
    ----------
    lost : int
        Entries that were forgotten, or things that found no room.
    """

    __slots__ = ("_held", "_most", "lost")

    def __init__(self, most: int | None = None) -> None:
        self._held: OrderedDict[K, V] = OrderedDict()
        self._most = MOST if most is None else most
        self.lost = 0

    def put(self, key: K, value: V) -> V:
        """Set an entry, and return it."""
        if key not in self._held and len(self._held) >= self._most:
            self._held.popitem(last=False)
            self.lost += 1
        self._held[key] = value
        return value

    def offer(self, key: K, make: Callable[[], V]) -> V | None:
        """Return an entry, made if it is new; None where there is no room for it."""
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= self._most:
                self.lost += 1
                return None
            held = self._held[key] = make()
        return held

    def get(self, key: K) -> V | None:
        """Return an entry, None where there is none."""
        return self._held.get(key)

    def pop(self, key: K) -> V | None:
        """Take an entry out, and return it; None where there is none."""
        return self._held.pop(key, None)

    def values(self) -> Iterator[V]:
        """Yield the entries, oldest first."""
        yield from self._held.values()

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and entries, oldest first."""
        yield from self._held.items()

    def __getitem__(self, key: K) -> V:
        return self._held[key]

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
