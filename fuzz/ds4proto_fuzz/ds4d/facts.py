"""Who a pipeline peer is, as far as building frames for it needs that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.model.known import known_model

__all__ = ["Facts", "candidates"]

TOY: Final = (64, 256)
"""Values a token and vocabulary of the toy model of the reference runtime."""
_UNSET_CTX: Final = 1 << 20


@dataclass(slots=True)
class Facts:
    """One pipeline peer, from its HELLO; ``shard`` is what it saved at the start."""

    model_id: int = 0
    model_name: str = ""
    n_layers: int = 0
    layer_start: int = 0
    layer_end: int = 0
    has_output: bool = False
    quant_bits: int = 2
    ctx: int = 0
    port: int = 0
    hidden_values: int = 0
    vocab: int = 0
    shard: bytes = b""

    @classmethod
    def of_hello(cls, values: Mapping[str, Any]) -> Facts:
        """Return what a HELLO says."""
        return cls(
            values["model_id"],
            values["model_name"],
            values["n_layers"],
            values["layer_start"],
            values["layer_end"],
            bool(values["has_output"]),
            values["quant_bits"],
            values["ctx_size"],
            values["listen_port"],
        )

    @property
    def model(self) -> ModelFacts:
        """The model, as the library's machines want it."""
        return ModelFacts(
            self.model_id,
            self.model_name,
            self.n_layers,
            self.hidden_values,
            self.vocab,
            self.ctx or _UNSET_CTX,
        )

    @property
    def worker(self) -> WorkerFacts:
        """The worker, as the library's machines want it."""
        return WorkerFacts(
            self.model, self.layer_start, self.layer_end, self.has_output
        )

    def identity(self) -> dict[str, Any]:
        """Return what a finding says of the peer."""
        found = asdict(self)
        for name in ("shard", "port"):
            del found[name]
        return found


def candidates(facts: Facts, told: tuple[int, int]) -> list[tuple[int, int]]:
    """Return widths and vocabularies to try: what was told, tables, the toy model."""
    if told[0]:
        return [(told[0], told[1] or TOY[1])]
    found = [TOY] if facts.model_name == "Toy V4" else []
    known = known_model(facts.model_id)
    if known is not None:
        found.append((known.hidden_values, known.vocabulary))
    return list(dict.fromkeys([*found, TOY]))
