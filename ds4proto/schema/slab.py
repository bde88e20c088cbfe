"""The slab: one buffer a rank, from which gates are sent and into which they land.

Offsets are local to a rank. Only the vectors and the batch areas ever travel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

VALUE = 4
"""Bytes of one f32."""
ROWS = 8
"""Rows of a batch area in each layer."""


@dataclass(frozen=True, slots=True)
class Region:
    """One region of the slab: where it is and what it is for."""

    name: str
    offset: int
    size: int
    doc: str
    travels: bool


_Size = Callable[[int, int], int]

_REGIONS: tuple[tuple[str, _Size, str, bool], ...] = (
    ("out", lambda s, vec: s * vec, "own partials, in slot order", True),
    ("in", lambda s, vec: s * vec, "the peer's partials", True),
    ("in_flags", lambda s, _: 8 * s, "u64 a slot, cleared, not used", False),
    ("token", lambda _s, _: 16, "u64 seq, i32 token, padding; not used", False),
    ("out_flags", lambda s, _: 8 * s, "staging of flags, not used", False),
    ("gpu_flags", lambda s, _: 4 * s, "u32 a slot, set by the local GPU", False),
    ("batch_out", lambda s, vec: ROWS * (s // 2) * vec, "own rows by layer", True),
    ("batch_in", lambda s, vec: ROWS * (s // 2) * vec, "the peer's rows", True),
)


def slab_layout(n_layer: int, n_embd: int) -> tuple[Region, ...]:
    """Return the regions of the slab in order (DS4T-SLAB-01 to -06).

    Parameters
    ----------
    n_layer : int
        As in the hello.
    n_embd : int
        Values of one vector.

    Raises
    ------
    ValueError
        If either is not positive.
    """
    if n_layer <= 0 or n_embd <= 0:
        raise ValueError(
            f"a slab needs layers and a width, found n_layer {n_layer}, n_embd {n_embd}"
        )
    slots, vec = 2 * n_layer, VALUE * n_embd
    found: list[Region] = []
    at = 0
    for name, size_of, doc, travels in _REGIONS:
        size = size_of(slots, vec)
        found.append(Region(name, at, size, doc, travels))
        at += size
    return tuple(found)


def slab_size(n_layer: int, n_embd: int) -> int:
    """Return the bytes of the whole slab (DS4T-SLAB-07)."""
    last = slab_layout(n_layer, n_embd)[-1]
    return last.offset + last.size
