"""Option vectors against both our parsers, and each with its check taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.cli import options
from ds4proto_runtime.cli.options import RunOptions, parse_options

from ds4proto import rule_vectors
from ds4proto.errors import WrongUsage
from ds4proto.preflight import command, options_ds4d
from ds4proto.preflight.command import Command, parse_command
from ds4proto.preflight.options_ds4d import LayerRange
from ds4proto.rule_vectors import Row
from tests.spec.removing import without_check

FILE = rule_vectors.load("options-ds4d")

Outcome = Mapping[str, Any]
Parser = Callable[[Sequence[str], int | None], Outcome]


def plain(value: object) -> object:
    if isinstance(value, LayerRange):
        return [value.start, value.end]
    return list(value) if isinstance(value, tuple) else value


def values(given: RunOptions | Command, n_layers: int | None) -> Outcome:
    names = (
        "role", "layers", "listen", "coordinator", "activation_bits", "prefill_chunk",
        "prefill_window", "replay_check", "debug",
    )  # fmt: skip
    taken = {name: plain(getattr(given, name)) for name in names}
    if n_layers is not None and given.layers is not None:
        found = given.layers.resolve(n_layers, coordinator=given.role == "coordinator")
        taken["resolved"] = [found.start, found.stop - 1]
    return {"taken": taken}


def asked(parse: Callable[[], Outcome]) -> Outcome:
    try:
        return parse()
    except WrongUsage as error:
        return {"refused": str(error)}
    except (TypeError, ValueError) as error:
        return {"crashed": str(error)}


def runtime(argv: Sequence[str], n_layers: int | None) -> Outcome:
    """Ask the options of ``ds4proto run``."""
    return asked(lambda: values(parse_options(argv), n_layers))


def preflight(argv: Sequence[str], n_layers: int | None) -> Outcome:
    """Ask preflight, which reads command lines of ds4 itself."""

    def read() -> Outcome:
        found = parse_command(["ds4", *argv])
        if found.refusals:
            return {"refused": found.prints}
        return values(found, n_layers)

    return asked(read)


def agrees(row: Row, parser: Parser) -> bool:
    found = parser(row["argv"], row.values.get("n_layers"))
    if "refused" in row.values:
        return found == {"refused": row["refused"]}
    taken = found.get("taken", {})
    return bool(taken) and row["taken"].items() <= taken.items()


def rows_of(parser: Parser) -> list[Row]:
    """Return the rows that a parser can be asked: the runtime speaks no fork."""
    return [r for r in FILE.rows if parser is preflight or "dialect" not in r.values]


@pytest.mark.parametrize("parser", [runtime, preflight])
def test_every_row_comes_out(parser: Parser) -> None:
    assert [row.name for row in rows_of(parser) if not agrees(row, parser)] == []


def caught(clause: str, parser: Parser) -> bool:
    rows = [row for row in rows_of(parser) if clause in row.clauses]
    return any(not agrees(row, parser) for row in rows)


CLAUSES = sorted({clause for row in FILE.rows for clause in row.clauses})


def without(name: str) -> AbstractContextManager[Any]:
    return without_check(options_ds4d, name)


@contextmanager
def no_debug() -> Iterator[None]:
    with patch.dict(options.FLAGS), patch.dict(command._FLAGS):
        del options.FLAGS["--debug"], command._FLAGS["--debug"]
        yield


@contextmanager
def for_everybody(option: str) -> Iterator[None]:
    with patch.dict(options_ds4d._COORDINATOR_ONLY):
        del options_ds4d._COORDINATOR_ONLY[option]
        yield


# Where the check does not name its clause: what is broken instead.
FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "DS4D-OPT-07": lambda: without("bad_port"),
    "DS4D-OPT-08": lambda: without("twice"),
    "DS4D-OPT-09": lambda: without("bad_port"),
    "DS4D-OPT-10": lambda: without("twice"),
    "DS4D-OPT-11": lambda: without("invalid"),
    "DS4D-OPT-15": no_debug,
    "DS4D-OPT-25": lambda: for_everybody("--dist-prefill-chunk"),
    "DS4D-OPT-26": lambda: for_everybody("--dist-prefill-window"),
    "DS4D-OPT-27": lambda: for_everybody("--dist-activation-bits"),
    "DS4D-OPT-32": lambda: patch.object(command, "_local_decode", lambda _c: ()),
}
ASKED = [
    (clause, parser)
    for clause in CLAUSES
    for parser in (runtime, preflight)
    if any(clause in row.clauses for row in rows_of(parser))
]


@pytest.mark.parametrize(("clause", "parser"), ASKED)
def test_a_parser_without_the_check_fails(clause: str, parser: Parser) -> None:
    fault = FAULTS.get(clause, lambda: without(clause))
    with fault():
        assert caught(clause, parser)
    assert not caught(clause, parser)
