"""Which messages a pair's control stream calls for, in order, for each direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ds4proto.link.ds4t_rdma_windows import pieces
from ds4proto.link.lockstep import Lockstep
from ds4proto.link.plan import plan_sync
from ds4proto.link.rdma_attributes import (
    BULK_MESSAGES,
    BULK_REGION,
    BULK_REGIONS,
    DECODE_WINDOW,
    MESSAGE,
)
from ds4proto.link.schedule import Schedule, gate_of
from ds4proto.schema.ds4t_gates import MAX_ROWS
from ds4proto.schema.slab import ROWS, VALUE
from ds4proto.trace.rows import FrameRow

MAX_EXPECTED: Final = 1 << 20
"""Messages listed for one direction."""
_WITHOUT_BARRIER: Final = frozenset({"v7", "v9", "v9w"})
Side = str
SIDES: Final = ("leader", "worker")


class Expected(NamedTuple):
    """One message that is due.

    Attributes
    ----------
    kind : str
        ``warm-up``, ``row``, ``drain``, ``bulk``, ``verify``.
    nbytes : int
        Below 0 where the commands do not tell.
    seq : int
        Row or batch number; 0 for none.
    text : str
        The gate in words.
    piece, pieces : int
        Which message of the gate, from 1.
    time : float
        When the command behind it passed.
    """

    kind: str
    nbytes: int
    seq: int
    text: str
    piece: int = 1
    pieces: int = 1
    time: float = 0.0

    def __str__(self) -> str:
        part = f", message {self.piece} of {self.pieces}" if self.pieces > 1 else ""
        return f"{self.text}{part}"


@dataclass(slots=True)
class QueuePairInfo:
    """What RDMA_INFO told of one side's queue pair."""

    qpn: int
    psn: int
    mtu: int
    gid: bytes
    reliable: bool | None
    time: float


@dataclass(slots=True)
class Setup:
    """One queue pair of each side, and the messages they are to carry."""

    info: dict[Side, QueuePairInfo] = field(default_factory=dict)
    expected: dict[Side, list[Expected]] = field(
        default_factory=lambda: {side: [] for side in SIDES}
    )
    tokens: list[tuple[int, float]] = field(default_factory=list)
    """Last row seq of each token, and when its answer came; 0.0 for never."""
    ready: dict[Side, float] = field(default_factory=dict)


class MessagePlan:
    """Follows the control stream of one pair; feed it every row, in order.

    Attributes
    ----------
    setups : list of Setup
        One for each pair of queue pairs.
    dialect : str
    """

    def __init__(self) -> None:
        self.setups: list[Setup] = []
        self.dialect = ""
        self._hello: dict[str, Any] = {}
        self._lock: Lockstep | None = None
        self._schedule: Schedule | None = None
        self._row = self._batch = 1
        self._active = False
        self._block = 0
        self._warm: dict[Side, int] = {}
        self._waiting: list[int] = []

    # -- facts of the pair -------------------------------------------------------

    @property
    def vector(self) -> int:
        """Bytes of one row."""
        return VALUE * int(self._hello.get("n_embd", 0))

    @property
    def barriers(self) -> bool:
        """Whether the dialect meets at barrier bytes before it sends."""
        return self.dialect not in _WITHOUT_BARRIER

    @property
    def _bulk_rdma(self) -> bool:
        region = ROWS * int(self._hello.get("n_layer", 0)) * self.vector
        least = BULK_REGIONS.get(self.dialect, BULK_REGION)
        return region >= least

    @property
    def setup(self) -> Setup | None:
        """The present queue pairs."""
        return self.setups[-1] if self.setups else None

    # -- rows --------------------------------------------------------------------

    def feed(self, row: FrameRow) -> None:
        """Take one row of the control capture."""
        if row.protocol not in ("DS4T", "DS4B") or not row.is_frame:
            return
        side = "leader" if row.src_role == "leader" else "worker"
        handler = _HANDLERS.get(row.type)
        if handler is not None:
            handler(self, side, row)
        if row.type.startswith("GATE_B") and side == "leader":
            self._gate(row)

    def _take_hello(self, side: Side, row: FrameRow) -> None:
        self.dialect = row.dialect.rstrip("?")
        if self._hello and side != "leader":
            return
        self._hello = dict(row.fields)
        self._schedule = Schedule.from_hello(row.fields)
        self._lock = Lockstep(self._schedule, int(row.fields.get("model_id", 0)))

    def _take_info(self, side: Side, row: FrameRow) -> None:
        f = row.fields
        if self.setup is None or side in self.setup.info:
            self.setups.append(Setup())
            self._warm = dict.fromkeys(SIDES, 0)
        reliable = bool(f["reliable"]) if "reliable" in f else None
        gid = f["gid"]
        raw = bytes.fromhex(gid) if isinstance(gid, str) else bytes(gid)
        self.setups[-1].info[side] = QueuePairInfo(
            int(f["qpn"]), int(f["psn"]), int(f["mtu"]), raw, reliable, row.time
        )

    def _take_ready(self, side: Side, row: FrameRow) -> None:
        if self.setup is not None:
            self.setup.ready[side] = row.time

    def _take_posted(self, side: Side, row: FrameRow) -> None:
        self._add_warm_up(side, row.time)

    def _take_warm(self, side: Side, row: FrameRow) -> None:
        # a rank goes on sending for as long as the other one has received nothing
        other = "worker" if side == "leader" else "leader"
        if not int(next(iter(row.fields.values()), 0)):
            self._add_warm_up(other, row.time)

    def _add_warm_up(self, side: Side, time: float) -> None:
        if self.setup is None:
            return
        self._warm[side] = self._warm.get(side, 0) + 1
        region = ROWS * int(self._hello.get("n_layer", 0)) * self.vector
        size = min(MESSAGE, region)
        text = f"warm-up, attempt {self._warm[side]}"
        self.setup.expected[side].append(Expected("warm-up", size, 0, text, time=time))

    # -- commands ----------------------------------------------------------------

    def _take_command(self, side: Side, row: FrameRow) -> None:
        if side != "leader" or self._lock is None or self.setup is None:
            return
        f, lock = row.fields, self._lock
        if row.type in ("SYNC", "SYNC_MULTIMODAL"):
            self._tokens(self._single(f), row.time)
        elif row.type in ("EVAL", "GLM_MTP"):
            self._tokens(1, row.time)
        elif row.type in ("EVAL_BATCH", "MIXED_BATCH"):
            self._tokens(len(f.get("items", ())), row.time)
        elif row.type == "VERIFY":
            self._block = len(f.get("tokens", ())) or int(f.get("count", 0))
            if self.barriers and 0 < self._block <= MAX_ROWS:
                self._verify(row.time)
        elif row.type == "VERIFY_COMMIT" and int(f.get("mode", 1)) == 0:
            self._tokens(min(max(int(f.get("token_count", 0)), 0), 64), row.time)
        lock.command(row.type, f)

    def _single(self, f: dict[str, Any]) -> int:
        assert self._lock is not None
        state = self._lock.sessions.get(int(f.get("session_id", 1)))
        held = () if state is None else tuple(state.tokens)
        context = 1 << 31 if state is None else state.context
        prompt = tuple(f.get("tokens") or range(int(f.get("count", 0))))
        plan = plan_sync(held, prompt, context, model_id=self._lock.model_id)
        return plan.single_tokens

    def _take_answer(self, side: Side, row: FrameRow) -> None:
        if side != "worker" or self.setup is None:
            return
        tokens = self.setup.tokens
        for at, (seq, time) in enumerate(tokens):
            if not time:
                tokens[at] = (seq, row.time)
                break

    def _add(self, message: Expected) -> None:
        setup = self.setup
        if setup is None:
            return
        for side in SIDES:
            if len(setup.expected[side]) < MAX_EXPECTED:
                setup.expected[side].append(message)

    def _cut(
        self, kind: str, nbytes: int, size: int, seq: int, text: str, time: float
    ) -> Iterator[Expected]:
        parts = pieces(0, nbytes, size)
        for number, (_, length) in enumerate(parts, 1):
            yield Expected(kind, length, seq, text, number, len(parts), time)

    def _gate_messages(self, kind: str, seq: int, text: str, time: float) -> None:
        """Add the one or two messages of one row."""
        for one in self._cut(kind, self.vector, MESSAGE, seq, text, time):
            self._add(one)

    def _tokens(self, count: int, time: float) -> None:
        schedule, setup = self._schedule, self.setup
        if schedule is None or not schedule.slots or setup is None:
            return
        for _ in range(count):
            for _ in schedule.slots:
                place = gate_of(self._row, schedule)
                text = (
                    f"row gate seq {self._row}: token {place.token}, layer "
                    f"{place.layer}, {place.kind}"
                )
                for one in self._cut(
                    "row", self.vector, MESSAGE, self._row, text, time
                ):
                    self._add(one)
                self._row += 1
            setup.tokens.append((self._row - 1, 0.0))
            self._active = True

    def _drain(self, time: float) -> None:
        if not self._active:
            return
        self._active = False
        for number in range(1, DECODE_WINDOW + 1):
            text = f"drain, dummy gate {number} of {DECODE_WINDOW}"
            self._gate_messages("drain", 0, text, time)

    def _verify(self, time: float) -> None:
        assert self._schedule is not None
        self._drain(time)
        for layer in self._schedule.ffn_layers:
            for row in range(self._block):
                text = (
                    f"verify block, batch seq {self._batch}: layer {layer}, row "
                    f"{row + 1} of {self._block}"
                )
                self._gate_messages("verify", self._batch, text, time)
            self._batch += 1

    def _gate(self, row: FrameRow) -> None:
        """Take a header of the data connection; its payload may cross elsewhere."""
        seq, layer = int(row.fields["seq"]), int(row.fields["layer"])
        self._batch = seq + 1
        if not self._bulk_rdma or self._lock is None or self.setup is None:
            return
        rows = self._lock.expected_rows(seq, layer)
        if row.type == "GATE_BATCH":
            rows = int(row.fields.get("rows", 0)) or rows
        self._drain(row.time)
        text = f"{row.type[5:].lower()} gate seq {seq}: layer {layer}"
        size = BULK_MESSAGES.get(self.dialect, MESSAGE)
        if rows is None:
            self._add(Expected("bulk", -1, seq, text, time=row.time))
            return
        nbytes = rows * self.vector
        for one in self._cut("bulk", nbytes, size, seq, text, row.time):
            self._add(one)


_HANDLERS: Final[dict[str, Any]] = {
    "HELLO": MessagePlan._take_hello,
    "RDMA_INFO": MessagePlan._take_info,
    "RDMA_READY": MessagePlan._take_ready,
    "RDMA_POSTED": MessagePlan._take_posted,
    "RDMA_WARM": MessagePlan._take_warm,
    "LOGITS": MessagePlan._take_answer,
    "LOGITS_TOP2": MessagePlan._take_answer,
    **dict.fromkeys(
        (
            "SESSION_CREATE", "SESSION_DESTROY", "SYNC", "SYNC_MULTIMODAL", "EVAL",
            "EVAL_BATCH", "MIXED_BATCH", "VERIFY", "VERIFY_COMMIT", "GLM_MTP",
            "REWIND", "INVALIDATE",
        ),
        MessagePlan._take_command,
    ),
}  # fmt: skip

__all__ = ["SIDES", "Expected", "MessagePlan", "QueuePairInfo", "Setup"]
