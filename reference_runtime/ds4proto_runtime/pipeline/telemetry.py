"""What the hops said of their time, added up for the table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class HopTotals:
    """Sums over the telemetry records of one hop; times in microseconds."""

    layers: str
    requests: int = 0
    tokens: int = 0
    eval_usec: int = 0
    send_usec: int = 0
    wait_usec: int = 0
    input_bytes: int = 0
    output_bytes: int = 0


@dataclass(slots=True)
class Telemetry:
    """Totals of all hops, in route order."""

    hops: dict[tuple[int, int], HopTotals] = field(default_factory=dict)

    def add(self, answers: Iterable[tuple[int, tuple[Mapping[str, Any], ...]]]) -> None:
        """Take the records of some answers."""
        for _, records in answers:
            for record in records:
                key = (record["layer_start"], record["layer_end"])
                name = f"{key[0]}:{key[1]}"
                hop = self.hops.setdefault(key, HopTotals(name))
                hop.requests += 1
                hop.tokens += record["n_tokens"]
                hop.eval_usec += record["eval_usec"]
                hop.send_usec += record["forward_send_usec"]
                hop.wait_usec += record["downstream_wait_usec"]
                hop.input_bytes += record["input_bytes"]
                hop.output_bytes += record["output_bytes"]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a hop, first hop first."""
        return [asdict(self.hops[key]) for key in sorted(self.hops)]
