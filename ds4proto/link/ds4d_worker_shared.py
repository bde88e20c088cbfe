"""What the connections of one worker share: sessions, the lock, news."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits, Policy
from ds4proto.link.ds4d_sessions import SessionTable

if TYPE_CHECKING:
    from ds4proto.link.ds4d_endpoint import Endpoint


class Pumped(Protocol):
    """A connection that goes on when the lock is free."""

    def pump(self, now: float) -> None:
        """Begin what can begin."""


class Shared:
    """Sessions, the evaluation lock and the machines with news.

    Attributes
    ----------
    facts : WorkerFacts
    limits : LinkLimits
    policy : {"safe", "upstream"}
    sessions : SessionTable
    """

    def __init__(
        self,
        facts: WorkerFacts,
        *,
        limits: LinkLimits = DEFAULT,
        policy: Policy = "safe",
    ) -> None:
        self.facts = facts
        self.limits = limits
        self.policy = policy
        self.sessions = SessionTable(limits.max_sessions)
        self._holder: Pumped | None = None
        self._waiting: deque[Pumped] = deque()
        self._granting = False
        self._woken: dict[Endpoint, None] = {}

    def woken(self) -> list[Endpoint]:
        """Return the machines (``WorkerLink``, ``Forwarder``) with new events.

        Ask after every call to any machine of this worker: an answer on one
        connection can set work free on another.
        """
        found = list(self._woken)
        self._woken.clear()
        return found

    def wake(self, machine: Endpoint) -> None:
        """Note that a machine has news."""
        self._woken[machine] = None

    def acquire(self, link: Pumped) -> bool:
        """Take the evaluation lock, or wait in line for it (DS4D-SESS-09)."""
        if self._holder is None or self._holder is link:
            self._holder = link
            return True
        if link not in self._waiting:
            self._waiting.append(link)
        return False

    def release(self, link: Pumped, now: float) -> None:
        """Give the lock, or the place in line, back; the next in line goes on."""
        if self._holder is link:
            self._holder = None
        elif link in self._waiting:
            self._waiting.remove(link)
        if self._granting:
            return
        self._granting = True
        try:
            while self._waiting and self._holder is None:
                self._waiting.popleft().pump(now)
        finally:
            self._granting = False
