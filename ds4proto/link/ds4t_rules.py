"""What differs between the DS4T dialects that are spoken live, as one table.

Frames that a dialect has or lacks come from the schema; this table holds the rules
that no frame declaration shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.registry import frames

Transport = Literal["auto", "tcp", "rdma"]

GATE_TIMEOUT = 0.75
"""Seconds without progress in a gate (DS4T-GATE-23)."""
BULK_GRACE = 2.0
"""Seconds more for a bulk header or a bulk window (DS4B-BULK-07)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of one dialect.

    Attributes
    ----------
    name : str
    eval_reserved : bool
        A worker refuses an EVAL whose reserved word is set (DS4T-EVAL-04, -05).
    ack_reserved : bool
        A leader refuses an ack whose reserved word is set (DS4T-ACK-08, -09).
    prefix_commit : bool
        VERIFY_COMMIT has modes 0, 1, 2; else any word but 0 is a full accept
        (DS4T-VERIFY-10, -12).
    gate_timeout : float or None
        Idle limit of a gate in real peers; None where they wait for ever.
    bulk_grace : float
        What a bulk header may take beyond it.
    settles_early : bool
        Real peers judge a gate header before they read its payload (DS4T-GATE-24).
    decode_barrier : bool
        The byte 0xD1 opens an RDMA window (DS4T-RDMA-61, -62).
    warm_up : bool
        RDMA_POSTED and RDMA_WARM after RDMA_READY (DS4T-RDMA-52).
    rdma_live : bool
        This library runs RDMA with the dialect.
    """

    name: str
    eval_reserved: bool = True
    ack_reserved: bool = False
    prefix_commit: bool = True
    gate_timeout: float | None = GATE_TIMEOUT
    bulk_grace: float = 0.0
    settles_early: bool = True
    decode_barrier: bool = True
    warm_up: bool = True
    rdma_live: bool = True

    @property
    def checkpoints(self) -> bool:
        """Both ranks meet at SYNC_CHECKPOINT during a sync (DS4T-CKPT-15)."""
        return self._has("DS4T.SYNC_CHECKPOINT")

    @property
    def multimodal(self) -> bool:
        """The leader may send SYNC_MULTIMODAL."""
        return self._has("DS4T.SYNC_MULTIMODAL")

    @property
    def mtp(self) -> bool:
        """The leader may send GLM_MTP."""
        return self._has("DS4T.GLM_MTP")

    @property
    def features(self) -> bool:
        """The hello carries runtime_features (v9w)."""
        return self._has("DS4T.LOGITS_TOP2")

    def _has(self, name: str) -> bool:
        return name in _names(self.name)


@cache
def _names(dialect: str) -> frozenset[str]:
    return frozenset(spec.full_name for spec in frames(dialect=dialect))


_TABLE = (
    Rules("v7", eval_reserved=False, prefix_commit=False, gate_timeout=None,
          decode_barrier=False, warm_up=False),
    Rules("v9", eval_reserved=False, prefix_commit=False, decode_barrier=False,
          warm_up=False, rdma_live=False),
    Rules("v9-late", eval_reserved=False, rdma_live=False),
    Rules("v9w", eval_reserved=False, gate_timeout=None, decode_barrier=False,
          warm_up=False),
    Rules("v10"),
    Rules("v12", bulk_grace=BULK_GRACE, rdma_live=False),
    Rules("v14", ack_reserved=True, bulk_grace=BULK_GRACE, settles_early=False),
)  # fmt: skip

RULES: Mapping[str, Rules] = {rules.name: rules for rules in _TABLE}
"""v7, v9w and v10 were measured, v14 was read; v9, v9-late and v12 are served over
TCP alone, where their bytes equal those of v10 (without GLM_MTP) and v14."""

REFUSED: Mapping[str, str] = {
    "v1": "it has one implicit session and a hello of 56 bytes without schedule",
    "v6": "it has one implicit session, no SESSION_CREATE and no COMMAND_ACK",
    "v8-mesh": "its hello adds world and rank, and an RDMA_MODE frame",
    "v11-spark": "its data plane is NCCL, not DS4B",
    "v12-ane": "types 22 and 23 are other frames there and REWIND is acknowledged",
    "v14-odinlink": "its gate headers have 24 bytes and type 23 is the checkpoint",
    "v15": "every gate has a 40-byte header with an epoch, and a nonce follows the "
    "hello",
}
"""Why a recognised dialect is not spoken live."""


def rules_of(dialect: str) -> Rules:
    """Return the rules of a dialect that is spoken live.

    Raises
    ------
    KeyError
        For any other dialect, with the reason and the names that are spoken.
    """
    rules = RULES.get(dialect)
    if rules is not None:
        return rules
    spoken = ", ".join(RULES)
    reason = REFUSED.get(dialect) or "it is not in the register of dialects"
    raise KeyError(f"dialect {dialect} is not spoken live: {reason}; spoken: {spoken}")


def dialects_with_version(version: int) -> tuple[str, ...]:
    """Return the names of the dialects that announce a version number."""
    return tuple(d.name for d in dialects_of("DS4T") if d.version == version)


def advice_on_version(version: int) -> str:
    """Return what to do about a peer that announces ``version``."""
    names = dialects_with_version(version)
    live = [name for name in names if name in RULES]
    if live:
        return f"start this side with dialect {' or '.join(live)}"
    if not names:
        return f"version {version} is not in the register of dialects"
    name = names[0]
    return f"the peer is {find_dialect(name).title}, not spoken: {REFUSED[name]}"
