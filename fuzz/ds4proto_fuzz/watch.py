"""What a peer that we started holds: memory, descriptors, threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from ds4proto_fuzz.effect import Effect

__all__ = ["Gauge", "Meter", "unwatched"]

VIRTUAL_JUMP: Final = 192 << 20
RESIDENT_JUMP: Final = 96 << 20
"""Growth over one case that no sound frame of a few kilobytes explains, bytes."""
_DIALLED: Final = ("ESTABLISHED", "SYN_SENT")
_LOOPBACK: Final = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
LEAK_SHARE: Final = 0.6
"""Descriptors or threads a repetition that count as a leak."""
LEAK_BYTES: Final = 24 << 10
"""Resident bytes a repetition that count as one, over ``LEAK_TOTAL`` in all."""
LEAK_TOTAL: Final = 6 << 20


def unwatched(peer: str) -> str:
    """Say why nothing is known of a peer's memory, descriptors and threads.

    Empty where they are watched. Without this a campaign seems to have found no leak
    that it never looked for.
    """
    if not peer.startswith(("exec:", "reference:")):
        return "the process is not ours"
    if find_spec("psutil") is None:
        return "psutil is missing. Next: pip install 'ds4proto[fuzz]'"
    return ""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One reading; ``virtual`` and ``resident`` in bytes."""

    virtual: int
    resident: int
    descriptors: int
    threads: int


class Meter:
    """Reads one process; says nothing where there is none."""

    def __init__(self, pid: int | None) -> None:
        self._process: Any = None
        if pid is not None:
            try:
                import psutil

                self._process = psutil.Process(pid)
            except ImportError:
                self._process = None
            except psutil.Error:
                self._process = None
        self._last = self.sizes()

    def sizes(self) -> tuple[int, int] | None:
        """Return virtual and resident bytes."""
        found = self._ask("memory_info")
        return None if found is None else (int(found.vms), int(found.rss))

    def gauge(self) -> Gauge | None:
        """Return a whole reading."""
        sizes, files = self.sizes(), self._ask("num_fds")
        threads = self._ask("num_threads")
        if sizes is None or files is None or threads is None:
            return None
        return Gauge(*sizes, int(files), int(threads))

    def _ask(self, what: str, *args: Any) -> Any:
        if self._process is None:
            return None
        import psutil

        try:
            return getattr(self._process, what)(*args)
        except psutil.Error:
            return None

    def strangers(self, listening: int, known: Collection[int]) -> Effect | None:
        """Return whom the process has dialled and should not have.

        Parameters
        ----------
        listening : int
            Its own port, at which it is dialled.
        known : collection of int
            Ports of this machine that it may dial.
        """
        found = self._connections()
        own = {listening, *(c.laddr.port for c in found if c.status == "LISTEN")}
        for one in found:
            if one.status not in _DIALLED or not one.raddr or one.laddr.port in own:
                continue
            if one.raddr.ip not in _LOOPBACK or one.raddr.port not in known:
                there = f"{one.raddr.ip}:{one.raddr.port}"
                return Effect(
                    "silent accept", "dials an address that is not ours", there
                )
        return None

    def _connections(self) -> Sequence[Any]:
        new = hasattr(self._process, "net_connections")
        found = self._ask("net_connections" if new else "connections", "tcp")
        return found or ()

    def jump(self) -> Effect | None:
        """Return an over-allocation since the last look."""
        now, before = self.sizes(), self._last
        self._last = now
        if now is None or before is None:
            return None
        virtual, resident = now[0] - before[0], now[1] - before[1]
        if virtual < VIRTUAL_JUMP and resident < RESIDENT_JUMP:
            return None
        return Effect(
            "over-allocation",
            "takes memory by an announced size",
            f"virtual {virtual >> 20:+d} MiB, resident {resident >> 20:+d} MiB",
        )

    def settle(self) -> None:
        """Take what is held now as the measure of what follows."""
        self._last = self.sizes()


def growth(before: Gauge, after: Gauge, turns: int) -> Effect | None:
    """Return a leak over some repetitions of one case."""
    for name, what in (("descriptors", "descriptors"), ("threads", "threads")):
        more = getattr(after, name) - getattr(before, name)
        if more >= max(4, LEAK_SHARE * turns):
            return Effect("leak", f"{what} are not given back", f"{more} in {turns}")
    more = after.resident - before.resident
    if more >= max(LEAK_TOTAL, LEAK_BYTES * turns):
        return Effect(
            "leak", "memory is not given back", f"{more >> 10} KiB in {turns}"
        )
    return None
