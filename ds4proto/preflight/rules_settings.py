"""Settings: those that must match and that no hello carries, and those that do nothing.

Ranks that differ in one of these shake hands happily and fail later, with a gate of
another length, or never, with slower or other results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ds4proto.link.ds4d_session import MAX_DEPTH, MAX_WINDOW
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4t_prefill import c_integer
from ds4proto.link.plan import GLM_EXACT_MAX, GLM_HEAD_SPLIT_MIN, PlanOptions
from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.finding import Finding
from ds4proto.preflight.options_ds4d import number
from ds4proto.printable import counted

__all__ = ["CHECKS", "settings_table"]

_PLAN: Final = PlanOptions()


def _is_set(value: str | None) -> str:
    return "unset" if value is None else "set"


def _whole(default: int, low: int | None = None) -> Callable[[str | None], str]:
    def read(value: str | None) -> str:
        if value is None:
            return str(default)
        found = c_integer(value)
        return str(default if low is not None and found < low else found)

    return read


def _never(default: int) -> Callable[[str | None], str]:
    def read(value: str | None) -> str:
        if value is None:
            return str(default)
        return "never" if c_integer(value) <= 0 else str(c_integer(value))

    return read


def _chunk(value: str | None) -> str:
    if value is None:
        return "default"
    return str(c_integer(value)) if c_integer(value) > 0 else "whole context"


def _switch(value: str | None) -> str:
    return "on" if value is not None and c_integer(value) else "off"


def _batch(value: str | None) -> str:
    return "off" if value == "0" else "on"


def _word(value: str | None) -> str:
    return "unset" if value is None else value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that both ranks must have alike.

    Attributes
    ----------
    name : str
        Variable, or option.
    read : callable
        What a process makes of its text; None where it is unset.
    effect : str
        What happens where it differs.
    clause : str
    """

    name: str
    read: Callable[[str | None], str]
    effect: str
    clause: str


_SPLIT = "the ranks exchange different gates and stop with a desync"
_HANG = "one rank waits for a step that the other leaves out"
MUST_MATCH: Final = (
    Setting("DS4_TP_DISABLE_RDMA_WARMUP", _is_set, _HANG, "DS4T-OPT-32"),
    Setting("DS4_TP_DISABLE_VERIFY_WINDOW", _is_set, _HANG, "DS4T-OPT-33"),
    Setting("DS4_METAL_PREFILL_CHUNK", _chunk, _SPLIT, "DS4T-OPT-34"),
    Setting("DS4_METAL_GRAPH_RAW_CAP", _word, _SPLIT, "DS4T-OPT-35"),
    Setting("DS4_GLM_ABLATE_COMBINE", _is_set, _SPLIT, "DS4T-OPT-36"),
    Setting(
        "DS4_TP_PREFILL_SPLIT_MIN", _whole(_PLAN.split_min, 2), _SPLIT, "DS4T-OPT-37"
    ),
    Setting("DS4_TP_SUBGATE_PIPELINE", _switch, _SPLIT, "DS4T-OPT-38"),
    Setting(
        "DS4_GLM_TP_HEAD_SPLIT_MIN", _whole(GLM_HEAD_SPLIT_MIN, 0), _SPLIT,
        "DS4T-OPT-39",
    ),
    Setting(
        "DS4_GLM_TP_EXACT_PREFILL_MAX", _whole(GLM_EXACT_MAX), _SPLIT, "DS4T-OPT-40"
    ),
    Setting(
        "DS4_METAL_RESUME_PREFILL_MIN", _never(_PLAN.resume_min), _SPLIT, "DS4T-OPT-41"
    ),
    Setting(
        "DS4_GLM_RESUME_PREFILL_MIN", _never(_PLAN.resume_min), _SPLIT, "DS4T-OPT-41"
    ),
    Setting("DS4_METAL_TP_SESSION_BATCH", _batch, _HANG, "DS4T-OPT-42"),
)  # fmt: skip
"""Of a tensor-parallel pair (section of options and environment)."""
_MAY_DIFFER: Final = ("DS4_TP_GATE_TIMEOUT_MS",)
"""Local, and yet a difference means that one rank gives up before the other."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A variable that falls back to its default outside its bounds."""

    low: int
    high: int
    default: str
    roles: tuple[str, ...]
    clause: str


_BOTH: Final = ("coordinator", "worker")
BOUNDED: Final = {
    "DS4_DIST_SOCKET_BUFFER_MB": Bounded(0, 512, "128", _BOTH, "DS4D-OPT-40"),
    "DS4_DIST_SOCKET_TIMEOUT_SEC": Bounded(1, 3600, "60", _BOTH, "DS4D-OPT-41"),
    "DS4_DIST_SOCKET_RECV_TIMEOUT_SEC": Bounded(1, 3600, "none", _BOTH, "DS4D-OPT-42"),
    "DS4_DIST_PREFILL_SEND_DEPTH": Bounded(
        1, MAX_DEPTH, "2", ("coordinator",), "DS4D-OPT-49"
    ),
    "DS4_DIST_WORKER_PREFETCH_DEPTH": Bounded(1, 8, "2", ("worker",), "DS4D-OPT-52"),
    "DS4_DIST_WORKER_FORWARD_WINDOW": Bounded(1, 64, "4", ("worker",), "DS4D-OPT-53"),
}
_COORDINATOR: Final = (
    "DS4_DIST_PREFILL_CHUNK",
    "DS4_DIST_PREFILL_WINDOW",
    "DS4_DIST_DISABLE_PREFILL_PIPELINE",
    "DS4_DIST_DISABLE_PREFILL_ACK_ONLY",
)


def settings_table(case: Case) -> list[tuple[str, dict[str, str], bool]]:
    """Return the settings of a pair: name, value by machine, whether they differ.

    Only those are listed that some machine states.
    """
    table = []
    for setting in MUST_MATCH:
        if not any(setting.name in m.env for m in case.members):
            continue
        values = {m.name: setting.read(m.env.get(setting.name)) for m in case.members}
        table.append((setting.name, values, len(set(values.values())) > 1))
    option = {m.name: str(m.command.token_prefill) for m in case.members}
    if len(set(option.values())) > 1:
        table.append(("--tensor-parallel-token-prefill", option, True))
    for name in _MAY_DIFFER:
        if any(name in m.env for m in case.members):
            values = {m.name: _gate_timeout(m.env.get(name)) for m in case.members}
            table.append((name, values, len(set(values.values())) > 1))
    return table


def _gate_timeout(value: str | None) -> str:
    found = c_integer(value or "0")
    return f"{found if 1 <= found <= 60000 else 750} ms"


def must_match(case: Case) -> Iterator[Finding]:
    """Compare what both ranks must have alike."""
    if case.mode != "tensor-parallel":
        return
    effects = {setting.name: setting for setting in MUST_MATCH}
    for name, values, differ in settings_table(case):
        if not differ:
            continue
        setting = effects.get(name)
        local = name in _MAY_DIFFER
        yield Finding(
            "warning" if local else "error",
            "settings.gate-timeout" if local else "settings.differ",
            ", ".join(values),
            f"{name} differs, and the hello does not check it: "
            + (
                "one rank gives up on a gate before the other"
                if local
                else setting.effect if setting else _SPLIT
            ),
            expected="one value on both ranks",
            found=", ".join(f"{who} {value}" for who, value in values.items()),
            next_step=f"set {name} alike on both machines",
            clause=setting.clause if setting else "DS4T-OPT-49",
        )  # fmt: skip


def bounds(case: Case) -> Iterator[Finding]:
    """Find values that a process passes over in silence."""
    for member in case.members:
        for name, rule in BOUNDED.items():
            words = member.env.get(name)
            if words is None:
                continue
            value = number(words)
            if value is None or not rule.low <= value <= rule.high:
                yield Finding(
                    "warning", "settings.ignored", member.name,
                    f"{name} is outside its bounds and silently becomes the default",
                    expected=f"{rule.low} to {rule.high}",
                    found=f"{words}, so {rule.default}",
                    next_step="correct or unset it", clause=rule.clause,
                )  # fmt: skip
            yield from _wrong_role(member, name, rule.roles)
        for name in _COORDINATOR:
            if name in member.env:
                yield from _wrong_role(member, name, ("coordinator",))
        yield from _timeouts(member)


def _wrong_role(member: Member, name: str, roles: tuple[str, ...]) -> Iterator[Finding]:
    if member.command.role in _BOTH and member.command.role not in roles:
        yield Finding(
            "warning", "settings.wrong-role", member.name,
            f"{name} does nothing on a {member.command.role}",
            expected=f"it on the {roles[0]}", found=f"it on {member.name}",
            next_step="set it on the right machine",
        )  # fmt: skip


def _timeouts(member: Member) -> Iterator[Finding]:
    words = member.env.get("DS4_DIST_SOCKET_RECV_TIMEOUT_SEC")
    if words is not None and 1 <= (number(words) or 0) <= 3600:
        yield Finding(
            "warning", "settings.receive-timeout", member.name,
            "an idle control connection is dropped after this time, and the worker "
            "registers anew: a route that was ready is lost between requests",
            expected="unset", found=f"{words} s",
            next_step="unset DS4_DIST_SOCKET_RECV_TIMEOUT_SEC",
            clause="DS4D-OPT-42",
        )  # fmt: skip
    host = member.env.get("DS4_DIST_CONNECT_BIND_HOST")
    own = member.machine.addresses
    if host and own and host not in own:
        yield Finding(
            "error", "settings.bind-host", member.name,
            "every dial of this process fails: it is to start from an address that "
            "the machine does not have",
            expected=", ".join(own), found=host,
            next_step="correct DS4_DIST_CONNECT_BIND_HOST", clause="DS4D-OPT-43",
        )  # fmt: skip
    interface = member.env.get("DS4_DIST_CONNECT_BIND_IF")
    if interface and member.machine.system == "linux":
        yield Finding(
            "error", "settings.bind-if", member.name,
            "every dial of this process fails: only macOS can bind one to an interface",
            expected="unset", found=interface,
            next_step="unset DS4_DIST_CONNECT_BIND_IF, or give the interface's address "
            "in DS4_DIST_CONNECT_BIND_HOST", clause="DS4D-OPT-44",
        )  # fmt: skip


def prefill(case: Case) -> Iterator[Finding]:
    """Find chunks and windows with which no request runs."""
    for leader in case.coordinators:
        if leader.command.tensor_parallel:
            continue
        for name, given in (
            ("DS4_DIST_PREFILL_CHUNK", leader.command.prefill_chunk),
            ("DS4_DIST_PREFILL_WINDOW", leader.command.prefill_window),
        ):
            words = leader.env.get(name)
            if words is None or given is not None:
                continue
            value = number(words)
            prints, clause = "", "DS4D-OPT-47"
            if not value:
                prints = text("option", name, words)
            elif name.endswith("WINDOW") and value > MAX_WINDOW:
                prints, clause = text("DS4D-OPT-48", value), "DS4D-OPT-48"
            if prints:
                yield Finding(
                    "error", "settings.prefill", leader.name,
                    f"every request ends with an error about {name}",
                    expected="a positive number"
                    + (f" up to {MAX_WINDOW}" if "WINDOW" in name else ""),
                    found=words, next_step=f"correct or unset {name}",
                    prints=prints, clause=clause,
                )  # fmt: skip
        yield from _chunk_fits(case, leader)


def _chunk_fits(case: Case, leader: Member) -> Iterator[Finding]:
    chunk = leader.command.prefill_chunk
    if chunk is None:
        chunk = number(leader.env.get("DS4_DIST_PREFILL_CHUNK", ""))
    for worker in case.workers:
        cap = worker.machine.prefill_cap
        if chunk and cap and chunk > cap:
            yield Finding(
                "error", "settings.chunk", worker.name,
                "the coordinator's prefill chunk is larger than this engine takes",
                expected=f"at most {counted(cap, 'token')}", found=str(chunk),
                next_step=f"start the coordinator with --dist-prefill-chunk {cap}",
                prints=text("prefill-cap", chunk, cap),
            )  # fmt: skip


def contexts(case: Case) -> Iterator[Finding]:
    """Compare contexts, and hold the run against them."""
    leader = case.leader
    if leader is None:
        return
    ctx = leader.command.ctx
    if case.mode == "tensor-parallel":
        for worker in case.workers:
            if worker.command.ctx is not None and worker.command.ctx != ctx:
                yield Finding(
                    "warning", "context.ignored", worker.name,
                    "the worker's --ctx does nothing: the leader's counts, and the "
                    "hello compares none",
                    expected=str(ctx), found=str(worker.command.ctx),
                    next_step="leave --ctx out on the worker, or make it equal; "
                    "size memory for the leader's", clause="DS4T-HELLO-05",
                )  # fmt: skip
    run = case.plan.run
    wanted = run.prompt_tokens + run.answer_tokens
    if ctx is not None and wanted > ctx:
        yield Finding(
            "error", "context.too-small", leader.name,
            "prompt and answer do not fit the context",
            expected=f"{counted(wanted, 'token')} or more", found=str(ctx),
            next_step=f"raise --ctx to {wanted} on all machines, or shorten the prompt",
        )  # fmt: skip


CHECKS = (must_match, bounds, prefill, contexts)
