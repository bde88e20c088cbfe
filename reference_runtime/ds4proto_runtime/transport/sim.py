"""A verbs provider in this process: devices, links and planted faults, a virtual clock.

Nothing happens by itself: time passes when ``Fabric.step`` or ``run_until`` is called,
so that "a message before its receive" is a matter of the test's order, not of luck.
"""

from __future__ import annotations

import errno
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import RLock
from typing import Literal

from ds4proto.link.rdma_attributes import ETHERNET, QpAttributes, QpType
from ds4proto.link.rdma_choice import Device, GidEntry, GidKind, PortState, same_subnet
from ds4proto_runtime.transport.sim_parts import SimMemory
from ds4proto_runtime.transport.sim_queue import SimQueuePair
from ds4proto_runtime.transport.verbs import NoLibraryError, VerbsError

Fate = Literal["pass", "drop", "twice", "hold"]
Verdict = Callable[[str, int], Fate]
"""Takes a direction ``"from>to"`` and the number of a message in it, from 1."""
_SUBNET = 24
_UNLIMITED = 1 << 30


def ipv4_gid(index: int, address: str, kind: GidKind = "RoCE v2") -> GidEntry:
    """Return the table entry of an IPv4 address."""
    raw = bytes(int(part) for part in address.split("."))
    return GidEntry(index, bytes(10) + b"\xff\xff" + raw, kind)


def link_local_gid(index: int, kind: GidKind = "RoCE v2") -> GidEntry:
    """Return a link-local entry, as every port has one."""
    raw = bytes.fromhex("fe80000000000000") + bytes([2, 0, 0, 255, 254, 0, 0, index])
    return GidEntry(index, raw, kind)


def _ignore(run: Callable[[], object]) -> None:
    run()


class Fabric:
    """The wire, the clock, and what goes wrong on them.

    Attributes
    ----------
    now : float
        Seconds of the virtual clock.
    latency : float
        One way.
    verdict : callable
        Decides on each message on the wire, repeats included.
    dead : set of str
        Directions in which nothing passes, acknowledgements included.
    dead_setups : dict
        Direction to n: dead for the first n queue pairs of its sender.
    stale_after : float or None
        Idle seconds after which nothing passes any more, until a device is opened
        anew.
    rnr_waits : Counter
        Seconds waited for a peer's receive, by length of the wait.
    """

    def __init__(self, latency: float = 5e-6) -> None:
        self.now = 0.0
        self.latency = latency
        self.verdict: Verdict = lambda _direction, _number: "pass"
        self.dead: set[str] = set()
        self.dead_setups: dict[str, int] = {}
        self.stale_after: float | None = None
        self.stale = False
        self.rnr_waits: Counter[float] = Counter()
        self._used = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._pairs: dict[int, SimQueuePair] = {}
        self._carried: Counter[str] = Counter()
        self._held: list[Callable[[], None]] = []
        self._next_number = 17
        self.lock = RLock()

    def pump(self) -> None:
        """Catch up with the time; a virtual clock has nothing to do here."""

    # -- time --------------------------------------------------------------------

    def after(self, seconds: float, run: Callable[[], None]) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, run))

    def next_time(self) -> float | None:
        """Return when the next thing happens."""
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is under way."""
        if not self._events:
            return False
        self.now, _, run = heapq.heappop(self._events)
        run()
        return True

    def run_until(self, time: float) -> None:
        """Let everything happen up to a time, and pass on to it."""
        while self._events and self._events[0][0] <= time:
            self.step()
        self.now = max(self.now, time)

    # -- queue pairs -------------------------------------------------------------

    def add(self, make: Callable[[int], SimQueuePair]) -> SimQueuePair:
        """Put a new queue pair on the wire under a number of its own."""
        pair = make(self._next_number)
        self._pairs[self._next_number] = pair
        self._next_number += 1
        return pair

    def forget(self, pair: SimQueuePair) -> None:
        """Take a queue pair off the wire."""
        self._pairs.pop(pair.number, None)

    def peer_of(self, pair: SimQueuePair) -> SimQueuePair | None:
        """Return the queue pair that hears this one, None where nobody does."""
        peer = self._pairs.get(pair.route.qpn)
        if peer is None or peer.route.qpn != pair.number:
            return None
        mine = pair.device.entry(pair.route.index)
        theirs = peer.device.entry(peer.route.index)
        if mine is None or theirs is None or mine.zero or theirs.zero:
            return None
        if mine.gid != peer.route.gid or theirs.gid != pair.route.gid:
            return None  # one side announced one entry and routes from another
        if mine.kind != theirs.kind:
            return None  # RoCE v1 and v2 are different packets
        both = mine.mapped and theirs.mapped
        if both and not same_subnet(mine.gid, theirs.gid, _SUBNET):
            return None
        return peer

    # -- the wire ----------------------------------------------------------------

    def direction(self, pair: SimQueuePair) -> str:
        """Return ``from>to`` by device name."""
        peer = self._pairs.get(pair.route.qpn)
        return f"{pair.device.name}>{'' if peer is None else peer.device.name}"

    def carry(
        self,
        pair: SimQueuePair,
        nbytes: int,
        arrive: Callable[[], object],
        copies: int,
    ) -> bool:
        """Take one message; False where it is lost on the way.

        Parameters
        ----------
        copies : int
            How often it arrives where the verdict is "twice".
        """
        if not self._open(pair):
            return False
        direction = self.direction(pair)
        self._carried[direction] += 1
        fate = self.verdict(direction, self._carried[direction])
        if fate == "drop" or nbytes > pair.device.message_limit:
            return False
        if fate == "hold":
            self._held.append(lambda: _ignore(arrive))
            return True
        for _ in range(copies if fate == "twice" else 1):
            self.after(self.latency, lambda: _ignore(arrive))
        return True

    def release(self) -> None:
        """Let the held messages arrive now, in order."""
        held, self._held = self._held, []
        for arrive in held:
            arrive()

    def answer_passes(self, pair: SimQueuePair) -> bool:
        """Tell whether an acknowledgement reaches this sender."""
        peer = self._pairs.get(pair.route.qpn)
        return peer is not None and self._open(peer)

    def note_rnr(self, seconds: float) -> None:
        """Count a wait for a peer's receive."""
        self.rnr_waits[seconds] += 1

    def _open(self, pair: SimQueuePair) -> bool:
        idle = self.now - self._used
        if self.stale_after is not None and idle > self.stale_after:
            self.stale = True
        self._used = self.now
        direction = self.direction(pair)
        setups = self.dead_setups.get(direction, 0)
        return not (self.stale or direction in self.dead or pair.ordinal <= setups)


@dataclass(eq=False)
class SimDevice:
    """One device; an ``OpenDevice`` as well. Attributes beyond those are its faults.

    Attributes
    ----------
    grants : tuple or None
        (sends, receives) that are granted whatever is asked; None: what is asked.
    refuses_above : tuple
        Larger requests are refused with ENOMEM.
    accepts : tuple
        What is really taken, though more was granted.
    cq_grants : int or None
        Entries that are granted; None: what is asked.
    cq_holds : int
        Entries that are really held; further ones are lost in silence.
    qp_cap : int
        Queue pairs at once.
    types : set of str
    message_limit : int
        Longer messages vanish.
    uc_stops : bool
        A UC message without a receive stops its direction for good.
    endless_retry : bool
        retry_cnt 7 repeats without end, as soft-RoCE does.
    late_receives : dict
        Number of a receive, from 1, to the seconds it is posted after its message.
    lost_completions : set of int
        Numbers of completions, from 1, that never show.
    faults : Counter
        ``INIT``, ``RTR`` or ``RTS`` to how often that step still fails.
    """

    fabric: Fabric
    name: str
    gids: list[GidEntry] = field(default_factory=list)
    state: PortState = "ACTIVE"
    link_layer: int = ETHERNET
    active_mtu: int = 5
    lid: int = 0
    table_length: int = 256
    grants: tuple[int, int] | None = None
    refuses_above: tuple[int, int] = (_UNLIMITED, _UNLIMITED)
    accepts: tuple[int, int] = (_UNLIMITED, _UNLIMITED)
    cq_grants: int | None = None
    cq_holds: int = _UNLIMITED
    qp_cap: int = _UNLIMITED
    types: set[QpType] = field(default_factory=lambda: {"UC", "RC"})
    message_limit: int = _UNLIMITED
    uc_stops: bool = False
    endless_retry: bool = False
    late_receives: dict[int, float] = field(default_factory=dict)
    lost_completions: set[int] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    created: int = 0
    opened: int = 0
    queries: int = 0
    pairs: list[SimQueuePair] = field(default_factory=list)

    def entry(self, index: int) -> GidEntry | None:
        """Return the table's entry as it is now."""
        return next((e for e in self.gids if e.index == index), None)

    def takes_fault(self, call: str) -> bool:
        """Use up one planted failure of a step."""
        if self.faults[call] <= 0:
            return False
        self.faults[call] -= 1
        return True

    def query(self) -> Device:
        """Read state and table."""
        self.queries += 1
        return Device(
            self.name,
            self.state,
            self.link_layer,
            self.active_mtu,
            self.lid,
            tuple(self.gids),
            self.table_length,
        )

    def register(self, buffer: memoryview) -> SimMemory:
        """Register memory."""
        return SimMemory(buffer.cast("B"), 0x100 + self.created)

    def create(self, attributes: QpAttributes, depth: tuple[int, int]) -> SimQueuePair:
        """Make a queue pair."""
        if attributes.qp_type not in self.types:
            raise VerbsError(
                "create_qp", errno.EOPNOTSUPP, f"no {attributes.qp_type} queue pairs"
            )
        if any(a > b for a, b in zip(depth, self.refuses_above, strict=True)):
            raise VerbsError("create_qp", errno.ENOMEM)
        if len(self.pairs) >= self.qp_cap:
            raise VerbsError(
                "create_qp",
                errno.EMFILE,
                f"{self.name} holds {self.qp_cap} queue pairs at most",
            )
        self.created += 1
        entries = attributes.cq_entries if self.cq_grants is None else self.cq_grants

        def make(number: int) -> SimQueuePair:
            granted = self.grants or depth
            return SimQueuePair(
                self, attributes, number, granted, entries, self.created
            )

        pair = self.fabric.add(make)
        self.pairs.append(pair)
        return pair

    def close(self) -> None:
        """Close it; what was made from it goes with it."""
        for pair in list(self.pairs):
            pair.close()


class SimProvider:
    """The verbs library of one simulated machine.

    Parameters
    ----------
    devices : iterable of SimDevice
    system : {"linux", "macos"}
    missing : bool
        The library cannot be loaded.
    """

    name = "simulated"

    def __init__(
        self,
        devices: Iterable[SimDevice] = (),
        system: Literal["linux", "macos"] = "linux",
        *,
        missing: bool = False,
    ) -> None:
        self.system: Literal["linux", "macos"] = system
        self._devices = list(devices)
        self._missing = missing

    def devices(self) -> tuple[Device, ...]:
        """List the devices."""
        if self._missing:
            raise NoLibraryError("libibverbs.so.1")
        return tuple(device.query() for device in self._devices)

    def open(self, name: str) -> SimDevice:
        """Open a device; a stale port works again."""
        for device in self._devices:
            if device.name == name:
                device.opened += 1
                device.fabric.stale = False
                device.fabric._used = device.fabric.now
                return device
        raise VerbsError("open", errno.ENODEV, f"no device {name}")
