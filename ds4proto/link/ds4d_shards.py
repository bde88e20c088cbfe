"""What a coordinator asks of shards and of saved sessions (FILE and SNAP clauses).

Works on values read with ``ds4proto.schema.dsv4``; no file is opened here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ds4proto.link.ds4d_events import Fault
from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_texts import text
from ds4proto.schema.dsv4 import (
    DSV4_MAGIC,
    DSVL_MAGIC,
    Family,
    layer_tensors,
    tensor_area_problem,
)

AGREED: Final = (
    "ctx",
    "prefill_cap",
    "raw_cap",
    "raw_window",
    "comp_cap",
    "token_count",
    "n_layers",
    "head_dim",
    "indexer_head_dim",
    "raw_live",
)
"""Words in which all shards of one save have to be equal (DS4D-SNAP-46)."""
DSV4_VERSION, DSVL_VERSION = 2, 1

Values = Mapping[str, Any]


def _fault(clause: str) -> Fault:
    return Fault(clause, text(clause))


def raw_live_holds(values: Values, family: Family = "deepseek") -> bool:
    """Tell whether ``raw_live`` follows from length and window (FILE-DSV4-05)."""
    most = min(values["token_count"], values["raw_window"])
    live = values["raw_live"]
    exact: bool = live == most if family == "deepseek" else live <= most
    return exact and live <= values["raw_cap"]


def shard_fault(
    values: Values,
    model: ModelFacts,
    layers: tuple[int, int],
    *,
    first: Values | None = None,
    ratios: Sequence[int] | None = None,
    family: Family = "deepseek",
) -> Fault | None:
    """Return what a received shard breaks, in the order in which saves are judged.

    Parameters
    ----------
    values : mapping
        Of ``FILE.DSVL``.
    layers : tuple of int
        First and last layer of the worker that sent it.
    first : mapping, optional
        Another shard of the same save, such as the coordinator's own slice.
    ratios : sequence of int, optional
        Compression ratio of each layer of the model; without them the length of the
        tensor area is not judged.
    """
    if (values["magic"], values["version"]) != (DSVL_MAGIC, DSVL_VERSION):
        return _fault("FILE-DSVL-30")
    if (values["layer_start"], values["layer_end"]) != layers:
        return _fault("FILE-DSVL-31")
    if values["n_layers"] != model.n_layers or not raw_live_holds(values, family):
        return _fault("FILE-DSVL-32")
    if first is not None and any(values[name] != first[name] for name in AGREED):
        return _fault("DS4D-SNAP-46")
    if (
        max((*values["n_comp"], *values["n_index_comp"]), default=0)
        > (values["comp_cap"])
    ):
        return _fault("FILE-DSVL-32")
    if ratios is not None:
        tensors = layer_tensors(values, ratios, family)
        clauses = ("FILE-DSVL-33", "FILE-DSVL-33")
        if tensor_area_problem(values, tensors, clauses) is not None:
            return _fault("FILE-DSVL-33")
    return None


def session_fault(
    values: Values,
    model: ModelFacts,
    *,
    ratios: Sequence[int] | None = None,
    family: Family = "deepseek",
) -> Fault | None:
    """Return what a saved session breaks before anything of it is pushed.

    Unlike known peers this finds bytes behind the last tensor first
    (DS4D-SNAP-72). Parameters are those of ``shard_fault``.
    """
    if (values["magic"], values["version"]) != (DSV4_MAGIC, DSV4_VERSION):
        return _fault("FILE-DSV4-06")
    if (
        values["n_layers"] != model.n_layers
        or values["ctx"] > model.ctx
        or values["token_count"] >= model.ctx
        or values["vocab"] != model.vocab
        or not raw_live_holds(values, family)
    ):
        return _fault("FILE-DSV4-07")
    if any(token >= model.vocab for token in values["tokens"]):
        return _fault("FILE-DSV4-08")
    if max(values["n_comp"], default=0) > values["comp_cap"]:
        return _fault("FILE-DSV4-09")
    if max(values["n_index_comp"], default=0) > values["comp_cap"]:
        return _fault("FILE-DSV4-10")
    if ratios is not None:
        tensors = layer_tensors(values, ratios, family)
        clauses = ("FILE-DSV4-11", "FILE-DSV4-12")
        problem = tensor_area_problem(values, tensors, clauses)
        if problem is not None:
            return _fault(problem.clause)
    return None
