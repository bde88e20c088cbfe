"""Proofs of DS4T clauses: several clauses by one check, errors as failed assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from ds4proto.link import ds4t_rules
from tests.runtime.transport import rig as transport_rig
from tests.runtime.transport.rig import Rig
from tests.spec.proving import Check, Fault, proof


def shows(*claims: tuple[str, str, Fault]) -> Callable[[Check], Check]:
    """Register a check for several clauses, each with a fault of its own.

    An exception of the code under test is a failed assertion: a rank that gives up
    where the clause lets it go on has broken it.
    """

    def register(check: Check) -> Check:
        @wraps(check)
        def run() -> None:
            try:
                check()
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error}") from error

        for clause, words, fault in claims:
            proof(clause, words, fault)(run)
        return check

    return register


def altered(owner: Any, name: str, change: Callable[..., Any]) -> Fault:
    """A function or method that does something else; ``change`` gets the sound one."""
    own = getattr(owner, name)

    def other(*words: Any, **more: Any) -> Any:
        return change(own, *words, **more)

    return lambda: patch.object(owner, name, other)


def together(*faults: Fault) -> Fault:
    """Several faults at once."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault() if callable(fault) else fault)
            yield

    return planted


def ruled(dialect: str, **changes: Any) -> Fault:
    """A dialect with other rules."""
    from dataclasses import replace

    table: Any = ds4t_rules.RULES
    made = {dialect: replace(table[dialect], **changes)}
    return lambda: patch.dict(table, made)


@contextmanager
def ranks(*words: Any, up: bool = True, **more: Any) -> Iterator[Rig]:
    """Two ranks on a simulated fabric; their sockets are closed afterwards."""
    found = Rig(*words, **more)
    try:
        yield found.up() if up else found
    finally:
        found.close()
        transport_rig.OPEN.remove(found)


@contextmanager
def closing() -> Iterator[None]:
    """Close the sockets of rigs that a test of the transport leaves to its fixture."""
    known = len(transport_rig.OPEN)
    try:
        yield
    finally:
        while len(transport_rig.OPEN) > known:
            transport_rig.OPEN.pop().close()
