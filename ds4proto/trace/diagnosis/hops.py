"""Where the time of a pipeline went: what each hop and each node did, from its frames.

Times are taken where the recording was made. A hop's turnaround (last byte of WORK to
first byte of RESULT) holds what the worker says of itself in telemetry, and a rest: the
network between that place and the worker, and waiting in queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ds4proto.trace.bounds import Bounded
from ds4proto.trace.diagnosis.spread import Sizes, Spread
from ds4proto.trace.rows import FrameRow

__all__ = ["Hop", "Node", "Phase", "PipelineRun", "Pipelines"]

_MOST_OPEN: Final = 16_384
_FEW: Final = 64


@dataclass(slots=True)
class Asked:
    """A WORK that waits for its answer."""

    row: FrameRow
    alone: bool
    depth: int


@dataclass(slots=True)
class Phase:
    """Decode or prefill on one hop; all spreads are seconds a request.

    ``before`` is the time from the last answer to this WORK with nothing in flight.
    """

    requests: int = 0
    tokens: int = 0
    answered: int = 0
    timed: int = 0
    turnaround: Spread = field(default_factory=Spread)
    evaluation: Spread = field(default_factory=Spread)
    downstream: Spread = field(default_factory=Spread)
    forwarding: Spread = field(default_factory=Spread)
    rest: Spread = field(default_factory=Spread)
    sending: Spread = field(default_factory=Spread)
    receiving: Spread = field(default_factory=Spread)
    before: Spread = field(default_factory=Spread)
    slowest: tuple[float, FrameRow, FrameRow] | None = None
    worst_rest: tuple[float, FrameRow, FrameRow] | None = None

    @property
    def seconds(self) -> float:
        """Time of one request, from the end of the one before, as a mean."""
        parts = (self.sending, self.turnaround, self.receiving, self.before)
        return sum(part.mean for part in parts)


@dataclass(slots=True)
class Hop:
    """One connection that carries WORK."""

    run: int
    src: str
    dst: str
    index: int
    layers: tuple[int, int] = (0, 0)
    decode: Phase = field(default_factory=Phase)
    prefill: Phase = field(default_factory=Phase)
    open: int = 0
    deepest: int = 0
    depths: Spread = field(default_factory=Spread)
    work_bytes: int = 0
    hidden_bytes: int = 0
    hidden_values: int = 0
    hidden_width: str = ""
    result_bytes: int = 0
    tokens: int = 0
    by_answer: Sizes = field(default_factory=Sizes)
    by_both: Sizes = field(default_factory=Sizes)
    bulk_bytes: int = 0
    bulk_seconds: float = 0.0
    bulk_row: FrameRow | None = None
    last_answer: float | None = None
    first_row: FrameRow | None = None

    @property
    def name(self) -> str:
        """``coordinator -> worker 2:4``."""
        return f"{self.src} -> {self.dst}"

    @property
    def count_layers(self) -> int:
        """Layers of the worker behind the hop."""
        return self.layers[1] - self.layers[0] + 1


@dataclass(slots=True)
class Node:
    """What one worker says of its own work, from telemetry."""

    layers: tuple[int, int]
    role: str = ""
    evaluation: Spread = field(default_factory=Spread)
    busy: float = 0.0
    busy_prefill: float = 0.0


@dataclass(slots=True)
class PipelineRun:
    """One coordinator and its workers.

    ``active`` counts the seconds with a request in flight on the first hop seen.
    """

    number: int
    hops: dict[int, Hop] = field(default_factory=dict)
    nodes: Bounded[tuple[int, int], Node] = field(default_factory=Bounded)
    first: float | None = None
    last: float = 0.0
    active: float = 0.0
    active_prefill: float = 0.0
    chunks: int = 0
    prefill_depth: int = 0
    lead: int | None = None
    _since: float = 0.0

    @property
    def span(self) -> float:
        """Seconds from the first WORK to the last answer."""
        return 0.0 if self.first is None else max(0.0, self.last - self.first)


class Pipelines:
    """Gathers the times of every pipeline in a capture."""

    def __init__(self) -> None:
        self.runs: dict[int, PipelineRun] = {}
        self.crossed: set[tuple[int, int]] = set()
        self._open: OrderedDict[tuple[int, int], Asked] = OrderedDict()
        self._early: OrderedDict[tuple[int, int], FrameRow] = OrderedDict()

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol != "DS4D":
            return
        if row.type == "WORK":
            self._work(row)
        elif row.type == "RESULT":
            self._result(row)

    def waiting(self, stream: int) -> Iterator[FrameRow]:
        """Yield every WORK of a connection that was never answered."""
        for (number, _), asked in self._open.items():
            if number == stream:
                yield asked.row

    @property
    def waiting_streams(self) -> set[int]:
        """Connections with a WORK that was never answered."""
        return {number for number, _ in self._open}

    def _work(self, row: FrameRow) -> None:
        f = row.fields
        run = self.runs.setdefault(row.run, PipelineRun(row.run))
        hop = run.hops.get(row.stream)
        if hop is None:
            hop = Hop(row.run, row.src_role, row.dst_role, int(f["route_index"]))
            run.hops[row.stream] = hop
            hop.first_row = row
        hop.src, hop.dst = row.src_role, row.dst_role
        hop.layers = (int(f["layer_start"]), int(f["layer_end"]))
        if run.first is None:
            run.first = row.first_time
        if run.lead is None or hop.index < run.hops[run.lead].index:
            run.lead = row.stream
        phase = hop.decode if f["n_tokens"] == 1 else hop.prefill
        phase.requests += 1
        phase.tokens += int(f["n_tokens"])
        hop.tokens += int(f["n_tokens"])
        if _seen(row):
            phase.sending.add(row.time - row.first_time)
            self._bulk(hop, row)
        if hop.open == 0 and hop.last_answer is not None:
            phase.before.add(row.first_time - hop.last_answer)
        if run.lead == row.stream:
            if hop.open == 0:
                run._since = row.first_time
            if f["n_tokens"] > 1:
                run.chunks += 1
                run.prefill_depth = max(run.prefill_depth, hop.open + 1)
        key = (row.stream, int(f["request"]))
        early = self._early.pop(key, None)
        if early is not None and early.last_packet > row.first_packet:
            if len(self.crossed) < _MOST_OPEN:
                self.crossed.add(key)
            return  # captured behind its answer; the two crossed within the kernel
        if key not in self._open:
            hop.open += 1
        hop.deepest = max(hop.deepest, hop.open)
        hop.depths.add(hop.open)
        self._open[key] = Asked(row, hop.open == 1, hop.open)
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        hop.work_bytes += row.length
        payload = row.payload
        if payload is not None and payload.values:
            hop.hidden_bytes += payload.length
            hop.hidden_values += payload.values
            hop.hidden_width = payload.width

    def _result(self, row: FrameRow) -> None:
        f = row.fields
        asked = self._open.pop((row.stream, int(f["request"])), None)
        run = self.runs.get(row.run)
        hop = run.hops.get(row.stream) if run is not None else None
        if asked is None:
            self._early[row.stream, int(f["request"])] = row
            if len(self._early) > _FEW:
                self._early.popitem(last=False)
        if run is None or hop is None or asked is None:
            return
        hop.open = max(0, hop.open - 1)
        hop.last_answer = run.last = row.time
        decode = asked.row.fields["n_tokens"] == 1
        if run.lead == row.stream:
            span = row.time - run._since
            if hop.open == 0 or span > 0:
                run.active += max(0.0, span)
                run.active_prefill += 0.0 if decode else max(0.0, span)
                run._since = row.time
        if f["status"]:
            return
        phase = hop.decode if decode else hop.prefill
        hop.result_bytes += row.length
        if _seen(row):
            self._bulk(hop, row)
        phase.answered += 1
        turnaround = row.first_time - asked.row.time
        phase.turnaround.add(turnaround)
        if _seen(row):
            phase.receiving.add(row.time - row.first_time)
        whole = row.time - asked.row.first_time
        if phase.slowest is None or whole > phase.slowest[0]:
            phase.slowest = (whole, asked.row, row)
        self._telemetry(run, hop, phase, asked, row, turnaround, decode=decode)

    def _telemetry(
        self,
        run: PipelineRun,
        hop: Hop,
        phase: Phase,
        asked: Asked,
        row: FrameRow,
        turnaround: float,
        *,
        decode: bool,
    ) -> None:
        records: list[dict[str, Any]] = row.fields.get("telemetry") or []
        for record in records:
            seconds = record["eval_usec"] / 1e6
            if run.lead == row.stream:
                layers = (int(record["layer_start"]), int(record["layer_end"]))
                node = run.nodes.offer(layers, partial(Node, layers))
                if node is not None:
                    node.busy += seconds
                    node.busy_prefill += 0.0 if decode else seconds
                    if decode:
                        node.evaluation.add(seconds)
            if record["route_index"] != hop.index:
                continue
            wait = record["downstream_wait_usec"] / 1e6
            send = record["forward_send_usec"] / 1e6
            phase.timed += 1
            phase.evaluation.add(seconds)
            phase.downstream.add(wait)
            phase.forwarding.add(send)
            rest = turnaround - seconds - wait - send
            hop.by_answer.add(row.length, rest)
            hop.by_both.add(row.length + asked.row.length, rest)
            if asked.alone:
                phase.rest.add(rest)
                if phase.worst_rest is None or rest > phase.worst_rest[0]:
                    phase.worst_rest = (rest, asked.row, row)

    @staticmethod
    def _bulk(hop: Hop, row: FrameRow) -> None:
        """Note how fast a frame of several segments passed."""
        seconds = row.time - row.first_time
        if row.last_packet > row.first_packet and seconds > 0:
            hop.bulk_bytes += row.length
            hop.bulk_seconds += seconds
            if hop.bulk_row is None or row.length > hop.bulk_row.length:
                hop.bulk_row = row


def _seen(row: FrameRow) -> bool:
    """Tell whether all bytes of a frame were, so that it is known how long it took."""
    return row.payload is None or row.payload.captured is None
