"""Two preflights on loopback: codes, versions, strangers, one verdict on both sides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.peer import SYSTEM_CLOCK, PeerLost, dial, listen
from ds4proto.peer.proxy import Proxy
from ds4proto.peer.proxy_faults import parse_rule
from ds4proto.preflight.case import make_case
from ds4proto.preflight.facts import Plan, RunFacts
from ds4proto.preflight.gather import Gathered, gather
from ds4proto.preflight.hops import between_joiners, orders
from ds4proto.preflight.link import Sizes, measure, serve
from ds4proto.preflight.live import Outcome, host, join
from ds4proto.preflight.protocol import (
    JoinError,
    answer_challenge,
    new_code,
    receive,
    send,
)
from tests.model.gguf_writer import model as gguf_model

PATIENCE = 120.0


def soon() -> float:
    return SYSTEM_CLOCK.now() + PATIENCE


@pytest.fixture
def flash(tmp_path: Path) -> str:
    made = gguf_model("deepseek4", blocks=43, width=4096, vocabulary=129280)
    path = tmp_path / "flash.gguf"
    path.write_bytes(made.bytes() + bytes(1024))
    return str(path)


def side(name: str, *words: str) -> Gathered:
    return gather(["./ds4", *words], name=name, environment={}, tool=lambda _argv: None,
                  system="linux")  # fmt: skip


def leader(flash: str) -> Gathered:
    return side("a", "--role", "coordinator", "--layers", "0:20", "--listen",
                "127.0.0.1", "9000", "-m", flash, "--ctx", "4096")  # fmt: skip


class Host:
    """A host in a thread; `result` gives its outcome or raises its error."""

    def __init__(
        self, mine: Gathered, code: str, wait: float = PATIENCE, joiners: int = 1
    ) -> None:
        self.said: list[str] = []
        self._listener = listen()
        self.address = self._listener.address
        self._outcome: Outcome | Exception | None = None

        def work() -> None:
            try:
                self._outcome = host(
                    self._listener, mine, code, joiners=joiners, run=RunFacts(),
                    wait=wait, say=self.said.append,
                )  # fmt: skip
            except Exception as error:
                self._outcome = error
            finally:
                self._listener.close()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def result(self) -> Outcome:
        self._thread.join(4 * PATIENCE)
        assert not self._thread.is_alive()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


def test_both_sides_get_one_outcome(flash: str) -> None:
    code = new_code()
    waiting = Host(leader(flash), code)
    worker = side("b", "--role", "worker", "--layers", "22:output", "--coordinator",
                  "127.0.0.1", "9001", "-m", flash, "--ctx", "1024")  # fmt: skip
    theirs = join(waiting.address, worker, f" {code.upper()} ", wait=PATIENCE)
    mine = waiting.result()
    assert mine.document()["findings"] == theirs.document()["findings"]
    found = {f.check: f for f in mine.findings}
    assert found["layers.gap"].prints == (
        "distributed route incomplete: missing layer 21"
    )
    assert found["hello.refused"].prints == (
        "worker context too small: worker=1024 coordinator=4096"
    )
    assert found["dial.port"].where == "b"
    (link,) = mine.links
    assert link.rtt_ms["hidden state"][0] == 4 * 16384
    assert set(link.rtt_ms) == {"ping", "hidden state"}
    assert min(link.to_gbit, link.from_gbit, link.both_gbit) > 0
    assert mine.document()["prediction"][0]["decode"] > 0
    assert abs(mine.gathered[1].machine.clock or 0) < 5


def stage(name: str, layers: str, flash: str, *more: str) -> Gathered:
    return side(name, "--role", "worker", "--layers", layers, "--coordinator",
                "127.0.0.1", "9000", "-m", flash, *more)  # fmt: skip


def three(flash: str, third: Gathered) -> tuple[Outcome, Outcome, list[str]]:
    """Return the outcome of the host and of the third machine, and what was said."""
    waiting = Host(leader(flash), "aaaaaaaa", joiners=2)
    second = threading.Thread(
        target=join,
        args=(waiting.address, stage("b", "21:30", flash), "aaaaaaaa"),
        kwargs={"wait": PATIENCE},
        daemon=True,
    )
    second.start()
    theirs = join(waiting.address, third, "aaaaaaaa", wait=PATIENCE)
    second.join(4 * PATIENCE)
    return waiting.result(), theirs, waiting.said


def test_two_joiners_measure_the_hop_between_them(flash: str) -> None:
    mine, theirs, said = three(flash, stage("c", "31:output", flash))
    assert [link.between for link in mine.links] == [("", ""), ("", ""), ("b", "c")]
    hop = mine.links[2]
    # the size of a hidden state is that of the run, the address that of the worker
    assert hop.rtt_ms["hidden state"][0] == 4 * 16384
    assert (hop.local, hop.remote) == ("127.0.0.1", "127.0.0.1")
    assert min(hop.to_gbit, hop.from_gbit, hop.both_gbit) > 0
    assert {link.between for link in mine.plan.links} == {
        ("a", "b"), ("a", "c"), ("b", "c"),
    }  # fmt: skip
    assert theirs.document()["measured"] == mine.document()["measured"]
    assert said[-1] == "having the link from b to c measured"
    assert not [f for f in mine.findings if f.check == "link.not-measured"]


def test_a_hop_that_cannot_be_measured_is_a_note(flash: str) -> None:
    """An address of no machine: the rest is judged all the same."""
    third = stage("c", "31:output", flash, "--listen", "192.0.2.7", "9100")
    mine, _, _ = three(flash, third)
    assert len(mine.links) == 2
    (note,) = [f for f in mine.findings if f.check == "link.not-measured"]
    assert (note.severity, note.where) == ("note", "b, c")
    assert "192.0.2.7" in note.what
    assert "--allow-remote" in note.next_step


def test_hops_leave_out_whom_the_host_measures(flash: str) -> None:
    def hops(*joined: str) -> list[tuple[str, str, str]]:
        machines = [
            leader(flash).machine,
            stage("b", "31:output", flash).machine,
            stage("c", "21:30", flash, "--listen", "10.0.0.3", "9100").machine,
        ]
        model = leader(flash).model
        assert model is not None
        for machine in machines:
            machine.model = "flash"
        plan = Plan(tuple(machines), {"flash": model}, (), RunFacts())
        found = between_joiners(make_case(plan), joined)
        return [(hop.dialler, hop.listener, hop.host) for hop in found]

    assert hops("b", "c") == [("c", "b", "")]
    # the coordinator joined too: its first worker dials it
    assert hops("a", "c") == [("c", "a", "127.0.0.1")]
    assert hops("a", "b") == []


def test_a_stranger_at_the_measuring_port_is_refused(flash: str) -> None:
    """The listener asks for the secret of this hop, and the host hears of it."""
    with listen() as listener:
        ours = dial(*listener.address, deadline=soon())
        theirs = listener.accept(deadline=soon())
    work = orders(theirs, allow_remote=False)["open"]
    thread = threading.Thread(target=work, args=({"host": "127.0.0.1", "code": "s"},))
    thread.start()
    port = receive(ours, "opened")["port"]
    stranger = dial("127.0.0.1", port, deadline=soon())
    with pytest.raises(JoinError, match="the code is wrong"):
        answer_challenge(stranger, "another")
    assert "something else" in receive(ours, "failed")["reason"]
    thread.join(PATIENCE)
    for channel in (ours, theirs, stranger):
        channel.close()


def test_a_wrong_code_is_refused_and_the_right_one_still_works(flash: str) -> None:
    waiting = Host(leader(flash), "aaaaaaaa")
    worker = side("b", "--role", "worker")
    with pytest.raises(JoinError, match="the code is wrong"):
        join(waiting.address, worker, "bbbbbbbb", wait=PATIENCE)
    assert join(waiting.address, worker, "aaaaaaaa", wait=PATIENCE).findings
    waiting.result()
    assert "gave a wrong code" in waiting.said[0]


def test_codes_cannot_be_tried_for_ever(flash: str) -> None:
    waiting = Host(leader(flash), "aaaaaaaa")
    for _ in range(5):
        with pytest.raises(JoinError, match="the code is wrong"):
            join(waiting.address, side("b"), "bbbbbbbb", wait=PATIENCE)
    with pytest.raises(JoinError, match="without the right code"):
        waiting.result()


def test_another_version_is_told_both_numbers(flash: str) -> None:
    waiting = Host(leader(flash), "aaaaaaaa")
    channel = dial(*waiting.address, deadline=soon())
    receive(channel, "challenge")
    send(channel, "answer", version=2, proof="")
    with pytest.raises(JoinError, match=r"versions 1 \(host\) and 2 \(joiner\)"):
        receive(channel, "welcome")
    channel.close()
    assert join(waiting.address, side("b"), "aaaaaaaa", wait=PATIENCE).findings
    waiting.result()


def test_the_code_never_crosses_the_wire(flash: str) -> None:
    seen = bytearray()
    with listen() as listener:

        def answer() -> None:
            channel = listener.accept(deadline=soon())
            send(channel, "challenge", version=1, nonce="00")
            head = bytearray(4)
            channel.recv_exact(head, deadline=soon())
            body = bytearray(int.from_bytes(head, "big"))
            channel.recv_exact(body, deadline=soon())
            seen.extend(body)
            channel.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises((JoinError, PeerLost)):
            join(listener.address, side("b"), "topsecret", wait=PATIENCE)
        thread.join(PATIENCE)
    assert b"proof" in seen
    assert b"topsecret" not in seen


@pytest.mark.parametrize(
    ("greeting", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no preflight of ours"),
        (b"\0\0\0\2{}", "expected the message challenge, found None"),
        (b"\0\0\0\2\xff\xff", "expected the message challenge, found None"),
    ],
)
def test_strangers_are_named(greeting: bytes, says: str) -> None:
    with listen() as listener:

        def answer() -> None:
            channel = listener.accept(deadline=soon())
            channel.send([greeting], deadline=soon())
            channel.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(JoinError, match=says):
            join(listener.address, side("b"), "x", wait=PATIENCE)
        thread.join(PATIENCE)


def test_nobody_comes_and_nobody_is_there(flash: str) -> None:
    with pytest.raises(PeerLost, match="waiting for another machine to join"):
        Host(leader(flash), "a", wait=0.05).result()
    with listen() as listener:
        address = listener.address
    with pytest.raises(PeerLost, match="dialling the first machine"):
        join(address, side("b"), "a", wait=PATIENCE)


def test_strange_facts_are_refused(flash: str) -> None:
    waiting = Host(leader(flash), "aaaaaaaa")
    channel = dial(*waiting.address, deadline=soon())
    answer_challenge(channel, "aaaaaaaa")
    send(channel, "facts", gathered='{"machine": 3}')
    # it goes on waiting for another machine, which comes and joins
    assert join(waiting.address, side("b"), "aaaaaaaa", wait=PATIENCE).findings
    waiting.result()
    assert "cannot be read" in waiting.said[0]
    channel.close()


def pair(work: Callable[[Any], Any]) -> Any:
    """Run `measure` here against `work` in a thread."""
    with listen() as listener:

        def other() -> None:
            channel = dial(*listener.address, deadline=soon())
            work(channel)
            channel.close()

        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        channel = listener.accept(deadline=soon())
        try:
            report = measure(channel, Sizes(gate=16384))
            send(channel, "report")
            return report
        finally:
            channel.close()
            thread.join(PATIENCE)


def test_gates_are_measured_at_their_size() -> None:
    report = pair(serve)
    assert report.rtt_ms["gate"][0] == 16384
    for _, p50, p99 in report.rtt_ms.values():
        assert 0 < p50 <= p99


def test_a_slow_link_is_measured_and_its_cost_told_before_the_run(flash: str) -> None:
    """77 ms of round trip: about ten tokens a second, and the words "slow link"."""
    code = new_code()
    waiting = Host(leader(flash), code, wait=PATIENCE)
    worker = side("b", "--role", "worker", "--layers", "21:output", "--coordinator",
                  "127.0.0.1", "9000", "-m", flash, "--ctx", "4096")  # fmt: skip
    with Proxy(listen(), waiting.address, rules=[parse_rule("delay=38.5ms")]) as proxy:
        join(proxy.address, worker, code, wait=PATIENCE)
    outcome = waiting.result()
    assert outcome.links[0].rtt_ms["ping"][1] >= 77
    slow = next(f for f in outcome.findings if f.check == "link.slow")
    assert slow.what.startswith("slow link: every token waits for a round trip")
    found = outcome.document()["prediction"][0]
    assert 1 < found["decode"] < 13
    assert found["bound"] == "latency"


@pytest.mark.parametrize("more", [(), ("--join", "127.0.0.1:1", "--code", "x")])
def test_a_model_that_cannot_be_read_is_told_before_anybody_waits(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent, other = tmp_path / "absent.gguf", tmp_path / "other.gguf"
    other.write_bytes(b"no GGUF at all" * 9)
    for path, why in ((absent, "No such file or directory"), (other, "magic")):
        words = ["./ds4", "--role", "coordinator", "-m", str(path)]
        assert run(["preflight", *more, "--", *words]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"ds4proto: -m {path}: expected a readable GGUF file")
        assert why in err
        assert "waiting" not in err
