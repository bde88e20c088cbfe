"""What is due: asked of the requests that real peers were given."""

import json
from pathlib import Path
from typing import Any

import pytest
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.judge import judge
from ds4proto_fuzz.ds4d.oracle import Due, Expectation, WorkerOracle
from ds4proto_fuzz.ds4d.wire import Ended, Seen

DATA = Path(__file__).parents[2] / "data" / "ds4d_probes"
NAMES = {4: "RESULT", 2: "ERROR", 6: "SNAPSHOT_BEGIN", 7: "SNAPSHOT_CHUNK",
         8: "SNAPSHOT_DONE"}  # fmt: skip
KEYS = {"request_id": "request", "payload_bytes": "payload_bytes"}
EMPTY = memoryview(b"")
OURS = {
    # safer than the recorded build, see the clauses named in tests/link/ds4d
    "payload_bytes 0 and a bad first token: stream desync",
    "load token_count > ctx",
}


def probes(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (DATA / f"{name}_probes.json").read_text()
    )["probes"]
    return found


def seen(reply: dict[str, Any]) -> Seen:
    words = {KEYS.get(key, key): value for key, value in reply.items()}
    if "result_hash" in words:
        words["result_hash"] = int(words["result_hash"], 16)
    return Seen(NAMES[reply["type"]], reply["body_bytes"], words, EMPTY)


def replies(probe: dict[str, Any]) -> list[Seen]:
    """Return the recorded frames; a shard and its end count as one with its begin."""
    found = [seen(reply) for reply in probe["expect"]]
    saved = found and found[0].name == "SNAPSHOT_BEGIN" and not found[0].refuses
    return found[:1] if saved else found


def expected(name: str, data: str) -> Expectation:
    head = name == "worker_work"
    shard = (DATA / "toy_shard_5_7.dsvl").read_bytes()
    facts = Facts(0, "Toy V4", 8, 5, 7, head, 2, 256, 1, 64, 256, shard)
    oracle = WorkerOracle(facts)
    oracle.feed("data", bytes.fromhex(data))
    return oracle.take("data")


RECORDED = [
    pytest.param(name, probe, id=f"{name}: {probe['name']}")
    for name in ("worker_work", "worker_snapshot")
    for probe in probes(name)
    if probe["name"] not in OURS
]


@pytest.mark.parametrize(("name", "probe"), RECORDED)
def test_a_real_worker_is_never_blamed(name: str, probe: dict[str, Any]) -> None:
    ended: Ended = "closed" if probe["end"] == "closed" else ""
    due = expected(name, probe["send"])
    assert judge(due, replies(probe), ended) is None


REFUSED = [
    (probe["name"], probe)
    for probe in probes("worker_work")
    if len(probe["expect"]) == 1 and probe["expect"][0].get("status") == 1
]


def test_serving_what_was_refused_is_found() -> None:
    served = Seen("RESULT", 80, {"status": 0, "request": 1}, EMPTY)
    uncertain = set()
    for name, probe in REFUSED:
        found = expected("worker_work", probe["send"])
        effect = judge(found, [served], "")
        (wanted,) = found.frames
        if wanted.either:  # depends on what the session holds
            uncertain.add(name)
            continue
        assert effect is not None, name
        assert effect.kind == "silent accept"
        assert effect.clause == wanted.clause
    assert len(REFUSED) == 50
    assert uncertain == {"prefix hash mismatch on a fresh session",
                         "span above prefill cap"}  # fmt: skip


def due(**words: int) -> Expectation:
    values = {"status": 0, "request": 7, "result_hash": 1, "result_kind": 2,
              "payload_bits": 32, "payload_bytes": 1024}  # fmt: skip
    return Expectation([Due(Seen("RESULT", 1104, {**values, **words}, EMPTY))])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"request": 8}, "request of RESULT is wrong"),
        ({"result_hash": 2}, "result_hash of RESULT is wrong"),
        ({"result_kind": 1}, "result_kind of RESULT is wrong"),
        ({"payload_bits": 16}, "payload_bits of RESULT is wrong"),
        ({"payload_bytes": 512}, "payload_bytes of RESULT is wrong"),
        ({"status": 1}, "refuses a sound frame with RESULT"),
    ],
)
def test_a_wrong_word_is_found(change: dict[str, int], what: str) -> None:
    answer = due(**change).frames[0].frame
    effect = judge(due(), [answer], "")
    assert effect is not None
    assert (effect.kind, effect.what) == ("wrong answer", what)


def test_silence_is_a_hang_and_an_end_is_none() -> None:
    effect = judge(due(), [], "silence")
    assert effect is not None
    assert effect.kind == "hang"
    effect = judge(due(), [], "closed")
    assert effect is not None
    assert effect.kind == "wrong answer"


def test_answers_may_be_overtaken_by_the_end_that_is_due() -> None:
    wanted = due()
    wanted.closed = True
    assert judge(wanted, [], "closed") is None
    assert judge(wanted, [due().frames[0].frame], "reset") is None
    effect = judge(wanted, [due().frames[0].frame], "silence")
    assert effect is not None
    assert effect.kind == "silent accept"


def test_a_bad_magic_has_no_answer_and_an_end() -> None:
    found = expected("worker_work", "4454534400000003000000000000")
    assert (found.frames, found.closed) == ([], True)
    assert found.clause == "DS4D-FRAME-01"


def test_a_header_that_announces_much_is_waited_for() -> None:
    found = expected("worker_work", "4453344400000003ffffffff")
    assert (found.frames, found.closed, found.inside) == ([], False, True)
