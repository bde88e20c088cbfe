"""Which width pays on which link: bytes, coding time, and what a hop then takes.

A hop encodes, sends and decodes. One token at a time these follow each other; in a
prefill the chunks overlap, so that the slowest of the three decides. Coding time is
measured on this machine, the link is a number.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds4proto.codec.base import Codec

GIGABIT = 1e9 / 8
LINKS = (1.0, 2.5, 5.0, 10.0, 40.0, 80.0)
"""Link speeds of the chart, Gbit/s."""
FORMATS = ("f32", "f16", "e4m3", "bf16", "int8", "fp8", "mxfp8", "nvfp4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one format costs for one message.

    Attributes
    ----------
    name : str
    wire_bytes : int
        Bytes of the message's hidden state.
    encode, decode : float
        Seconds of one core, best of several runs.
    """

    name: str
    wire_bytes: int
    encode: float
    decode: float

    def hop(self, gigabits: float, *, overlapped: bool) -> float:
        """Return the seconds of one hop over a link.

        Parameters
        ----------
        gigabits : float
            Speed of the link, Gbit/s.
        overlapped : bool
            True for a stream of chunks, whose stages run side by side.
        """
        sent = self.wire_bytes / (gigabits * GIGABIT)
        if overlapped:
            return max(self.encode, sent, self.decode)
        return self.encode + sent + self.decode


def measure(codec: Codec, rows: int, width: int, *, rounds: int = 5) -> Cost:
    """Measure one format on ``rows`` tokens of ``width`` values.

    The values are seeded and spread over four powers of ten. Both directions run into
    buffers that are given, as the runtime does it.
    """
    import numpy as np

    draw = np.random.default_rng(1)
    values = draw.standard_normal(rows * width, dtype=np.float32)
    values *= np.float32(10) ** draw.uniform(-2, 2, rows * width).astype(np.float32)
    size = codec.wire_bytes(rows * width, rows=rows)
    wire = np.empty(size, np.uint8)
    back = np.empty(rows * width, np.float32)
    best = [float("inf"), float("inf")]
    for _ in range(rounds + 1):
        start = time.thread_time()
        codec.encode(values, out=wire, rows=rows)
        middle = time.thread_time()
        codec.decode(wire, out=back, values=rows * width, rows=rows)
        end = time.thread_time()
        best = [min(best[0], middle - start), min(best[1], end - middle)]
    return Cost(str(codec.describe()["name"]), size, best[0], best[1])


def pays(
    costs: Iterable[Cost], gigabits: float, *, overlapped: bool, base: str = "f32"
) -> list[tuple[str, float]]:
    """Return every format with its gain over ``base`` on a link, the best first.

    A gain of 2 means half the time a hop. Formats below 1 cost more than they save.

    Raises
    ------
    ValueError
        If ``base`` is not among the costs.
    """
    known = {cost.name: cost for cost in costs}
    if base not in known:
        raise ValueError(f"no cost of {base!r}; measured: {', '.join(known)}")
    plain = known[base].hop(gigabits, overlapped=overlapped)
    gains = [
        (name, plain / cost.hop(gigabits, overlapped=overlapped))
        for name, cost in known.items()
    ]
    return sorted(gains, key=lambda gain: (-gain[1], gain[0]))


def crossover(narrow: Cost, wide: Cost, *, overlapped: bool) -> float | None:
    """Return the link speed in Gbit/s up to which ``narrow`` pays; None: never.

    Infinity where it pays on any link.
    """
    spared = wide.wire_bytes - narrow.wire_bytes
    coding = narrow.encode + narrow.decode - wide.encode - wide.decode
    if overlapped:
        slowest = max(narrow.encode, narrow.decode)
        if slowest <= max(wide.encode, wide.decode) and spared > 0:
            return float("inf")
        return wide.wire_bytes / slowest / GIGABIT if spared > 0 else None
    if spared <= 0:
        return None
    return spared / coding / GIGABIT if coding > 0 else float("inf")


def rule(costs: Sequence[Cost], *, overlapped: bool, base: str = "f32") -> list[str]:
    """Return in words up to which link speed each format pays."""
    known = {cost.name: cost for cost in costs}
    lines = []
    for cost in costs:
        if cost.name == base:
            continue
        limit = crossover(cost, known[base], overlapped=overlapped)
        share = cost.wire_bytes / known[base].wire_bytes
        if limit is None:
            lines.append(f"{cost.name}: never pays, it is not smaller than {base}")
        elif limit == float("inf"):
            lines.append(f"{cost.name}: pays on any link ({share:.2f} of the bytes)")
        else:
            lines.append(
                f"{cost.name}: pays up to about {limit:.3g} Gbit/s"
                f" ({share:.2f} of the bytes)"
            )
    return lines


def as_rows(
    costs: Sequence[Cost], links: Sequence[float], *, overlapped: bool
) -> list[Mapping[str, Any]]:
    """Return one row a format: bytes, coding time, milliseconds a hop by link."""
    return [
        {
            "format": cost.name,
            "bytes": cost.wire_bytes,
            "encode_ms": 1e3 * cost.encode,
            "decode_ms": 1e3 * cost.decode,
            **{
                f"hop_ms_at_{link:g}": 1e3 * cost.hop(link, overlapped=overlapped)
                for link in links
            },
        }
        for cost in costs
    ]
