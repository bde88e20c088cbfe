"""Which row gate has which sequence number (ds4t-plan clauses DS4T-SCHED)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ds4proto.schema.ds4t_gates import ATTN, FFN

GateKind = Literal["ATTN", "FFN"]

_KINDS: tuple[GateKind, GateKind] = ("ATTN", "FFN")
_MASK_WORDS = 3
_WORD_BITS = 64
MAX_SLOTS = 1 << 11
"""Slots of a thousand layers, ten times those of any known model; a hello that
announces more is cut to these, so that no plan grows with what it merely claims."""


class GatePlace(NamedTuple):
    """Where a row gate stands: token (from 1), layer (from 0) and kind."""

    token: int
    layer: int
    kind: GateKind


@dataclass(frozen=True)
class Schedule:
    """The row gates of one decoded token, as the hello announces them.

    Parameters
    ----------
    n_layer : int
        Executed layers.
    gates_per_token : int
        Row gates of one token; 0 means every slot.
    start, step : int
        First slot, and slots from one gate to the next; slot = 2 * layer + kind.
    mask : tuple of int
        Three words; bit b of word w is slot 64 * w + b. All zero: not used.
    """

    n_layer: int
    gates_per_token: int = 0
    start: int = 0
    step: int = 1
    mask: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def from_hello(cls, fields: Mapping[str, Any]) -> Schedule:
        """Return the schedule of a DS4T hello of any dialect; v1 has none."""
        words = [int(fields.get(f"gate_slot_mask{w}", 0)) for w in range(_MASK_WORDS)]
        return cls(
            int(fields["n_layer"]),
            int(fields.get("gates_per_token", 0)),
            int(fields.get("gate_slot_start", 0)),
            int(fields.get("gate_slot_step", 1)),
            (words[0], words[1], words[2]),
        )

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Slot of each row gate of one token, in firing order."""
        if any(self.mask):
            found = tuple(
                _WORD_BITS * word + bit
                for word, bits in enumerate(self.mask)
                for bit in range(_WORD_BITS)
                if bits >> bit & 1
            )
            # a wrong gates_per_token leaves the surplus bits unused
            return found[: self.gates_per_token] if self.gates_per_token else found
        if not self.gates_per_token:
            return tuple(range(min(2 * self.n_layer, MAX_SLOTS)))
        count = min(self.gates_per_token, MAX_SLOTS)
        return tuple(self.start + k * self.step for k in range(count))

    @cached_property
    def ffn_layers(self) -> tuple[int, ...]:
        """Layers that have an FFN gate: those have batch and bulk gates too."""
        return tuple(slot // 2 for slot in self.slots if slot % 2 == FFN)

    def slot_of(self, seq: int) -> int | None:
        """Return the slot of row gate ``seq`` (from 1), None without any gate."""
        if seq < 1 or not self.slots:
            return None
        return self.slots[(seq - 1) % len(self.slots)]


def gate_of(seq: int, schedule: Schedule) -> GatePlace:
    """Return token, layer and kind of the row gate with sequence number ``seq``.

    Parameters
    ----------
    seq : int
        Row sequence of the connection; the first gate is 1.
    schedule : Schedule

    Raises
    ------
    ValueError
        For a number below 1, or a schedule without gates.

    Examples
    --------
    >>> gate_of(128, Schedule(43, 86))
    GatePlace(token=2, layer=20, kind='FFN')
    """
    slot = schedule.slot_of(seq)
    if slot is None:
        raise ValueError(
            f"row gate {seq}: expected a number from 1 on in a schedule with gates,"
            f" found one with {len(schedule.slots)} gates a token"
        )
    token = (seq - 1) // len(schedule.slots) + 1
    return GatePlace(token, slot // 2, _KINDS[slot % 2])


def seq_of(token: int, layer: int, kind: GateKind, schedule: Schedule) -> int:
    """Return the row sequence number of a gate; the inverse of ``gate_of``.

    Raises
    ------
    ValueError
        If the schedule does not fire that gate, or ``token`` is below 1.
    """
    slot = 2 * layer + (ATTN if kind == "ATTN" else FFN)
    if token < 1 or slot not in schedule.slots:
        raise ValueError(
            f"token {token}, layer {layer}, {kind}: expected a gate that the schedule"
            f" fires and a token from 1 on; the schedule has {len(schedule.slots)}"
            " gates a token"
        )
    return (token - 1) * len(schedule.slots) + schedule.slots.index(slot) + 1
