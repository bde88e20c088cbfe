"""Clauses of a pair's start, bulk gates and end that recordings of real builds show."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

import dpkt

from tests.spec.recorded_pairs import GATES, SHORT, exits, leader, worker
from tests.spec.recordings import (
    Segment,
    altered,
    dropped,
    facts,
    log,
    of,
    placed,
    renamed,
    resent,
    retold,
    rows,
    segments,
)
from tests.spec.tp_showing import shows

# bulk gates


@shows(
    (
        "DS4B-BULK-10",
        "the first number of the group",
        altered(lambda r: r.type == "GATE_BULK" and r.fields["seq"] == 8, seq=5),
    ),
    (
        "DS4T-SEQ-05",
        "one number a group",
        altered(lambda r: r.type == "GATE_BATCH", seq=33),
    ),
)
def a_wave_group_carries_its_last_number() -> None:
    found = rows("ds4t/v9_rdma_mlx5_waves")
    for side in (leader, worker):
        bulk = [r.fields for r in of(found, "GATE_BULK") if side(r)]
        assert {g["tag"] for g in bulk} == {0x0B17}
        assert [g["layer"] for g in bulk] == [*range(32)] * 2
        first = [g["seq"] for g in bulk[:32]]
        assert first == [4 * (n + 1) for n in range(32)]
        batch = [r.fields["seq"] for r in of(found, "GATE_BATCH") if side(r)]
        assert batch == [128 + n + 1 for n in range(len(batch))]
        assert len(batch) == 32
        assert bulk[32]["seq"] == 160 + 4


ROUND: Final = 2 << 20


def at_once(found: list[Segment]) -> list[Segment]:
    """Let one side send its whole payload before the other side says a byte."""
    one = [s for s in found if s.way == "a>b"]
    return one + [s for s in found if s.way != "a>b"]


@shows(
    ("DS4B-BULK-06", "payload in front of the peer's header", resent(at_once)),
)
def a_bulk_gate_is_a_header_and_then_rounds_of_two_mebibytes() -> None:
    name = "ds4t/v9_bulk_over_2mib_full"
    gates = of(rows(name), "GATE_BULK")
    assert [r.length for r in gates] == [16 + 520 * 4096] * 2
    assert all(r.length > 16 + ROUND for r in gates)
    data = gates[0].stream - 1
    totals = {"a>b": 0, "b>a": 0}
    for one in segments(name):
        if one.number != data or not one.data:
            continue
        other = "b>a" if one.way == "a>b" else "a>b"
        before = totals[one.way]
        if before >= 16:
            assert totals[other] >= 16, "payload before the peer's header was there"
        if before >= 16 + ROUND:
            assert totals[other] >= 16 + ROUND, "a second round before the first ended"
        totals[one.way] += len(one.data)
    assert set(totals.values()) == {16 + 520 * 4096}
    # a wrong header is refused before any payload
    name = "ds4t/v10_to_leader_big_tag_rows"
    assert any("big gate desync" in line for line in log(name, "leader"))
    sent = sum(len(s.data) for s in segments(name) if s.number == 1 and s.way == "b>a")
    assert sent == 16


# start and end


@shows(
    (
        "DS4T-LIFE-01",
        "a connection of the leader's",
        placed(lambda r: r.type == "HELLO" and worker(r), direction="b>a"),
    ),
    (
        "DS4T-LIFE-02",
        "the gates on the first connection",
        renamed(lambda r: r.type == "EVAL", "GATE_ROW"),
    ),
)
def the_worker_opens_control_and_then_data() -> None:
    for name in SHORT:
        found = rows(name)
        opened = [s for s in segments(name) if s.flags == dpkt.tcp.TH_SYN]
        assert [s.number for s in opened] == [0, 1]
        assert {s.way for s in opened} == {"a>b"}
        hellos = of(found, "HELLO")
        assert {r.stream for r in hellos} == {1}
        assert [r.direction for r in hellos if worker(r)] == ["a>b"]
        assert {r.stream for r in of(found, *GATES)} == {2}


def soon(found: list[Segment]) -> list[Segment]:
    return [s._replace(time=s.time / 2) for s in found]


@shows(
    ("DS4T-LIFE-05", "tries 100 ms apart", resent(soon)),
    (
        "DS4T-LIFE-04",
        "a second worker is let in",
        retold("(Connection refused)", "(connected)"),
    ),
)
def a_worker_dials_every_200_ms_and_is_refused_once_a_pair_is_up() -> None:
    for version in (7, 10):
        name = f"ds4t/v{version}_worker_first"
        tries = [
            s.time for s in segments(name)
            if s.flags == dpkt.tcp.TH_SYN and s.number < 5
        ]  # fmt: skip
        gaps = [b - a for a, b in pairwise(tries)][:3]
        assert len(gaps) == 3
        assert all(0.2 <= gap < 0.3 for gap in gaps), gaps
        assert exits(name) == {"leader": 0, "worker": 0}
    name = "ds4t/v9_late_second_worker"
    assert log(name, "worker_b")[-1].endswith("(Connection refused)")
    assert exits(name)["worker_a"] == 0


@shows(
    ("DS4T-LIFE-08", "no reason", retold(": Address already in use", "")),
)
def a_port_that_is_taken_is_named() -> None:
    name = "ds4t/v7_two_leaders_same_port"
    (line,) = log(name, "leader_b")
    assert re.fullmatch(
        r"leader: tp listen 127\.0\.0\.1:\d+: Address already in use", line
    )
    assert exits(name)["leader_b"] == 1


@shows(
    ("DS4T-LIFE-09", "no transport in the log", retold("transport=", "by ")),
    (
        "DS4T-LIFE-07",
        "another time-out",
        retold("gate-timeout=50ms", "gate-timeout=750ms"),
    ),
)
def the_log_names_transport_and_gate_timeout() -> None:
    first = "ds4-tp: worker connected, transport=tcp"
    for name, tail in zip(SHORT, ("", "", " gate-timeout=750ms"), strict=True):
        assert first + tail in log(name, "leader")
    name = "ds4t/v10_gate_timeout_50ms"
    assert f"{first} gate-timeout=50ms" in log(name, "leader")
    # the leader gives up on gate 6 while the worker still pauses for 400 ms
    gates = of(rows(name), "GATE_ROW")
    begun = next(r for r in gates if leader(r) and r.fields["seq"] == 6)
    late = next(r for r in gates if worker(r) and r.fields["seq"] == 6)
    (end,) = of(rows(name), "STOP")
    assert 0.05 <= end.time - begun.time < 0.35
    assert late.time - begun.time >= 0.35


@shows(
    (
        "DS4T-HELLO-07",
        "the wrong side named",
        retold("but this side has", "but the peer side has"),
    ),
    ("DS4T-HELLO-36", "exit status 0", retold('"exit": 1', '"exit": 0')),
)
def a_side_that_wants_rdma_without_a_device_ends() -> None:
    text = "tp: --transport rdma but this side has no active device"
    for name, role in (
        ("ds4t/v10_tcp_leader_rdma_worker", "worker"),
        ("ds4t/v7_rdma_leader_tcp_worker", "leader"),
    ):
        assert log(name, role)[-1].endswith(text)
        assert exits(name)[role] == 1
    for name in ("ds4t/v10_ident_quant_bits", "ds4t/v10_to_worker_hello_role_worker"):
        real = [r for r in facts(name)["roles"].values() if r["kind"] == "real peer"]
        assert [r["exit"] for r in real] == [1] * len(real)


@shows(
    (
        "DS4T-HELLO-32",
        "the longer side names the version",
        retold("hello exchange failed", "hello: protocol version 7 != 10"),
    ),
    ("DS4T-HELLO-34", "a plain end", retold('"rst_l": true', '"rst_l": false')),
)
def the_side_with_the_shorter_hello_names_the_versions() -> None:
    for stem, short, long in (
        ("x_leader10_worker7", "worker", "leader"),
        ("x_leader7_worker10", "leader", "worker"),
        ("x_leader9_worker10", "leader", "worker"),
        ("x_leader7_worker9", "leader", "worker"),
    ):
        name = f"ds4t/{stem}"
        assert "tp hello: protocol version" in log(name, short)[-1], name
        assert log(name, long)[-1].endswith("tp hello exchange failed"), name
        (connection,) = facts(name)["connections"]
        # bytes were left unread, so the close is a reset
        assert connection["rst_l" if short == "leader" else "rst_w"] is True, name


@shows(
    (
        "DS4T-HELLO-42",
        "refused in the hello",
        dropped(lambda r: r.type == "SESSION_CREATE"),
    ),
)
def settings_that_the_hello_lacks_pass_it() -> None:
    for stem in ("v10_asym_chunk", "v10_asym_glm", "v9_asym_attn_split"):
        name = f"ds4t/{stem}"
        assert len(of(rows(name), "SESSION_CREATE")) == 1
        texts = [line for role in ("leader", "worker") for line in log(name, role)]
        assert not any("tp hello" in line for line in texts)
        assert any("desync" in line for line in texts)
