"""Gates over TCP: what is sent, what is judged before what, and when it is given up."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ds4proto.link import ds4t_gate_state, ds4t_rdma_windows, lockstep
from ds4proto.link.ds4t_gate_state import GateState
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.plan import PlanOptions
from tests.link import test_gates as streams
from tests.link.ds4t import test_gate_failures as failures
from tests.link.ds4t import test_rdma_windows as windows
from tests.link.ds4t.gates import VEC, give, link, opened, take, views
from tests.spec.tp_showing import altered, ruled, shows


def bare(own: Any, machine: GateLink, *words: Any) -> None:
    *head, own_view, peer, now = words
    own(machine, *head, own_view[:0], peer, now)


def half(own: Any, machine: GateLink, nbytes: int, now: float) -> bool:
    done = own(machine, nbytes, now)
    if not machine._heading and machine.receiving:
        machine.receiving = False
        return True
    return bool(done)


@shows(
    ("DS4T-GATE-20", "a header alone", altered(GateLink, "_start", bare)),
    ("DS4T-GATE-20", "nothing is received", altered(GateLink, "received", half)),
)
def a_gate_goes_both_ways() -> None:
    for shape in ("row", "batch", "bulk"):
        ranks = link("tp-leader"), link("tp-worker")
        peers = [opened(shape, one) for one in ranks]
        size = 3 * VEC if shape == "batch" else VEC
        sent = [take(one) for one in ranks]
        assert sent[0] == sent[1]  # the same layer, kind and number
        assert len(sent[0]) == 16 + size
        for one, data in zip(ranks, reversed(sent), strict=True):
            give(one, data)
            assert one.done
        assert [bytes(peer) for peer in peers] == [b"\x11" * size] * 2


def latched(own: Any, machine: GateState, *words: Any, **more: Any) -> Any:
    machine.sending = False
    machine.send_views[:] = []
    return own(machine, *words, **more)


@shows(
    (
        "DS4T-GATE-25",
        "nothing more is sent after a wrong header",
        altered(GateState, "_latch", latched),
    )
)
def the_whole_payload_can_follow_a_wrong_header() -> None:
    failures.test_the_own_gate_can_still_be_written_after_a_desync()


def judged_later(own: Any, machine: GateLink, nbytes: int, now: float) -> bool:
    if machine._heading and nbytes == len(machine.receive_view):
        machine._head_in[:] = machine._head_out
    return bool(own(machine, nbytes, now))


@shows(
    ("DS4T-GATE-26", "the payload first", altered(GateLink, "received", judged_later)),
    (
        "DS4T-ROBUST-06",
        "the payload first",
        altered(GateLink, "received", judged_later),
    ),
)
def a_header_is_judged_before_the_slot_is_touched() -> None:
    for shape in ("row", "batch"):
        for at in (0, 4, 6, 8):
            machine = link()
            peer = opened(shape, machine)
            data = bytearray(take(machine))
            data[at] ^= 1
            with pytest.raises(GateFailed):
                give(machine, bytes(data))
            assert not any(peer)


def nameless(own: Any, clause: str, *values: Any) -> str:
    return str(own(clause, *[0] * len(values))) if values else str(own(clause))


@shows(
    (
        "DS4T-GATE-30",
        "a line without numbers",
        altered(ds4t_gate_state, "text_of", nameless),
    )
)
def the_metal_line_names_layer_gate_and_number() -> None:
    machine = link()
    give(machine, opened_second(machine))
    with pytest.raises(GateFailed) as caught:
        machine.received(0, 0.2)
    line = "ds4: TP gate exchange failed (layer 0 gate 1 seq 2)"
    assert caught.value.failure.log == (line,)


def opened_second(machine: GateLink) -> bytes:
    """Run the first row gate, open the second; return half of its header."""
    opened("row", machine)
    give(machine, take(machine))
    machine.begin_row(0, 1, *views(), 0.0)
    return bytes(machine.send_views[0])[:8]


def payload_words(own: Any, clause: str, *values: Any) -> str:
    return "tp: bulk failed" if clause == "DS4B-BULK-09" else str(own(clause, *values))


@shows(
    ("DS4B-BULK-07", "no grace for a bulk header", ruled("v14", bulk_grace=0.0)),
    ("DS4B-BULK-07", "grace for the payload too", ruled("v14", gate_timeout=2.75)),
    (
        "DS4B-BULK-09",
        "another text",
        altered(ds4t_gate_state, "text_of", payload_words),
    ),
)
def a_bulk_gate_waits_longer_for_its_header_and_names_its_layer() -> None:
    for dialect, first, later in (("v14", 2.75, 0.75), ("v12", 2.75, 0.75)):
        failures.test_idle_limits_by_dialect(dialect, "bulk", first, later)
    for layer, got, log in (
        (
            3,
            8,
            "ds4-tp: big gate header exchange failed or peer closed (layer 3 seq 1):",
        ),
        (3, 40, "ds4-tp: big gate payload exchange failed (layer 3):"),
    ):
        machine = link()
        machine.begin_bulk(layer, *views(), 0.0)
        give(machine, (bytes(machine.send_views[0]) + bytes(VEC))[:got])
        with pytest.raises(GateFailed) as caught:
            machine.received(0, 0.2)
        assert caught.value.failure.log == (f"{log} the data connection ended",)


def idle_alone(own: Any, machine: GateState) -> Any:
    found = own(machine)
    return found if found is None else machine._since + (machine._idle or 60.0)


@shows(
    (
        "DS4T-ROBUST-05",
        "the idle limit alone",
        altered(GateState, "deadline", idle_alone),
    )
)
def a_gate_has_a_total_limit() -> None:
    failures.test_progress_restarts_the_idle_limit_but_not_the_total()


@shows(
    (
        "DS4T-ROBUST-07",
        "no word on lengths",
        altered(ds4t_gate_state, "desync_advice", lambda _own, *_: "look at the peer"),
    )
)
def another_length_of_the_gate_before_is_suspected() -> None:
    for rest in (struct.pack("<4f", 0.5, -1.25, 3.0, 7.5), bytes(16), b"\xff" * 16):
        machine = link()
        opened("bulk", machine)
        give(machine, take(machine))
        opened("bulk", machine)
        with pytest.raises(GateFailed) as caught:
            give(machine, rest)  # what the peer still had to send of the gate before
        assert "the gate before had another length" in caught.value.diagnosis.next_step


def silent(own: Any, clause: str, text: str, *rest: Any) -> Any:
    return own(clause, text, "", "", rest[2], "")


@shows(
    (
        "DS4T-ROBUST-10",
        "windows without numbers",
        altered(ds4t_rdma_windows, "rdma_failed", silent),
    )
)
def the_byte_of_another_window_is_named() -> None:
    windows.test_barrier_bytes_are_compared(3, 2, "DS4T-ROBUST-10", "bulk window 2")


def no_plan(own: Any, *words: Any, **more: Any) -> Any:
    del own, words, more
    return iter(())


@shows(
    (
        "DS4T-FLOW-41",
        "no gates are expected",
        altered(lockstep, "sync_gates", no_plan),
    ),
)
def lengths_follow_from_hello_and_commands() -> None:
    streams.test_bulk_lengths_are_found_whatever_the_options(PlanOptions())
    streams.test_the_options_are_learned_and_settle_the_last_gate()
    streams.test_a_payload_that_holds_the_next_header_fools_nobody()
    streams.test_a_last_gate_that_is_cut_is_truncated()
