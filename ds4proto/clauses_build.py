"""Build and lint the clause register: ``python -m ds4proto.clauses build|check``.

``build`` reads ``spec/clauses/*.toml``, adds new ids to ``register.txt`` and writes
the package data. ``check`` writes nothing: it runs the same lint and fails when
register or data differ from what ``build`` would write.

Exit codes: 0 in order, 1 a finding, 2 wrong usage or no sources.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from ds4proto.clauses import DATA_FILE, Clause

ID_FORM: Final = re.compile(r"[A-Z0-9]+(-[A-Z0-9]+)+-\d{2,3}")
KEYWORDS: Final = ("MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY")
KEYWORD_FORM: Final = re.compile(r"\b(?:MUST NOT|MUST|SHOULD NOT|SHOULD|MAY)\b")
ROLES: Final = frozenset(
    {"coordinator", "worker", "tp-leader", "tp-worker", "codec", "file", "any"}
)
ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "keyword": frozenset(KEYWORDS),
    "evidence": frozenset({"measured", "exhaustive", "read", "hypothesis"}),
    "tier": frozenset({"transport", "engine"}),
    "kind": frozenset({"rule", "defect", "ours"}),
}
SHOWN: Final = frozenset({"measured", "exhaustive"})
DEFAULTS: Final[Mapping[str, Any]] = {"dialects": ["*"], "source": "", "observed": ""}
LISTS: Final = frozenset({"role", "dialects"})
REQUIRED: Final = ("id", "keyword", "text", "role", "evidence")
KNOWN: Final = frozenset(f.name for f in fields(Clause)) - {"chapter"}

REGISTER_HEAD: Final = """\
# Every clause id ever issued: ID CHAPTER, with `retired` as a third word once the
# clause is gone. An id is never renamed and never used twice. New ids are added by
# `python -m ds4proto.clauses build`.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the register."""

    chapter: str
    retired: bool = False


Register = Mapping[str, Entry]


def _shape_faults(table: Mapping[str, Any]) -> Iterator[str]:
    for key in REQUIRED:
        if key not in table:
            yield f"key {key!r} is missing; add it"
    for key, value in table.items():
        if key not in KNOWN:
            yield f"key {key!r} is unknown; expected one of {', '.join(sorted(KNOWN))}"
        elif key in LISTS:
            if not (
                isinstance(value, list) and value and all(type(v) is str for v in value)
            ):
                yield f"{key} must be a non-empty list of strings, found {value!r}"
        elif type(value) is not str:
            yield f"{key} must be a string, found {value!r}"


def read_sources(folder: Path) -> tuple[list[Clause], list[str]]:
    """Read all clause files of a folder.

    Returns
    -------
    tuple
        The clauses of well-shaped tables, and one line for each fault.
    """
    clauses: list[Clause] = []
    faults: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            faults.append(f"{path.name}: not readable as TOML: {error}")
            continue
        stray = sorted(set(document) - {"clause"})
        if stray:
            faults.append(
                f"{path.name}: only [[clause]] tables are read, "
                f"found {', '.join(stray)}"
            )
        for number, table in enumerate(document.get("clause", ()), start=1):
            where = f"{path.name}: clause {number} ({table.get('id', 'without id')})"
            found = [f"{where}: {fault}" for fault in _shape_faults(table)]
            faults += found
            if not found:
                values = {**DEFAULTS, **table}
                for key in LISTS:
                    values[key] = tuple(values[key])
                clauses.append(Clause(chapter=path.stem, **values))
    return clauses, faults


def _clause_faults(clause: Clause, dialects: frozenset[str]) -> Iterator[str]:
    if not ID_FORM.fullmatch(clause.id):
        yield f"id {clause.id!r} is malformed; expected PROTOCOL-TOPIC-NN"
    for key, allowed in ALLOWED.items():
        if getattr(clause, key) not in allowed:
            yield (
                f"{key} {getattr(clause, key)!r} is not one of "
                f"{', '.join(sorted(allowed))}"
            )
    spoken = KEYWORD_FORM.findall(clause.text)
    if clause.keyword not in spoken:
        yield f"text does not say {clause.keyword}; found {spoken or 'no keyword'}"
    if "MUST" not in clause.keyword and any("MUST" in word for word in spoken):
        yield f"text says MUST under the keyword {clause.keyword}; split the clause"
    for role in sorted(set(clause.role) - ROLES):
        yield f"role {role!r} is not one of {', '.join(sorted(ROLES))}"
    strange = sorted(set(clause.dialects) - dialects - {"*"})
    if strange:
        yield (
            f"dialects {', '.join(strange)} are not known; expected *, "
            f"{', '.join(sorted(dialects))}"
        )
    if "*" in clause.dialects and len(clause.dialects) > 1:
        yield "dialects lists names beside `*`; keep one of the two"
    if clause.evidence in SHOWN and not clause.source.strip():
        yield f"evidence {clause.evidence!r} needs a source; name what shows it"
    if (clause.kind == "ours") != bool(clause.reason):
        yield "a reason goes with kind 'ours', and with no other kind"


def lint(
    clauses: Sequence[Clause], register: Register, dialects: frozenset[str]
) -> list[str]:
    """Return one line for each rule of the register that is broken.

    Parameters
    ----------
    clauses : sequence of Clause
        Everything that the clause files hold.
    register : mapping
        Id to entry, as read from ``register.txt``.
    dialects : frozenset of str
        Dialect names that the schemas know.
    """
    faults: list[str] = []
    by_id: dict[str, Clause] = {}
    by_text: dict[str, Clause] = {}
    for clause in clauses:
        where = f"{clause.chapter}.toml: {clause.id}"
        faults += [f"{where}: {f}" for f in _clause_faults(clause, dialects)]
        first = by_id.setdefault(clause.id, clause)
        if first is not clause:
            faults.append(
                f"{where}: id already used in {first.chapter}.toml; take a new number"
            )
        plain = re.sub(r"\W+", " ", clause.text).strip().lower()
        twin = by_text.setdefault(plain, clause)
        if twin is not clause:
            faults.append(f"{where}: same text as {twin.id}; say what differs")
        entry = register.get(clause.id)
        if entry is not None and entry.retired:
            faults.append(f"{where}: id is retired in the register; take a new number")
        elif entry is not None and entry.chapter != clause.chapter:
            faults.append(
                f"{where}: the register has it in {entry.chapter}; move it back, or "
                "correct that line if the move is meant"
            )
    faults += [
        f"register.txt: {name} has no clause any more; restore it or mark the line "
        "`retired`"
        for name, entry in register.items()
        if not entry.retired and name not in by_id
    ]
    return faults


def read_register(text: str) -> tuple[dict[str, Entry], list[str]]:
    """Parse ``register.txt``; return the entries and one line for each fault."""
    entries: dict[str, Entry] = {}
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) not in {2, 3} or words[2:] not in ([], ["retired"]):
            faults.append(
                f"register.txt:{number}: expected `ID CHAPTER [retired]`, "
                f"found {line!r}"
            )
        elif words[0] in entries:
            faults.append(f"register.txt:{number}: {words[0]} is listed twice")
        else:
            entries[words[0]] = Entry(words[1], retired=len(words) == 3)
    return entries, faults


def render_register(clauses: Sequence[Clause], register: Register) -> str:
    """Return the register text with the ids of ``clauses`` added."""
    merged = {c.id: Entry(c.chapter) for c in clauses} | dict(register)
    lines = [
        f"{name} {entry.chapter}{' retired' if entry.retired else ''}"
        for name, entry in sorted(merged.items())
    ]
    return REGISTER_HEAD + "\n".join(lines) + "\n"


def render_data(clauses: Sequence[Clause]) -> str:
    """Return the package data: one JSON line a clause, absent keys left out."""
    rows = []
    for clause in clauses:
        values = {k: v for k, v in asdict(clause).items() if v is not None}
        rows.append(json.dumps(values, ensure_ascii=False))
    return '{"clauses": [\n' + ",\n".join(rows) + "\n]}\n"


def known_dialects() -> frozenset[str]:
    """Return the dialect names of the schemas."""
    from ds4proto.schema.dialects import all_dialects

    return frozenset(dialect.name for dialect in all_dialects())


def _write_or_compare(path: Path, text: str, *, write: bool) -> list[str]:
    old = path.read_text("utf-8") if path.exists() else None
    if old == text:
        return []
    if not write:
        return [
            f"{path.name}: differs from the clause files; run "
            "`python -m ds4proto.clauses build`"
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return []


def main(argv: Sequence[str]) -> int:
    """Run ``build`` or ``check``; see the module text for exit codes."""
    package = Path(__file__).parent
    parser = argparse.ArgumentParser(
        prog="python -m ds4proto.clauses", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("action", choices=("build", "check"))
    parser.add_argument(
        "--sources", type=Path, default=package.parent / "spec" / "clauses"
    )
    parser.add_argument("--data", type=Path, default=package / DATA_FILE)
    options = parser.parse_args(argv)
    clauses, faults = read_sources(options.sources)
    if not clauses and not faults:
        print(
            f"no clause files in {options.sources}; run this in a clone or give "
            "--sources DIR",
            file=sys.stderr,
        )
        return 2
    path = options.sources / "register.txt"
    register, bad_lines = read_register(
        path.read_text("utf-8") if path.exists() else ""
    )
    faults += bad_lines + lint(clauses, register, known_dialects())
    if not faults:
        write = options.action == "build"
        for target, text in (
            (path, render_register(clauses, register)),
            (options.data, render_data(clauses)),
        ):
            faults += _write_or_compare(target, text, write=write)
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print(f"{len(faults)} faults", file=sys.stderr)
        return 1
    binding = sum(clause.mandatory for clause in clauses)
    print(f"{len(clauses)} clauses, {binding} of them MUST or MUST NOT: in order")
    return 0
