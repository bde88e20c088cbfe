"""Forwarding: what changes in a WORK, and every event of the forward connection."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_worker import WorkerLink
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, raw, record, result, texts, work
from tests.link.ds4d.host import Host

ROUTE = [record(2, 4, host="10.0.0.1"), record(5, 7, flags=1, host="10.0.0.2", port=9)]
TELEMETRY = {
    "layer_start": 5,
    "layer_end": 7,
    "route_index": 1,
    "pos0": 0,
    "n_tokens": 1,
    "eval_usec": 11,
    "downstream_wait_usec": 0,
    "forward_send_usec": 0,
    "input_bytes": 260,
    "output_bytes": 1024,
}


def hop(request: int = 1, **values: Any) -> bytes:
    base: dict[str, Any] = {"flags": 1, "slice_": (2, 4), "route": ROUTE}
    return work(request=request, **{**base, **values})


class Chain:
    """A middle worker with one request on its way to the next."""

    def __init__(self, *, requests: int = 1, dialled: bool = True, **options: Any):
        self.host = Host(toy.facts(2, 4, head=False), **options)
        self.up: WorkerLink = self.host.open()
        for number in range(requests):
            before = tuple(range(number))
            self.host.give(self.up, hop(number + 1, tokens=(number,), before=before))
        self.down: Forwarder = self.host.dials[0].forwarder
        if dialled:
            self.down.opened(self.host.now)
            self.host.settle(self.down)

    def hear(self, data: bytes | None) -> None:
        self.host.give(self.down, data)

    @property
    def said(self) -> list[str]:
        return texts(self.host.wrote[self.up])

    @property
    def closed(self) -> bool:
        return self.up in self.host.closed


@pytest.mark.parametrize("bits", [32, 16, 8, 0])
def test_a_forwarded_work_differs_in_nothing_but_the_hop(bits: int) -> None:
    host = Host(toy.facts(2, 4, head=False))
    up = host.open()
    sent = hop(tokens=(5, 6), bits=bits, flags=1 | 4 | 8)
    host.give(up, sent)
    dial = host.dials[0]
    assert (dial.host, dial.port) == ("10.0.0.2", 9)
    dial.forwarder.opened(0.0)
    host.settle(dial.forwarder)
    ((_, before),) = frames(sent)
    ((name, after),) = frames(host.wrote[dial.forwarder])
    assert name == "WORK"
    rows = toy.unpack(before["hidden"], bits or 32, 2)
    wanted = toy.pack(toy.Slice(2, 4).run((5, 6), rows), bits or 32)
    assert bytes(after.pop("hidden")) == wanted
    changed = {
        "layer_start": 5,
        "layer_end": 7,
        "route_index": 1,
        "flags": 1 | 2 | 4 | 8,
        "input_hc_bits": bits or 32,
    }
    before.pop("hidden")
    assert after == {**before, **changed}


def test_the_answer_gains_one_record_behind_the_others() -> None:
    chain = Chain()
    chain.down.written(1, 0.0, 0.25)
    chain.host.now = 0.75
    chain.hear(
        result(1, status=77, result_kind=2, payload_bits=9, payload=b"abc",
               telemetry=[TELEMETRY])
    )  # fmt: skip
    ((_, values),) = frames_unjudged(chain.host.wrote[chain.up])
    assert (values["status"], values["payload_bits"]) == (77, 9)
    assert bytes(values["payload"]) == b"abc"
    first, own = values["telemetry"]
    assert first == TELEMETRY
    assert own == {
        "layer_start": 2,
        "layer_end": 4,
        "route_index": 0,
        "pos0": 0,
        "n_tokens": 1,
        "eval_usec": 0,
        "downstream_wait_usec": 500_000,
        "forward_send_usec": 250_000,
        "input_bytes": 260,
        "output_bytes": 256,
    }


def frames_unjudged(data: bytearray) -> list[tuple[str, dict[str, Any]]]:
    from ds4proto.schema import frame, read

    spec = frame("DS4D.RESULT", dialect="upstream")
    return [("RESULT", dict(read(spec, bytes(data), dialect="upstream").values))]


def test_a_failed_dial_answers_and_keeps_the_connection() -> None:
    chain = Chain(dialled=False)
    chain.down.failed("Connection refused", 5.2)
    chain.host.settle(chain.down)
    assert chain.said == ["unable to connect to 10.0.0.2:9: Connection refused"]
    ((_, values),) = frames(chain.host.wrote[chain.up])
    assert values["telemetry_count"] == 0
    assert not chain.closed
    # The span was evaluated before the dial, so a repeat is refused by its hash.
    chain.host.give(chain.up, hop(2, tokens=(0,)))
    assert chain.said[1] == "worker KV prefix hash mismatch"
    chain.host.give(chain.up, hop(3, tokens=(0,), flags=5))
    assert len(chain.host.dials) == 2


def test_a_name_that_does_not_resolve_has_its_own_text() -> None:
    chain = Chain(dialled=False)
    chain.down.failed("Name or service not known", 0.0, resolving=True)
    chain.host.settle(chain.down)
    assert chain.said == ["getaddrinfo(10.0.0.2:9): Name or service not known"]


LOST = [
    ("bad magic", b"XXXX" + bytes(8), "next worker closed connection"),
    ("other type", raw(8, bytes(16)), "next worker did not return valid RESULT"),
    ("short body", raw(4, bytes(39)), "next worker did not return valid RESULT"),
    ("other id", result(7), "next worker RESULT metadata mismatch"),
    (
        "lengths",
        result(1, payload_bytes=9),
        "next worker RESULT metadata mismatch",
    ),
    (
        "too large",
        raw(4, result(1, payload_bytes=5000)[12:] + bytes(5000)),
        "next worker RESULT metadata mismatch",
    ),
]


@pytest.mark.parametrize(
    ("data", "text"), [row[1:] for row in LOST], ids=[row[0] for row in LOST]
)
@pytest.mark.parametrize("policy", ["safe", "upstream"])
def test_a_damaged_answer_is_reported_and_ends_the_chain(
    data: bytes, text: str, policy: str
) -> None:
    chain = Chain(requests=3, policy=policy)
    chain.hear(data)
    assert chain.said == [text] * (3 if policy == "safe" else 1)
    assert chain.closed
    assert chain.down in chain.host.closed


def test_an_end_with_requests_pending() -> None:
    chain = Chain(requests=2)
    chain.hear(None)
    assert chain.said == ["next worker closed connection"] * 2
    assert chain.closed


def test_an_end_with_nothing_pending_closes_without_a_frame() -> None:
    chain = Chain()
    chain.hear(result(1, telemetry=[TELEMETRY]))
    assert chain.said == ["RESULT"]
    chain.hear(None)
    assert chain.said == ["RESULT"]
    assert chain.closed


def test_an_end_inside_the_fixed_part() -> None:
    chain = Chain()
    chain.hear(result(1)[:30])
    chain.hear(None)
    assert chain.said == ["next worker closed while returning RESULT"]
    assert chain.closed


def test_an_end_inside_the_payload_sends_nothing_of_the_frame() -> None:
    chain = Chain()
    chain.hear(result(1, result_kind=2, payload=bytes(1024))[:500])
    chain.hear(None)
    assert chain.said == []
    assert chain.closed


def test_an_answer_that_nobody_awaits_ends_the_chain() -> None:
    chain = Chain()
    chain.hear(result(1, telemetry=[TELEMETRY]) + result(2))
    assert chain.said == ["RESULT"]
    assert chain.closed


def test_a_failed_write_is_reported() -> None:
    chain = Chain(requests=2)
    chain.down.broken(0.0)
    chain.host.settle(chain.down)
    assert chain.said == ["failed to forward distributed work"] * 2
    assert chain.closed


def test_the_window_holds_evaluation_back() -> None:
    chain = Chain(requests=7)
    assert [n for n, _ in frames(chain.host.wrote[chain.down])] == ["WORK"] * 4
    assert chain.host.slices[9].count == 4
    chain.hear(result(1))
    assert [n for n, _ in frames(chain.host.wrote[chain.down])] == ["WORK"] * 5
    for request in range(2, 8):
        chain.hear(result(request))
    assert [v["request"] for _, v in frames(chain.host.wrote[chain.up])] == [
        *range(1, 8)
    ]


def test_a_refusal_of_our_own_waits_for_the_answers_before_it() -> None:
    chain = Chain(requests=2)
    chain.host.give(chain.up, hop(3, tokens=(9,)))
    assert chain.said == []
    chain.hear(result(1))
    chain.hear(result(2))
    assert chain.said == ["RESULT", "RESULT", "worker KV prefix hash mismatch"]


def test_a_half_close_waits_for_the_next_worker() -> None:
    chain = Chain(requests=2)
    chain.host.give(chain.up, None)
    assert not chain.closed
    chain.hear(result(1))
    chain.hear(result(2))
    assert chain.said == ["RESULT", "RESULT"]
    assert chain.closed
    assert chain.down in chain.host.closed


def test_a_silent_next_worker_is_noticed() -> None:
    chain = Chain(limits=LinkLimits(forward_s=9.0))
    assert chain.down.deadline() == 9.0
    chain.down.timeout(9.0)
    chain.host.settle(chain.down)
    assert chain.said == ["next worker did not answer within 9 s"]
    assert chain.closed


def test_one_connection_for_each_next_address() -> None:
    chain = Chain(requests=2)
    other = [ROUTE[0], record(5, 7, flags=1, host="10.0.0.3", port=9)]
    chain.host.give(chain.up, hop(3, tokens=(7,), flags=5, route=other))
    assert [dial.host for dial in chain.host.dials] == ["10.0.0.2", "10.0.0.3"]
    chain.host.give(chain.up, hop(4, tokens=(7,), flags=5))
    assert len(chain.host.dials) == 2
