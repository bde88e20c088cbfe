"""Bring-up of a queue pair: the link's machine, run against a provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rdma_bringup import RdmaBringUp
from ds4proto.link.ds4t_rdma_bulk import bulk_over_rdma
from ds4proto.link.ds4t_rdma_info import RdmaInfo, decode_message
from ds4proto.link.ds4t_rdma_steps import (
    FRAME_OF,
    ArmWarmUp,
    ConnectQueuePair,
    RdmaReady,
    RecreateQueuePair,
    WarmUp,
)
from ds4proto.link.ds4t_rdma_windows import DecodeWindow, Post
from ds4proto.link.ds4t_texts import PairFailed, failed
from ds4proto.link.events import Event
from ds4proto.link.rdma_attributes import (
    MESSAGE,
    MTU_BYTES,
    WARM_FILL,
    WARM_ID,
    QpAttributes,
)
from ds4proto.link.rdma_choice import Choice
from ds4proto.schema.problem import Buf
from ds4proto_runtime.tp.errors import PairError, pair_error
from ds4proto_runtime.transport.choosing import Say, subnet_advice
from ds4proto_runtime.transport.options import RdmaOptions
from ds4proto_runtime.transport.own_side import OwnSide
from ds4proto_runtime.transport.sockets import PairSockets
from ds4proto_runtime.transport.verbs import (
    MEANING,
    Memory,
    Provider,
    QueuePair,
    Status,
    VerbsError,
)
from ds4proto_runtime.transport.waits import Clock, Steps


@dataclass(slots=True)
class Brought:
    """A queue pair that has come up.

    Attributes
    ----------
    own : OwnSide
        Owner of everything below.
    window : DecodeWindow
        Open, with its receives posted, where ``armed``.
    hold_first : bool
        Send nothing before the peer's first message.
    attempts : int
        Queue pairs it took.
    """

    own: OwnSide
    window: DecodeWindow
    peer: RdmaInfo
    path_mtu: int
    hold_first: bool
    armed: bool
    attempts: int

    @property
    def choice(self) -> Choice:
        """Device and GID entry."""
        return self.own.choice

    @property
    def attributes(self) -> QpAttributes:
        """Attributes as negotiated."""
        return self.own.attributes

    @property
    def pair(self) -> QueuePair:
        """The queue pair."""
        return self.own.pair

    @property
    def memory(self) -> Memory:
        """The registered slab."""
        return self.own.memory

    def words(self) -> str:
        """Return type, attributes and depths, for logs and errors."""
        return describe(self.own, self.path_mtu)


def describe(own: OwnSide, path_mtu: int) -> str:
    """Return type, attributes and depths of a queue pair."""
    a, pair = own.attributes, own.pair
    extra = ""
    if a.qp_type == "RC":
        extra = (
            f", min_rnr_timer {a.min_rnr_timer}, timeout {a.timeout}, retry_cnt "
            f"{a.retry_cnt}, rnr_retry {a.rnr_retry}"
        )
    return (
        f"transport {a.qp_type}, path MTU {MTU_BYTES.get(path_mtu, 0)}, GID index "
        f"{own.choice.gid_index}, hop limit {a.hop_limit}, depths {pair.granted[0]}/"
        f"{pair.granted[1]}, completion queue {pair.cq_entries}{extra}"
    )


class SetUp:
    """Brings one rank's queue pair up.

    Parameters
    ----------
    provider, options, settings
    sockets : PairSockets
    buffer : memoryview
        The slab.
    address : str
        Local address of the control connection.
    gate_seconds : float
    before : Choice, optional
        Of an earlier set-up; compared, never used.
    """

    def __init__(
        self,
        provider: Provider,
        options: RdmaOptions,
        settings: TpSettings,
        sockets: PairSockets,
        buffer: memoryview,
        clock: Clock,
        *,
        address: str,
        gate_seconds: float,
        before: Choice | None = None,
        say: Say = print,
    ) -> None:
        self._options = options
        self._settings = settings
        self._sockets = sockets
        self._buffer = buffer
        self._clock = clock
        self._gate_seconds = gate_seconds
        self._say = say
        self._need_ipv4 = provider.system == "macos"
        self._own = OwnSide(
            provider,
            options,
            settings,
            buffer,
            address,
            gate_seconds=gate_seconds,
            before=before,
            say=say,
        )
        self._attempts = 1
        self._peer = self._own.info
        self._mtu = 0
        self._window: DecodeWindow | None = None
        self._armed = False
        self._areas = (0, 0, 0)
        self._received = False
        self._trouble: Status | None = None

    def steps(self) -> Steps[Brought]:
        """Bring the queue pair up.

        Raises
        ------
        NoRdmaError
            One of four verdicts; the peer was told nothing.
        PairError
        """
        done = False
        try:
            found = yield from self._steps()
            done = True
            return found
        finally:
            if not done:
                self._own.close()

    def _steps(self) -> Steps[Brought]:
        own = self._own
        self._prepare()
        machine = RdmaBringUp(
            self._settings,
            own.attributes,
            gate_seconds=self._gate_seconds,
            warm_up=self._options.warm_up,
            first_sender=self._options.first_sender,
            need_ipv4=self._need_ipv4 or own.choice.entry.mapped,
            seconds=self._options.bringup_seconds,
        )
        yield from self._write(machine, machine.prepared(own.info, self._now()))
        while True:
            event = next(machine.events(), None)
            if event is None:
                yield from self._read(machine)
                continue
            if isinstance(event, PairFailed):
                raise self._failure(event)
            if isinstance(event, RdmaReady):
                return self._ready(event)
            try:
                out = yield from self._act(machine, event)
            except VerbsError as error:
                machine.verbs_failed(error.call, error.reason, self._now())
                continue
            yield from self._write(machine, out)

    def _now(self) -> float:
        return self._clock.now()

    def _prepare(self) -> None:
        try:
            self._own.prepare(self._attempts)
        except VerbsError as error:
            text = f"tp rdma: {error.call}: {error.reason}"
            failure = failed(
                self._now(),
                "DS4T-RDMA-37",
                text=text,
                phase="RDMA bring-up",
                expected=f"{error.call} to succeed",
                found=error.reason,
                next_step="look at the limits of the device (queue pairs, locked "
                "memory: ulimit -l), or start with --transport tcp",
            )
            raise pair_error(failure, self._settings.role) from None

    def _failure(self, event: PairFailed) -> PairError:
        """Add what the queue pair was like, and what its completions said."""
        lines = [f"ds4-tp: {describe(self._own, self._mtu)}"]
        if self._trouble is not None:
            meaning = MEANING.get(self._trouble, "")
            lines.append(f"ds4-tp: warm-up send: {self._trouble}: {meaning}")
        event = replace(event, log=(*event.log, *lines))
        return pair_error(event, self._settings.role)

    # -- frames ------------------------------------------------------------------

    def _write(self, machine: RdmaBringUp, out: Sequence[Buf]) -> Steps[None]:
        due = self._now() + self._options.bringup_seconds
        why = yield from self._sockets.write_control(out, due)
        if why:
            machine.send_failed(why, self._now())

    def _read(self, machine: RdmaBringUp) -> Steps[None]:
        """Read exactly what the bring-up needs: commands follow on this connection."""
        due = machine.deadline()
        assert machine.step in FRAME_OF
        assert due is not None
        data = self._sockets.read_control(machine.wanted)
        now = self._now()
        if data != b"":
            machine.receive_data(data, now)
        elif now >= due:
            machine.timeout(now)
        else:
            yield due

    # -- what the machine asks for -----------------------------------------------

    def _act(self, machine: RdmaBringUp, event: Event) -> Steps[list[Buf]]:
        if isinstance(event, ConnectQueuePair):
            self._connect(event)
            return machine.connected(self._now())
        if isinstance(event, ArmWarmUp):
            self._arm()
            return machine.armed(self._now())
        if isinstance(event, WarmUp):
            received = yield from self._warm(event)
            return machine.warmed(received, self._now())
        assert isinstance(event, RecreateQueuePair)
        self._say(event.log)
        self._attempts = event.setup_attempt
        self._prepare()
        return machine.prepared(self._own.info, self._now())

    def _connect(self, event: ConnectQueuePair) -> None:
        own, peer = self._own, event.peer
        advice = subnet_advice(own.choice, peer.gid)
        if advice:
            self._say(f"ds4-tp: warning: {advice}")
        self._peer, self._mtu = peer, event.path_mtu
        own.pair.to_rtr(
            qpn=peer.qpn,
            psn=peer.psn,
            gid=peer.gid,
            lid=peer.lid,
            gid_index=own.choice.gid_index,
            mtu=event.path_mtu,
        )
        own.pair.to_rts(psn=own.info.psn)
        if self._settings.rules.features:
            message = decode_message(own.info, peer)
            own.attributes = replace(own.attributes, message=message)
        self._window = window = DecodeWindow(self._settings, own.attributes)
        # bulk messages would land in receives that wait for gates
        self._armed = event.arm_window and not bulk_over_rdma(self._settings)
        if self._armed:
            own.pair.post_receives(own.memory, window.open(1))
            window.opened()

    def _arm(self) -> None:
        own = self._own
        self._received, self._trouble = False, None
        self._areas = out, into, size = own.areas(MESSAGE)
        self._buffer[out : out + size] = bytes([WARM_FILL]) * size
        self._buffer[into : into + size] = bytes(size)
        own.pair.post_receives(own.memory, [Post(WARM_ID, into, size)])

    def _warm(self, event: WarmUp) -> Steps[bool]:
        own = self._own
        out, _, size = self._areas
        sent = not event.send
        if event.send:
            own.pair.post_sends(own.memory, [Post(WARM_ID, out, size)])
        due = self._now() + event.seconds
        while True:
            for entry in own.pair.poll():
                self._clock.moved += 1
                if entry.status != "SUCCESS":
                    self._trouble = self._trouble or entry.status
                elif entry.receive:
                    self._received = True
                else:
                    sent = True
            if (self._received and sent) or self._trouble or self._now() >= due:
                return self._received
            yield due

    def _ready(self, event: RdmaReady) -> Brought:
        assert self._window is not None
        if event.rest:  # pragma: no cover - nothing was read beyond the last frame
            raise AssertionError(f"{len(event.rest)} bytes were read too far")
        found = Brought(
            self._own,
            self._window,
            event.peer,
            self._mtu,
            event.hold_first,
            self._armed,
            self._attempts,
        )
        self._say(f"ds4-tp: rdma up: {found.words()}")
        return found
