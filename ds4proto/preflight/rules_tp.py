"""Rules of a tensor-parallel pair: identity, version, transport, features, back end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.link.ds4t_identity import Identity, all_mismatches
from ds4proto.link.ds4t_texts import text_of
from ds4proto.model.known import GLM_52, V41_FLASH
from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.finding import Finding
from ds4proto.printable import counted
from ds4proto.schema.dialects import dialect, dialects_of

__all__ = ["CHECKS"]

_FEATURES: Final = ("vision", "mtp", "dspark")
_METAL_ONLY: Final = ("v1", "v6", "v7", "v9w")
_V41_BATCH: Final = 5


def _pair(case: Case) -> tuple[Member, Member] | None:
    if case.mode != "tensor-parallel" or len(case.workers) != 1 or not case.leader:
        return None
    return case.leader, case.workers[0]


def versions(case: Case) -> Iterator[Finding]:
    """Compare protocol versions; only equal ones work."""
    pair = _pair(case)
    if pair is None:
        return
    names = [member.machine.tp_dialect for member in pair]
    if not all(names) or names[0] == names[1]:
        return
    numbers = []
    for name in names:
        number = dialect(name).version
        numbers.append(0 if number is None else number)
    where = ", ".join(member.name for member in pair)
    if numbers[0] == numbers[1]:
        yield Finding(
            "error", "build.dialect", where,
            "both builds announce one version number and speak different frames",
            expected="one build", found=" and ".join(names),
            next_step="build both machines from one commit",
        )  # fmt: skip
        return
    old = pair[0] if numbers[0] < numbers[1] else pair[1]
    yield Finding(
        "error", "build.version", where,
        f"the pair aborts before any gate: {old.name} is the older build",
        expected="equal versions",
        found=f"{pair[0].name} {numbers[0]}, {pair[1].name} {numbers[1]}",
        next_step=f"rebuild {old.name}",
        prints=text_of("DS4T-HELLO-03", numbers[1], numbers[0]),
        clause="DS4T-HELLO-03",
    )  # fmt: skip


def known_builds(case: Case) -> Iterator[Finding]:
    """Find names of builds that are in no register."""
    known = {d.name for d in dialects_of("DS4T")} | {
        d.name for d in dialects_of("DS4D")
    }
    for member in case.members:
        for name in (member.machine.tp_dialect, member.machine.dialect):
            if name and name not in known:
                yield Finding(
                    "warning", "build.unknown", member.name,
                    "this dialect is not in the register, so nothing is known of it",
                    expected=", ".join(sorted(known)), found=name,
                    next_step="name the nearest one",
                )  # fmt: skip


def identity(case: Case) -> Iterator[Finding]:
    """Compare every word of the hellos, not only the first that differs."""
    pair = _pair(case)
    if pair is None:
        return
    mine, theirs = pair[0].identity(), pair[1].identity()
    if mine is None or theirs is None:
        return
    where = ", ".join(member.name for member in pair)
    for one in all_mismatches(mine, theirs):
        yield Finding(
            "error", f"model.{one.field}", where,
            f"the hellos differ in {one.field}, and the pair aborts",
            expected=f"{one.mine} as on {pair[0].name}",
            found=f"{one.theirs} on {pair[1].name}",
            next_step="load the same file on both machines, with the same options",
            prints=_mismatch_text(theirs), clause="DS4T-HELLO-05",
        )  # fmt: skip
    fault = mine.mask_fault()
    if fault is not None:
        yield Finding(
            "error", "model.gate-mask", pair[0].name,
            "the gate schedule of this model is not sound",
            expected=f"{fault[1]} bits below slot {fault[2]}",
            found=f"{fault[0]} bits", next_step="use a build that knows the model",
            prints=text_of("DS4T-HELLO-06", *fault), clause="DS4T-HELLO-06",
        )  # fmt: skip


def _mismatch_text(peer: Identity) -> str:
    return text_of(
        "DS4T-HELLO-05", peer.gguf_bytes, peer.model_id, peer.n_layer, peer.n_embd,
        peer.n_vocab, peer.quant_bits,
    )  # fmt: skip


def vocabulary(case: Case) -> Iterator[Finding]:
    """Compare who computes which logits; no hello says it."""
    pair = _pair(case)
    if pair is None:
        return
    split = [member.splits_vocabulary() for member in pair]
    if None not in split and split[0] != split[1]:
        yield Finding(
            "error", "model.vocabulary-split",
            ", ".join(member.name for member in pair),
            "one rank sends or expects half of the logits and the other does not; "
            "the hello does not carry it",
            expected="one back end on both ranks",
            found=", ".join(f"{m.name} {m.backend}" for m in pair),
            next_step="run both ranks on Metal, or both on CUDA",
        )  # fmt: skip
    shape = pair[0].identity()
    if shape is not None and split[0] and shape.n_vocab % 2:
        yield Finding(
            "error", "model.odd-vocabulary", pair[0].name,
            "the vocabulary is odd and its logits are to be split in halves",
            expected="an even number of tokens", found=str(shape.n_vocab),
            next_step="pad the vocabulary", clause="DS4T-LOGITS-04",
        )  # fmt: skip


def transport(case: Case) -> Iterator[Finding]:
    """Hold each side's wish against both sides' devices."""
    pair = _pair(case)
    if pair is None:
        return
    for mine, theirs in (pair, pair[::-1]):
        wish, other = mine.command.transport, theirs.command.transport
        if wish == "rdma":
            gone = mine.machine.rdma is False
            shut = other == "tcp" or theirs.machine.rdma is False
            if gone or shut:
                side = mine if gone else theirs
                yield Finding(
                    "error", "rdma.missing", mine.name,
                    "--transport rdma fails closed: "
                    + (
                        f"{side.name} has no active device"
                        if side.machine.rdma is False
                        else f"{side.name} asks for tcp and announces none"
                    ),
                    expected="an active device on both machines",
                    found=f"{mine.name} {wish}, {theirs.name} {other}",
                    next_step="bring the device up, or take --transport auto",
                    prints=text_of("DS4T-HELLO-07", "this" if gone else "the peer"),
                )  # fmt: skip
        elif wish == "auto" and mine.machine.rdma and theirs.machine.rdma is False:
            yield Finding(
                "warning", "rdma.one-side", theirs.name,
                f"{mine.name} has RDMA and {theirs.name} has not: gates go over TCP",
                expected="a device on both", found=f"none on {theirs.name}",
                next_step="bring the device up, or expect the latency of TCP",
            )  # fmt: skip
        elif wish == "tcp" and mine.command.rdma_device:
            yield Finding(
                "warning", "rdma.unused", mine.name,
                "--rdma-device does nothing with --transport tcp",
                found=mine.command.rdma_device,
                next_step="leave one of the two out",
            )  # fmt: skip


def features(case: Case) -> Iterator[Finding]:
    """Compare what must be loaded on both ranks and is in no hello."""
    pair = _pair(case)
    if pair is None:
        return
    for name in _FEATURES:
        having = [member for member in pair if name in member.features]
        if len(having) == 1:
            lacking = pair[1] if having[0] is pair[0] else pair[0]
            yield Finding(
                "error", f"features.{name}", lacking.name,
                f"{name} is given on {having[0].name} alone; the hello does not "
                "carry it, and the ranks part at its first use",
                expected=f"{name} on both ranks, or on none",
                found=f"on {having[0].name} alone",
                next_step=f"start {lacking.name} with the same file",
            )  # fmt: skip
    for member in pair:
        model = member.model
        known = None if model is None else model.facts.known
        speculates = member.features & {"mtp", "dspark"}
        if known is not None and known.model_id == V41_FLASH.model_id and speculates:
            yield Finding(
                "error", "features.v41", member.name,
                "DeepSeek V4.1 runs without speculation under tensor parallelism",
                expected="neither MTP nor DSpark",
                found=", ".join(sorted(speculates)),
                next_step="leave the option out on both ranks",
            )  # fmt: skip


def backends(case: Case) -> Iterator[Finding]:
    """Hold back ends and their options against what tensor parallelism takes."""
    pair = _pair(case)
    if pair is None:
        return
    for member in pair:
        old = member.machine.tp_dialect in _METAL_ONLY
        backend = member.backend
        model_id = -1
        if member.model is not None and member.model.facts.known is not None:
            model_id = member.model.facts.known.model_id
        if backend in ("rocm", "cpu") or (old and backend not in ("metal", None)):
            clause = "DS4T-OPT-23" if old else "DS4T-OPT-15"
            yield _stops(member, "backend.kind", clause, f"the {backend} back end")
        elif backend == "cuda" and model_id not in (-1, V41_FLASH.model_id):
            yield _stops(
                member, "backend.cuda-model", "DS4T-OPT-20",
                "a model that CUDA does not run tensor parallel",
            )  # fmt: skip
        streams = "ssd-streaming" in member.features
        if backend == "cuda":
            yield from _cuda(member, streams=streams)
        elif streams and old:
            yield _stops(member, "backend.streaming", "DS4T-OPT-17", "SSD streaming")
        elif streams and model_id not in (-1, GLM_52.model_id):
            yield Finding(
                "warning", "backend.streaming", member.name,
                "streamed weights change the gate schedule of GLM 5.2 and are not "
                "known to work with other models",
                expected="resident weights", found="SSD streaming",
                next_step="leave the option out on both ranks",
            )  # fmt: skip


def _cuda(member: Member, *, streams: bool) -> Iterator[Finding]:
    if streams or (member.machine.gpus or 1) > 1:
        what = "SSD streaming" if streams else f"{member.machine.gpus} GPUs in one rank"
        yield _stops(member, "backend.cuda-rank", "DS4T-OPT-16", what)
    for name in ("vision", "dspark"):
        if name in member.features:
            yield Finding(
                "error", f"backend.cuda-{name}", member.name,
                f"{name} does not go with tensor parallelism on CUDA",
                expected=f"no {name}", found=f"{name} is switched on",
                next_step="leave the option out on both ranks",
            )  # fmt: skip


def _stops(member: Member, check: str, clause: str, what: str) -> Finding:
    return Finding(
        "error", check, member.name, f"this rank does not start: {what}",
        expected="Metal, or CUDA with one GPU a rank, V4.1 and resident weights",
        found=what, next_step="change the back end, the model or the option",
        prints=text_of(clause), clause=clause,
    )  # fmt: skip


def batching(case: Case) -> Iterator[Finding]:
    """Tell when several sessions share one step."""
    pair = _pair(case)
    if pair is None or case.plan.run.sessions < 2 or pair[0].model is None:
        return
    known = pair[0].model.facts.known
    cuda = pair[0].backend == "cuda"
    if known is not None and known.model_id == V41_FLASH.model_id and cuda:
        sessions = case.plan.run.sessions
        if sessions < _V41_BATCH:
            yield Finding(
                "note", "sessions.batch", pair[0].name,
                f"CUDA V4.1 batches from {_V41_BATCH} ready sessions up; fewer run "
                "one after the other",
                found=f"{counted(sessions, 'session')}",
                next_step="expect the speed of one session, shared",
            )  # fmt: skip


CHECKS = (
    versions, known_builds, identity, vocabulary, transport, features, backends,
    batching,
)  # fmt: skip
