"""``ds4proto spec``: read the clauses, build and check the specification."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ds4proto.cli._options import json_option
from ds4proto.cli._output import stderr, stdout, write_json
from ds4proto.cli._spec_files import replace_text
from ds4proto.cli._spec_vectors import vectors
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.printable import counted

_FOLDER = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("spec"),
    show_default=True,
    help="Folder of the chapters, in a clone of the repository.",
)

_OUT = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; default: standard output.",
)


@click.group(
    epilog="\b\nExamples:\n"
    "  ds4proto spec show DS4D-WORK-07\n"
    "  ds4proto spec show DS4D.WORK\n"
    "  ds4proto spec diff v9w v14"
)
def cmd() -> None:
    """Read the specification: chapters, frames, clauses.

    Every rule of the protocols is one numbered clause. Verdicts and decoded frames
    cite these numbers; `show` says what one of them demands.
    """


@cmd.command(
    "list",
    epilog="\b\nExamples:\n  ds4proto spec list\n  ds4proto spec list --chapter rdma",
)
@click.option("--chapter", help="Only the clauses of this chapter.")
@json_option
def list_clauses(chapter: str | None, as_json: bool) -> int:
    """List the chapters, or the clauses of one."""
    from ds4proto import clauses

    found = clauses.load()
    counts: dict[str, tuple[int, int]] = {}
    for clause in found:
        total, must = counts.get(clause.chapter, (0, 0))
        counts[clause.chapter] = (total + 1, must + clause.mandatory)
    if chapter is not None and chapter not in counts:
        raise WrongUsage(f"no chapter {chapter!r}; known: {', '.join(counts)}")
    console = stdout()
    if chapter is None:
        rows = [
            {"chapter": name, "clauses": total, "must": must}
            for name, (total, must) in counts.items()
        ]
        if as_json:
            write_json(rows)
        for row in rows if not as_json else ():
            console.print(
                f"{row['chapter']:18} {row['clauses']:4} clauses, {row['must']:4} MUST"
            )
        return ExitCode.PASSED
    rows = [
        {"id": clause.id, "keyword": clause.keyword, "text": clause.text}
        for clause in found
        if clause.chapter == chapter
    ]
    if as_json:
        write_json(rows)
    for row in rows if not as_json else ():
        console.print(f"{row['id']:18} {row['text']}")
    return ExitCode.PASSED


@cmd.command(
    epilog="\b\nExamples:\n"
    "  ds4proto spec show DS4D-WORK-07\n"
    "  ds4proto spec show DS4T.HELLO --dialect v9w"
)
@click.argument("what")
@click.option("--dialect", help="Dialect of a frame's table; default: the main one.")
@json_option
def show(what: str, dialect: str | None, as_json: bool) -> int:
    """Show one clause (DS4D-WORK-07) or the table of one frame (DS4D.WORK)."""
    if "." in what:
        return _show_frame(what, dialect, as_json)
    return _show_clause(what, as_json)


def _show_clause(name: str, as_json: bool) -> int:
    from dataclasses import asdict

    from ds4proto import clauses
    from ds4proto.cli._spec_tables import print_indented

    try:
        clause = clauses.get(name.upper())
    except clauses.UnknownClauseError as error:
        raise WrongUsage(str(error)) from None
    facts: dict[str, Any] = asdict(clause)
    if as_json:
        write_json(facts)
        return ExitCode.PASSED
    console = stdout()
    console.print(f"{clause.id}  ({clause.chapter}, {clause.kind})")
    print_indented(console, clause.text)
    for key in ("role", "dialects"):
        print_indented(console, f"{key}: {', '.join(facts[key])}")
    for key in ("evidence", "source", "observed", "error", "detector", "reason"):
        if facts[key]:
            print_indented(console, f"{key}: {facts[key]}")
    return ExitCode.PASSED


def _show_frame(name: str, dialect: str | None, as_json: bool) -> int:
    from ds4proto.cli._spec_tables import print_layout
    from ds4proto.emit.tables import field_limit, layout_table
    from ds4proto.schema.dialects import DEFAULT_DS4D, DEFAULT_DS4T
    from ds4proto.schema.registry import frame

    name = name.upper()
    wanted = dialect or (DEFAULT_DS4D if name.startswith("DS4D.") else DEFAULT_DS4T)
    try:
        spec = frame(name, dialect=wanted)
    except KeyError as error:
        raise WrongUsage(str(error.args[0])) from None
    if as_json:
        at, fields = 0, []
        for entry in spec.fixed(wanted):
            fields.append(
                {
                    "field": entry.path,
                    "offset": at,
                    "bytes": entry.size,
                    "type": entry.type_name,
                    "meaning": entry.doc,
                    "unit": entry.unit,
                    "values": field_limit(entry, wanted),
                    "clause": entry.clause,
                }
            )
            at += entry.size
        tails = [tail.path for tail in spec.tails(wanted)]
        write_json({"frame": name, "dialect": wanted, "fields": fields, "tails": tails})
        return ExitCode.PASSED
    console = stdout()
    console.print(f"{name} in dialect {wanted}: {spec.doc}")
    print_layout(console, layout_table(spec.body, wanted))
    return ExitCode.PASSED


@cmd.command(epilog="\b\nExample:\n  ds4proto spec diff v9w v14")
@click.argument("first")
@click.argument("second")
@json_option
def diff(first: str, second: str, as_json: bool) -> int:
    """Show what breaks between two dialects."""
    from ds4proto.emit.tables import differences, differences_document

    try:
        if as_json:
            write_json(differences_document(first, second))
            return ExitCode.PASSED
        text = differences(first, second)
    except KeyError as error:
        raise WrongUsage(str(error.args[0])) from None
    sys.stdout.write(text + "\n")
    return ExitCode.PASSED


@cmd.command(
    epilog="\b\nExamples:\n  ds4proto spec dissector --out ds4.lua\n"
    "  tshark -X lua_script:ds4.lua -r run.pcap -Y ds4d.work"
)
@_OUT
def dissector(out: Path | None) -> int:
    """Write the Wireshark dissector of all three protocols."""
    from ds4proto.emit.lua import lua_dissector

    return _give(lua_dissector(), out)


@cmd.command(
    epilog="\b\nExample:\n  ds4proto spec kaitai DS4T --dialect v9w --out ds4t.ksy"
)
@click.argument("protocol", type=click.Choice(["DS4D", "DS4T"], case_sensitive=False))
@click.option("--dialect", help="Default: the main one of the protocol.")
@_OUT
def kaitai(protocol: str, dialect: str | None, out: Path | None) -> int:
    """Write a Kaitai Struct description of a protocol in one dialect."""
    from ds4proto.emit.kaitai import kaitai_frames
    from ds4proto.schema.dialects import DEFAULT_DS4D, DEFAULT_DS4T

    default = DEFAULT_DS4D if protocol == "DS4D" else DEFAULT_DS4T
    try:
        text = kaitai_frames(protocol, dialect or default)
    except KeyError as error:
        raise WrongUsage(str(error.args[0])) from None
    return _give(text, out)


def _give(text: str, out: Path | None) -> int:
    if out is None:
        sys.stdout.write(text)
        return ExitCode.PASSED
    replace_text(out, text)
    stderr().print(f"written: {out}")
    return ExitCode.PASSED


@cmd.command(
    epilog="\b\nExamples:\n  ds4proto spec coverage\n"
    "  ds4proto spec coverage --family DS4D --json"
)
@click.option("--family", help="Only clauses whose id begins so, such as DS4T.")
@json_option
def coverage(family: str | None, as_json: bool) -> int:
    """Say which clauses a case, a vector or a planted fault covers.

    The target counts DS4D, files, codecs, and of DS4T and DS4B what the main dialect
    has; `target_total` and `target_covered` of --json are its figures.
    """
    from ds4proto.cli._spec_coverage import gather

    found = gather(family or "")
    if not found.must_total:
        raise WrongUsage(f"no clause begins with {family!r}")
    if as_json:
        write_json(found.as_dict())
        return ExitCode.PASSED
    console = stdout()
    console.print(found.sentence())
    for chapter, (covered, total) in found.by_chapter().items():
        console.print(f"  {chapter:18} {covered:4} of {total:4} MUST clauses")
    for name, reason in found.uncovered().items():
        console.print(f"{name:18} {reason}")
    return ExitCode.PASSED


cmd.add_command(vectors)


@cmd.command(epilog="\b\nExample:\n  ds4proto spec build --dir spec")
@_FOLDER
def build(folder: Path) -> int:
    """Write the generated blocks and the dissectors anew."""
    from ds4proto.cli._spec_blocks import rebuilt

    changed = 0
    for path, old, new in rebuilt(folder):
        if old != new:
            changed += 1
            replace_text(path, new)
            stderr().print(f"written: {path}")
    stdout().print(f"{counted(changed, 'file')} changed")
    return ExitCode.PASSED


@cmd.command(epilog="\b\nExample:\n  ds4proto spec check --dir spec")
@_FOLDER
def check(folder: Path) -> int:
    """Fail where a chapter or dissector differs from the declarations."""
    from ds4proto.cli._spec_blocks import rebuilt

    drifted = [path for path, old, new in rebuilt(folder) if old != new]
    for path in drifted:
        stderr().print(f"drifted: {path}; run `ds4proto spec build`")
    if drifted:
        return ExitCode.FAILED
    stdout().print("every generated block and file is up to date")
    return ExitCode.PASSED
