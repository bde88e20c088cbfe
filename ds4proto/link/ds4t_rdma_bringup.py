"""RDMA bring-up on the control connection (sans-IO): info, ready, warm-up.

The machine says what the transport has to do (events) and is told what came of it
(methods); it never touches a queue pair. The order is the same on both ranks:

    prepared -> RDMA_INFO both ways -> ConnectQueuePair -> connected
             -> RDMA_READY both ways -> ArmWarmUp -> armed
             -> RDMA_POSTED both ways -> WarmUp -> warmed -> RDMA_WARM both ways
             -> again, RecreateQueuePair, RdmaReady or PairFailed

Dialects without warm-up (v7, v9w) go from RDMA_READY to RdmaReady. They have no
barrier byte either, so that a first message may reach a receive queue that is still
empty and, on UC, is lost without a word. Ours: receives are posted before RDMA_READY
(``ConnectQueuePair.arm_window``), and one side stays silent until the other's first
message came (``RdmaReady.hold_first``).
"""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rdma_info import PHASE, RdmaInfo, check_info
from ds4proto.link.ds4t_rdma_steps import (
    CLAUSE_OF,
    FRAME_OF,
    ArmWarmUp,
    ConnectQueuePair,
    RdmaReady,
    RecreateQueuePair,
    Step,
    WarmUp,
    holds_first,
    warm_outcome,
)
from ds4proto.link.ds4t_reader import ControlReader
from ds4proto.link.ds4t_texts import (
    LocalProtocolError,
    PairFailed,
    TpRole,
    failed,
    text_of,
)
from ds4proto.link.events import Event
from ds4proto.link.rdma_attributes import (
    WARM_POLL_SECONDS,
    QpAttributes,
)
from ds4proto.schema.ds4t_answers import WARM_UP_TAG
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import build, frame, read_body


class RdmaBringUp:
    """One rank's side of the bring-up.

    Parameters
    ----------
    settings : TpSettings
    attributes : QpAttributes
    gate_seconds : float
        The gate timeout; one RC warm-up may take it.
    warm_up : bool
        False where DS4_TP_DISABLE_RDMA_WARMUP is set (on both ranks).
    first_sender : {"tp-leader", "tp-worker"}
        See ``holds_first``.
    need_ipv4 : bool
        As for ``check_info``.
    seconds : float
        Limit of each wait for a frame; real peers have none.
    """

    def __init__(
        self,
        settings: TpSettings,
        attributes: QpAttributes,
        *,
        gate_seconds: float = 0.75,
        warm_up: bool = True,
        first_sender: TpRole = "tp-leader",
        need_ipv4: bool = True,
        seconds: float = 60.0,
    ) -> None:
        self._settings = settings
        self._dialect = settings.dialect
        self._attributes = attributes
        self._gate_seconds = gate_seconds
        self._warm_up = warm_up and settings.rules.warm_up
        self._first_sender: TpRole = first_sender
        self._need_ipv4 = need_ipv4
        self._seconds = seconds
        self._reader = ControlReader()
        self._step = Step.PREPARE
        self._events: list[Event] = []
        self._mine: RdmaInfo | None = None
        self._peer: RdmaInfo | None = None
        self._since: float | None = None
        self._attempt = 0
        self._received = self._confirmed = False
        self.setup_attempt = 1

    @property
    def step(self) -> Step:
        """What is awaited."""
        return self._step

    @property
    def wanted(self) -> int:
        """Bytes that complete the header or payload awaited; more are the session's."""
        return len(self._reader.get_buffer())

    def prepared(self, info: RdmaInfo, now: float) -> list[Buf]:
        """Take the own queue pair's data; return RDMA_INFO to write."""
        self._require(Step.PREPARE)
        self._mine = info
        self._await(Step.INFO, now)
        return info.frame(self._dialect)

    def connected(self, now: float) -> list[Buf]:
        """Note RTS; return RDMA_READY to write."""
        self._require(Step.CONNECT)
        self._await(Step.READY, now)
        return self._frame(Step.READY, {})

    def armed(self, now: float) -> list[Buf]:
        """Note the posted receive; return RDMA_POSTED to write."""
        self._require(Step.ARM)
        self._await(Step.POSTED, now)
        return self._frame(Step.POSTED, {"tag": WARM_UP_TAG})

    def warmed(self, received: bool, now: float) -> list[Buf]:
        """Note whether the own receive has completed; return RDMA_WARM to write."""
        self._require(Step.WARM_UP)
        self._received = self._received or received
        self._await(Step.WARM, now)
        return self._frame(Step.WARM, {"received": int(self._received)})

    def send_failed(self, reason: str, now: float) -> None:
        """Note that a frame could not be written."""
        clause = "DS4T-RDMA-50" if self._step is Step.INFO else "DS4T-RDMA-51"
        words = None if self._step is Step.INFO else "tp rdma: ready send failed"
        self._fail(clause, "the frame to be written", reason, now, text=words)

    def verbs_failed(self, call: str, reason: str, now: float) -> None:
        """Note a verbs call that failed, by its name as in the peer's text."""
        text = f"tp rdma: {call}: {reason}"
        if call in ("INIT", "RTR", "RTS"):
            text = text_of("DS4T-RDMA-37", call, reason)
        elif call in ("alloc_pd", "create_cq"):
            text = f"tp rdma: {call} failed"
        self._fail("DS4T-RDMA-37", f"{call} to succeed", reason, now, text=text)

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take control bytes of the peer; None is the end of the stream."""
        if data is None:
            self._reader.ended = True
        else:
            self._reader.feed(data, now)
        self._advance(now)

    def events(self) -> Iterator[Event]:
        """Yield what is to be done next."""
        while self._events:
            yield self._events.pop(0)

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due."""
        return None if self._since is None else self._since + self._seconds

    def timeout(self, now: float) -> None:
        """Give the peer up."""
        due = self.deadline()
        if due is not None and now >= due:
            self._lost(f"nothing for {self._seconds:g} s", now)

    def _require(self, step: Step) -> None:
        if self._step is not step:
            raise LocalProtocolError(
                f"RDMA bring-up waits for {self._step.name}, not for {step.name}"
            )

    def _await(self, step: Step, now: float) -> None:
        self._step = step
        self._since = now
        self._advance(now)

    def _frame(self, step: Step, values: dict[str, int]) -> list[Buf]:
        spec = frame(FRAME_OF[step], dialect=self._dialect)
        return build(spec, values, dialect=self._dialect)

    def _advance(self, now: float) -> None:
        while self._step in FRAME_OF:
            reader = self._reader
            reader.pump(now)
            spec = frame(FRAME_OF[self._step], dialect=self._dialect)
            if reader.header is not None and not reader.opened:
                magic, code, size = reader.header
                wanted = (DS4T_MAGIC, spec.code, spec.fixed_size(self._dialect))
                if (magic, code, size) != wanted:
                    self._wrong(code, size, now)
                    return
                reader.keep(now)
            if reader.body is None:
                if reader.ended:
                    self._lost("end of stream", now)
                return
            body = reader.body
            reader.next(now)
            values = read_body(spec, body, dialect=self._dialect).values
            self._take(values, now)

    def _take(self, values: dict[str, int], now: float) -> None:
        self._since = None
        if self._step is Step.INFO:
            self._take_info(RdmaInfo.of(values), now)
        elif self._step is Step.READY:
            if self._warm_up:
                self._step = Step.ARM
                self._events.append(ArmWarmUp())
            else:
                self._ready()
        elif self._step is Step.POSTED:
            tag = next(iter(values.values()))
            if tag != WARM_UP_TAG:
                self._fail(
                    "DS4T-RDMA-54",
                    f"tag {WARM_UP_TAG:#x}",
                    f"{tag:#x}",
                    now,
                    text="tp rdma: warm-up barrier failed",
                )
            else:
                self._attempt = 0
                self._received = self._confirmed = False
                self._next_attempt()
        else:
            self._take_warm(next(iter(values.values())) == 1, now)

    def _take_info(self, peer: RdmaInfo, now: float) -> None:
        mine = self._mine
        if mine is None:  # pragma: no cover - prepared() comes first
            return
        failure = check_info(
            mine,
            peer,
            self._attributes,
            self._dialect,
            now,
            need_ipv4=self._need_ipv4,
        )
        if failure is not None:
            self._step = Step.FAILED
            self._events.append(failure)
            return
        self._peer = peer
        self._step = Step.CONNECT
        self._events.append(
            ConnectQueuePair(
                peer,
                self._attributes.path_mtu(mine.mtu, peer.mtu),
                arm_window=not self._settings.rules.decode_barrier,
            )
        )

    def _next_attempt(self) -> None:
        self._attempt += 1
        self._step = Step.WARM_UP
        uc = self._attributes.qp_type == "UC"
        seconds = WARM_POLL_SECONDS if uc else self._gate_seconds
        self._events.append(WarmUp(self._attempt, not self._confirmed, seconds))

    def _take_warm(self, theirs: bool, now: float) -> None:
        self._confirmed = theirs
        qp_type = self._attributes.qp_type
        outcome = warm_outcome(
            qp_type,
            self._received,
            theirs,
            self._attempt,
            self.setup_attempt,
            recreates=self._dialect == "v14",
        )
        counts = (self._attempt, int(self._received), int(theirs))
        if outcome == "ready":
            self._ready()
        elif outcome == "again":
            self._next_attempt()
        elif outcome == "recreate":
            self.setup_attempt += 1
            self._step = Step.PREPARE
            reason = text_of("DS4T-RDMA-57", *counts)
            log = (
                f"{reason.replace('tp rdma:', 'ds4-tp:', 1)}; recreating the queue "
                f"pair (setup attempt {self.setup_attempt})"
            )
            self._events.append(RecreateQueuePair(self.setup_attempt, log))
        else:
            self._fail(
                "DS4T-RDMA-57",
                "a message each way",
                f"own receive {counts[1]}, peer's {counts[2]}",
                now,
                text=text_of("DS4T-RDMA-57", *counts),
                step="one direction is dead: check GID index, cable and port on both",
            )

    def _ready(self) -> None:
        if self._peer is None:  # pragma: no cover - info comes first
            return
        self._step = Step.DONE
        self._since = None
        hold = holds_first(
            self._settings.role,
            self._first_sender,
            barrier=self._settings.rules.decode_barrier,
        )
        self._events.append(RdmaReady(self._peer, hold, self._reader.rest()))

    def _wrong(self, code: int, size: int, now: float) -> None:
        name = FRAME_OF[self._step].partition(".")[2]
        spec = frame(FRAME_OF[self._step], dialect=self._dialect)
        step = ""
        clause = CLAUSE_OF[self._step]
        if self._step in (Step.POSTED, Step.WARM):
            clause = "DS4T-ROBUST-09"
            step = (
                "the peer skips the warm-up: set DS4_TP_DISABLE_RDMA_WARMUP on both "
                "ranks or on none"
            )
        self._fail(
            clause,
            f"{name} (type {spec.code}, {spec.fixed_size(self._dialect)} bytes)",
            f"type {code} of {size} bytes",
            now,
            text=self._words(),
            step=step,
        )

    def _words(self) -> str:
        """Return what a peer prints when the awaited frame does not come."""
        if self._step is Step.INFO:
            return text_of("DS4T-RDMA-42")
        if self._step is Step.READY:
            return text_of("DS4T-RDMA-51")
        return "tp rdma: warm-up barrier failed"

    def _lost(self, found: str, now: float) -> None:
        name = FRAME_OF[self._step].partition(".")[2]
        self._fail(
            CLAUSE_OF[self._step], name, found, now, text=self._words(), lost=True
        )

    def _fail(
        self,
        clause: str,
        expected: str,
        found: str,
        now: float,
        *,
        text: str | None = None,
        step: str = "",
        lost: bool = False,
    ) -> None:
        failure: PairFailed = failed(
            now,
            clause,
            text=text,
            phase=PHASE,
            expected=expected,
            found=found,
            next_step=step,
            peer_lost=lost,
        )
        self._step = Step.FAILED
        self._since = None
        self._events.append(failure)
