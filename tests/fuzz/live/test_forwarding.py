"""A worker with a next hop that we play: routes, what goes down, what comes up."""

import os
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.forward_cases import ForwardCases, leads_elsewhere
from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.ds4d.judge import judge
from ds4proto_fuzz.ds4d.next_hop import NextHop, judge_forwarded
from ds4proto_fuzz.ds4d.oracle import Due, WorkerOracle
from ds4proto_fuzz.ds4d.wire import seen_of
from ds4proto_fuzz.ds4d.worker_cases import STATES, WorkerCases
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding, Store
from ds4proto_fuzz.hunt import Hunt
from ds4proto_fuzz.mutants import spec_of
from ds4proto_fuzz.mutate import with_field
from ds4proto_fuzz.planted import search
from ds4proto_fuzz.roles import target_of
from ds4proto_fuzz.target import Settings
from ds4proto_fuzz.watch import Meter

from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header
from ds4proto.peer.connect import free_ports
from ds4proto.schema.ds4d_work import WORK

MIDDLE = Facts(0, "Toy V4", 8, 2, 4, False, 2, 256, 4000, 64, 256, b"SHRD" + bytes(60))
LAST = replace(MIDDLE, layer_start=5, layer_end=7, has_output=True)
MAKE = ForwardCases(MIDDLE, Frames(MIDDLE))
ROUTE = MAKE.blob([MAKE.own(), *MAKE.rest()])
PORT = 4001
PATIENCE = 20.0


def work(tokens: tuple[int, ...] = (1, 2), request: int = 7) -> bytes:
    data = MAKE.work(POOL[0], tokens, ROUTE, 2, request=request)
    step = Step("above", "WORK", data, ports=MAKE.places(data))
    return step.placed(data, {"next": PORT, "own": MIDDLE.port})


def forwarding() -> tuple[WorkerOracle, Due]:
    oracle = WorkerOracle(MIDDLE, PORT)
    oracle.feed("above", work())
    (due,) = oracle.take("next").frames
    assert not oracle.take("above").frames
    return oracle, due


def test_the_route_of_a_case_is_that_of_a_worker_in_the_middle() -> None:
    words = forwarding()[1].frame.words
    assert (words["layer_start"], words["layer_end"], words["route_index"]) == (5, 7, 1)
    assert words["flags"] == 1 | 2 | 4  # INPUT_HC, OUTPUT_LOGITS, RESET_SESSION
    assert (words["request"], words["n_tokens"]) == (7, 2)


def test_what_the_next_hop_says_comes_up_with_one_more_record() -> None:
    oracle, _ = forwarding()
    oracle.feed("next", MAKE.result(7, (1, 2)))
    (up,) = oracle.take("above").frames
    assert up.relayed
    assert (up.frame.words["request"], up.frame.words["telemetry_count"]) == (7, 2)
    assert up.frame.words["payload_bytes"] == 4 * 256
    assert bytes(up.frame.body[-3:]) == MAKE.result(7, (1, 2))[-3:]


@pytest.mark.parametrize(
    ("said", "clause"),
    [
        (MAKE.result(8, (1, 2)), "DS4D-FWD-14"),
        (Frames(MIDDLE).probe, "DS4D-FWD-12"),
        (None, "DS4D-FWD-10"),
    ],
)
def test_a_next_hop_that_lies_ends_both_sides(said: bytes | None, clause: str) -> None:
    oracle, _ = forwarding()
    oracle.feed("next", said)
    above, below = oracle.take("above"), oracle.take("next")
    (due,) = above.frames
    assert due.frame.refuses
    assert (due.clause, above.closed, below.closed) == (clause, True, True)
    silent = judge(above, [], "silence")
    assert silent is not None
    assert (silent.kind, silent.clause) == ("silent accept", clause)
    assert judge(above, [], "closed") is None


def test_a_relayed_answer_is_compared_to_the_last_byte() -> None:
    oracle, _ = forwarding()
    oracle.feed("next", MAKE.result(7, (1, 2)))
    due = oracle.take("above")
    answer = due.frames[0].frame
    assert judge(due, [answer], "") is None
    spoilt = bytearray(answer.body)
    spoilt[-1] ^= 1
    other = replace(answer, body=memoryview(bytes(spoilt)))
    effect = judge(due, [other], "")
    assert effect is not None
    assert effect.what == "the payload of a relayed RESULT differs"
    words = {**answer.words, "telemetry_count": 1}
    effect = judge(due, [replace(answer, words=words)], "")
    assert effect is not None
    assert effect.what == "telemetry_count of a relayed RESULT is wrong"


def test_what_a_session_held_before_may_keep_a_work_from_the_next_hop() -> None:
    # without RESET_SESSION the prefix may differ from what the session holds
    oracle = WorkerOracle(MIDDLE, PORT)
    oracle.feed("above", with_field(WORK, "upstream", work((23,)), "flags", 1))
    assert oracle.take("above").loose
    below = oracle.take("next")
    assert below.loose
    assert below.frames[0].either
    assert not forwarding()[1].either  # a session that was reset holds what is known


def test_a_forwarded_work_is_compared_but_for_its_hidden_state() -> None:
    due = forwarding()[1]
    body = bytearray(due.frame.body)
    body[-len(ROUTE) - 3] ^= 1
    same = seen_of(3, memoryview(bytes(body)))
    assert judge_forwarded(due, same) is None
    asked = Frames(MIDDLE).work(POOL[0], (1, 2), request=7)
    effect = judge_forwarded(due, seen_of(3, memoryview(asked)[HEADER_SIZE:]))
    assert effect is not None
    assert effect.what == "layer_start of the forwarded WORK is wrong"
    cut = judge_forwarded(due, seen_of(3, memoryview(bytes(body[:-1]))))
    assert cut is not None
    assert cut.what == "a WORK that is not sound reaches the next hop"


@pytest.mark.parametrize(
    ("change", "elsewhere"),
    [
        ({}, False),
        ({"host": b"192.0.2.1"}, True),
        ({"host": b"128.0.0.1"}, True),
        ({"host": b"127.0.0.1\0x"}, False),
        ({"host": b"x" * 1025}, False),
        ({"port": 22}, True),
        ({"port": 65536}, False),
    ],
)
def test_no_case_leads_to_a_stranger(
    change: dict[str, object], elsewhere: bool
) -> None:
    (last,) = MAKE.rest()
    data = MAKE.work(POOL[0], (1,), MAKE.blob([MAKE.own(), last | change]), 2)
    assert leads_elsewhere(data, [at for at, _ in MAKE.places(data)]) == elsewhere


@pytest.mark.parametrize("facts", [MIDDLE, LAST])
def test_routes_are_attacked_in_every_way_and_lead_to_us(facts: Facts) -> None:
    make, kinds = WorkerCases(facts), Counter[tuple[str, str]]()
    for index in range(3000):
        case = make.make(1, index)
        if case.state not in ("route", "forwarded"):
            continue
        kinds[case.state, case.kind.partition(" ")[2]] += 1
        assert Case.from_json(case.as_json()) == case
        for step in case.steps:
            assert step.on in ("above", "next")
            places = [at for at, _ in step.ports]
            assert step.on == "next" or not leads_elsewhere(step.data, places)
    routes = {kind for state, kind in kinds if state == "route"}
    assert {"field", "host", "count", "range", "loop", "many", "cut", "surplus",
            "bits", "return", "frame"} <= routes  # fmt: skip
    answers = {kind for state, kind in kinds if state == "forwarded"}
    if facts is LAST:
        assert not answers
    else:
        assert {"boundary", "lying length", "sound", "drip", "cut", "repeat",
                "swapped", "other frame", "closes", "resets"} <= answers  # fmt: skip


def test_a_worker_of_another_machine_gets_no_routes() -> None:
    make = WorkerCases(MIDDLE, routes=False)
    seen = {make.make(1, index).state for index in range(500)}
    assert seen <= set(STATES) - {"route", "forwarded"}


def test_whom_a_process_has_dialled_is_seen() -> None:
    meter = Meter(os.getpid())
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        port, own = server.getsockname()[1], ours.getsockname()[1]
        others = {one.raddr.port for one in meter._connections() if one.raddr}
        assert meter.strangers(0, others) is None
        found = meter.strangers(0, others - {port})
        assert found is not None
        assert found.detail == f"127.0.0.1:{port}"
        assert meter.strangers(own, others - {port}) is None


def test_a_dial_that_nobody_asked_for_is_seen() -> None:
    hop = NextHop()
    oracle = WorkerOracle(MIDDLE, hop.port)
    oracle.feed("above", MAKE.work(POOL[0], (1,), ROUTE, 3))
    due = oracle.take("above")
    assert due.frames[0].frame.refuses
    try:
        assert hop.surprised(due) is None
        with socket.create_connection(("127.0.0.1", hop.port)):
            effect = hop.surprised(due)
        assert effect is not None
        assert (effect.kind, effect.clause) == ("silent accept", due.frames[0].clause)
    finally:
        hop.close()


def test_a_sound_worker_in_the_middle_is_not_blamed(tmp_path: Path) -> None:
    spec = spec_of("worker", "middle")
    under_fire = target_of(Settings(spec, "worker", patience=PATIENCE))
    try:
        under_fire.start()
        known = [i for i in range(320) if under_fire.make(2, i).state in
                 ("route", "forwarded")]  # fmt: skip
        tally = Hunt(under_fire, 2, Store(tmp_path)).run(known)
    finally:
        under_fire.stop()
    assert (tally.cases, tally.findings, tally.unproven) == (len(known), [], {})
    led = {(state, led) for state, _, led in tally.reached.counts}
    assert {("forwarded", "served"), ("forwarded", "closed"), ("route", "refused"),
            ("route", "forwarded")} <= led  # fmt: skip


def test_a_wrong_forward_is_found_and_reduced() -> None:
    row = search(
        "worker", "forwards-own-layers", 1, patience=PATIENCE, limit=900.0,
        quick=PATIENCE,
    )  # fmt: skip
    assert row.finding is not None, row
    assert row.finding.effect.kind == "wrong answer"
    assert len(row.finding.case.steps) == 1


def test_the_script_plays_the_next_hop_too(tmp_path: Path) -> None:
    data = MAKE.work(POOL[0], (1,), ROUTE, 2)
    steps = (
        Step("above", "WORK", data, then="wait", ports=MAKE.places(data)),
        Step("next", "RESULT", MAKE.result(1, (1,))[:20], "cut", then="half-close"),
    )
    assert unpack_header(steps[1].data)[1] == 4
    effect = Effect("crash", "the process ends with status 1")
    peer = {"spec": "exec:x", "role": "worker", **MIDDLE.identity()}
    found = Finding(effect, Case(1, 2, "forwarded", "next cut", steps), peer)
    path = Store(tmp_path).add(found) / "replay.py"
    assert len(path.read_text().splitlines()) < 30
    (port,) = free_ports(1)
    there = ["127.0.0.1", str(port)]
    script = subprocess.Popen(
        [sys.executable, "-I", str(path), *there], stdout=subprocess.PIPE, text=True
    )
    words = ["-m", "ds4proto_fuzz.mutants", "worker", "crash-next-ends", *there]
    worker = subprocess.Popen(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True
    )
    try:
        _, errors = worker.communicate(timeout=300)
        assert "EOFError: 20 bytes of a RESULT" in errors
        assert script.communicate(timeout=300)[0]
    finally:
        for process in (script, worker):
            process.kill()
            process.wait()
