"""Generated blocks inside the chapters of the specification.

A block stands between markers, so that prose and tables live in one file:

    <!-- ds4proto: layout DS4D.WORK upstream -->
    ... written by `ds4proto spec build` ...
    <!-- ds4proto: end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Final

from ds4proto import clauses
from ds4proto.emit import tables
from ds4proto.errors import WrongUsage

_MARK: Final = re.compile(
    r"<!-- ds4proto: (?P<call>[^\n]*?) -->\n(?P<old>.*?)<!-- ds4proto: end -->",
    re.DOTALL,
)

_OPEN: Final = re.compile(r"<!-- ds4proto: (?!end -->)([^\n]*?) -->\n")

_EVIDENCE: Final = {
    "measured": "measured",
    "exhaustive": "measured over the whole range",
    "read": "read, not run",
    "hypothesis": "hypothesis",
}


def _layout(name: str, dialect: str) -> str:
    from ds4proto.schema.dsv4 import CONTAINERS
    from ds4proto.schema.registry import frame

    containers = {spec.name: spec for spec in CONTAINERS}
    spec = containers.get(name) or frame(name, dialect=dialect)
    return tables.layout_table(spec.body, dialect)


def own_frames(dialect: str) -> list[str]:
    """Return the full names of the frames that a dialect's base does not have."""
    from ds4proto.schema.dialects import dialect as find
    from ds4proto.schema.registry import frames

    base = find(dialect).base
    before = {s.full_name for s in frames(dialect=base)} if base else set()
    return [s.full_name for s in frames(dialect=dialect) if s.full_name not in before]


def _own(dialect: str) -> str:
    from ds4proto.schema.registry import frame

    parts = []
    for name in own_frames(dialect):
        spec = frame(name, dialect=dialect)
        code = "" if spec.code is None else f" (type {spec.code})"
        parts.append(f"**`{spec.name}`**{code}: {spec.doc}")
        parts.append(tables.layout_table(spec.body, dialect))
    return "\n\n".join(parts)


def _record(name: str, dialect: str) -> str:
    from ds4proto.schema.declare import One, Records, walk_tails
    from ds4proto.schema.registry import frames

    for spec in frames(dialect=dialect):
        for tail in walk_tails(spec.body.tails):
            if isinstance(tail, Records | One) and tail.record.name == name:
                return tables.layout_table(tail.record, dialect)
    raise WrongUsage(f"no record {name!r} in the frames of dialect {dialect}")


def _header(protocol: str) -> str:
    from ds4proto.schema.registry import header_of

    return tables.layout_table(header_of(protocol), "*")


def _slab() -> str:
    from ds4proto.model.known import KNOWN_MODELS

    return tables.slab_table([(m.name, m.layers, m.width) for m in KNOWN_MODELS])


def _models() -> str:
    from ds4proto.model.known import KNOWN_MODELS

    rows = []
    for model in KNOWN_MODELS:
        gates = model.gates
        mask = (
            ", ".join(f"{word:#x}" for word in gates.mask) if any(gates.mask) else "0"
        )
        rows.append(
            (
                model.model_id,
                f"`{model.name}`",
                model.layers,
                model.width,
                model.hidden_values,
                model.vocabulary,
                model.experts,
                f"{gates.start} / {gates.step} / {gates.gates_per_token}",
                mask,
                ", ".join(sorted(model.split_on)) or "nowhere",
            )
        )
    head = (
        "model_id",
        "name",
        "layers",
        "n_embd",
        "hidden values a token",
        "vocabulary",
        "experts",
        "gate start / step / per token",
        "mask",
        "logits split on",
    )
    return tables.table(head, rows)


def _differences(first: str, second: str) -> str:
    """Return what breaks between two dialects; the page has its own heading."""
    return tables.differences(first, second).split("\n", 2)[2]


def _codecs() -> str:
    from ds4proto import codec

    rows = []
    for name in codec.names():
        facts = codec.get(name).describe()
        rows.append((f"`{name}`", *(facts.get(key, "") for key in _CODEC_COLUMNS)))
    return tables.table(("codec", *_CODEC_COLUMNS), rows)


def _coverage() -> str:
    from ds4proto.cli._spec_coverage import gather

    return gather("").sentence()


_CODEC_COLUMNS: Final = (
    "wire",
    "worst_relative_error",
    "smallest_normal",
    "subnormal_step",
    "ties",
    "clip",
    "nan",
    "negative_zero",
)


def clause_lines(chapter: str, section: str = "") -> str:
    """Return the rules of a chapter, or of one of its sections, as Markdown.

    What frames alone decide stands before what the engine decides, and both before
    our own choices. Defects of known peers are left to their own block.
    """
    found = [
        clause
        for clause in clauses.load()
        if clause.chapter == chapter and clause.kind != "defect"
    ]
    sections = [section] if section else list(dict.fromkeys(c.section for c in found))
    lines: list[str] = []
    for name in sections:
        members = [clause for clause in found if clause.section == name]
        if not members:
            raise WrongUsage(f"no rule in chapter {chapter!r}, section {section!r}")
        if not section and name:
            lines += [f"#### {name[:1].upper()}{name[1:]}", ""]
        lines += _grouped(members)
    if not lines:
        raise WrongUsage(f"no rule in chapter {chapter!r}")
    return "\n".join(lines).rstrip()


def _grouped(members: list[clauses.Clause]) -> list[str]:
    groups = [(title, [c for c in members if _group(c) == title]) for title in _GROUPS]
    present = [(title, group) for title, group in groups if group]
    lines: list[str] = []
    for title, group in present:
        if len(present) > 1 or title != _GROUPS[0]:
            lines += [f"***{title}***", ""]
        for clause in group:
            lines += [clause_text(clause), ""]
    return lines


_GROUPS: Final = ("The transport must", "The engine decides", "Our own choice")


def _group(clause: clauses.Clause) -> str:
    if clause.kind == "ours":
        return _GROUPS[2]
    return _GROUPS[1 if clause.tier == "engine" else 0]


def defect_lines(prefix: str) -> str:
    """Return the clauses on known defects of peers whose ids begin with ``prefix``."""
    found = [
        clause
        for clause in clauses.load()
        if clause.kind == "defect" and clause.id.startswith(prefix)
    ]
    if not found:
        raise WrongUsage(f"no clause on a defect begins with {prefix!r}")
    return "\n\n".join(clause_text(clause) for clause in found)


def clause_text(clause: clauses.Clause) -> str:
    """Return one clause as a Markdown paragraph with an anchor."""
    tags = [" and ".join(clause.role), _EVIDENCE[clause.evidence]]
    if clause.dialects != ("*",):
        tags.append("dialects " + ", ".join(clause.dialects))
    parts = [
        f'<a id="{clause.id}"></a>**{clause.id}** {_plain(clause.text)}',
        f"*{'; '.join(tags)}.*",
    ]
    if clause.kind == "defect":
        shown = "Known peers" if clause.detector else "Known peers, and how it shows"
        parts.append(f"{shown}: {_plain(clause.observed)}.")
        if clause.detector:
            parts.append(f"Detector: {_plain(clause.detector)}.")
    elif clause.observed:
        parts.append(f"Seen: {_plain(clause.observed)}.")
    if clause.error and clause.error not in clause.observed:
        parts.append(f"Text: `{clause.error}`.")
    if clause.reason:
        parts.append(f"Reason: {_plain(clause.reason)}.")
    if clause.source:
        parts.append(f"Shown by: {_plain(clause.source)}.")
    return " ".join(part.replace("..", ".") for part in parts)


_SPAN: Final = re.compile(r"(`[^`]*`)")


def _plain(text: str) -> str:
    """Return text with Markdown's own characters escaped outside code spans."""
    parts = _SPAN.split(text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<|])", r"\\\1", part)
        for part in parts
    )


_BLOCKS: Final[dict[str, Callable[..., str]]] = {
    "layout": _layout,
    "own": _own,
    "record": _record,
    "header": _header,
    "frames": tables.frame_list,
    "dialects": tables.dialect_table,
    "recognition": tables.recognition_table,
    "sizes": tables.size_table,
    "differences": _differences,
    "slab": _slab,
    "models": _models,
    "codecs": _codecs,
    "coverage": _coverage,
    "clauses": clause_lines,
    "defects": defect_lines,
}


def rebuild(text: str, where: str) -> str:
    """Return a chapter with every block written anew.

    Raises
    ------
    WrongUsage
        For a block that does not exist or whose words are off; names the file.
    """
    opened: list[str] = _OPEN.findall(text)
    closed = [match["call"] for match in _MARK.finditer(text)]
    if opened != closed:
        lost = next(a for a, b in zip_longest(opened, closed) if a != b)
        raise WrongUsage(
            f"{where}: block {lost!r} has no end; "
            "add `<!-- ds4proto: end -->` behind it"
        )

    def write(match: re.Match[str]) -> str:
        call = match["call"]
        name, *words = _words(call)
        make = _BLOCKS.get(name)
        if make is None:
            known = ", ".join(_BLOCKS)
            raise WrongUsage(f"{where}: no block {name!r}; known: {known}")
        try:
            body = make(*words)
        except (KeyError, TypeError) as error:
            raise WrongUsage(f"{where}: block {call!r}: {error}") from error
        return f"<!-- ds4proto: {call} -->\n\n{body}\n\n<!-- ds4proto: end -->"

    return _MARK.sub(write, text)


def _words(call: str) -> list[str]:
    import shlex

    return shlex.split(call)


def chapters(folder: Path) -> list[Path]:
    """Return the pages of a folder that may hold blocks, and the README beside it."""
    found = sorted(folder.rglob("*.md"))
    readme = folder.parent / "README.md"
    if found and readme.is_file() and _OPEN.search(readme.read_text("utf-8")):
        found.append(readme)
    return found


def rebuilt(folder: Path) -> list[tuple[Path, str, str]]:
    """Return path, present text and due text of every page and generated file.

    Raises
    ------
    WrongUsage
        If the folder holds no chapters, or a block cannot be made.
    """
    pages = chapters(folder)
    if not pages:
        raise WrongUsage(
            f"{folder} holds no chapters; run this in a clone, or name it with --dir"
        )
    found = []
    for path in pages:
        old = path.read_text("utf-8")
        found.append((path, old, rebuild(old, str(path))))
    for name, text in dissectors().items():
        path = folder / "dissectors" / name
        found.append((path, path.read_text("utf-8") if path.is_file() else "", text))
    return found


def dissectors() -> dict[str, str]:
    """Return the generated dissectors by file name."""
    from ds4proto.emit.kaitai import kaitai_files
    from ds4proto.emit.lua import lua_dissector

    return {"ds4.lua": lua_dissector(), **kaitai_files()}
