"""The variables of a ds4 tensor-parallel process: honoured, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_identity import TOP2_BIT
from ds4proto.link.ds4t_prefill import c_integer, plan_options
from ds4proto.link.ds4t_rules import rules_of
from ds4proto.link.plan import PlanOptions

DIAL_SECONDS: Final = 300
V9W_DIAL_SECONDS: Final = 1800
GATE_MS_MAX: Final = 60000
_ENDLESS: Final = 10 * 365 * 86400.0
_LOCAL: Final = (
    "DS4_TP_EVENT_GATES",
    "DS4_TP_NO_KEEPALIVE",
    "DS4_TP_KEEPALIVE_TGS",
    "DS4_TP_KEEPALIVE_ITERS",
    "DS4_GLM_TP_DEBUG",
)
_V9W_REFUSED: Final = (
    "DS4_TP_EXPERT_SPLIT",
    "DS4_TP_RDMA_LOGITS",
    "DS4_TP_RANK0_FULL_LOGITS",
    "DS4_TP_BATCH_ATTN_HEAD_SPLIT",
    "DS4_TP_ODINLINK_BATCH_ASYNC",
    "DS4_TP_RDMA_DECODE_MAX_MSG",
)
_V9W: Final = (
    *_V9W_REFUSED,
    "DS4_TP_CONNECT_TIMEOUT_SEC",
    "DS4_TP_GREEDY_TOP2",
)
_NULL_SPLIT: Final = "DS4_TP_NULL_SPLIT"
_EXPERT_SHIFT: Final = 8


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables of chapter 11.2 say.

    Attributes
    ----------
    dial_seconds : float
        Of each of the worker's two connections.
    gate_idle : float or None
        Idle limit of gates in seconds; None leaves the dialect's own.
    plan : PlanOptions
    session_batch : bool
        False where ``DS4_METAL_TP_SESSION_BATCH`` is 0.
    warm_up, verify_window : bool
        For a transport over queue pairs.
    trace, profile : bool
        Checksums of every gate; gates a second at the end.
    top2 : bool
        v9w: the worker sends its two best logits.
    notes : tuple of str
        Lines about variables that do nothing here.
    """

    dial_seconds: float
    gate_idle: float | None
    plan: PlanOptions
    session_batch: bool
    warm_up: bool
    verify_window: bool
    trace: bool
    profile: bool
    top2: bool
    notes: tuple[str, ...]


def read_environment(
    variables: Mapping[str, str],
    dialect: str,
    *,
    chunk: int | None = None,
    model_id: int = 0,
) -> Environment:
    """Read the variables as a ds4 process of that dialect does.

    Raises
    ------
    WrongUsage
        For one that would change the wire and is not honoured, by name.
    """
    rules = rules_of(dialect)
    if rules.features:
        for name in _V9W_REFUSED:
            if name in variables:
                raise WrongUsage(
                    f"{name} is a feature of v9w that this runtime does not have; "
                    "unset it on both ranks"
                )
    notes = [
        f"{name} acts on a GPU back end alone and has no effect here"
        for name in _LOCAL
        if name in variables
    ]
    notes += [
        f"{name} is a variable of {owner} and has no effect under {dialect}"
        for name, owner in _foreign(dialect).items()
        if name in variables
    ]
    return Environment(
        dial_seconds=_dial(variables, v9w=rules.features),
        gate_idle=_gate(variables, honoured=rules.gate_timeout is not None),
        plan=plan_options(variables, chunk=chunk, model_id=model_id),
        session_batch=variables.get("DS4_METAL_TP_SESSION_BATCH") != "0",
        warm_up="DS4_TP_DISABLE_RDMA_WARMUP" not in variables,
        verify_window="DS4_TP_DISABLE_VERIFY_WINDOW" not in variables,
        trace=any(
            name in variables for name in ("DS4_TP_GATE_TRACE", "DS4_TP_BIG_GATE_DEBUG")
        ),
        profile="DS4_TP_GATE_PROFILE" in variables,
        top2=rules.features and c_integer(variables.get("DS4_TP_GREEDY_TOP2", "0")) > 0,
        notes=tuple(notes),
    )


def _foreign(dialect: str) -> dict[str, str]:
    """Return the variables that only other dialects know, and which do."""
    rules = rules_of(dialect)
    found = {_NULL_SPLIT: "version 1"}
    if rules.gate_timeout is None:
        found["DS4_TP_GATE_TIMEOUT_MS"] = "v9 and later, without v9w,"
    if rules.features:
        found["DS4_TP_TIMEOUT_SEC"] = "the other dialects"
    else:
        found |= dict.fromkeys(_V9W, "v9w")
    return found


def _dial(variables: Mapping[str, str], *, v9w: bool) -> float:
    if v9w:
        seconds = c_integer(variables.get("DS4_TP_CONNECT_TIMEOUT_SEC", "0"))
        return float(seconds if 1 <= seconds <= 86400 else V9W_DIAL_SECONDS)
    seconds = c_integer(variables.get("DS4_TP_TIMEOUT_SEC", str(DIAL_SECONDS)))
    return _ENDLESS if seconds < 0 else float(seconds)


def _gate(variables: Mapping[str, str], *, honoured: bool) -> float | None:
    if not honoured:
        return None
    milliseconds = c_integer(variables.get("DS4_TP_GATE_TIMEOUT_MS", "0"))
    return milliseconds / 1000 if 1 <= milliseconds <= GATE_MS_MAX else None


def v9w_features(n_experts: int, *, top2: bool) -> int:
    """Return the feature word of a v9w rank: first expert of rank 1, and top-2."""
    return (n_experts // 2 & 0xFF) << _EXPERT_SHIFT | (TOP2_BIT if top2 else 0)
