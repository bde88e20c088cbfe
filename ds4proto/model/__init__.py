"""Who a model is: GGUF header facts, the identity ds4 would announce, known models.

A leaf: standard library only, no weights are read.
"""

from __future__ import annotations

from ds4proto.model.cursor import GgufLimits
from ds4proto.model.errors import GgufError
from ds4proto.model.facts import LayerFacts, ModelFacts, model_facts
from ds4proto.model.ggml_types import GGML_TYPES, GgmlType, ggml_type
from ds4proto.model.gguf import read_gguf
from ds4proto.model.header import GgufArray, GgufHeader, TensorInfo
from ds4proto.model.identity import (
    HelloIdentity,
    TensorParallelIdentity,
    ds4d_hello_identity,
    ds4t_identity,
    quant_label,
)
from ds4proto.model.known import (
    KNOWN_MODELS,
    GateSchedule,
    KnownModel,
    SavedShape,
    known_model,
)

__all__ = [
    "GGML_TYPES",
    "KNOWN_MODELS",
    "GateSchedule",
    "GgmlType",
    "GgufArray",
    "GgufError",
    "GgufHeader",
    "GgufLimits",
    "HelloIdentity",
    "KnownModel",
    "LayerFacts",
    "ModelFacts",
    "SavedShape",
    "TensorInfo",
    "TensorParallelIdentity",
    "ds4d_hello_identity",
    "ds4t_identity",
    "ggml_type",
    "known_model",
    "model_facts",
    "quant_label",
    "read_gguf",
]
