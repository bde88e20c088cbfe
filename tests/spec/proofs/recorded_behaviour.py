"""Clauses that the table of behaviour shows: what real builds did with an input."""

from __future__ import annotations

from tests.spec.recordings import behaviour, denoted
from tests.spec.tp_showing import shows

GROWN = "VM"
"""The table's word for a process that took the announced size into memory."""


@shows(
    (
        "DS4D-FRAME-11",
        "a skipped body is stored",
        denoted("stays open", "stays open; VM"),
    )
)
def a_skipped_body_takes_no_memory() -> None:
    # what is read whole shows that the table would tell
    stored = behaviour("worker/frame", "WORK declares 0xFFFFFFFF, silence")
    assert stored.endswith(f"; {GROWN}")
    for part, given in (
        ("worker/frame", "type 99 declares 1 GiB, 64 KiB sent, silence"),
        ("coordinator/hello", "type 99 instead of HELLO, declares 1 GiB, silence"),
        ("coordinator/hello", "HELLO declares 0xFFFFFFFF, silence"),
    ):
        found = behaviour(part, given)
        assert found.startswith("no reply, connection stays open")
        assert GROWN not in found


@shows(
    (
        "DS4D-SESS-12",
        "a session is left behind",
        denoted("worker has no distributed session to snapshot", "token count"),
    )
)
def a_load_refused_before_its_end_makes_no_session() -> None:
    given = "LOAD_BEGIN hash wrong, payload 0, then valid SAVE_REQ"
    refused, asked, end = behaviour("worker/snap", given).split("; ")
    assert refused == 'SNAPSHOT_DONE status=1 "snapshot load token hash mismatch"'
    assert "worker has no distributed session to snapshot" in asked
    assert end == "connection kept"
