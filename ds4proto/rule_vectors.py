"""Rows of input and expected outcome for rules that need no connection.

A vector file is JSON in the package data: what it is about, what the keys of a row
mean, and the rows. Each row names the clauses that it tests, so that a program that
breaks one of them fails it. Nothing in a file is particular to this library: a port
reads it with any JSON reader and asks its own parsers.

::

    {"about": "...", "keys": {"argv": "the words behind the program"},
     "rows": [{"clauses": ["DS4D-OPT-01"], "argv": ["--role", "boss"], ...}]}

Only the standard library is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

__all__ = ["Row", "VectorFile", "by_clause", "load", "names", "text"]

FOLDER: Final = "data/vectors"
_OWN: Final = frozenset({"clauses", "comment"})


@dataclass(frozen=True, slots=True)
class Row:
    """One input and what has to come of it.

    Parameters
    ----------
    name : str
        File and number, as ``options-ds4d/7``, counted from 1.
    clauses : tuple of str
        Clauses that the row tests.
    values : mapping
        The other keys of the row, as ``VectorFile.keys`` explains them.
    comment : str
        Why the row is there; may be empty.
    """

    name: str
    clauses: tuple[str, ...]
    values: Mapping[str, Any]
    comment: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A family of rows.

    Parameters
    ----------
    name : str
        File name without its ending.
    about : str
        What is asked, in a few sentences.
    keys : mapping
        Meaning of each key that a row may have.
    base : mapping
        What all rows share, such as a good file that they change; often empty.
    rows : tuple of Row
    """

    name: str
    about: str
    keys: Mapping[str, str]
    base: Mapping[str, Any]
    rows: tuple[Row, ...]


def names() -> tuple[str, ...]:
    """Return the names of the vector files, sorted."""
    folder = files("ds4proto").joinpath(FOLDER)
    found = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n[: -len(".json")] for n in found if n.endswith(".json")))


def text(name: str) -> str:
    """Return a vector file as it is; raises ``FileNotFoundError``."""
    return files("ds4proto").joinpath(FOLDER, f"{name}.json").read_text("utf-8")


@cache
def load(name: str) -> VectorFile:
    """Return a vector file.

    Raises
    ------
    FileNotFoundError
        If there is none of that name.
    ValueError
        If a row names no clause, or has a key that the file does not explain.
    """
    document = json.loads(text(name))
    keys = document["keys"]
    rows = []
    for number, values in enumerate(document["rows"], start=1):
        where = f"{name}/{number}"
        strange = sorted(set(values) - set(keys) - _OWN)
        if strange:
            raise ValueError(f"{where}: keys {', '.join(strange)} are not explained")
        if not values.get("clauses"):
            raise ValueError(f"{where}: names no clause; say which it tests")
        own = {key: value for key, value in values.items() if key not in _OWN}
        comment = values.get("comment", "")
        rows.append(Row(where, tuple(values["clauses"]), own, comment))
    base = document.get("base", {})
    return VectorFile(name, document["about"], keys, base, tuple(rows))


def by_clause() -> dict[str, list[str]]:
    """Return clause ids and how many rows of which file test them."""
    found: dict[str, list[str]] = {}
    for name in names():
        counts: dict[str, int] = {}
        for row in load(name).rows:
            for clause in row.clauses:
                counts[clause] = counts.get(clause, 0) + 1
        for clause, count in counts.items():
            found.setdefault(clause, []).append(f"{count} rows of {name}")
    return found
