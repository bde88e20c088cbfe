"""Where the time of a tensor-parallel pair went: its gates, rank by rank.

Both partials of a gate cross the place of the recording; the rank whose partial comes
later is the one that the other waits for.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ds4proto.link.ds4t_context import COMMANDS
from ds4proto.link.schedule import GatePlace, Schedule, gate_of
from ds4proto.schema.ds4t_gates import ATTN
from ds4proto.schema.ds4t_hello import ROLE_CODES
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.diagnosis.spread import Spread
from ds4proto.trace.rows import FrameRow

__all__ = ["PairRun", "Pairs", "Token", "gate_name"]

Rank = Literal["leader", "worker"]
RANKS: Final[tuple[Rank, Rank]] = ("leader", "worker")
OTHER: Final[dict[str, Rank]] = {"leader": "worker", "worker": "leader"}
_MOST_OPEN: Final = 16_384
_PRINTS: Final = 16
_EVALS: Final = frozenset({"EVAL", "GLM_MTP"})
SYNCS: Final = frozenset({"SYNC", "SYNC_MULTIMODAL"})
"""Commands that LOGITS follow once they are acknowledged."""


@dataclass(slots=True)
class Token:
    """One EVAL and what followed it."""

    row: FrameRow
    gates: int = 0
    exchange: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class PairRun:
    """One leader and its worker.

    Attributes
    ----------
    waits : dict
        (late rank, layer, kind) -> seconds that the other rank waited for its partial.
    lateness : dict
        Late rank -> the same over all layers.
    open : OrderedDict
        (frame type, seq) -> the one partial that came so far.
    asked : FrameRow or None
        The leader's last command, until it is acknowledged.
    answered : tuple of FrameRow or None
        The last acknowledged command and its acknowledgement, until the leader goes on.
    logits_due : bool
        Whether LOGITS have to follow that acknowledgement.
    infos : dict
        Rank -> its RDMA_INFO.
    rdma_ready : bool
        Whether a rank said that its queue pair is up.
    pause : float
        Seconds without a frame before the last EVAL.
    misplaced : tuple of FrameRow or None
        An EVAL, and the HASH that the worker sent where LOGITS are due.
    compares : bool
        Whether the leader sent a HASH of its own since the last EVAL.
    """

    number: int
    hello: dict[str, dict[str, Any]] = field(default_factory=dict)
    hello_rows: dict[str, FrameRow] = field(default_factory=dict)
    waits: Bounded[tuple[str, int, str], Spread] = field(default_factory=Bounded)
    lateness: dict[str, Spread] = field(default_factory=dict)
    worst: dict[str, tuple[float, FrameRow, FrameRow]] = field(default_factory=dict)
    open: OrderedDict[tuple[str, int], FrameRow] = field(default_factory=OrderedDict)
    pairs: int = 0
    row_pairs: int = 0
    gate_bytes: int = 0
    steps: Spread = field(default_factory=Spread)
    tokens: Spread = field(default_factory=Spread)
    gate_share: Spread = field(default_factory=Spread)
    token: Token | None = None
    token_count: int = 0
    last_pair: float | None = None
    first_time: float = 0.0
    last_gate: FrameRow | None = None
    last_row: FrameRow | None = None
    stop: FrameRow | None = None
    asked: FrameRow | None = None
    answered: tuple[FrameRow, FrameRow] | None = None
    logits_due: bool = False
    infos: dict[str, FrameRow] = field(default_factory=dict)
    rdma_ready: bool = False
    pause: float = 0.0
    misplaced: tuple[FrameRow, FrameRow] | None = None
    compares: bool = False
    acks: Spread = field(default_factory=Spread)
    bulk: int = 0
    control: int = -1
    data: int = -1
    ports: tuple[str, str] = ("", "")
    first_partials: dict[tuple[str, int, str], str] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that the hello announces."""
        fields = self.words
        return Schedule.from_hello(fields) if "n_layer" in fields else None

    @property
    def words(self) -> dict[str, Any]:
        """Fields of the leader's hello, of the worker's without it, or none."""
        return self.hello.get("leader") or self.hello.get("worker") or {}

    @property
    def handshake(self) -> bool:
        """Whether both hellos passed."""
        return len(self.hello) == 2


class Pairs:
    """Gathers the gates of every tensor-parallel run in a capture."""

    def __init__(self) -> None:
        self.runs: dict[int, PairRun] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol == "DS4D" or not row.run:
            return
        run = self.runs.get(row.run)
        if run is None:
            run = self.runs[row.run] = PairRun(row.run, first_time=row.first_time)
        if not row.is_frame:
            return
        before, run.last_row = run.last_row, row
        if row.type.startswith("GATE"):
            run.data = row.stream
            self._gate(run, row)
            return
        if row.type == "HELLO":
            run.control = row.stream
            rank = (
                "leader"
                if row.fields.get("role") == ROLE_CODES["tp-leader"]
                else "worker"
            )
            if rank in run.hello and row.src_role.endswith("worker"):
                rank = "worker"
            run.hello.setdefault(rank, row.fields)
            ends = sorted((row.src.rpartition(":")[2], row.dst.rpartition(":")[2]))
            run.ports = (ends[0], ends[1])
            run.hello_rows.setdefault(rank, row)
        elif row.type in _EVALS:
            self._begin_token(run, row, before)
        elif row.type.startswith("LOGITS"):
            self._end_token(run, row.time)
            run.logits_due, run.misplaced = False, None
        elif row.type == "HASH":
            # both ranks send one to compare; a worker's alone answers nothing
            if row.src_role != "worker":
                run.compares, run.misplaced = True, None
            elif run.token is not None and not run.compares:
                run.misplaced = (run.token.row, row)
        elif row.type == "RDMA_INFO":
            run.infos.setdefault(row.src_role, row)
        elif row.type == "RDMA_READY":
            run.rdma_ready = True
        elif row.type == "STOP":
            run.stop = row
        elif row.type.endswith("_ACK"):
            if run.asked is not None and run.asked.type == "SESSION_CREATE":
                run.acks.add(row.first_time - run.asked.time)
            if run.asked is not None:
                run.answered = (run.asked, row)
                fine = not row.fields.get("status")
                run.logits_due = fine and run.asked.type in SYNCS
            run.asked = None
        elif row.src_role == "leader" and run.handshake and row.type in COMMANDS:
            run.asked = row
            run.answered, run.logits_due = None, False
            run.last_pair = None

    def _gate(self, run: PairRun, row: FrameRow) -> None:
        run.gate_bytes += row.length
        run.last_gate = row
        key = (row.type, int(row.fields.get("seq", 0)))
        if row.payload is not None and len(run.first_partials) < _PRINTS:
            run.first_partials[*key, row.src_role] = row.payload.hash
        first = run.open.get(key)
        if first is None or first.direction == row.direction:
            run.open[key] = row
            if len(run.open) > _MOST_OPEN:
                run.open.popitem(last=False)
            return
        del run.open[key]
        wait = row.first_time - first.first_time
        rank = "leader" if row.src_role == "leader" else "worker"
        layer, kind = place_of(row)
        spread = run.waits.offer((rank, layer, kind), Spread)
        if spread is not None:
            spread.add(wait)
        run.lateness.setdefault(rank, Spread()).add(wait)
        if rank not in run.worst or wait > run.worst[rank][0]:
            run.worst[rank] = (wait, first, row)
        run.pairs += 1
        if row.type == "GATE_ROW":
            run.row_pairs += 1
            if run.last_pair is not None:
                run.steps.add(row.time - run.last_pair)
            run.last_pair = row.time
        elif row.type == "GATE_BULK":
            run.bulk += 1
        if run.token is not None:
            run.token.gates += 1
            run.token.exchange += wait
            run.token.last = row.time

    def _begin_token(
        self, run: PairRun, row: FrameRow, before: FrameRow | None
    ) -> None:
        self._end_token(run, row.first_time)
        run.token = Token(row, last=row.time)
        run.pause = row.first_time - before.time if before is not None else 0.0
        run.token_count += 1
        run.last_pair = None
        run.compares = False

    @staticmethod
    def _end_token(run: PairRun, time: float) -> None:
        token = run.token
        run.token = None
        if token is None or not token.gates:
            return
        seconds = max(time, token.last) - token.row.first_time
        run.tokens.add(seconds)
        run.gate_share.add(token.exchange)


def place_of(row: FrameRow) -> tuple[int, str]:
    """Return layer and kind of a gate."""
    layer = int(row.fields.get("layer", 0))
    if row.type == "GATE_ROW":
        return layer, "ATTN" if row.fields.get("gate") == ATTN else "FFN"
    return layer, "bulk" if row.type == "GATE_BULK" else "batch"


def place_of_seq(seq: int, schedule: Schedule | None) -> GatePlace | None:
    """Return the place of a row gate, None without a schedule that fires it."""
    if schedule is None or seq < 1 or not schedule.slots:
        return None
    return gate_of(seq, schedule)


def gate_name(row: FrameRow, schedule: Schedule | None = None) -> str:
    """Return a gate in words: ``token 2, layer 20, FFN (seq 128)``."""
    seq = int(row.fields.get("seq", 0))
    layer, kind = place_of(row)
    if row.type != "GATE_ROW":
        return f"layer {layer}, {kind} gate (seq {seq})"
    place = place_of_seq(seq, schedule)
    token = f"token {place.token}, " if place is not None else ""
    return f"{token}layer {layer}, {kind} (seq {seq})"
