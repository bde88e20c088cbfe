"""Which connections belong together: runs, and who is who in them.

A run is one coordinator with its workers, or one tensor-parallel pair. Nothing on the
wire names it; what ties connections together is an address: the listener that workers
dial with HELLO, the data ports that HELLO and the routes name, the leader's listener.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ds4proto.link.pair import TpPair
from ds4proto.pcap.types import Endpoint
from ds4proto.printable import counted
from ds4proto.schema.ds4d_work import OUTPUT_LOGITS
from ds4proto.trace import bounds

__all__ = ["Request", "Run", "RunTable"]

Side = Literal["a", "b"]
_MAX_REQUESTS: Final = 4096
MOST_NOTES: Final = 64
_SNAPSHOT_IDS: Final = 1 << 63
_COORDINATOR: Final = "coordinator"


@dataclass(slots=True)
class Request:
    """What a WORK asked for, kept until its RESULT has passed."""

    n_tokens: int
    session: int


@dataclass(slots=True)
class Run:
    """One coordinator and its workers, or one leader and its worker.

    Attributes
    ----------
    number : int
        From 1, in order of appearance.
    protocol : {"DS4D", "DS4T"}
    streams : dict
        Stream number -> ``control``, ``data``, ``forward``, ``snapshot``.
    workers : dict
        Data listener of a worker -> its role text.
    requests : OrderedDict
        (stream, request id) -> `Request`, for the answers still to come.
    sessions : set of int
        At most `bounds.MOST`; a note says where there were more.
    notes : dict
        Things worth saying once, in order; at most `MOST_NOTES`.
    left_out : int
        Notes for which there was no room.
    hidden_values : int or None
        Hidden values of one token, once a 16- or 32-bit payload has shown it.
    hello : dict
        Fields of the DS4T hello, for shapes and gate numbers.
    """

    number: int
    protocol: str
    streams: dict[int, str] = field(default_factory=dict)
    workers: dict[Endpoint, str] = field(default_factory=dict)
    requests: OrderedDict[tuple[int, int], Request] = field(default_factory=OrderedDict)
    sessions: set[int] = field(default_factory=set)
    id_spaces: set[str] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)
    left_out: int = 0
    hidden_values: int | None = None
    hello: dict[str, Any] = field(default_factory=dict)
    last_session: dict[int, int] = field(default_factory=dict)
    listeners: int = 0
    switches: int = 0

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text in self.notes:
            return
        if len(self.notes) >= MOST_NOTES:
            self.left_out += 1
            return
        self.notes[text] = None

    @property
    def told(self) -> list[str]:
        """The notes, and how many more there were."""
        more = (
            [f"{counted(self.left_out, 'more note', 'are')} left out"]
            if self.left_out
            else []
        )
        return [*self.notes, *more]

    @property
    def gates_per_token(self) -> int | None:
        """Row gates of one decoded token, as the hello tells."""
        if not self.hello:
            return None
        given = int(self.hello.get("gates_per_token", 0))
        return given or 2 * int(self.hello.get("n_layer", 0)) or None


def layers_text(start: int, end: int, *, output: bool) -> str:
    """Return ``2:4``, or ``5:output`` for a slice with the output head."""
    return f"{start}:output" if output else f"{start}:{end}"


class RunTable:
    """All runs of a capture, and the roles of their connections' ends.

    Attributes
    ----------
    runs : list of Run
    roles : dict
        (stream number, side) -> role, where it is known.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._by_address: dict[tuple[str, Endpoint], Run] = {}
        self._pairs: dict[Endpoint, tuple[TpPair, Run]] = {}
        self._worker_roles: dict[Endpoint, str] = {}
        self._joined: dict[int, Run] = {}
        self.roles: dict[tuple[int, Side], str] = {}

    def role(self, stream: int, side: Side) -> str | None:
        """Return the role of one end of a connection, if it is known."""
        return self.roles.get((stream, side))

    def is_listener(self, end: Endpoint) -> bool:
        """Tell whether an address is one that the peers of a run listen on."""
        known = self._by_address
        return ("coordinator", end) in known or ("worker", end) in known

    # -- tensor parallelism ------------------------------------------------------

    def pair_for(self, leader: Endpoint) -> TpPair | None:
        """Return the pair whose data connection is still due at an address."""
        held = self._pairs.get(leader)
        return held[0] if held is not None and held[0].wants_data else None

    def new_pair(self, stream: int, leader: Endpoint) -> TpPair:
        """Begin a pair; `stream` is its control connection."""
        pair = TpPair()
        run = self._new("DS4T")
        self._pairs[leader] = (pair, run)
        self._join(stream, run, "control")
        return pair

    def join_pair(self, stream: int, leader: Endpoint) -> Run:
        """Make `stream` the data connection of the pair at an address."""
        run = self._pairs[leader][1]
        self._join(stream, run, "data")
        for side in ("a", "b"):
            control = next(n for n, kind in run.streams.items() if kind == "control")
            role = self.roles.get((control, side))
            if role is not None:
                self.roles[stream, side] = role
        return run

    def any_run(self, stream: int, listener: Endpoint, protocol: str, kind: str) -> Run:
        """Return the run of a connection: its own, its listener's, or a new one."""
        run = self._joined.get(stream)
        if run is None:
            run = (
                self._at("worker", listener)
                or self._at("coordinator", listener)
                or self._new(protocol)
            )
            self._join(stream, run, kind)
        return run

    def tp_hello(
        self, run: Run, stream: int, sender: Side, fields: Mapping[str, Any]
    ) -> None:
        """Learn roles, shapes and schedule from a hello."""
        leads = fields.get("role") == 1
        other: Side = "b" if sender == "a" else "a"
        self.roles[stream, sender] = "leader" if leads else "worker"
        self.roles.setdefault((stream, other), "worker" if leads else "leader")
        if leads or not run.hello:
            run.hello = {k: v for k, v in fields.items() if isinstance(v, int)}
        if leads and sender == "a":
            run.note("the leader dials and the worker listens: reverse topology")

    # -- pipeline ----------------------------------------------------------------

    def run_of(self, stream: int) -> Run | None:
        """Return the run that a connection belongs to."""
        return self._joined.get(stream)

    def hello(
        self, stream: int, a: Endpoint, b: Endpoint, sender: Side, f: Mapping[str, Any]
    ) -> Run:
        """Learn from a DS4D HELLO: its sender is a worker of the other end."""
        worker, listener = (a, b) if sender == "a" else (b, a)
        other: Side = "b" if sender == "a" else "a"
        run = self._at("coordinator", listener) or self._joined.get(stream)
        run = run or self._new("DS4D")
        self._own(run, "coordinator", listener)
        layers = layers_text(
            f["layer_start"], f["layer_end"], output=bool(f["has_output"])
        )
        role = f"worker {layers}"
        data = Endpoint(worker.host, f["listen_port"])
        if self._own(run, "worker", data):
            run.workers[data] = self._worker_roles[data] = role
        self._join(stream, run, "control")
        self.roles[stream, sender] = role
        self.roles[stream, other] = _COORDINATOR
        if f["layer_start"] == 0:
            run.note(
                f"reverse topology: {role} owns the first layers, the coordinator "
                "the rest"
            )
        return run

    def work(self, stream: int, b: Endpoint, sender: Side, f: Mapping[str, Any]) -> Run:
        """Learn from a WORK: its route names every worker's data listener."""
        route, index = f.get("route") or [], int(f.get("route_index", 0))
        ends = [Endpoint(str(hop["host"]), int(hop["port"])) for hop in route]
        run = self._joined.get(stream) or self._at("worker", b)
        for end in ends:
            run = run or self._at("worker", end)
        run = run or self._new("DS4D")
        roles = []
        for end, hop in zip(ends, route, strict=True):
            output = bool(hop["flags"] & 1)
            layers = layers_text(hop["layer_start"], hop["layer_end"], output=output)
            # what a worker said of itself in HELLO counts more
            role = run.workers.get(end, f"worker {layers}")
            if self._own(run, "worker", end):
                run.workers.setdefault(end, role)
                self._worker_roles.setdefault(end, role)
            roles.append(role)
        kind = "control" if run.streams.get(stream) == "control" else "forward"
        self._join(stream, run, kind)
        other: Side = "b" if sender == "a" else "a"
        if 0 < index < len(roles):
            self.roles.setdefault((stream, sender), roles[index - 1])
        elif index == 0:
            self.roles.setdefault((stream, sender), _COORDINATOR)
        if index < len(roles):
            self.roles.setdefault((stream, other), roles[index])
        self._ask(run, stream, f)
        return run

    def snapshot(
        self, stream: int, b: Endpoint, sender: Side, request: int, *, asks: bool
    ) -> Run:
        """Learn from a snapshot frame; `asks` for one that a coordinator sends."""
        run = self._joined.get(stream) or self._at("worker", b) or self._new("DS4D")
        self._own(run, "worker", b)
        if run.streams.get(stream) is None:
            self._join(stream, run, "snapshot")
        if request >= _SNAPSHOT_IDS:
            run.id_spaces.add("snapshot ids from 2^63")
        other: Side = "b" if sender == "a" else "a"
        if asks:
            self.roles.setdefault((stream, sender), _COORDINATOR)
            self.roles.setdefault((stream, other), run.workers.get(b, "worker"))
        return run

    def answer(self, stream: int, request: int) -> Request | None:
        """Return what a RESULT answers, and forget it."""
        run = self._joined.get(stream)
        return None if run is None else run.requests.pop((stream, request), None)

    def _ask(self, run: Run, stream: int, f: Mapping[str, Any]) -> None:
        session = int(f["session"])
        known = run.requests.get((stream, f["request"]))
        if known is not None and known.session != session:
            run.note(
                f"ambiguous: two sessions use request id {f['request']} at once, and "
                "RESULT names no session"
            )
        run.requests[stream, f["request"]] = Request(int(f["n_tokens"]), session)
        if len(run.requests) > _MAX_REQUESTS:
            run.requests.popitem(last=False)
        if len(run.sessions) < bounds.MOST or session in run.sessions:
            run.sessions.add(session)
        else:
            run.note(f"more than {bounds.MOST} sessions: the rest are not told apart")
        run.id_spaces.add("WORK ids")
        before = run.last_session.get(stream)
        run.last_session[stream] = session
        if before is not None and before != session:
            run.switches += 1
            if run.switches == 2:
                run.note("sessions take turns on one connection")
        if f["layer_start"] == 0 and f.get("route_index") == 0:
            run.note("reverse topology: a worker owns layer 0")
        if not f["flags"] & OUTPUT_LOGITS and f["route_index"] + 1 == f["route_count"]:
            run.note(
                "the last worker returns hidden state; the coordinator has the head"
            )

    # -- common ------------------------------------------------------------------

    def _new(self, protocol: str) -> Run:
        run = Run(len(self.runs) + 1, protocol)
        self.runs.append(run)
        return run

    def _at(self, kind: str, end: Endpoint) -> Run | None:
        return self._by_address.get((kind, end))

    def _own(self, run: Run, kind: str, end: Endpoint) -> bool:
        """Note who listens at an address; False where a run names too many."""
        if (kind, end) in self._by_address:
            return True
        if run.listeners >= bounds.MOST:
            run.note(f"more than {bounds.MOST} addresses: the rest are not told apart")
            return False
        run.listeners += 1
        self._by_address[kind, end] = run
        return True

    def worker_at(self, end: Endpoint) -> str | None:
        """Return the role of the worker that listens at an address."""
        return self._worker_roles.get(end)

    def _join(self, stream: int, run: Run, kind: str) -> None:
        run.streams[stream] = kind
        self._joined[stream] = run
