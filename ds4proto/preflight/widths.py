"""Which activation width pays on a link: bytes against the time of coding them here."""

from __future__ import annotations

from typing import Final

from ds4proto.codec import registry
from ds4proto.codec.cost import Cost, measure, pays, rule
from ds4proto.preflight.case import Case

__all__ = ["which_pays"]

_WIDTHS: Final = {"f32": 32, "f16": 16, "e4m3": 8}
_MOST_VALUES: Final = 4 << 20
_NOTABLE: Final = 1.1
"""A gain below this is within what two measurements differ by."""


def which_pays(case: Case, gigabits: float) -> list[str]:
    """Return in words what each width gains on a link, coded on this machine.

    Parameters
    ----------
    gigabits : float
        Throughput of the link.
    """
    leader = case.leader
    if case.mode != "pipeline" or leader is None or leader.model is None:
        return []
    width = leader.model.facts.hidden_values
    chunk = min(leader.command.prefill_chunk or 512, max(1, _MOST_VALUES // width))
    lines = []
    for rows, overlapped, title in ((1, False, "decode"), (chunk, True, "prefill")):
        costs: list[Cost] = [
            measure(registry.get(name), rows, width, rounds=2) for name in _WIDTHS
        ]
        gains = pays(costs, gigabits, overlapped=overlapped)
        best, gain = gains[0]
        bits = _WIDTHS[best]
        if gain < _NOTABLE:
            lines.append(
                f"{title}: on {gigabits:.3g} Gbit/s no width is notably faster than 32 "
                "bits, coded on this machine"
            )
        else:
            lines.append(
                f"{title}: {bits} bits is best on {gigabits:.3g} Gbit/s, {gain:.2f} "
                "times as fast a hop as 32 bits, coded on this machine"
            )
        if bits == 8 and gain >= _NOTABLE:
            lines.append(
                "  8 bits are unscaled and clip at 240: look at a capture first"
            )
        lines += [f"  {line}" for line in rule(costs, overlapped=overlapped)]
    return lines
