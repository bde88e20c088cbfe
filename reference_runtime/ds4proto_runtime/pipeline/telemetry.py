"""What the stages did with their time, added up for the table at the end of a run."""

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
    """Totals of all hops, in route order, and what sending took here.

    Attributes
    ----------
    link : float or None
        Bytes a second of the link, where the user gave them.
    own : HopTotals
        The coordinator's own slice, measured here.
    """

    link: float | None = None
    own: HopTotals = field(default_factory=lambda: HopTotals("0:0"))
    hops: dict[tuple[int, int], HopTotals] = field(default_factory=dict)
    sent_bytes: int = 0
    sent_s: float = 0.0

    def sent(self, nbytes: int, seconds: float) -> None:
        """Note one WORK that was written to the first hop."""
        self.sent_bytes += nbytes
        self.sent_s += seconds
        self.own.output_bytes += nbytes
        self.own.send_usec += round(seconds * 1e6)

    def evaluated(self, tokens: int, seconds: float) -> None:
        """Note one evaluation of the own slice."""
        self.own.requests += 1
        self.own.tokens += tokens
        self.own.eval_usec += round(seconds * 1e6)

    @property
    def busy_s(self) -> float:
        """Seconds that all stages together have computed."""
        stages = (self.own, *self.hops.values())
        return sum(stage.eval_usec for stage in stages) / 1e6

    @property
    def rate(self) -> float | None:
        """Bytes a second of the link: given, or those of the frames sent so far."""
        if self.link is not None:
            return self.link
        return self.sent_bytes / self.sent_s if self.sent_s > 0 else None

    def predicted_s(self, nbytes: int) -> float | None:
        """Return how long that many bytes should take on the link."""
        return None if self.rate is None else nbytes / self.rate

    def prediction(self, nbytes: int) -> str:
        """Return that in words, with where the rate comes from."""
        if self.rate is None:
            return "no link rate known"
        source = "given" if self.link is not None else "of the prefill's frames"
        return f"{nbytes / self.rate:.3f} s at the {self.rate / 1e6:.3g} MB/s {source}"

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
