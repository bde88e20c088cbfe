"""Layer ranges from what each machine holds and how fast it is.

Stages of a pipelined prefill run side by side, so that layers go by speed; no machine
gets more than its memory holds. What the proposal cannot place it says.
"""

from __future__ import annotations

import msgspec

from ds4proto.errors import WrongUsage
from ds4proto.model import quant_label
from ds4proto.preflight.case import Member, make_case
from ds4proto.preflight.facts import Plan
from ds4proto.preflight.memory import Need, gpu_limit, slice_need
from ds4proto.printable import counted

__all__ = ["Proposal", "propose"]


class Proposal(msgspec.Struct, frozen=True):
    """One machine's part.

    Attributes
    ----------
    machine : str
    layers : str
        For ``--layers``.
    need, limit : int or None
        Bytes; None where the sizes of the layers are not stated, or no limit is known.
    """

    machine: str
    layers: str
    need: int | None
    limit: int | None


def propose(plan: Plan) -> list[Proposal]:
    """Return ranges for all machines: the coordinator first, the head on the last.

    Raises
    ------
    WrongUsage
        Where the model is not known, or does not fit; the text says by how much.
    """
    case = make_case(plan)
    members = sorted(case.members, key=lambda m: m.command.role != "coordinator")
    model = next((m.model for m in members if m.model is not None), None)
    if model is None:
        raise WrongUsage("--propose needs a model: [model.NAME] gguf = FILE, or id = N")
    n_layers = model.facts.layers
    if len(members) > n_layers:
        raise WrongUsage(
            f"{counted(len(members), 'machine')} for a model of {n_layers} layers"
        )
    speeds = [m.machine.prefill_speed or m.machine.decode_speed for m in members]
    if any(speeds) and not all(speeds):
        missing = [m.name for m, s in zip(members, speeds, strict=True) if not s]
        raise WrongUsage(
            f"--propose: speed is stated for some machines and not for "
            f"{', '.join(missing)}: state prefill_speed for all, or for none"
        )
    weights = [speed or 1.0 for speed in speeds]
    counts = _shares(weights, [n_layers] * len(members), n_layers)
    # Layers differ in size, so capacity depends on where a slice lies: shrink what
    # does not fit and hand the layers on until nothing changes.
    caps = [n_layers] * len(members)
    for _ in range(n_layers * len(members)):
        place = _too_large(case.ctx, plan, members, counts)
        if place is None:
            return _proposals(case.ctx, plan, members, counts)
        caps[place] = counts[place] - 1
        if caps[place] < 1 or sum(caps) < n_layers:
            break
        counts = _shares(weights, caps, n_layers)
    raise WrongUsage(_short(case.ctx, plan, members, n_layers))


def _shares(weights: list[float], caps: list[int], total: int) -> list[int]:
    """Divide whole layers by weight, at least one each, none above its cap."""
    counts = [1] * len(weights)
    while sum(counts) < total:
        free = [i for i in range(len(counts)) if counts[i] < caps[i]]
        if not free:
            break
        # the machine that stays the quickest with one layer more
        chosen = min(free, key=lambda i: ((counts[i] + 1) / weights[i], i))
        counts[chosen] += 1
    return counts


def _slices(counts: list[int]) -> list[tuple[int, int]]:
    found, start = [], 0
    for count in counts:
        found.append((start, start + count - 1))
        start += count
    return found


def _need(
    ctx: int, plan: Plan, member: Member, part: tuple[int, int], *, ends: bool
) -> Need:
    assert member.model is not None
    run = plan.run
    return slice_need(
        member.model, *part, ctx=member.command.ctx or ctx, sessions=run.sessions,
        runtime=run.runtime_bytes, ends=ends,
    )  # fmt: skip


def _too_large(
    ctx: int, plan: Plan, members: list[Member], counts: list[int]
) -> int | None:
    last = len(members) - 1
    for place, (member, part) in enumerate(zip(members, _slices(counts), strict=True)):
        limit = gpu_limit(member.machine)
        if limit is None or member.model is None:
            continue
        if _need(ctx, plan, member, part, ends=place in (0, last)).total > limit[0]:
            return place
    return None


def _proposals(
    ctx: int, plan: Plan, members: list[Member], counts: list[int]
) -> list[Proposal]:
    found = []
    last = len(members) - 1
    for place, (member, part) in enumerate(zip(members, _slices(counts), strict=True)):
        limit = gpu_limit(member.machine)
        end = "output" if place == last else str(part[1])
        need = None
        if member.model is not None:
            whole = _need(ctx, plan, member, part, ends=place in (0, last))
            need = whole.total if whole.weights else None
            facts = member.model.facts
            if facts.experts and place and not quant_label(facts, *part):
                raise WrongUsage(
                    f"{member.name} would get layers {part[0]}:{part[1]} without "
                    "routed experts, which every coordinator refuses; use fewer "
                    "machines"
                )
        size = None if limit is None else limit[0]
        found.append(Proposal(member.name, f"{part[0]}:{end}", need, size))
    return found


def _short(ctx: int, plan: Plan, members: list[Member], n_layers: int) -> str:
    limits = [gpu_limit(m.machine) for m in members]
    total = sum(limit[0] for limit in limits if limit is not None)
    first = members[0]
    whole = 0
    if first.model is not None:
        whole = _need(ctx, plan, first, (0, n_layers - 1), ends=True).total
    whole += plan.run.runtime_bytes * (len(members) - 1)
    gib = 1 << 30
    return (
        f"the model does not fit these machines: about {whole / gib:.1f} GiB are "
        f"needed with {plan.run.sessions} session(s) of {counted(ctx, 'token')}, and "
        f"{total / gib:.1f} GiB are there. Add a machine, or take a smaller context "
        "or fewer sessions"
    )
