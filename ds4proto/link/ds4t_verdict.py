"""Reading a verdict, and the two best logits of a half."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4t_events import (
    KEEP_ALL,
    KEEP_PREFIX,
    REPLAY,
    CommitBlock,
    Top2,
)
from ds4proto.link.ds4t_leader_frames import MAX_PREFIX
from ds4proto.link.ds4t_texts import text_of
from ds4proto.link.ds4t_worker_rules import Refusal
from ds4proto.schema.problem import Buf


def verdict_of(
    values: dict[str, Any], drafts: int, prefix: bool
) -> CommitBlock | Refusal:
    """Return what a VERIFY_COMMIT says about a block of ``drafts`` tokens.

    Parameters
    ----------
    values : dict
        ``mode`` and ``token_count`` as on the wire.
    drafts : int
    prefix : bool
        The dialect has three modes; else any mode but 0 keeps the whole block, mode 2
        included (DS4T-VERIFY-12).
    """
    mode, count = values["mode"], values["token_count"]
    if mode == REPLAY:
        return CommitBlock(REPLAY, min(max(count, 0), drafts))
    if mode == KEEP_ALL or not prefix:
        return CommitBlock(KEEP_ALL, 0)
    if mode != KEEP_PREFIX:
        clause, text = "DS4T-VERIFY-11", text_of("DS4T-VERIFY-11", mode)
    elif not 0 < count <= min(drafts - 1, MAX_PREFIX):
        clause, text = "DS4T-VERIFY-10", text_of("DS4T-VERIFY-10", count, drafts)
    else:
        return CommitBlock(KEEP_PREFIX, count)
    return Refusal(clause, f"tp worker verify: {text}", found=f"mode {mode}, {count}")


def top2_of(half: Buf, first_id: int) -> Top2:
    """Return the two best of a half of the logits (DS4T-TOP2-01, -03).

    Parameters
    ----------
    half : buffer
        f32 values of the vocabulary rows from ``first_id`` on, two or more.
    first_id : int
        ``n_vocab / 2``.

    Notes
    -----
    Of equal logits the lower id wins; NaN never does.
    """
    import numpy as np

    values = np.frombuffer(half, dtype="<f4")
    order = np.argsort(
        -np.nan_to_num(values, nan=-np.inf, posinf=np.inf), kind="stable"
    )
    best, second = int(order[0]), int(order[1])
    return Top2(
        (first_id + best, first_id + second),
        (float(values[best]), float(values[second])),
    )
