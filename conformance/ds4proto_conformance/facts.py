"""What a peer's model is, as far as a test of its protocol needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import WrongUsage

__all__ = [
    "TOY_HIDDEN",
    "TOY_VOCAB",
    "ModelAnswers",
    "PeerFacts",
    "candidates",
    "facts_of_file",
]

TOY_HIDDEN: Final = 64
TOY_VOCAB: Final = 256
"""Values a token and vocabulary of the toy model of the reference runtime."""


@dataclass(slots=True)
class PeerFacts:
    """One pipeline peer.

    Attributes
    ----------
    hidden_values : int
        f32 values of one token's hidden state.
    vocab : int or None
        None where nothing tells it.
    port : int
        A worker's data port.
    """

    model_id: int = 0
    model_name: str = ""
    n_layers: int = 0
    layer_start: int = 0
    layer_end: int = 0
    has_output: bool = False
    has_hidden: bool = True
    quant_bits: int = 2
    ctx: int = 0
    port: int = 0
    hidden_values: int = 0
    vocab: int | None = None

    @property
    def position(self) -> str:
        """``first``, ``middle`` or ``last``: where this slice stands."""
        if self.layer_start == 0:
            return "first"
        return "last" if self.layer_end == self.n_layers - 1 else "middle"

    @property
    def span(self) -> str:
        """Layers as ds4 writes them, ``2:4`` or ``5:output``."""
        return f"{self.layer_start}:{'output' if self.has_output else self.layer_end}"

    def hidden_bytes(self, n_tokens: int, bits: int) -> int:
        """Return the bytes of some tokens' hidden state at a wire width."""
        return n_tokens * self.hidden_values * (bits or 32) // 8


def from_hello(values: Mapping[str, Any]) -> PeerFacts:
    """Return what a HELLO says."""
    return PeerFacts(
        values["model_id"],
        values["model_name"],
        values["n_layers"],
        values["layer_start"],
        values["layer_end"],
        bool(values["has_output"]),
        bool(values["has_hidden"]),
        values["quant_bits"],
        values["ctx_size"],
        values["listen_port"],
    )


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """Hidden width and vocabulary of one model."""

    hidden_values: int
    vocab: int | None


def candidates(model_id: int, model_name: str, gguf: str) -> list[ModelAnswers]:
    """Return what the model may be: its file's header first, then known tables.

    Raises
    ------
    WrongUsage
        The file cannot be read, or says nothing of the width.
    """
    found: list[ModelAnswers] = []
    if gguf:
        found.append(facts_of_file(gguf))
    if model_name == "Toy V4":
        found.append(ModelAnswers(TOY_HIDDEN, TOY_VOCAB))
    from ds4proto.model.known import known_model

    known = known_model(model_id)
    if known is not None:
        found.append(ModelAnswers(known.hidden_values, known.vocabulary))
    found.append(ModelAnswers(TOY_HIDDEN, TOY_VOCAB))
    return list(dict.fromkeys(found))


def facts_of_file(path: str) -> ModelAnswers:
    """Return what the header of a GGUF file says.

    Raises
    ------
    WrongUsage
        The file cannot be read, or says nothing of the width.
    """
    from ds4proto.errors import Ds4ProtoError
    from ds4proto.model import model_facts

    try:
        if not Path(path).is_file():
            raise WrongUsage(f"--model {path}: no such file; expected a GGUF file")
        facts = model_facts(path)
    except WrongUsage:
        raise
    except (Ds4ProtoError, OSError, ValueError) as error:
        raise WrongUsage(f"--model {path}: {error}") from None
    return ModelAnswers(facts.hidden_values, facts.vocabulary)
