"""Which gates a command causes, on either rank, and the settings that decide it.

The plan itself is ``plan``; here are the settings by the names a ds4 user knows, and
the step from a command to its gates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ds4proto.errors import WrongUsage
from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_sessions import Session
from ds4proto.link.plan import (
    GLM_EXACT_MAX,
    GLM_HEAD_SPLIT_MIN,
    GLM_MODELS,
    Chunk,
    PlannedGate,
    PlanOptions,
    chunk_gates,
    chunk_limit,
    plan_sync,
    sync_gates,
    token_gates,
    verify_gates,
)
from ds4proto.link.schedule import Schedule

_LEADING_INT = re.compile(r"\s*([+-]?\d+)")
_FIXED = {
    "DS4_GLM_TP_EXACT_PREFILL_MAX": GLM_EXACT_MAX,
    "DS4_GLM_TP_HEAD_SPLIT_MIN": GLM_HEAD_SPLIT_MIN,
}
_NOT_HONOURED = ("DS4_METAL_GRAPH_RAW_CAP", "DS4_GLM_ABLATE_COMBINE")


def c_integer(text: str) -> int:
    """Return what C's ``atoi`` makes of a text: 0 for one without a number."""
    found = _LEADING_INT.match(text)
    return int(found[1]) if found else 0


def plan_options(
    environment: Mapping[str, str],
    *,
    chunk: int | None = None,
    model_id: int = 0,
) -> PlanOptions:
    """Return the plan's settings from the variables and options of a ds4 process.

    Parameters
    ----------
    environment : mapping
        Usually ``os.environ``.
    chunk : int, optional
        The explicit prefill chunk option; wins over ``DS4_METAL_PREFILL_CHUNK``.
    model_id : int
        GLM has a resume variable of its own.

    Raises
    ------
    WrongUsage
        For a variable that changes the gates and is not honoured here, by name.
    """
    for name in _NOT_HONOURED:
        if name in environment:
            raise WrongUsage(
                f"{name} changes which gates a prefill causes and is not honoured; "
                "unset it on both ranks"
            )
    for name, fixed in _FIXED.items():
        if name in environment and c_integer(environment[name]) != fixed:
            raise WrongUsage(
                f"{name}={environment[name]} is not honoured: the plan uses {fixed}; "
                "unset it on both ranks"
            )
    default = PlanOptions()
    glm = model_id in GLM_MODELS
    resume = "DS4_GLM_RESUME_PREFILL_MIN" if glm else "DS4_METAL_RESUME_PREFILL_MIN"
    split = c_integer(environment.get("DS4_TP_PREFILL_SPLIT_MIN", "0"))
    if chunk is None and "DS4_METAL_PREFILL_CHUNK" in environment:
        chunk = c_integer(environment["DS4_METAL_PREFILL_CHUNK"])
    return PlanOptions(
        chunk=chunk,
        split_min=split if split >= 2 else default.split_min,
        resume_min=c_integer(environment.get(resume, str(default.resume_min))),
        subgate_pipeline=bool(
            c_integer(environment.get("DS4_TP_SUBGATE_PIPELINE", "0"))
        ),
    )


def command_gates(
    command: say.Command,
    session: Session | None,
    settings: TpSettings,
    options: PlanOptions,
) -> Iterator[PlannedGate]:
    """Yield the gates of a command, in order, the same on both ranks.

    Parameters
    ----------
    command : Command
        ``CommitBlock`` yields the gates of its replay; commands without gates none.
    session : Session or None
        The session that prefills, as it stands before the command.
    settings : TpSettings
    options : PlanOptions

    Notes
    -----
    The gates of ``RunMtp`` belong to the engine; they are not planned.
    """
    schedule = Schedule.from_hello(settings.identity.words())
    model = settings.identity.model_id
    if isinstance(command, say.RunSync) and session is not None:
        plan = plan_sync(
            session.tokens, command.tokens, session.ctx_size, options, model_id=model
        )
        yield from sync_gates(plan, schedule, options, model_id=model)
    elif isinstance(command, say.RunEval):
        yield from token_gates(schedule)
    elif isinstance(command, say.RunBatch):
        for _ in command.items:
            yield from token_gates(schedule)
    elif isinstance(command, say.RunMixed) and session is not None:
        held = len(session.tokens)
        chunk = Chunk(held, len(command.tokens) - held)
        yield from chunk_gates(chunk, schedule, options, model_id=model)
        for _ in command.items:
            yield from token_gates(schedule)
    elif isinstance(command, say.RunVerify):
        yield from verify_gates(len(command.tokens), schedule)
    elif isinstance(command, say.CommitBlock) and command.mode == say.REPLAY:
        for _ in range(command.token_count):
            yield from token_gates(schedule)


def may_mix(
    session: Session,
    prompt: tuple[int, ...],
    options: PlanOptions,
    *,
    model_id: int,
    draft_model: bool = False,
) -> bool:
    """Tell whether a leader sends MIXED_BATCH rather than SYNC and a batch.

    The new part continues the session, has at least the resume limit of rows, stays
    inside one chunk; no draft model is loaded and the model is not GLM
    (DS4T-MIXED-08).
    """
    held = len(session.tokens)
    if not held or not session.extends(prompt) or draft_model or model_id in GLM_MODELS:
        return False
    if len(prompt) - held < options.resume_min or len(prompt) > session.ctx_size:
        return False
    plan = plan_sync(
        session.tokens, prompt, session.ctx_size, options, model_id=model_id
    )
    limit = chunk_limit(session.ctx_size, options, model_id)
    return len(plan.chunks) == 1 and len(prompt) - held <= limit
