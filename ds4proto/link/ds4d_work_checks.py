"""WORK checks 1 to 23 of a worker, as two tables in the order of judgement.

Everything here depends on the frame and the worker's facts alone; sessions (24 to
26) and the engine (27) follow in ``ds4d_worker``. The first table needs the fixed
part only, so that a refused frame costs no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_events import Fault
from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4d_frames import TOKEN_BYTES, WORK_PART, read_tokens
from ds4proto.link.ds4d_limits import U32, LinkLimits
from ds4proto.link.ds4d_route_blob import Hop, kept_bytes, read_route
from ds4proto.link.ds4d_texts import text
from ds4proto.schema.ds4d_work import (
    ACK_ONLY,
    INPUT_HC,
    KV_SPANS,
    OUTPUT_LOGITS,
    RESET_SESSION,
)

FLAGS: Final = INPUT_HC | OUTPUT_LOGITS | RESET_SESSION | ACK_ONLY
MAX_TOKEN: Final = 0x7FFFFFFF


@dataclass(slots=True)
class Work:
    """One WORK under judgement.

    Attributes
    ----------
    fields : mapping
        Fixed part by wire name.
    size : int
        Body bytes announced.
    tokens : tuple of int
        Known once the token tail is in.
    hops : tuple of Hop
        The route, once check 20 has passed.
    """

    facts: WorkerFacts
    size: int
    fields: dict[str, int]
    tokens: tuple[int, ...] = ()
    hidden: memoryview | None = None
    blob: bytes = b""
    token_wire: bytes = b""
    hops: tuple[Hop, ...] = field(default=())

    @property
    def bits(self) -> int:
        """Wire width of hidden state, 0 read as 32."""
        return self.fields["input_hc_bits"] or 32

    @property
    def last(self) -> bool:
        """True where this hop is the last of its route."""
        return self.fields["route_index"] + 1 == self.fields["route_count"]


class Check(NamedTuple):
    """One line of a table: the clause, when it is broken, the numbers of its text."""

    clause: str
    broken: Callable[[Work], bool]
    values: Callable[[Work], tuple[object, ...]] | None = None


def _tails(w: Work) -> int:
    f = w.fields
    return f["token_bytes"] + f["input_hc_bytes"] + f["route_bytes"]


def _flag(bit: int) -> Callable[[Work], bool]:
    return lambda w: bool(w.fields["flags"] & bit)


_input, _logits = _flag(INPUT_HC), _flag(OUTPUT_LOGITS)


def _flags(w: Work) -> int:
    return FLAGS | KV_SPANS if w.facts.model.private else FLAGS


def _f(w: Work, *names: str) -> tuple[Any, ...]:
    return tuple(w.fields[name] for name in names)


HEAD_CHECKS: Final = (
    Check(
        "DS4D-WORK-02",
        lambda w: (
            w.fields["token_bytes"] != TOKEN_BYTES * w.fields["n_tokens"]
            or _tails(w) != w.size - WORK_PART.size
        ),
    ),
    Check("DS4D-WORK-03", lambda w: w.fields["route_count"] == 0),
    Check(
        "DS4D-WORK-04",
        lambda w: w.fields["route_index"] >= w.fields["route_count"],
    ),
    Check(
        "DS4D-WORK-05",
        lambda w: w.fields["model_id"] != w.facts.model.model_id,
        lambda w: (w.fields["model_id"], w.facts.model.model_id),
    ),
    Check(
        "DS4D-WORK-06",
        lambda w: (
            _f(w, "layer_start", "layer_end")
            != (w.facts.layer_start, w.facts.layer_end)
        ),
        lambda w: (
            w.facts.layer_start,
            w.facts.layer_end,
            *_f(w, "layer_start", "layer_end"),
        ),
    ),
    Check("DS4D-WORK-07", lambda w: w.fields["flags"] & ~_flags(w) != 0),
    Check("DS4D-WORK-08", lambda w: w.fields["n_tokens"] == 0),
    Check(
        "DS4D-WORK-09",
        lambda w: w.fields["pos0"] + w.fields["n_tokens"] > w.facts.model.ctx,
    ),
    Check("DS4D-WORK-10", lambda w: w.fields["layer_start"] == 0 and _input(w)),
    Check("DS4D-WORK-11", lambda w: w.fields["layer_start"] > 0 and not _input(w)),
    Check("DS4D-WORK-12", lambda w: _logits(w) and not w.facts.has_output),
    Check(
        "DS4D-WORK-13",
        lambda w: _logits(w) and w.fields["layer_end"] != w.facts.model.n_layers - 1,
    ),
)

SIZE_CHECKS: Final = (
    Check(
        "DS4D-WORK-16",
        lambda w: w.facts.model.hidden_bytes(w.fields["n_tokens"], 32) > U32,
    ),
    Check(
        "DS4D-WORK-17",
        lambda w: not w.facts.model.widths.holds(w.fields["input_hc_bits"]),
    ),
    Check(
        "DS4D-WORK-18",
        lambda w: (
            _input(w)
            and w.fields["input_hc_bytes"]
            != w.facts.model.hidden_bytes(w.fields["n_tokens"], w.bits)
        ),
    ),
    Check(
        "DS4D-WORK-19",
        lambda w: w.fields["input_hc_bytes"] > 0 and not _input(w),
    ),
)

TOKEN_CHECKS: Final = (
    Check(
        "DS4D-WORK-14",
        lambda w: max(w.tokens) > MAX_TOKEN or max(w.tokens) >= w.facts.model.vocab,
    ),
    Check(
        "DS4D-WORK-15",
        lambda w: (
            token_hash(w.tokens, w.fields["prefix_hash"]) != w.fields["result_hash"]
        ),
    ),
)


def _own(w: Work) -> Hop:
    return w.hops[w.fields["route_index"]]


ROUTE_CHECKS: Final = (
    Check(
        "DS4D-WORK-21",
        lambda w: (
            _f(w, "layer_start", "layer_end")
            != (_own(w).layer_start, _own(w).layer_end)
        ),
    ),
    Check("DS4D-WORK-22", lambda w: _logits(w) != _own(w).logits),
    Check("DS4D-WORK-23", lambda w: not w.last and _logits(w)),
)


def first_fault(checks: tuple[Check, ...], work: Work) -> Fault | None:
    """Return the first broken check of a table as a refusal, or None."""
    for clause, broken, values in checks:
        if broken(work):
            numbers = values(work) if values else ()
            return Fault(clause, text(clause, *numbers), "remote")
    return None


@dataclass(slots=True)
class Head:
    """A WORK whose fixed part has been judged, kept until its body is whole."""

    work: Work
    fault: Fault | None = None
    size_fault: Fault | None = None
    too_large: bool = False


def read_head(facts: WorkerFacts, size: int, fixed: memoryview) -> Head:
    """Judge a fixed part as far as it alone allows (checks 2 to 13 and 16 to 19)."""
    work = Work(facts, size, WORK_PART.read(fixed))
    head = Head(work, first_fault(HEAD_CHECKS, work))
    if head.fault is None:
        head.size_fault = first_fault(SIZE_CHECKS, work)
    return head


def plan_work(head: Head, limits: LinkLimits) -> int:
    """Return how much of the body is worth keeping; see ``ds4d_intake.Plan``."""
    fixed, words = WORK_PART.size, head.work.fields
    if head.fault is not None:
        return fixed
    wanted = fixed + words["token_bytes"]
    if head.size_fault is None:
        route = kept_bytes(head.work.facts.model.n_layers)
        wanted += words["input_hc_bytes"] + min(words["route_bytes"], route)
    head.too_large = wanted > limits.max_body
    return fixed if head.too_large else wanted


def judge_work(head: Head, body: memoryview) -> Fault | None:
    """Return the first fault of a WORK whose body is in, or None.

    Parameters
    ----------
    body : memoryview
        What ``plan_work`` kept.

    Returns
    -------
    fault : Fault or None
        Clause DS4D-WORK-62 where the body is above this side's cap: answered with
        request id 0, and the connection ends.
    """
    work = head.work
    if head.fault is not None:
        return head.fault
    if head.too_large:
        return Fault("DS4D-WORK-62", text("DS4D-WORK-62"))
    tokens = WORK_PART.size + work.fields["token_bytes"]
    work.tokens = read_tokens(body, WORK_PART.size, work.fields["n_tokens"])
    work.token_wire = bytes(body[WORK_PART.size : tokens])
    fault = first_fault(TOKEN_CHECKS, work) or head.size_fault
    return fault or _judge_route(work, body, tokens)


def truncated() -> Fault:
    """Return the fault of a body without a whole fixed part (check 1)."""
    return Fault("DS4D-WORK-01", text("DS4D-WORK-01"), "remote")


def _judge_route(work: Work, body: memoryview, tokens: int) -> Fault | None:
    f = work.fields
    at = tokens + f["input_hc_bytes"]
    if f["input_hc_bytes"]:
        work.hidden = body[tokens:at]
    work.blob = bytes(body[at:])
    found = read_route(
        work.blob,
        f["route_bytes"],
        f["route_count"],
        work.facts.model.n_layers,
    )
    if isinstance(found, str):
        return Fault(found, text(found), "remote")
    work.hops = found
    return first_fault(ROUTE_CHECKS, work)
