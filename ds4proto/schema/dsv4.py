"""Saved sessions: the DSV4 container and the DSVL shard of one slice.

All words are little-endian u32; tensors are f32. The compression ratio of each
layer is not in the file: it belongs to the model, so that readers get it as an
argument (``layer_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from construct import Int32ul, this

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    FrameSpec,
    Ints,
    Layout,
    Payload,
    Rule,
)
from ds4proto.schema.dialects_ds4d import ALL
from ds4proto.schema.problem import Problem, SchemaError

DSV4_MAGIC = 0x34565344
DSVL_MAGIC = 0x4C565344
XANGEL = frozenset({"xangel82"})
PACKED_INDEX_BIT = 1 << 31
"""Bit of prefill_cap that marks packed indexer rows (xangel82)."""
PACKED_INDEX_WORDS = 17
"""Words of one packed indexer row: 68 bytes (DS4D-DIALECT-36)."""

F = FieldSpec
Family = Literal["deepseek", "glm"]


def _word(path: str, doc: str, unit: str = "") -> FieldSpec:
    return F(path, Int32ul, doc, unit=unit)


def _shape() -> tuple[FieldSpec, ...]:
    return (
        _word("ctx", "context of the writer", "tokens"),
        _word("prefill_cap", "prefill capacity of the writer", "tokens"),
        _word("raw_cap", "rows of the raw ring in the writer", "rows"),
        _word("raw_window", "attention window", "rows"),
        _word("comp_cap", "capacity of compressed rows", "rows"),
        _word("token_count", "tokens of the session", "tokens"),
        _word("n_layers", "layers of the model", "layers"),
        _word("head_dim", "width of one KV row", "values"),
        _word("indexer_head_dim", "width of one indexer row", "values"),
    )


def _versions(clause: str, plain: int, fork: tuple[int, ...]) -> tuple[Rule, ...]:
    return (
        Rule(
            clause,
            "version",
            lambda v: v["version"] == plain,
            str(plain),
            "another build's file; the two kinds exclude each other",
            ALL - XANGEL,
        ),
        Rule(
            clause,
            "version",
            lambda v: v["version"] in fork,
            " or ".join(map(str, fork)),
            "another build's file; the two kinds exclude each other",
            XANGEL,
        ),
    )


def _raw_live(clause: str) -> tuple[Rule, ...]:
    return (
        Rule(
            clause,
            "raw_live",
            lambda v: v["raw_live"] <= min(v["token_count"], v["raw_window"]),
            lambda v: (
                f"at most {min(v['token_count'], v['raw_window'])}, the smaller"
                f" of token_count and raw_window"
            ),
        ),
        Rule(
            clause,
            "raw_live",
            lambda v: v["raw_live"] <= v["raw_cap"],
            lambda v: f"at most raw_cap {v['raw_cap']}",
        ),
    )


def _counts(clause: str, path: str) -> Rule:
    return Rule(
        clause,
        path,
        lambda v: all(count <= v["comp_cap"] for count in v[path]),
        lambda v: f"at most comp_cap {v['comp_cap']} rows in every layer",
    )


def _u32s(path: str, length: Callable[[Any], Any], doc: str, clause: str) -> Ints:
    return Ints(path, length, doc, clause, item=Int32ul)


_TENSORS = "tensors of each layer, layer by layer"

DSV4 = Layout(
    "DSV4",
    "A saved session; the same bytes whatever topology wrote it.",
    (
        F("magic", Int32ul, "DSV4", const=DSV4_MAGIC, clause="FILE-DSV4-01"),
        _word("version", "2 upstream"),
        *_shape(),
        _word("vocab", "vocabulary", "tokens"),
        _word("raw_live", "raw rows stored in each layer", "rows"),
    ),
    (
        _u32s("tokens", this.token_count * 4, "token ids", "FILE-DSV4-03"),
        Payload("logits", this.vocab * 4, "last logits", "FILE-DSV4-03", shape="vocab"),
        _u32s("n_comp", this.n_layers * 4, "compressed rows", "FILE-DSV4-03"),
        _u32s("n_index_comp", this.n_layers * 4, "indexer rows", "FILE-DSV4-03"),
        Payload("tensors", REST, _TENSORS, "FILE-DSV4-20", shape="by layer"),
    ),
    (
        *_versions("FILE-DSV4-06", 2, (4, 3)),
        *_raw_live("FILE-DSV4-05"),
        Rule(
            "FILE-DSV4-08",
            "tokens",
            lambda v: all(token < v["vocab"] for token in v["tokens"]),
            lambda v: f"token ids below the vocabulary of {v['vocab']}",
        ),
        _counts("FILE-DSV4-09", "n_comp"),
        _counts("FILE-DSV4-10", "n_index_comp"),
    ),
    short_clause="FILE-DSV4-11",
    trailing_clause="FILE-DSV4-12",
)


def _slice_bytes(values: Mapping[str, Any]) -> int:
    return 4 * max(0, int(values["layer_end"]) - int(values["layer_start"]) + 1)


DSVL = Layout(
    "DSVL",
    "The KV shard of one slice: no tokens, no logits, no vocabulary.",
    (
        F("magic", Int32ul, "DSVL", const=DSVL_MAGIC, clause="FILE-DSVL-01"),
        _word("version", "1 upstream"),
        *_shape(),
        _word("layer_start", "first layer of the slice", "layer"),
        _word("layer_end", "last layer of the slice, inclusive", "layer"),
        _word("raw_live", "raw rows stored in each layer", "rows"),
    ),
    (
        _u32s("n_comp", _slice_bytes, "compressed rows", "FILE-DSVL-03"),
        _u32s("n_index_comp", _slice_bytes, "indexer rows", "FILE-DSVL-03"),
        Payload("tensors", REST, _TENSORS, "FILE-DSVL-03", shape="by layer"),
    ),
    (
        *_versions("FILE-DSVL-10", 1, (2, 1)),
        *_raw_live("FILE-DSVL-15"),
        Rule(
            "FILE-DSVL-11",
            "layer_end",
            lambda v: v["layer_start"] <= v["layer_end"] < v["n_layers"],
            lambda v: (
                f"layer_start {v['layer_start']} or later, below n_layers"
                f" {v['n_layers']}"
            ),
        ),
        _counts("FILE-DSVL-17", "n_comp"),
        _counts("FILE-DSVL-18", "n_index_comp"),
    ),
    short_clause="FILE-DSVL-19",
    trailing_clause="FILE-DSVL-20",
)

DSV4_FILE = FrameSpec("FILE", "DSV4", None, DSV4, ("coordinator",), ("coordinator",))
DSVL_FILE = FrameSpec("FILE", "DSVL", None, DSVL, ("worker",), ("coordinator",))
CONTAINERS = (DSV4_FILE, DSVL_FILE)

_FORK_VERSIONS = {DSV4_MAGIC: (4, 3), DSVL_MAGIC: (2,)}
"""Versions that only the xangel82 fork writes."""
GLM_ROW = 64 * 256
GLM_COMPACT = (512, 64)
GLM_INDEX = 128


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of one layer: ``rows x width`` f32 at ``offset`` of the area.

    Packed indexer rows (xangel82) have their width in words; what these hold is not
    known.
    """

    layer: int
    name: str
    rows: int
    width: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return 4 * self.rows * self.width


def _deepseek(
    v: Mapping[str, Any], ratio: int, n_comp: int, n_index: int
) -> list[tuple[str, int, int]]:
    head, index, twice = v["head_dim"], v["indexer_head_dim"], 2 if ratio == 4 else 1
    parts = [("raw", v["raw_live"], head)]
    if ratio:
        state = (twice * ratio, twice * head)
        parts += [("compressed", n_comp, head)]
        parts += [("compressor_values", *state), ("compressor_scores", *state)]
    if ratio == 4:
        state = (twice * ratio, twice * index)
        width = PACKED_INDEX_WORDS if _packed(v) else index
        parts += [("indexer", n_index, width)]
        parts += [("indexer_values", *state), ("indexer_scores", *state)]
    return parts


def _packed(v: Mapping[str, Any]) -> bool:
    """Tell whether a file of the xangel82 fork holds packed indexer rows."""
    versions = _FORK_VERSIONS.get(v.get("magic", 0), ())
    marked = v.get("prefill_cap", 0) & PACKED_INDEX_BIT
    return bool(marked) and v.get("version") in versions


def _glm(
    v: Mapping[str, Any], _ratio: int, n_comp: int, n_index: int
) -> list[tuple[str, int, int]]:
    parts = [("keys", v["raw_live"], GLM_ROW), ("values", v["raw_live"], GLM_ROW)]
    if n_comp:
        parts += [("compact", n_comp, GLM_COMPACT[0])]
        parts += [("compact_rope", n_comp, GLM_COMPACT[1])]
    if n_index:
        parts += [("indexer", n_index, GLM_INDEX)]
    return parts


_FAMILIES = {"deepseek": _deepseek, "glm": _glm}


def glm_row_counts(token_count: int, compact_cap: int, layer: int) -> tuple[int, int]:
    """Return n_comp and n_index_comp of a GLM layer (FILE-DSV4-27).

    The indexer layers are 0 to 2, and from 6 on every fourth (FILE-DSV4-26).
    """
    rows = min(token_count, compact_cap)
    indexer = layer <= 2 or (layer >= 6 and layer % 4 == 2)
    return rows, rows if indexer else 0


def layer_tensors(
    values: Mapping[str, Any], ratios: Sequence[int], family: Family = "deepseek"
) -> list[Tensor]:
    """Return every tensor of a container in file order, with its place.

    Parameters
    ----------
    values : mapping
        Values of a DSV4 or DSVL container.
    ratios : sequence of int
        Compression ratio of each layer of the **model** (0, 4, 128 ...).
    family : {"deepseek", "glm"}
        Which size rules hold (FILE-DSV4-22, -23, -26).

    Raises
    ------
    SchemaError
        If there are fewer ratios than the container has layers.
    """
    first = values.get("layer_start", 0)
    count = len(values["n_comp"])
    if first + count > len(ratios):
        raise SchemaError(
            Problem(
                "FILE-DSV4-25",
                "ratios",
                None,
                None,
                f"a ratio for each of {first + count} layers",
                f"{len(ratios)}",
                "name the model that the file was written with",
            )
        )
    found: list[Tensor] = []
    offset = 0
    for index in range(count):
        layer = first + index
        parts = _FAMILIES[family](
            values,
            ratios[layer],
            values["n_comp"][index],
            values["n_index_comp"][index],
        )
        for name, rows, width in parts:
            tensor = Tensor(layer, name, rows, width, offset)
            found.append(tensor)
            offset += tensor.nbytes
    return found


def tensor_area_problem(
    values: Mapping[str, Any], tensors: Sequence[Tensor], clauses: tuple[str, str]
) -> Problem | None:
    """Return what is wrong with the length of the tensor area, or None.

    ``clauses`` are those for too few and for left-over bytes.
    """
    wanted = tensors[-1].offset + tensors[-1].nbytes if tensors else 0
    found = len(values["tensors"])
    if wanted == found:
        return None
    return Problem(
        clauses[0] if found < wanted else clauses[1],
        "tensors",
        None,
        None,
        f"{wanted} bytes, as the header calls for",
        f"{found} bytes",
        "the file is cut short" if found < wanted else "bytes behind the last tensor",
        fatal=True,
    )
