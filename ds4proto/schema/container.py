"""Whole saved sessions: header, arrays and tensors judged together.

``read`` knows the header and the arrays of a DSV4 or DSVL container; where its tensors
end depends on the model. This module adds the model's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ds4proto.schema.declare import FrameSpec, offsets_of
from ds4proto.schema.dsv4 import (
    DSV4_FILE,
    DSV4_MAGIC,
    DSVL_FILE,
    DSVL_MAGIC,
    Family,
    Tensor,
    glm_row_counts,
    layer_tensors,
    tensor_area_problem,
)
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.registry import read

_AREA_CLAUSES = {
    "DSV4": ("FILE-DSV4-11", "FILE-DSV4-12"),
    "DSVL": ("FILE-DSVL-19", "FILE-DSVL-20"),
}
_LIVE_CLAUSES = {"DSV4": "FILE-DSV4-05", "DSVL": "FILE-DSVL-15"}
_STEP = 1 << 20


class Container(NamedTuple):
    """A saved session or shard.

    Parameters
    ----------
    spec : FrameSpec
        ``DSV4_FILE`` or ``DSVL_FILE``.
    values : dict
        As from ``read``; ``tensors`` is the tensor area, not copied.
    tensors : tuple of Tensor
        Places inside the tensor area; empty where header or arrays are unreadable.
    problems : tuple of Problem
        Offsets count from the start of the file.
    zero_tail : int
        Zero bytes at the end of the tensor area. The format has no checksum: a file
        that was laid out but not written to its end shows only here.
    """

    spec: FrameSpec
    values: dict[str, Any]
    tensors: tuple[Tensor, ...]
    problems: tuple[Problem, ...]
    zero_tail: int


def container_spec(data: Buf) -> FrameSpec | None:
    """Return the declaration that the first four bytes name, or None."""
    word = int.from_bytes(bytes(memoryview(data)[:4]), "little")
    return {DSV4_MAGIC: DSV4_FILE, DSVL_MAGIC: DSVL_FILE}.get(word)


def read_container(
    data: Buf,
    *,
    ratios: Sequence[int],
    family: Family = "deepseek",
    dialect: str = "upstream",
    spec: FrameSpec | None = None,
) -> Container:
    """Read a whole saved session or shard and judge it, tensors included.

    Parameters
    ----------
    data : bytes-like
        The whole file.
    ratios : sequence of int
        Compression ratio of each layer of the model.
    family : {"deepseek", "glm"}
    dialect : str
        Whose files are due; ``xangel82`` writes other versions.
    spec : FrameSpec, optional
        What is due; by default what the magic names, DSV4 where it names nothing.

    Raises
    ------
    SchemaError
        If there are fewer ratios than layers.
    """
    due = spec or container_spec(data) or DSV4_FILE
    view = memoryview(data).cast("B")
    reading = read(due, view, dialect=dialect)
    values, problems = reading.values, list(reading.problems)
    if not reading.whole:
        return Container(due, values, (), tuple(problems), 0)
    tensors: tuple[Tensor, ...] = ()
    wrong = {problem.path for problem in problems}
    if not wrong & {f"{due.name}.{name}" for name in ("magic", "version", "layer_end")}:
        tensors = tuple(layer_tensors(values, ratios, family))
        problems += _area(due, values, tensors, len(view))
        problems += _live(due, values, family)
        problems += _rows(due, values, family)
    zeros = zero_tail(values["tensors"])
    return Container(due, values, tensors, tuple(problems), zeros)


def _area(
    spec: FrameSpec, values: dict[str, Any], tensors: Sequence[Tensor], size: int
) -> list[Problem]:
    found = tensor_area_problem(values, tensors, _AREA_CLAUSES[spec.name])
    if found is None:
        return []
    wanted = tensors[-1].offset + tensors[-1].nbytes if tensors else 0
    start = size - len(values["tensors"])
    at = min(start + wanted, size)
    placed = replace(found, path=f"{spec.name}.tensors", frame_offset=at)
    return [placed.at(0)]


def _live(spec: FrameSpec, values: dict[str, Any], family: Family) -> list[Problem]:
    due = min(values["token_count"], values["raw_window"])
    if family == "glm" or values["raw_live"] >= due:
        return []
    at = offsets_of(spec.body, "*")["raw_live"]
    found = str(values["raw_live"])
    clause, path = _LIVE_CLAUSES[spec.name], f"{spec.name}.raw_live"
    return [Problem(clause, path, at, at, f"{due}, all live rows", found)]


def _rows(spec: FrameSpec, values: dict[str, Any], family: Family) -> list[Problem]:
    """Compare the row counts of GLM, which follow from length and capacity."""
    if family != "glm":
        return []
    first = values.get("layer_start", 0)
    due = [
        glm_row_counts(values["token_count"], values["comp_cap"], first + at)
        for at in range(len(values["n_comp"]))
    ]
    found = []
    for name, wanted in zip(
        ("n_comp", "n_index_comp"), zip(*due, strict=True), strict=False
    ):
        wrong = [i for i, n in enumerate(values[name]) if n != wanted[i]]
        for at in wrong[:1]:
            told = f"{wanted[at]} in layer {first + at}"
            path = f"{spec.name}.{name}"
            have = str(values[name][at])
            found.append(Problem("FILE-DSV4-27", path, None, None, told, have))
    return found


def zero_tail(area: Buf) -> int:
    """Count the zero bytes at the end of ``area``."""
    view = memoryview(area).cast("B")
    end = len(view)
    while end:
        start = max(0, end - _STEP)
        kept = len(bytes(view[start:end]).rstrip(b"\0"))
        if kept:
            return len(view) - start - kept
        end = start
    return len(view)
