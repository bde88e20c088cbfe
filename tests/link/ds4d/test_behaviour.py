"""What real builds did on malformed input, seen again on our machines.

The recorded peers ran a stub engine, so that payloads of good answers are compared
by size alone, and the words of the engine are listed as differences.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ds4proto.link.ds4d_events import Close, HelloRefused, Transmit
from ds4proto.link.ds4d_facts import ModelFacts, WorkerFacts
from ds4proto.link.ds4d_registration import Expected, Registration
from tests.link.ds4d.build import frames
from tests.link.ds4d.host import Host
from tests.link.ds4d.streams import CAPTURES, streams

MODEL = ModelFacts(0, "stub", 8, 64, 512, 1024)
ENGINE_WORDS = {  # DS4D-WORK-27: each engine words its own refusals
    "stub: KV position mismatch have 0 want 5": (
        "layer-slice session needs reset before pos 5"
    ),
    "stub: chunk exceeds prefill cap": "layer-slice chunk 33 exceeds prefill cap 32",
}
Case = tuple[str, bytes, bytes, str]


def cases(name: str, server: str) -> list[Case]:
    """Return (input, bytes sent, bytes answered, words of the recording)."""
    listing = json.loads((CAPTURES / "ds4d" / f"{name}.json").read_text())
    flows = streams(CAPTURES / "ds4d" / f"{name}.pcap")
    by_number = {c["conn"]: c for c in listing["connections"]}
    found = []
    for row in listing["observed"]:
        connection = by_number[row["conn"]]
        client = int(connection["client"].rsplit(":", 1)[1])
        port = int(connection["server"].rsplit(":", 1)[1])
        if connection["server_is"] == server:
            sent, heard = flows.get((client, port)), flows.get((port, client), b"")
            found.append((row["input"], sent or b"", heard, row["reply"]))
    return found


WORK_CASES = cases("i_worker_work", "worker1 data listener")
HELLO_CASES = cases("i_coordinator_hello", "coordinator control listener")


def plain(data: bytes | bytearray) -> list[tuple[Any, ...]]:
    found = []
    for name, v in frames(data):
        assert name == "RESULT"
        text = ""
        if v["status"]:
            text = bytes(v["payload"]).decode()
            text = ENGINE_WORDS.get(text, text)
        found.append(
            (
                v["request"],
                v["result_hash"],
                v["status"],
                v["result_kind"],
                v["payload_bits"],
                text or v["payload_bytes"],
                [
                    {k: x for k, x in t.items() if not k.endswith("usec")}
                    for t in v["telemetry"]
                ],
            )
        )
    return found


def test_all_recorded_inputs_are_here() -> None:
    assert (len(WORK_CASES), len(HELLO_CASES)) == (60, 36)


def test_a_worker_answers_malformed_work_as_real_builds_do() -> None:
    host = Host(WorkerFacts(MODEL, 4, 7, True, prefill_cap=32), stub=True)
    for name, sent, heard, _ in WORK_CASES:
        link = host.open()
        host.give(link, sent)
        for dial in host.dials:
            dial.forwarder.failed("Connection refused", 5.2)
            host.settle(dial.forwarder)
        host.dials.clear()
        assert plain(host.wrote[link]) == plain(heard), name
        assert link not in host.closed, name


@pytest.mark.parametrize("case", HELLO_CASES, ids=lambda case: case[0])
def test_a_coordinator_judges_malformed_hellos_as_real_builds_do(case: Case) -> None:
    name, sent, heard, reply = case
    registration = Registration(Expected(0, "stub", 8, 1024), now=0.0)
    registration.receive_data(sent, 0.0)
    if name.endswith(", FIN"):
        registration.receive_data(None, 0.0)
    events = list(registration.events())
    wrote = b"".join(b"".join(e.buffers) for e in events if isinstance(e, Transmit))
    assert wrote == heard
    closed = any(isinstance(e, Close) for e in events)
    assert closed == ("stays open" not in reply)
    refused = [e.fault.text for e in events if isinstance(e, HelloRefused)]
    if refused:
        assert refused[0] in reply
