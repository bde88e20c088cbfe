"""Field reports about cancelled requests: whose fault it is that a route ended."""

from __future__ import annotations

from ds4proto.codec.token_hash import TokenHash
from ds4proto.pcap import Endpoint, TcpConversation
from ds4proto.schema.ds4d_work import RESET_SESSION
from tests.link.streams import ds4d, result, telemetry, work
from tests.trace.diagnosis.built import COORDINATOR, HELLO, STATE
from tests.trace.diagnosis.script import Script, of, one, worker


def chunks(script: Script, line: TcpConversation, numbers: range) -> None:
    """Send chunks of a prompt of 16 tokens, two in each, and answer none."""
    for number in numbers:
        at = 2 * (number - 1)
        script.say(line, "b>a", chunk(number, at))


def chunk(number: int, at: int) -> bytes:
    """Return two tokens of a prompt; the first chunk begins the session anew."""
    hashes = TokenHash(range(1, at + 1)).value, TokenHash(range(1, at + 3)).value
    return work(
        number, STATE, pos0=at, tokens=(at + 1, at + 2), prefix_hash=hashes[0],
        result_hash=hashes[1], flags=1 if at else 1 | RESET_SESSION,
    )  # fmt: skip


def answer(number: int, at: int) -> bytes:
    return result(number, result_hash=TokenHash(range(1, at + 3)).value,
                  telemetry=telemetry(pos0=at))  # fmt: skip


def test_a_cancel_after_three_of_eight_chunks_is_no_fault(
    script: Script,
) -> None:
    line = worker(script)
    chunks(script, line, range(1, 4))
    script.say(line, "a>b", answer(1, 0))
    # cancelled: the other five chunks are never sent, and two answers come late
    script.say(line, "a>b", answer(2, 2), wait=40)
    script.say(line, "a>b", answer(3, 4), wait=40)
    script.say(line, "b>a", chunk(4, 0), wait=500)
    script.say(line, "a>b", answer(4, 0))
    findings = script.done()
    assert [f.sentence for f in findings if f.severity != "note"] == []
    replay = one(findings, "route.replay")
    assert "2 tokens of a session that stood at 6 are computed again" in replay.sentence


def test_a_cancel_that_closes_the_connection_is_not_the_workers_fault(
    script: Script,
) -> None:
    line = worker(script)
    chunks(script, line, range(1, 4))
    script.say(line, "a>b", answer(1, 0))
    line.fin(script.tick(), "b>a")
    script.say(line, "a>b", answer(2, 2), wait=40)
    line.fin(script.tick(), "a>b")
    again = script.dial(Endpoint("10.0.0.2", 40001), COORDINATOR)
    script.say(again, "a>b", ds4d("HELLO", **HELLO))
    findings = script.done()
    assert not [f.sentence for f in findings if f.severity == "severe"]
    found = one(findings, "end.cancelled")
    assert found.sentence.startswith("coordinator closed the connection with request 3")
    assert "while worker 4:output still answered" in found.sentence
    assert "worker 4:output is sound" in found.sentence
    assert "drops the answers that are late" in found.next_step
    assert one(findings, "route.rejoined")


def test_a_worker_that_answered_nothing_more_was_not_cancelled(script: Script) -> None:
    line = worker(script)
    chunks(script, line, range(1, 4))
    script.say(line, "a>b", answer(1, 0))
    line.fin(script.tick(8000), "b>a")
    line.fin(script.tick(), "a>b")
    findings = script.done()
    assert not of(findings, "end.cancelled")
    assert one(findings, "end.gave-up").severity == "severe"
