"""Saved sessions and shards as files: what they hold, are they sound, do they differ.

No torch, no engine: sizes follow from the header and the model's compression ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ds4proto.codec.token_hash import token_hash
from ds4proto.errors import WrongUsage
from ds4proto.model import KNOWN_MODELS
from ds4proto.schema.container import Container, container_spec, read_container
from ds4proto.schema.declare import fields_of
from ds4proto.schema.dsv4 import Family, layer_tensors
from ds4proto.schema.problem import Problem
from ds4proto.schema.registry import read

DIALECT: Final = "upstream"


def check_target(option: str, path: str | None) -> None:
    """Refuse a file that cannot be written, before anything runs for it.

    Raises
    ------
    WrongUsage
        Its folder is not there, or it is a folder itself.
    """
    if path is None:
        return
    target = Path(path)
    if not target.parent.is_dir():
        raise WrongUsage(
            f"{option} {path}: there is no folder {target.parent}; make it, or name"
            " another file"
        )
    if target.is_dir():
        raise WrongUsage(f"{option} {path} is a folder: name a file in it")


@dataclass(frozen=True, slots=True)
class Layout:
    """The model's part of a file: ratios of all its layers, and how it got here."""

    ratios: tuple[int, ...]
    family: Family
    source: str


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file that was read; ``container`` is None where no layout is known."""

    path: Path
    kind: str
    values: Mapping[str, Any]
    problems: tuple[Problem, ...]
    layout: Layout | None
    container: Container | None
    size: int


def _toy() -> Layout:
    from ds4proto_runtime.engines.toy import RATIOS

    return Layout(RATIOS, "deepseek", "the toy model")


def named_layout(name: str) -> Layout:
    """Return the layout of a model by name or number.

    Raises
    ------
    WrongUsage
        Nobody knows it; the text lists those known.
    """
    if name == "toy":
        return _toy()
    saved = [model for model in KNOWN_MODELS if model.saved is not None]
    for model in saved:
        if name.casefold() in (model.name.casefold(), str(model.model_id)):
            return _known(model)
    names = ", ".join(f"{model.name!r}" for model in saved)
    raise WrongUsage(f"no layout of {name!r}; known: toy, {names}; or give --ratios")


def _known(model: Any) -> Layout:
    ratios = tuple(model.saved.ratio(layer) for layer in range(model.layers))
    family: Family = "glm" if "GLM" in model.name else "deepseek"
    return Layout(ratios, family, model.name)


def ratios_layout(words: str) -> Layout:
    """Return the layout of ``--ratios 0,0,4,128,...``; the last two go on for ever.

    Raises
    ------
    WrongUsage
        A part is no number.
    """
    parts = [part.strip() for part in words.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise WrongUsage(f"--ratios {words}: expected numbers like 0,0,4,128")
    ratios = [int(part) for part in parts]
    tail = ratios[-2:] if len(ratios) > 1 else ratios * 2
    return Layout((*ratios, *(tail * 512)), "deepseek", "--ratios")


def guess_layout(values: Mapping[str, Any]) -> Layout | None:
    """Return the layout of the one known model that the header fits, if any."""
    from ds4proto_runtime.engines import toy

    shape = (values["n_layers"], values["head_dim"], values["indexer_head_dim"])
    if shape == (toy.LAYERS, toy.HEAD_DIM, toy.INDEX_DIM):
        return _toy()
    for model in KNOWN_MODELS:
        saved = model.saved
        if saved is not None and shape == (
            model.layers,
            saved.head_dim,
            saved.indexer_head_dim,
        ):
            return _known(model)
    return None


def read_file(path: Path, layout: Layout | None = None) -> SavedFile:
    """Read a DSV4 or DSVL file.

    Raises
    ------
    WrongUsage
        It is neither.
    """
    from ds4proto_runtime.kv import map_file

    data = map_file(path)
    spec = container_spec(data)
    if spec is None:
        raise WrongUsage(
            f"{path}: neither a saved session nor a shard: expected DSV4 or DSVL at"
            f" byte 0, found {bytes(data[:4]).hex(' ') or 'nothing'}"
        )
    reading = read(spec, data, dialect=DIALECT)
    known = layout
    if known is None and "raw_live" in reading.values:
        known = guess_layout(reading.values)
    if known is None or "tensors" not in reading.values:
        return SavedFile(
            path,
            spec.name,
            reading.values,
            reading.problems,
            known,
            None,
            len(data),
        )
    found = read_container(data, ratios=known.ratios, family=known.family, spec=spec)
    return SavedFile(
        path, spec.name, found.values, found.problems, known, found, len(data)
    )


def summary(file: SavedFile) -> dict[str, Any]:
    """Return the header and sums of a file, fit for JSON."""
    spec = container_spec(b"DSV4" if file.kind == "DSV4" else b"DSVL")
    assert spec is not None
    words = [field.path for field in fields_of(spec.body, DIALECT)]
    shown: dict[str, Any] = {"file": str(file.path), "kind": file.kind}
    shown |= {name: file.values[name] for name in words if name in file.values}
    shown.pop("magic", None)
    tokens = file.values.get("tokens")
    if tokens is not None:
        shown["token_hash"] = f"0x{token_hash(tokens):016x}"
        shown["first_tokens"] = list(tokens[:8])
    for name in ("n_comp", "n_index_comp"):
        if name in file.values:
            shown[name] = list(file.values[name])
    shown["bytes"] = file.size
    shown["model"] = file.layout.source if file.layout is not None else None
    if file.container is not None:
        shown["tensors"] = len(file.container.tensors)
        shown["zero_tail"] = file.container.zero_tail
    return shown


def differences(a: SavedFile, b: SavedFile) -> list[str]:
    """Return where two files differ first, part by part; empty where they are equal."""
    if a.kind != b.kind:
        return [f"kind: {a.kind} and {b.kind}"]
    first, second = summary(a), summary(b)
    arrays = ("n_comp", "n_index_comp", "first_tokens", "token_hash")
    passed = ("file", "model", "zero_tail", "bytes", "tensors", *arrays)
    found = [
        f"{name}: {first[name]} and {second.get(name)}"
        for name in first
        if name not in passed and first[name] != second.get(name)
    ]
    for name in ("tokens", "n_comp", "n_index_comp"):
        found += _first_item(name, a.values.get(name, ()), b.values.get(name, ()))
    found += _first_value("logits", a, b)
    found += _first_tensor(a, b)
    if a.size != b.size:
        found.append(f"size: {a.size} and {b.size} bytes")
    return found


def _first_item(name: str, one: Sequence[int], two: Sequence[int]) -> list[str]:
    for index, (x, y) in enumerate(zip(one, two, strict=False)):
        if x != y:
            label = "token" if name == "tokens" else f"{name} of layer"
            return [f"first differing {label} {index}: {x} and {y}"]
    return []


def _first_value(name: str, a: SavedFile, b: SavedFile) -> list[str]:
    at = _first_byte(a.values.get(name, b""), b.values.get(name, b""))
    return [] if at is None else [f"first differing logit {at // 4}"]


def _first_byte(one: Any, two: Any) -> int | None:
    import numpy as np

    size = min(len(one), len(two))
    x, y = (np.frombuffer(part, np.uint8, size) for part in (one, two))
    where = np.flatnonzero(x != y)
    return int(where[0]) if len(where) else None


def _first_tensor(a: SavedFile, b: SavedFile) -> list[str]:
    at = _first_byte(a.values.get("tensors", b""), b.values.get("tensors", b""))
    if at is None:
        return []
    start = a.size - len(a.values["tensors"])
    place = f"first differing tensor byte {at} of the area, {start + at} of the file"
    if a.layout is None:
        return [f"{place} (which tensor: give --ratios or --model)"]
    for tensor in layer_tensors(a.values, a.layout.ratios, a.layout.family):
        if tensor.offset <= at < tensor.offset + tensor.nbytes:
            row, column = divmod((at - tensor.offset) // 4, tensor.width)
            return [f"{place}: layer {tensor.layer} {tensor.name} [{row}, {column}]"]
    return [place]
