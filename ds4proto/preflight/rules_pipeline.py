"""Rules of a pipeline: who owns which layers, and what the coordinator will refuse."""

from __future__ import annotations

from collections.abc import Iterator

from ds4proto.link.ds4d_registration import CHECKS as HELLO_CHECKS
from ds4proto.link.ds4d_registration import Expected, check_all
from ds4proto.link.ds4d_registry import WorkerEntry
from ds4proto.link.ds4d_route import RouteError, build_route
from ds4proto.link.ds4d_texts import text
from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.finding import Finding

__all__ = ["CHECKS"]

_ODD = {"swift", "hello-v3", "fodelf", "local-decode", "ds4proto"}
"""Dialects that do not mix with upstream at all."""


def _pipeline(case: Case) -> bool:
    return case.mode == "pipeline"


def layers_exist(case: Case) -> Iterator[Finding]:
    """Slices lie inside the model, and in the file that is loaded."""
    if not _pipeline(case):
        return
    for member in case.members:
        asked, model = member.command.layers, member.model
        if asked is None or model is None:
            continue
        facts = model.facts
        leads = member.command.role == "coordinator"
        for refusal in asked.refusals(facts.layers, coordinator=leads):
            yield Finding(
                "error", "layers.outside", member.name,
                f"--layers {asked} does not fit a model of {facts.layers} layers",
                expected=f"layers 0:{facts.layers - 1}", found=str(asked),
                next_step="correct --layers", prints=refusal.text,
                clause=refusal.clause,
            )  # fmt: skip
        if member.layers is None:
            continue
        missing = facts.missing(*member.layers)
        if missing:
            yield Finding(
                "error", "layers.not-in-file", member.name,
                "the model file does not hold all layers of this slice",
                expected=f"layers {member.layers[0]}:{member.layers[1]} in "
                f"{model.path}", found=f"missing {_ranges(missing)}",
                next_step="load the file that holds them, or change --layers",
            )  # fmt: skip
        if leads and not facts.has_embedding:
            yield Finding(
                "error", "layers.no-embedding", member.name,
                "the coordinator's file lacks the token embedding",
                expected="token_embd.weight", found=f"not in {model.path}",
                next_step="give the coordinator the first part of the split model",
            )  # fmt: skip
        if asked.output and not facts.has_output:
            yield Finding(
                "error", "layers.no-head", member.name,
                "this slice owns the output head, and its file lacks it",
                expected="output.weight", found=f"not in {model.path}",
                next_step="load the file with the head, or give the head to another",
            )  # fmt: skip


def _ranges(numbers: tuple[int, ...]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}:{b}" if a != b else str(a) for a, b in parts)


def coverage(case: Case) -> Iterator[Finding]:
    """Find gaps and overlaps between the slices."""
    leader = case.leader
    if not _pipeline(case) or leader is None or leader.model is None:
        return
    if leader.layers is None:
        return
    n_layers = leader.model.facts.layers
    owners: dict[int, list[str]] = {layer: [] for layer in range(n_layers)}
    for member in case.members:
        if member.layers is not None:
            for layer in range(member.layers[0], member.layers[1] + 1):
                if layer in owners:
                    owners[layer].append(member.name)
    gaps = tuple(layer for layer, names in owners.items() if not names)
    if gaps:
        yield Finding(
            "error", "layers.gap", "all machines",
            f"nobody runs layers {_ranges(gaps)}",
            expected=f"every layer of 0:{n_layers - 1} on one machine",
            found=_slices(case), next_step="extend a neighbour's --layers",
            prints=_route_text(case, leader), clause="DS4D-ROUTE-36",
        )  # fmt: skip
    twice = tuple(layer for layer, names in owners.items() if len(names) > 1)
    standbys = _standbys(case)
    clash = [n for n in twice if len(set(owners[n]) - standbys) > 1]
    if clash:
        names = sorted({name for layer in clash for name in owners[layer]})
        yield Finding(
            "error", "layers.overlap", ", ".join(names),
            f"layers {_ranges(tuple(clash))} have more than one owner; the "
            "coordinator accepts the workers, and the route then skips one or breaks",
            expected="each start is the end before plus 1", found=_slices(case),
            next_step="make the ranges meet without overlapping",
            prints="" if gaps else _route_text(case, leader),
        )  # fmt: skip
    if standbys:
        yield Finding(
            "note", "layers.standby", ", ".join(sorted(standbys)),
            "a worker with the same slice as another takes its place in the route "
            "when it registers later",
            next_step="nothing, where this is meant",
        )  # fmt: skip


def _standbys(case: Case) -> set[str]:
    """Return the workers whose whole slice another worker before them has too."""
    seen: set[tuple[tuple[int, int], bool]] = set()
    found = set()
    for worker in case.workers:
        if worker.layers is None:
            continue
        key = (worker.layers, worker.head)
        if key in seen:
            found.add(worker.name)
        seen.add(key)
    return found


def _slices(case: Case) -> str:
    return ", ".join(
        f"{m.name} {m.command.layers}" for m in case.members if m.command.layers
    )


def _entries(case: Case) -> list[WorkerEntry]:
    entries = []
    for serial, worker in enumerate(case.workers):
        if worker.layers is None:
            continue
        first, last = worker.layers
        entries.append(
            WorkerEntry(
                worker.name, 1 + serial, 0, first, last, worker.head, True, serial
            )
        )
    return entries


def _route_text(case: Case, leader: Member) -> str:
    """Return what the coordinator prints about its route, empty where it has one."""
    assert leader.model is not None
    assert leader.layers is not None
    facts = leader.model.facts
    try:
        build_route(
            leader.layers,
            _entries(case),
            facts.layers,
            coordinator_has_head=facts.has_output,
        )
    except RouteError as error:
        return str(error)
    return ""


def head_owner(case: Case) -> Iterator[Finding]:
    """Somebody computes the logits, and one alone."""
    leader = case.leader
    if not _pipeline(case) or leader is None or leader.model is None:
        return
    n_layers = leader.model.facts.layers
    owners = [m.name for m in case.members if m.head and m.name not in _standbys(case)]
    if len(owners) > 1:
        yield Finding(
            "error", "head.owners", ", ".join(owners),
            "more than one machine is given the output head",
            expected="A:output on the last stage alone", found=_slices(case),
            next_step="end the other ranges with a number",
        )  # fmt: skip
    if owners or leader.layers is None:
        return
    if leader.model.facts.has_output:
        back = [
            m.name for m in case.members if m.layers and m.layers[1] == n_layers - 1
        ]
        yield Finding(
            "warning", "head.returns", ", ".join(back) or leader.name,
            "no stage is given the head: the last one sends hidden states back and "
            "the coordinator computes the logits",
            expected="--layers N:output on the last stage", found=_slices(case),
            next_step="end the last range with :output unless this is meant",
        )  # fmt: skip
        return
    yield Finding(
        "error", "head.missing", "all machines",
        "nobody owns the output head, and the coordinator's file lacks it",
        expected="--layers N:output on the last stage", found=_slices(case),
        next_step="end the last range with :output",
        prints=_route_text(case, leader),
    )  # fmt: skip


def registration(case: Case) -> Iterator[Finding]:
    """Every fault that the coordinator would find in a worker's HELLO."""
    leader = case.leader
    if not _pipeline(case) or leader is None:
        return
    own = leader.hello()
    for worker in case.workers:
        if own is None or worker.hello() is None:
            yield from _context_alone(leader, worker)
    if leader.model is None or own is None:
        return
    expected = Expected(
        int(str(own["model_id"])), str(own["model_name"]),
        leader.model.facts.layers, leader.command.ctx or 0,
    )  # fmt: skip
    for worker in case.workers:
        hello = worker.hello()
        if hello is None:
            continue
        for fault in check_all(hello, expected):
            if fault.clause == "DS4D-HELLO-12" and worker.layers is None:
                continue  # said already, in the words of the command line
            yield Finding(
                "error", "hello.refused", worker.name,
                f"{leader.name} refuses this worker's HELLO",
                expected="a HELLO that passes every check", found=fault.text,
                next_step=_advice(fault.clause), prints=fault.text,
                clause=fault.clause,
            )  # fmt: skip


def _context_alone(leader: Member, worker: Member) -> Iterator[Finding]:
    """Compare what a HELLO carries without any model: the size of the context."""
    clause = "DS4D-HELLO-14"
    check = next(one for one in HELLO_CHECKS if one.clause == clause)
    ctx = worker.command.ctx
    expected = Expected(0, "", 0, leader.command.ctx or 0)
    hello = {"ctx_size": ctx}
    if ctx is not None and check.broken(hello, expected):
        words = text(clause, *check.values(hello, expected))
        yield Finding(
            "error", "hello.refused", worker.name,
            f"{leader.name} refuses this worker's HELLO",
            expected=f"a context of {expected.ctx} or more", found=str(ctx),
            next_step=_advice(clause), prints=words, clause=clause,
        )  # fmt: skip
    if leader.model is None or worker.model is None:
        yield Finding(
            "note", "hello.not-checked", worker.name,
            "without a model file nothing but the context of this worker's HELLO "
            "could be checked",
            next_step="give -m FILE on both sides, or state the model in a plan",
        )  # fmt: skip


def _advice(clause: str) -> str:
    return {
        "DS4D-HELLO-06": "load the same model on all machines",
        "DS4D-HELLO-07": "load the same model on all machines",
        "DS4D-HELLO-08": "load the same model on all machines",
        "DS4D-HELLO-09": "choose a slice with a layer of routed experts in it",
        "DS4D-HELLO-13": "give the head to the worker of the last layer",
        "DS4D-HELLO-14": "start the worker with the coordinator's --ctx",
    }.get(clause, "correct the worker's command")


def labels(case: Case) -> Iterator[Finding]:
    """Quantisation labels may differ on the wire; the weights then do."""
    if not _pipeline(case):
        return
    seen: dict[int, list[str]] = {}
    for member in case.members:
        hello = member.hello()
        if hello is not None and member.layers is not None and hello["quant_bits"]:
            seen.setdefault(int(str(hello["quant_bits"])), []).append(member.name)
    if len(seen) > 1:
        yield Finding(
            "warning", "model.labels", "all machines",
            "the slices come from differently quantised files; the coordinator does "
            "not compare the labels",
            expected="one label",
            found="; ".join(f"Q{k}: {', '.join(v)}" for k, v in sorted(seen.items())),
            next_step="load parts of one file, unless the mixture is meant",
            clause="DS4D-HELLO-09",
        )  # fmt: skip


def dialects(case: Case) -> Iterator[Finding]:
    """Find builds whose frames differ."""
    if not _pipeline(case):
        return
    named = {m.machine.dialect: m.name for m in case.members if m.machine.dialect}
    odd = named.keys() & _ODD
    if len(named) > 1 and odd:
        yield Finding(
            "error", "build.dialect", ", ".join(named.values()),
            "the builds speak dialects whose frames differ in length or meaning",
            expected="one build on all machines", found=", ".join(sorted(named)),
            next_step="build all machines from one commit",
        )  # fmt: skip
    leader = case.leader
    narrow = leader is not None and leader.command.bits == 16
    if len(named) > 1 and "bf16" in named and narrow:
        yield Finding(
            "error", "width.bf16", ", ".join(named.values()),
            "at 16 bits one build sends BF16 and the others IEEE half; lengths are "
            "equal, the values are not",
            expected="one meaning of 16 bits", found=", ".join(sorted(named)),
            next_step="use --dist-activation-bits 32 or 8, or one build",
        )  # fmt: skip
    for member in case.members:
        if member.command.role != "none" and member.backend == "cpu":
            yield Finding(
                "error", "build.cpu", member.name,
                "a CPU-only build is neither worker nor session coordinator",
                expected="a build with a graph back end", found="cpu",
                next_step="build for Metal or CUDA",
                prints=text("DS4D-WORKER-26")
                if member.command.role == "coordinator" else "",
            )  # fmt: skip


def width(case: Case) -> Iterator[Finding]:
    """Tell what a narrow wire does to the values."""
    leader = case.leader
    if not _pipeline(case) or leader is None or not case.workers:
        return
    if leader.command.bits == 8:
        yield Finding(
            "warning", "width.e4m3", leader.name,
            "8 bits are unscaled: everything of magnitude 240 and more is clipped, "
            "everything below about 0.001 becomes zero",
            expected="hidden states of known range", found="--dist-activation-bits 8",
            next_step="take 16 bits, or look at a 32-bit capture of this model first "
            "(ds4proto decode shows values from 240 up)",
        )  # fmt: skip


CHECKS = (
    layers_exist, coverage, head_owner, registration, labels, dialects, width,
)  # fmt: skip
