"""A TP pair on paper: the four byte streams that a script of commands causes.

What travels is taken from the plan; the payloads are random but seeded.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ds4proto.link.events import Direction, Event
from ds4proto.link.observer import StreamObserver, open_observer
from ds4proto.link.pair import TpPair
from ds4proto.link.plan import (
    PlannedGate,
    PlanOptions,
    plan_sync,
    sync_gates,
    token_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule
from tests.link.streams import ds4t

UP: Direction = "a>b"
"""From the worker, which dials."""
DOWN: Direction = "b>a"


def hello(dialect: str, role: int, **changes: Any) -> bytes:
    """Return a hello of the toy pair: 2 layers, 16 wide, 32 tokens."""
    values: dict[str, Any] = {
        "version": {"v9w": 9, "v9-late": 9, "v14-odinlink": 14, "v12-ane": 12}.get(
            dialect
        )
        or int(dialect[1:]),
        "role": role,
        "rdma_ok": 0,
        "gguf_bytes": 999,
        "model_id": 0,
        "n_layer": 2,
        "n_embd": 16,
        "n_vocab": 32,
        "quant_bits": 2,
        "ctx_size": 256 if role == 1 else 0,
        "gate_slot_start": 0,
        "gate_slot_step": 1,
        "gates_per_token": 4,
        "runtime_features": 0x8000,
    }
    return ds4t("HELLO", dialect, **(values | changes))


@dataclass
class Paper:
    """Writes both connections of a pair.

    Attributes
    ----------
    control, data : list of (direction, bytes)
        Whole frames in the order in which they cross.
    lengths : list of int
        Payload bytes of every gate, in order.
    """

    dialect: str = "v10"
    options: PlanOptions = field(default_factory=PlanOptions)
    shape: dict[str, int] = field(default_factory=dict)
    seed: int = 1
    control: list[tuple[Direction, bytes]] = field(default_factory=list)
    data: list[tuple[Direction, bytes]] = field(default_factory=list)
    order: list[tuple[str, Direction, bytes]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.n_embd = self.shape.get("n_embd", 16)
        self.row = self.batch = self.evals = 0
        self.tokens: dict[int, list[int]] = {}
        self.context: dict[int, int] = {}
        layers = self.shape.get("n_layer", 2)
        shape = {"gates_per_token": 2 * layers} | self.shape
        self.schedule = Schedule(layers, shape["gates_per_token"])
        self.command(DOWN, hello(self.dialect, 1, **shape))
        self.command(UP, hello(self.dialect, 2, **shape))

    def command(self, direction: Direction, data: bytes) -> None:
        """Put one frame on the control connection."""
        self.control.append((direction, data))
        self.order.append(("control", direction, data))

    def frame(self, direction: Direction, name: str, **values: Any) -> None:
        """Put one frame on the control connection, by name."""
        self.command(direction, ds4t(name, self.dialect, **values))

    def gates(self, planned: Iterable[PlannedGate]) -> None:
        """Put gates on the data connection, both ways."""
        for gate in planned:
            size = 4 * gate.rows * self.n_embd
            values: dict[str, Any] = {"layer": gate.layer}
            if gate.kind == "row":
                self.row += 1
                name = "DS4T.GATE_ROW"
                values |= {"gate": int(gate.gate == "FFN"), "seq": self.row}
            else:
                self.batch += 1
                name = "DS4B.GATE_BATCH" if gate.kind == "batch" else "DS4B.GATE_BULK"
                values["seq"] = self.batch
                values |= (
                    {"rows": gate.rows} if gate.kind == "batch" else {"tag": 0x0B16}
                )
            self.lengths.append(size)
            for direction in (DOWN, UP):
                payload = self.chance.randbytes(size)
                data = ds4t(name, self.dialect, partial=payload, **values)
                self.data.append((direction, data))
                self.order.append(("data", direction, data))

    def create(self, session: int = 1, context: int = 256) -> None:
        """SESSION_CREATE and its ack."""
        self.tokens[session] = []
        self.context[session] = context
        self.frame(DOWN, "SESSION_CREATE", session_id=session, ctx_size=context)
        self.frame(UP, "COMMAND_ACK", session_id=session, status=0)

    def sync(self, prompt: Iterable[int], session: int = 1) -> None:
        """SYNC, its gates, ack and logits."""
        prompt = list(prompt)
        self.frame(DOWN, "SYNC", session_id=session, tokens=tuple(prompt))
        plan = plan_sync(
            self.tokens[session], prompt, self.context[session], self.options
        )
        self.gates(sync_gates(plan, self.schedule, self.options))
        self.tokens[session] = prompt
        self.frame(UP, "COMMAND_ACK", session_id=session, status=0)
        self.frame(UP, "LOGITS", logits=bytes(64))

    def eval(self, token: int, session: int = 1) -> None:
        """EVAL, one token's row gates, logits."""
        self.evals += 1
        self.frame(DOWN, "EVAL", session_id=session, seq=self.evals, token=token)
        self.gates(token_gates(self.schedule))
        self.tokens[session].append(token)
        self.frame(UP, "LOGITS", logits=bytes(64))

    def verify(self, tokens: Iterable[int], session: int = 1) -> None:
        """VERIFY, its gates, a verdict that keeps all."""
        tokens = tuple(tokens)
        self.frame(DOWN, "VERIFY", session_id=session, tokens=tokens)
        self.gates(verify_gates(len(tokens), self.schedule))
        self.frame(DOWN, "VERIFY_COMMIT", mode=1, token_count=0)
        self.tokens[session] += tokens

    def stream(self, name: str, direction: Direction) -> bytes:
        """Return one of the four streams whole."""
        return b"".join(d for n, w, d in self.order if n == name and w == direction)


def observe_pair(
    paper: Paper,
    cut: Iterator[int] | None = None,
    *,
    control: bool = True,
    **options: Any,
) -> tuple[list[Event], list[Event], StreamObserver]:
    """Feed a pair in the order of its frames; return both event lists."""
    pair = TpPair()
    seen: dict[str, list[Event]] = {"control": [], "data": []}
    observers: dict[str, StreamObserver] = {}
    for name, direction, data in paper.order:
        if name == "control" and not control:
            continue
        if name not in observers:
            first = {direction: data}
            found = open_observer(first, pair=pair, **options)
            assert found is not None
            observers[name] = found
        at = 0
        while at < len(data):
            size = len(data) if cut is None else next(cut)
            part = data[at : at + size]
            seen[name] += observers[name].feed(direction, part, 0.0)
            at += size
    for name in ("control", "data"):
        for direction in (DOWN, UP):
            if name in observers:
                seen[name] += observers[name].feed(direction, None, 0.0)
    return (
        seen["control"],
        seen["data"],
        observers.get("data", observers.get("control")),
    )  # type: ignore[return-value]


def sizes(events: Iterable[Event], direction: Direction, header: int = 16) -> list[int]:
    """Return the payload bytes of every gate of one direction."""
    return [
        e.length - header
        for e in events
        if hasattr(e, "spec") and e.direction == direction
    ]
