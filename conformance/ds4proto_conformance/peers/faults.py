"""A planted fault: where it hooks into a small peer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ds4proto.peer.api import Role

__all__ = ["NONE", "Fault", "patched"]

Out = Callable[["Any", bytes], list[bytes]]
"""(connection, whole frame) -> what is written instead."""
Received = Callable[["Any", bytes], bytes]
"""(connection, bytes that came) -> bytes that the machine gets."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; hooks that are None change nothing.

    Attributes
    ----------
    patch : callable
        Returns a context in which the library's tables are altered.
    out, received : callable
        Alter what is sent and what was received, connection by connection.
    evaluate : callable
        ``(engine, job) -> payload``, instead of the engine's own.
    event : callable
        ``(peer, connection, event) -> bool``; True swallows an event of a machine.
    broken : callable
        ``(connection, error)``, told of a connection that broke under the peer.
    facts, settings : callable
        Alter what the peer believes of itself.
    """

    name: str
    role: Role
    category: str
    about: str
    position: str = ""
    patch: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    out: Out | None = None
    received: Received | None = None
    evaluate: Callable[[Any, Any], bytes] | None = None
    event: Callable[[Any, Any, Any], bool] | None = None
    broken: Callable[[Any, OSError], None] | None = None
    facts: Callable[[Any], Any] | None = None
    settings: Callable[[Any], Any] | None = None
    delay: float = 0.0


NONE = Fault("none", "worker", "none", "no fault at all")


@contextlib.contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes while the block lasts."""
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in changes]
    try:
        for holder, name, value in changes:
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)
