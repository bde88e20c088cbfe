"""The identity that a ds4 process with this file would announce in either hello."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ds4proto.model.facts import Certainty, LayerFacts, ModelFacts
from ds4proto.model.known import Backend, GateSchedule

QUANT_Q4: Final = 4
QUANT_OTHER: Final = 2
QUANT_NONE: Final = 0
_Q4_GATE: Final = "Q4_K"


@dataclass(frozen=True, slots=True)
class HelloIdentity:
    """The identity fields of a DS4D HELLO.

    Attributes
    ----------
    model_id : int or None
        None where the model is not one that ds4 numbers.
    model_name : str
    n_layers : int
        Executed layers of the whole model.
    quant_bits : int
        4, 2, or 0 for a slice without routed experts, which every coordinator refuses.
    layer_start, layer_end : int
        Inclusive.
    certainty : str
        How the model was recognised.
    notes : tuple of str
        What keeps the identity from being what a real process would announce.
    """

    model_id: int | None
    model_name: str
    n_layers: int
    quant_bits: int
    layer_start: int
    layer_end: int
    certainty: Certainty
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorParallelIdentity:
    """The fields of a DS4T hello that both ranks must have equal.

    Attributes
    ----------
    gguf_bytes : int or None
        Size of the main GGUF file; None for a stream of unknown length.
    model_id : int or None
    n_layer : int
        Executed layers.
    n_embd, n_vocab : int
    quant_bits : int
        4 if the first routed layer's gate tensor is Q4_K, else 2; 0 without experts.
    gates : GateSchedule
    vocabulary_split : bool or None
        Whether the worker sends its half of the logits; None where this depends on a
        backend that was not named.
    certainty : str
    notes : tuple of str
    """

    gguf_bytes: int | None
    model_id: int | None
    n_layer: int
    n_embd: int
    n_vocab: int
    quant_bits: int
    gates: GateSchedule
    vocabulary_split: bool | None
    certainty: Certainty
    notes: tuple[str, ...] = ()


def quant_label(facts: ModelFacts, layer_start: int, layer_end: int) -> int:
    """Return the quantisation label of a slice: 4, 2, or 0 without routed experts.

    The gate tensor of the first bound layer that has routed experts decides; the label
    is not a measurement, and every type but Q4_K counts as 2 (DS4D HELLO).
    """
    gate = _first_gate(facts, layer_start, layer_end)
    if gate is None or gate.gate is None:
        return QUANT_NONE
    return QUANT_Q4 if gate.gate.name == _Q4_GATE else QUANT_OTHER


def _first_gate(facts: ModelFacts, start: int, end: int) -> LayerFacts | None:
    for index in facts.layers_present:
        if start <= index <= end and facts.layer_facts[index].gate is not None:
            return facts.layer_facts[index]
    return None


def ds4d_hello_identity(
    facts: ModelFacts, layer_start: int, layer_end: int
) -> HelloIdentity:
    """Return what a DS4D worker with this file and slice would announce.

    Parameters
    ----------
    facts
        See `model_facts`.
    layer_start, layer_end
        Inclusive slice of the executed layers.

    Raises
    ------
    ValueError
        The slice is empty or leaves the model.
    """
    if not 0 <= layer_start <= layer_end < facts.layers:
        raise ValueError(
            f"layers {layer_start}:{layer_end}: expected a slice within "
            f"0:{facts.layers - 1}, start first. Next: correct --layers"
        )
    notes = _notes(facts)
    missing = facts.missing(layer_start, layer_end)
    if missing:
        notes.append(f"the file lacks layers {_ranges(missing)} of this slice")
    known = facts.known
    if known is not None and not known.in_ds4d:
        notes.append(f"{known.name} is numbered by DS4T only; DS4D lists 0 to 2")
    return HelloIdentity(
        model_id=known.model_id if known else None,
        model_name=known.name if known else facts.name,
        n_layers=facts.layers,
        quant_bits=quant_label(facts, layer_start, layer_end),
        layer_start=layer_start,
        layer_end=layer_end,
        certainty=facts.certainty,
        notes=tuple(notes),
    )


def ds4t_identity(
    facts: ModelFacts, *, backend: Backend | None = None, streaming: bool = False
) -> TensorParallelIdentity:
    """Return what either DS4T rank with this file would announce.

    Parameters
    ----------
    facts
        See `model_facts`.
    backend
        Decides the vocabulary split of some models.
    streaming
        Weights stream from disk (another gate schedule for GLM 5.2).
    """
    notes = _notes(facts)
    known = facts.known
    if known is None:
        gates = GateSchedule(0, 1, 2 * facts.layers)
        split: bool | None = None
        notes.append("gate schedule assumed: both gates of every layer")
    else:
        gates = known.gates
        if streaming and known.gates_streaming is not None:
            gates = known.gates_streaming
        split = _split(known.split_on, backend)
    quant = quant_label(facts, 0, max(facts.layers - 1, 0))
    if quant == QUANT_NONE:
        notes.append("no routed experts: no ds4 process announces such a label")
    return TensorParallelIdentity(
        gguf_bytes=facts.file_size,
        model_id=known.model_id if known else None,
        n_layer=facts.layers,
        n_embd=facts.width,
        n_vocab=facts.vocabulary or 0,
        quant_bits=quant,
        gates=gates,
        vocabulary_split=split,
        certainty=facts.certainty,
        notes=tuple(notes),
    )


def _split(split_on: frozenset[Backend], backend: Backend | None) -> bool | None:
    if backend is not None:
        return backend in split_on
    if not split_on:
        return False
    return True if len(split_on) > 1 else None


def _notes(facts: ModelFacts) -> list[str]:
    notes = []
    if facts.known is None:
        notes.append("not a model that ds4 numbers; choose model_id and name yourself")
    elif facts.certainty == "hypothesis":
        arch = facts.architecture or "(none)"
        notes.append(
            f"recognised by its shape alone; architecture {arch} is not listed"
        )
    if facts.split is not None:
        number, count = facts.split
        notes.append(f"file {number + 1} of {count}: sizes and layers are this file's")
    return notes


def _ranges(numbers: tuple[int, ...]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in parts)
