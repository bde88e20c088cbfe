"""Rules of memory: does each slice fit, with its caches and the runtime beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.facts import GIB
from ds4proto.preflight.finding import Finding
from ds4proto.preflight.memory import Need, gpu_limit, slice_need, tp_need

__all__ = ["CHECKS", "need_of"]

_TIGHT: Final = 0.9


def need_of(case: Case, member: Member) -> Need | None:
    """Return what a member needs, None where slice or model are not known."""
    model, run = member.model, case.plan.run
    if model is None:
        return None
    if member.command.tensor_parallel:
        return tp_need(
            model, ctx=case.ctx, sessions=run.sessions, runtime=run.runtime_bytes
        )
    if member.layers is None:
        return None
    first, last = member.layers
    ends = member.command.role == "coordinator" or member.head
    return slice_need(
        model, first, last, ctx=member.command.ctx or case.ctx,
        sessions=run.sessions, runtime=run.runtime_bytes, ends=ends,
    )  # fmt: skip


def fits(case: Case) -> Iterator[Finding]:
    """Hold need against limit on each machine."""
    for member in case.members:
        need, limit = need_of(case, member), gpu_limit(member.machine)
        if need is None:
            continue
        if not need.weights:
            if limit is not None:
                yield Finding(
                    "note", "memory.weights-unknown", member.name,
                    "the weights of this slice are not stated, so that its memory was "
                    "not checked",
                    next_step="give the file as gguf, or state layer_gib, expert_gib "
                    "and other_gib of the model",
                )  # fmt: skip
            continue
        shown = _shown(need)
        if limit is None:
            yield Finding(
                "note", "memory.unknown", member.name,
                "the memory of this machine is not stated, so that it was not checked",
                expected=f"{need.total / GIB:.1f} GiB", found="unknown",
                next_step="state memory_gib or gpu_limit_gib",
            )  # fmt: skip
            continue
        size, source = limit
        if need.total > size:
            advice = "give this machine fewer layers, a smaller --ctx or fewer sessions"
            if member.machine.system == "macos" and _more_wired(member, need):
                advice += (
                    "; or raise the limit: sudo sysctl iogpu.wired_limit_mb="
                    f"{-(-need.total // (1 << 20))}"
                )
            yield Finding(
                "error", "memory.short", member.name,
                f"this process does not fit: {shown}",
                expected=f"at most {size / GIB:.1f} GiB ({source})",
                found=f"{need.total / GIB:.1f} GiB", next_step=advice,
            )  # fmt: skip
        elif need.total > _TIGHT * size:
            yield Finding(
                "warning", "memory.tight", member.name,
                f"this process fits narrowly: {shown}",
                expected=f"below {_TIGHT:.0%} of {size / GIB:.1f} GiB ({source})",
                found=f"{need.total / GIB:.1f} GiB",
                next_step="leave room for the system, or expect swapping",
            )  # fmt: skip
        if need.kv is None:
            yield Finding(
                "note", "memory.kv-unknown", member.name,
                "the size of this model's cache is not known and was not counted",
                next_step="leave room for it",
            )  # fmt: skip


def _more_wired(member: Member, need: Need) -> bool:
    memory = member.machine.memory
    return memory is not None and need.total < _TIGHT * memory


def _shown(need: Need) -> str:
    parts = [f"weights {need.weights / GIB:.1f}"]
    if need.kv is not None:
        parts.append(f"caches {need.kv / GIB:.1f}")
    parts.append(f"runtime {need.runtime / GIB:.1f} GiB")
    return ", ".join(parts)


CHECKS = (fits,)
