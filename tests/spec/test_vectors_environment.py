"""Environment vectors against the reference runtime and preflight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.cli.options import parse_options
from ds4proto_runtime.pipeline import settings
from ds4proto_runtime.pipeline.settings import (
    Environment,
    SettingError,
    SocketSettings,
    prefill_settings,
    worker_limits,
)

from ds4proto import rule_vectors
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.preflight.rules_settings import BOUNDED
from ds4proto.rule_vectors import Row

FILE = rule_vectors.load("environment-ds4d")
ROLE = ["--role", "coordinator", "--layers", "0:3", "--listen", "127.0.0.1", "5000"]
DEFAULTS = FILE.base["settings"]


def found(row: Row) -> dict[str, Any]:
    """Return what the reference runtime makes of a row, in the words of the file."""
    env: Environment = row["env"]
    options = parse_options([*ROLE, *row.values.get("argv", ())])
    sockets = SocketSettings.of(env)
    try:
        limits = worker_limits(LinkLimits(), env)
        prefill = prefill_settings(
            4096, chunk=options.prefill_chunk, window=options.prefill_window, env=env
        )
    except SettingError as error:
        return {"refused": str(error)}
    except ValueError as error:
        return {"crashed": str(error)}
    return {
        "settings": {
            "socket_buffer_bytes": sockets.buffer,
            "send_timeout_s": sockets.send_s,
            "receive_timeout_s": sockets.receive_s,
            "bind_host": sockets.bind_host,
            "bind_if": sockets.bind_if,
            "connect_trace": sockets.trace,
            "decode_profile": sockets.profile,
            "chunk": prefill.chunk,
            "window": prefill.window,
            "send_depth": prefill.send_depth,
            "pipeline": prefill.pipeline,
            "ack_only": prefill.ack_only,
            "prefetch_depth": limits.queue_depth,
            "forward_window": limits.forward_window,
        }
    }


def agrees(row: Row) -> bool:
    if "refused" in row.values:
        return found(row) == {"refused": row["refused"]}
    return found(row) == {"settings": {**DEFAULTS, **row["settings"]}}


def test_every_row_comes_out() -> None:
    assert [row.name for row in FILE.rows if not agrees(row)] == []


CLAUSES = sorted({clause for row in FILE.rows for clause in row.clauses})
NAMES = {clause: row["env"] for row in FILE.rows for clause in row.clauses}


@contextmanager
def unbounded() -> Iterator[None]:
    """Take any number where a variable has bounds."""

    def reading(env: Environment, name: str, _low: int, _high: int) -> int | None:
        return settings.number(env.get(name, ""))

    with patch.object(settings, "_bounded", reading):
        yield


@contextmanager
def deaf(name: str) -> Iterator[None]:
    """Pass over one variable."""

    class Env(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            return default if key == name else super().get(key, default)

        def __contains__(self, key: object) -> bool:
            return key != name and super().__contains__(key)

    real = found

    def asked(row: Row) -> dict[str, Any]:
        return real(Row(row.name, row.clauses, {**row.values, "env": Env(row["env"])}))

    with patch.dict(globals(), {"found": asked}):
        yield


BOUNDED_CLAUSES = {rule.clause for rule in BOUNDED.values()}


@pytest.mark.parametrize("clause", CLAUSES)
def test_a_variable_passed_over_is_caught(clause: str) -> None:
    (name,) = NAMES[clause]
    rows = [row for row in FILE.rows if clause in row.clauses]
    with deaf(name):
        assert any(not agrees(row) for row in rows)
    assert all(agrees(row) for row in rows)


@pytest.mark.parametrize("clause", sorted(BOUNDED_CLAUSES))
def test_bounds_passed_over_are_caught(clause: str) -> None:
    rows = [row for row in FILE.rows if clause in row.clauses]
    with unbounded():
        assert any(not agrees(row) for row in rows)


def test_preflight_knows_the_same_bounds() -> None:
    """Values outside the bounds that preflight warns of are those of the file."""
    for name, rule in BOUNDED.items():
        rows = [row for row in FILE.rows if list(row["env"]) == [name]]
        assert rows, name
        for row in rows:
            value = settings.number(row["env"][name])
            inside = value is not None and rule.low <= value <= rule.high
            is_default = str(value) == rule.default
            assert inside == bool(row["settings"]) or is_default, row.name
