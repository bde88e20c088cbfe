"""Coordinators that are wrong between requests."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from ds4proto.link import ds4d_result_checks as checks
from ds4proto.link.ds4d_events import HelloAccepted
from ds4proto.schema.ds4d_result import HIDDEN_STATE
from ds4proto_conformance.peers.faults import Fault, patched


def _reads_early(peer: Any, connection: Any, event: Any) -> bool:
    """Look at what follows a HELLO at once, and take it for a broken frame."""
    early = isinstance(event, HelloAccepted) and connection.machine.trailing_data
    if early:
        peer._close(connection)
    return bool(early)


def _refuses_returned(peer: Any, connection: Any, event: Any) -> bool:
    """Take a worker once."""
    if not isinstance(event, HelloAccepted):
        return False
    seen = peer.memory.setdefault("slices seen", set())
    key = event.hello["layer_start"], event.hello["layer_end"]
    if key in seen:
        peer._close(connection)
        return True
    seen.add(key)
    return False


def _hidden_too() -> contextlib.AbstractContextManager[None]:
    real: Any = vars(checks.Answer)["fits_pipeline"].fget

    def fits(answer: checks.Answer) -> bool:
        hidden = answer.words["result_kind"] == HIDDEN_STATE and answer.all_rows
        return hidden or bool(real(answer))

    return patched((checks.Answer, "fits_pipeline", property(fits)))


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "coordinator", category, about, **hooks)


MUTANTS: Final = (
    _f(
        "reads-early",
        "state",
        "reads a control connection while nothing is due",
        event=_reads_early,
    ),
    _f(
        "refuses-returned",
        "state",
        "takes a worker only once",
        event=_refuses_returned,
    ),
    _f(
        "takes-hidden-at-the-end",
        "faults",
        "takes a hidden state where logits are due",
        patch=_hidden_too,
    ),
)
