"""The tensor-parallel reference peers as commands; nothing heavy is imported here.

Both run the toy model in the shape of the captured pairs (two layers, 16 values, 32
tokens), as dialect v14 or what ``DS4PROTO_TP_DIALECT`` names. The leader runs every
operation once and says STOP.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

TOUR: Final = (
    "create;create;sync:1:1-10;eval:1:5,6,7;verify:1:8,9,10,11:full;"
    "verify:1:4,5,6,7,8:replay=3;rewind:1:8;eval:1:3;invalidate:1;sync:1:1-10;"
    "sync:1:1-12;sync:1:1-20;sync:2:9,8,7,6;batch:1=3,2=4;"
    "mixed:1:1-20,3,5-12:2=7;gen:2:3;destroy:1;destroy:2"
)
"""One run through the operations of every dialect."""


def _peer(role: str, mutant: str | None, *words: str) -> Sequence[str]:
    if mutant is not None:
        raise ValueError(f"tp-{role} {mutant!r}: this package has no mutants")
    dialect = os.environ.get("DS4PROTO_TP_DIALECT", "v14")
    return (
        sys.executable,
        "-m",
        "ds4proto_runtime.tp",
        *words,
        "--transport",
        "tcp",
        "--dialect",
        dialect,
        "--engine",
        "toy",
    )


def leader(mutant: str | None = None) -> Sequence[str]:
    """Return the command of a leader that listens on the address."""
    return _peer(
        "leader",
        mutant,
        "--role",
        "coordinator",
        "--listen",
        "{host}",
        "{port}",
        "--script",
        TOUR,
    )


def worker(mutant: str | None = None) -> Sequence[str]:
    """Return the command of a worker that dials the address."""
    return _peer(
        "worker", mutant, "--role", "worker", "--coordinator", "{host}", "{port}"
    )
