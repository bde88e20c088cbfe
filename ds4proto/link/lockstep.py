"""The plan of a running pair: commands in, expected batch and bulk gates out.

What the wire does not show (chunk size, thresholds) starts at the defaults and is
learned from gates that headers confirmed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ds4proto.link.plan import (
    Chunk,
    PlannedGate,
    PlanOptions,
    chunk_gates,
    kept_prefix,
    plan_new,
    sync_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule

MAX_SESSIONS = 4096
"""Sessions followed; the one that was used least lately is forgotten."""
MAX_OPERATIONS = 256
"""Commands whose gates have not been seen; real leaders have one in flight."""
MAX_CONFIRMED = 4096
"""Lengths of batch-sequence gates that are remembered for the other direction."""
MAX_PLANNED = 1 << 17
"""Gates listed for one command: a prefill of a million tokens has half of these."""
MAX_PROMPT = 1 << 20
"""Tokens of a prompt that was not captured."""
MAX_LISTED = 1 << 18
"""Gates listed for all commands together; the plan of the oldest is let go first."""
MAX_SIZES = 12
"""Different lengths that one plan can have: first, full and last chunk, each with the
halves or quarters that are swapped. A command that showed more follows no plan."""

MAX_LEARNING = 512
"""Gates of one command after which its plan is not guessed at any more."""

_NEVER = 1 << 31


@dataclass(slots=True)
class Operation:
    """One command that causes batch or bulk gates.

    Attributes
    ----------
    base : int or None
        Batch sequence number of its first gate, None until it is known.
    kept : int
        Tokens that the session holds before it.
    seen : list of (layer, rows)
        Its gates whose length was proven, from the first on.
    odd : bool
        Whether they disagree with the plan: then its end is not known either.
    """

    name: str
    make: Callable[[PlanOptions], Iterator[PlannedGate]]
    base: int | None
    kept: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)
    gates: list[PlannedGate] = field(default_factory=list)
    odd: bool = False

    def replan(self, options: PlanOptions) -> None:
        """List the batch and bulk gates under ``options``."""
        found = (gate for gate in self.make(options) if gate.kind != "row")
        self.gates = list(islice(found, MAX_PLANNED))
        self.odd = not self.agrees(self.gates)

    def agrees(self, gates: Sequence[PlannedGate]) -> bool:
        """Tell whether a plan begins with what was seen."""
        return len(gates) >= len(self.seen) and all(
            (gate.layer, gate.rows) == found
            for gate, found in zip(gates, self.seen, strict=False)
        )

    def holds(self, seq: int) -> bool:
        """Tell whether a gate is one of this command's, as far as is known."""
        if self.base is None or seq < self.base:
            return False
        if self.odd:
            return seq <= self.base + len(self.seen)
        return seq < self.base + len(self.gates)


@dataclass(slots=True)
class SessionState:
    """Tokens that a session holds, and its context."""

    context: int
    tokens: list[int] = field(default_factory=list)


class Lockstep:
    """Follows the leader's commands.

    Parameters
    ----------
    schedule : Schedule
    model_id : int
    options : PlanOptions
        What is assumed until gates show otherwise.
    """

    def __init__(
        self, schedule: Schedule, model_id: int, options: PlanOptions | None = None
    ) -> None:
        self.schedule = schedule
        self.model_id = model_id
        self.options = options or PlanOptions()
        self.sessions: OrderedDict[int, SessionState] = OrderedDict()
        self._operations: deque[Operation] = deque(maxlen=MAX_OPERATIONS)
        self._next_base: int | None = 1
        self._block: tuple[int, tuple[int, ...]] | None = None
        self._confirmed: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def command(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take one command of the leader, by frame name."""
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, fields)

    def expected_rows(self, seq: int, layer: int) -> int | None:
        """Return the rows that the batch-sequence gate ``seq`` should have."""
        other = self._confirmed.get(seq)
        if other is not None and other[0] == layer:
            return other[1]
        self._anchor(seq, layer)
        planned = self.planned(seq)
        if planned is not None:
            return planned.rows
        return None if other is None else other[1]

    def planned(self, seq: int) -> PlannedGate | None:
        """Return the gate that the plan has for a batch sequence number."""
        operation = self._at(seq)
        if operation is None or operation.base is None or operation.odd:
            return None
        return operation.gates[seq - operation.base]

    def confirmed(self, seq: int) -> int | None:
        """Return the rows that gate ``seq`` had in the direction that came first."""
        found = self._confirmed.get(seq)
        return None if found is None else found[1]

    def confirm(self, seq: int, layer: int, rows: int, *, proven: bool) -> None:
        """Take a gate; learn from it where a following header proved its length."""
        if seq not in self._confirmed:
            self._confirmed[seq] = (layer, rows)
            if len(self._confirmed) > MAX_CONFIRMED:
                self._confirmed.popitem(last=False)
        if not proven:
            return
        self._anchor(seq, layer)
        operation = self._at(seq)
        if operation is None or operation.base is None:
            return
        if seq - operation.base == len(operation.seen):
            operation.seen.append((layer, rows))
            if len(operation.seen) > MAX_LEARNING and operation.odd:
                return
            if not operation.agrees(operation.gates):
                self._learn(operation)

    def _at(self, seq: int) -> Operation | None:
        """Return the operation that gate ``seq`` belongs to."""
        for operation in self._operations:
            if operation.holds(seq):
                return operation
        return None

    def _anchor(self, seq: int, layer: int) -> None:
        """Let the next command begin at ``seq``, where the plan has no such gate."""
        if layer not in self.schedule.ffn_layers[:1]:
            return
        present = self._at(seq)
        if present is not None and present.base is not None:
            index = seq - present.base
            if present.odd or present.gates[index].layer == layer:
                return
        for index, operation in enumerate(self._operations):
            if not operation.seen and operation is not present:
                operation.base = seq
                self._chain(index)
                return

    def _chain(self, index: int) -> None:
        """Give the operations behind ``index`` new numbers."""
        base: int | None = None
        for place, operation in enumerate(self._operations):
            if place > index and not operation.seen:
                operation.base = base
            base = None
            if operation.base is not None and not operation.odd:
                base = operation.base + len(operation.gates)
        self._next_base = base

    def _learn(self, operation: Operation) -> None:
        """Find options under which the plan gives what was seen."""
        sizes = sorted({rows for _, rows in operation.seen}, reverse=True)
        if len(sizes) > MAX_SIZES:
            operation.odd = True
            self._chain(0)
            return
        chunks: list[int | None] = [self.options.chunk]
        for rows in sizes:
            # a chunk, half of one, or the rest of one behind a prefix
            chunks += [rows, 2 * rows, 2 * rows - 1, operation.kept + rows]
        for chunk in chunks:
            for split in (self.options.split_min, _NEVER, 2):
                for odd in (self.options.odd_swap, not self.options.odd_swap):
                    tried = replace(
                        self.options, chunk=chunk, split_min=split, odd_swap=odd
                    )
                    found = islice(
                        (g for g in operation.make(tried) if g.kind != "row"),
                        len(operation.seen),
                    )
                    if operation.agrees(list(found)):
                        self.options = tried
                        self._replan()
                        return
        operation.odd = True
        self._chain(0)

    def _replan(self) -> None:
        for operation in self._operations:
            operation.replan(self.options)
        self._chain(0)

    def _add(
        self,
        name: str,
        make: Callable[[PlanOptions], Iterator[PlannedGate]],
        kept: int = 0,
    ) -> None:
        operation = Operation(name, make, self._next_base, kept)
        operation.replan(self.options)
        if not operation.gates:
            return
        self._operations.append(operation)
        listed = sum(len(one.gates) for one in self._operations)
        while listed > MAX_LISTED and len(self._operations) > 1:
            listed -= len(self._operations.popleft().gates)
        if self._next_base is not None:
            self._next_base += len(operation.gates)

    def _session(
        self, fields: Mapping[str, Any], path: str = "session_id"
    ) -> SessionState:
        key = int(fields.get(path, 1))  # v1 and v6 have one implicit session
        state = self.sessions.get(key)
        if state is None:
            state = self.sessions[key] = SessionState(_NEVER)
            if len(self.sessions) > MAX_SESSIONS:
                self.sessions.popitem(last=False)
        self.sessions.move_to_end(key)
        return state

    def _create(self, fields: Mapping[str, Any]) -> None:
        state = self._session(fields)
        if state.context == _NEVER and fields["ctx_size"] > 0:
            state.context = fields["ctx_size"]

    def _destroy(self, fields: Mapping[str, Any]) -> None:
        self.sessions.pop(int(fields.get("session_id", 1)), None)

    def _invalidate(self, fields: Mapping[str, Any]) -> None:
        self._session(fields).tokens.clear()

    def _rewind(self, fields: Mapping[str, Any]) -> None:
        del self._session(fields).tokens[max(0, fields["position"]) :]

    def _sync(self, fields: Mapping[str, Any]) -> None:
        state = self._session(fields)
        held, prompt = tuple(state.tokens), self._prompt(state, fields)
        context, model = state.context, self.model_id
        kept = kept_prefix(held, prompt)
        new = len(prompt) - kept
        state.tokens = list(prompt)

        def make(options: PlanOptions) -> Iterator[PlannedGate]:
            plan = plan_new(kept, new, context, options, model_id=model)
            return sync_gates(plan, self.schedule, options, model_id=model)

        self._add("SYNC", make, kept)

    @staticmethod
    def _prompt(state: SessionState, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the prompt; where it was not captured, one that extends the prefix."""
        tokens = fields.get("tokens")
        if tokens is not None:
            return tuple(tokens)
        count = int(fields.get("count", fields.get("token_count", 0)))
        held = state.tokens[:count]
        return (*held, *(-1 for _ in range(min(count, MAX_PROMPT) - len(held))))

    def _eval(self, fields: Mapping[str, Any]) -> None:
        self._session(fields).tokens.append(fields["token"])

    def _batch(self, fields: Mapping[str, Any]) -> None:
        for item in fields.get("items", ()):
            self._session(item).tokens.append(item["token"])

    def _mixed(self, fields: Mapping[str, Any]) -> None:
        state = self._session(fields, "prefill_session_id")
        prompt = fields.get("tokens", ())
        chunk = Chunk(len(state.tokens), max(0, len(prompt) - len(state.tokens)))
        state.tokens = list(prompt)

        def make(options: PlanOptions) -> Iterator[PlannedGate]:
            return chunk_gates(chunk, self.schedule, options, model_id=self.model_id)

        if chunk.rows:
            self._add("MIXED_BATCH", make, chunk.position)
        self._batch(fields)

    def _verify(self, fields: Mapping[str, Any]) -> None:
        tokens = tuple(fields.get("tokens", ()))
        key = int(fields.get("session_id", 1))
        self._session(fields)
        self._block = (key, tokens)

        def make(_options: PlanOptions) -> Iterator[PlannedGate]:
            return verify_gates(len(tokens), self.schedule)

        if tokens:
            self._add("VERIFY", make)

    def _commit(self, fields: Mapping[str, Any]) -> None:
        block, self._block = self._block, None
        state = None if block is None else self.sessions.get(block[0])
        if block is None or state is None:
            return
        count = len(block[1])
        if fields["mode"] != 1:
            count = min(max(0, fields["token_count"]), count)
        state.tokens += block[1][:count]


_HANDLERS: dict[str, Callable[[Lockstep, Mapping[str, Any]], None]] = {
    "SESSION_CREATE": Lockstep._create,
    "SESSION_DESTROY": Lockstep._destroy,
    "INVALIDATE": Lockstep._invalidate,
    "REWIND": Lockstep._rewind,
    "SYNC": Lockstep._sync,
    "SYNC_MULTIMODAL": Lockstep._sync,
    "EVAL": Lockstep._eval,
    "GLM_MTP": Lockstep._eval,
    "EVAL_BATCH": Lockstep._batch,
    "MIXED_BATCH": Lockstep._mixed,
    "VERIFY": Lockstep._verify,
    "VERIFY_COMMIT": Lockstep._commit,
}
