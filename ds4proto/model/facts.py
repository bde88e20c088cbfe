"""From a GGUF header to the facts about a model, slice by slice."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal

from ds4proto.model.cursor import Buf
from ds4proto.model.ggml_types import GgmlType
from ds4proto.model.gguf import read_gguf
from ds4proto.model.header import GgufArray, GgufHeader, TensorInfo
from ds4proto.model.known import GLM_ARCHITECTURES, KNOWN_MODELS, KnownModel

Certainty = Literal["architecture and shape", "hypothesis", "unknown"]

_LAYER: Final = re.compile(r"blk\.(\d{1,5})\.(.+)", re.ASCII)
# The stacked tensor of all experts, alone or fused with the up projection, or, in
# older files, one tensor an expert.
_ROUTED_GATE: Final = re.compile(r"ffn_gate(_up)?_exps\.weight|ffn_gate\.\d+\.weight")


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One ``blk.N`` of the file.

    Attributes
    ----------
    index : int
        0-based layer number.
    nbytes : int
        Bytes of its tensors (types of unknown size left out).
    types : mapping
        Type name -> bytes.
    gate : GgmlType or None
        Type of the routed experts' gate tensor; None in a layer without one.
    """

    index: int
    nbytes: int
    types: Mapping[str, int]
    gate: GgmlType | None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What one GGUF file says about its model. Absent values are None, never guessed.

    Attributes
    ----------
    architecture, name : str
        ``general.architecture`` and ``general.name`` ("" where absent).
    file_size : int or None
        Bytes of the file.
    block_count : int
        Layers that the metadata declares, prediction blocks included.
    prediction_layers : int
        Next-token-prediction blocks among them.
    layers : int
        Executed layers.
    width : int
        Values per stream (``embedding_length``).
    streams : int
        Residual streams (hyper-connections), 1 for ordinary models.
    heads, head_dim, value_dim, ffn_width : int or None
        `head_dim` and `value_dim` are in values.
    kv_heads : int, tuple of int or None
        A tuple where the file has one per layer.
    vocabulary, context : int or None
        Tokens.
    experts, experts_used, experts_shared, expert_width : int or None
    rope_base, norm_epsilon : float or None
    rope_dims : int or None
    layer_facts : mapping
        Layer number -> `LayerFacts`, for the layers present in the file.
    has_output : bool
        The file holds the output head (``output.weight``).
    has_embedding : bool
        The file holds the token embedding.
    other_bytes : int
        Bytes outside the layers (embedding, norms, head).
    split : tuple of int or None
        (number, count) of a file of a split set.
    known : KnownModel or None
    certainty : str
        How `known` was found.
    """

    architecture: str
    name: str
    file_size: int | None
    block_count: int
    prediction_layers: int
    layers: int
    width: int
    streams: int
    heads: int | None
    kv_heads: int | tuple[int, ...] | None
    head_dim: int | None
    value_dim: int | None
    ffn_width: int | None
    vocabulary: int | None
    context: int | None
    experts: int | None
    experts_used: int | None
    experts_shared: int | None
    expert_width: int | None
    rope_base: float | None
    rope_dims: int | None
    norm_epsilon: float | None
    layer_facts: Mapping[int, LayerFacts]
    has_output: bool
    has_embedding: bool
    other_bytes: int
    split: tuple[int, int] | None
    known: KnownModel | None
    certainty: Certainty

    @property
    def hidden_values(self) -> int:
        """Float values per token in a hidden state that crosses a hop."""
        return self.width * self.streams

    @property
    def layers_present(self) -> tuple[int, ...]:
        """Layer numbers in the file, ascending."""
        return tuple(sorted(self.layer_facts))

    def missing(self, layer_start: int, layer_end: int) -> tuple[int, ...]:
        """Return the layers of an inclusive range that the file does not hold."""
        wanted = range(layer_start, layer_end + 1)
        return tuple(n for n in wanted if n not in self.layer_facts)

    def slice_bytes(self, layer_start: int, layer_end: int) -> int:
        """Return the tensor bytes of an inclusive range of layers."""
        return sum(
            facts.nbytes
            for index, facts in self.layer_facts.items()
            if layer_start <= index <= layer_end
        )


def model_facts(
    source: GgufHeader | str | os.PathLike[str] | BinaryIO | Buf,
) -> ModelFacts:
    """Derive the facts from a header, or read the header first.

    Raises
    ------
    GgufError
        The file is not a sound GGUF file (see `read_gguf`).
    """
    header = source if isinstance(source, GgufHeader) else read_gguf(source)
    arch = _text(header, "general.architecture")
    get = _Keys(header, arch)
    layers_by_number, other = _layers(header)
    block_count = get.whole("block_count") or max(layers_by_number, default=-1) + 1
    width = get.whole("embedding_length") or _dim(header, "token_embd.weight", 0) or 0
    heads = get.whole("attention.head_count")
    vocabulary = _vocabulary(header, get)
    prediction = get.whole("nextn_predict_layers") or 0
    trunk = get.whole("trunk_block_count")
    executed = _executed(arch, block_count, prediction, trunk)
    known, certainty = _identify(arch, width, vocabulary, executed)
    if known is not None:
        executed = known.layers
    streams = get.whole("hyper_connection.count") or (known.streams if known else 1)
    head_dim = get.whole("attention.key_length")
    if head_dim is None and heads and width:
        head_dim = width // heads
    return ModelFacts(
        architecture=arch,
        name=_text(header, "general.name"),
        file_size=header.file_size,
        block_count=block_count,
        prediction_layers=max(0, block_count - executed),
        layers=executed,
        width=width,
        streams=streams,
        heads=heads,
        kv_heads=get.whole_or_each("attention.head_count_kv"),
        head_dim=head_dim,
        value_dim=get.whole("attention.value_length") or head_dim,
        ffn_width=get.whole("feed_forward_length"),
        vocabulary=vocabulary,
        context=get.whole("context_length"),
        experts=get.whole("expert_count"),
        experts_used=get.whole("expert_used_count"),
        experts_shared=get.whole("expert_shared_count"),
        expert_width=get.whole("expert_feed_forward_length"),
        rope_base=get.real("rope.freq_base"),
        rope_dims=get.whole("rope.dimension_count"),
        norm_epsilon=get.real("attention.layer_norm_rms_epsilon"),
        layer_facts=layers_by_number,
        has_output="output.weight" in header.tensors,
        has_embedding="token_embd.weight" in header.tensors,
        other_bytes=other,
        split=header.split,
        known=known,
        certainty=certainty,
    )


class _Keys:
    """Metadata under the architecture's own prefix, by type."""

    def __init__(self, header: GgufHeader, arch: str) -> None:
        self._header = header
        self._arch = arch

    def whole(self, key: str) -> int | None:
        value = self._header.integer(f"{self._arch}.{key}")
        return value if value is None or value >= 0 else None

    def real(self, key: str) -> float | None:
        value = self._header.metadata.get(f"{self._arch}.{key}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value)

    def whole_or_each(self, key: str) -> int | tuple[int, ...] | None:
        value = self._header.metadata.get(f"{self._arch}.{key}")
        if isinstance(value, GgufArray) and value.items is not None:
            return tuple(int(v) for v in value.items if isinstance(v, int))
        return self.whole(key)


def _text(header: GgufHeader, key: str) -> str:
    value = header.metadata.get(key)
    return value if isinstance(value, str) else ""


def _dim(header: GgufHeader, name: str, axis: int) -> int | None:
    tensor = header.tensors.get(name)
    return tensor.dims[axis] if tensor and len(tensor.dims) > axis else None


def _vocabulary(header: GgufHeader, get: _Keys) -> int | None:
    size = get.whole("vocab_size")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if size is None and isinstance(tokens, GgufArray):
        size = tokens.count
    return size if size is not None else _dim(header, "token_embd.weight", 1)


def _executed(arch: str, blocks: int, prediction: int, trunk: int | None) -> int:
    if trunk is not None:
        return trunk
    if arch in GLM_ARCHITECTURES and prediction < blocks:
        return blocks - prediction
    return blocks


def _identify(
    arch: str, width: int, vocabulary: int | None, layers: int
) -> tuple[KnownModel | None, Certainty]:
    for model in KNOWN_MODELS:
        shape = (model.width, model.vocabulary)
        # A file may count the prediction blocks in block_count without saying so.
        depth = layers in (model.layers, model.layers + model.prediction_layers)
        if shape == (width, vocabulary) and depth:
            sure = arch in model.architectures
            return model, "architecture and shape" if sure else "hypothesis"
    return None, "unknown"


def _layers(header: GgufHeader) -> tuple[dict[int, LayerFacts], int]:
    found: dict[int, list[tuple[str, TensorInfo]]] = {}
    other = 0
    for tensor in header.tensors.values():
        match = _LAYER.fullmatch(tensor.name)
        if match is None:
            other += tensor.nbytes or 0
        else:
            found.setdefault(int(match[1]), []).append((match[2], tensor))
    return {n: _layer(n, found[n]) for n in sorted(found)}, other


def _layer(index: int, tensors: list[tuple[str, TensorInfo]]) -> LayerFacts:
    types: dict[str, int] = {}
    gate: GgmlType | None = None
    for suffix, tensor in tensors:
        types[tensor.type.name] = types.get(tensor.type.name, 0) + (tensor.nbytes or 0)
        if gate is None and _ROUTED_GATE.fullmatch(suffix):
            gate = tensor.type
    return LayerFacts(index, sum(types.values()), types, gate)
