"""Speed limits that a link sets: what a token waits for, whatever the machines can do.

Pipeline, decode: a token passes every hop down with one hidden state and comes back
with the logits; each hop costs half a round trip and the bytes over the throughput,
down and up, and the hops follow each other. Prefill: chunks overlap, the slowest of
link and stages decides, and no more than the window is under way in one round trip.

Tensor parallel, decode: every gate is an exchange of one vector both ways at once and
costs half a round trip and its bytes; gates follow each other, and each token adds the
worker's logits where the vocabulary is split. Prefill: bulk gates of a whole chunk.

Compute is added where a machine's own speed is stated. Nothing is assumed for encoding,
system calls or contention: a run is slower than the limit, never faster.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.facts import LinkFacts
from ds4proto.printable import counted

__all__ = ["Prediction", "predict"]

_F32: Final = 4
_BITS: Final = (32, 16, 8)
_CHUNK: Final = 512
_WINDOW: Final = 4
_GATES_PER_LAYER: Final = 2


class Prediction(msgspec.Struct, frozen=True):
    """Limits of one run at one width.

    Attributes
    ----------
    bits : int
        Width of hidden states; 32 for gates.
    decode, prefill : float or None
        Tokens a second; None where the link is not known.
    decode_ms : float
        What a token waits for on the wire.
    message_bytes : int
        Of one hidden state, or one gate.
    chunk_bytes : int
        Of one prefill chunk.
    messages : int
        Messages per token that follow each other.
    bound : str
        What decides: ``latency``, ``throughput`` or ``compute``.
    model : str
        The formula, in words.
    """

    bits: int
    decode: float | None
    prefill: float | None
    decode_ms: float
    message_bytes: int
    chunk_bytes: int
    messages: int
    bound: str
    model: str


def _rate(link: LinkFacts) -> float:
    return (link.gbit or 0.0) * 1e9 / 8


def _link_of(case: Case, a: Member, b: Member) -> LinkFacts | None:
    for link in case.plan.links:
        if set(link.between) == {a.name, b.name}:
            return link
    return None


def _chain(case: Case) -> list[Member]:
    stages = [m for m in case.members if m.layers is not None]
    return sorted(stages, key=lambda m: (m.command.role != "coordinator", m.layers))


def predict(case: Case) -> list[Prediction]:
    """Return the limits at each width, the one asked for first; none without links."""
    if case.mode == "tensor-parallel":
        return _parallel(case)
    if case.mode != "pipeline" or case.leader is None or case.leader.model is None:
        return []
    asked = case.leader.command.bits
    widths = sorted(_BITS, key=lambda bits: (bits != asked, -bits))
    return [one for bits in widths if (one := _pipeline(case, bits)) is not None]


def _pipeline(case: Case, bits: int) -> Prediction | None:
    chain = _chain(case)
    leader = case.leader
    if leader is None or leader.model is None or len(chain) < 2:
        return None
    facts = leader.model.facts
    hidden = facts.hidden_values * bits // 8
    logits = _F32 * (facts.vocabulary or 0)
    chunk = leader.command.prefill_chunk or _CHUNK
    window = leader.command.prefill_window or _WINDOW
    latency = sent = 0.0
    slowest = float("inf")
    for one, other in pairwise(chain):
        link = _link_of(case, one, other)
        if link is None or link.rtt_ms is None or not link.gbit:
            return None
        latency += link.rtt_ms / 1e3
        sent += (hidden + logits) / _rate(link)
        per_token = hidden / _rate(link)
        under_way = link.rtt_ms / 1e3 / (chunk * window)
        slowest = min(slowest, 1 / max(per_token, under_way))
    compute = _stage_times(chain, facts.layers)
    wait = latency + sent
    total = wait + sum(compute)
    prefill = slowest
    for member in chain:
        speed = member.machine.prefill_speed
        if speed and member.layers is not None:
            share = (member.layers[1] - member.layers[0] + 1) / facts.layers
            prefill = min(prefill, speed / share)
    worst = max((latency, "latency"), (sent, "throughput"), (sum(compute), "compute"))
    return Prediction(
        bits, 1 / total, prefill, 1e3 * wait, hidden, hidden * chunk,
        2 * (len(chain) - 1), worst[1],
        "decode: 1 / (round trips of all hops + bytes / throughput + compute); "
        "prefill: the slowest of link, window per round trip, and stages",
    )  # fmt: skip


def _stage_times(chain: list[Member], n_layers: int) -> list[float]:
    times = []
    for member in chain:
        speed = member.machine.decode_speed
        if speed and member.layers is not None:
            share = (member.layers[1] - member.layers[0] + 1) / n_layers
            times.append(share / speed)
    return times


def _parallel(case: Case) -> list[Prediction]:
    leader = case.leader
    if leader is None or len(case.workers) != 1:
        return []
    shape = leader.identity()
    link = _link_of(case, leader, case.workers[0])
    if shape is None or link is None or link.rtt_ms is None or not link.gbit:
        return []
    gates = shape.gates_per_token or 2 * shape.n_layer
    vector = shape.vector_bytes
    # Both directions at once: the measured figure where there is one.
    rate = (link.gbit_both / 2 if link.gbit_both else link.gbit) * 1e9 / 8
    latency = gates * link.rtt_ms / 2e3
    logits = _F32 * shape.n_vocab // 2 if leader.splits_vocabulary() else 0
    sent = (gates * vector + logits) / rate
    speeds = [m.machine.decode_speed for m in case.members if m.machine.decode_speed]
    compute = 0.5 / min(speeds) if speeds else 0.0
    chunk = _CHUNK
    bulk = chunk * vector * _GATES_PER_LAYER * shape.n_layer / rate
    bulk += _GATES_PER_LAYER * shape.n_layer * link.rtt_ms / 2e3
    own = [m.machine.prefill_speed for m in case.members if m.machine.prefill_speed]
    bulk += chunk * 0.5 / min(own) if own else 0.0
    worst = max((latency, "latency"), (sent, "throughput"), (compute, "compute"))
    return [
        Prediction(
            32,
            1 / (latency + sent + compute),
            chunk / bulk,
            1e3 * (latency + sent),
            vector,
            chunk * vector,
            gates,
            worst[1],
            f"decode: 1 / ({counted(gates, 'gate')} x half a round trip + bytes / "
            "throughput + "
            "half of the compute); prefill: bulk gates of "
            f"{counted(chunk, 'token')}, two a layer, one after the other",
        )
    ]
