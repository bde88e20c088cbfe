"""RoCE v2 captures: packets, messages, retries, and the gate of each message."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from ds4proto.cli.decode import cmd
from ds4proto.link.rdma_attributes import MESSAGE
from ds4proto.pcap.types import Endpoint, UdpDatagram
from ds4proto.testing import captures_dir
from ds4proto.trace.roce import RoceReport, decode_roce, read_roce
from ds4proto.trace.roce_headers import RocePacket, read_packet
from ds4proto.trace.roce_plan import MessagePlan
from ds4proto.trace.rows import FrameRow
from tests.trace.roce_packets import LEADER, WORKER, RoceTape

ROOT = captures_dir() / "rdma"
INDEX = {
    entry["name"]: entry
    for entry in json.loads((ROOT / "index.json").read_text())["captures"]
}
PORTS = {"v0": LEADER, "v1": WORKER}


def recorded(name: str) -> RoceReport:
    return decode_roce(ROOT / f"{name}.control.pcap", ROOT / f"{name}.roce.pcap")


@pytest.mark.parametrize("name", sorted(INDEX))
def test_every_packet_is_what_the_index_says(name: str) -> None:
    report = recorded(name)
    syndromes = INDEX[name]["aeth_syndromes"]
    expected: Counter[str] = Counter()
    for label, count in INDEX[name]["roce_packets"].items():
        kind = label.partition(" ")[2]
        if kind == "RC ACK/NAK":
            continue
        expected[kind.replace("SEND_ONLY", "SEND only")] += count
    expected["RC RNR NAK"] = syndromes.get("0x2c", 0)
    expected["RC ACK"] = syndromes.get("0x1f", 0)
    assert report.packets == +expected


@pytest.mark.parametrize("name", sorted(INDEX))
def test_transmissions_by_direction(name: str) -> None:
    report = recorded(name)
    for label, count in INDEX[name]["roce_packets"].items():
        way, _, kind = label.partition(" ")
        if "ACK" in kind:
            continue
        src = PORTS[way[:2]]
        sends = sum(m.sends for f in report.flows if f.src == src for m in f.messages)
        assert sends == count


@pytest.mark.parametrize(
    "name", ["uc_two_tokens", "rc_two_tokens", "rc_first_gate_rnr"]
)
def test_two_tokens_are_eight_gates_each_way(name: str) -> None:
    report = recorded(name)
    for side in ("leader", "worker"):
        (flow,) = [f for f in report.flows if f.side == side]
        gates = [m.gate for m in flow.messages]
        assert [g.seq for g in gates if g is not None] == list(range(1, 9))
        assert {m.nbytes for m in flow.messages} == {256}
        assert not flow.lost
        assert not flow.missing
        assert str(gates[5]) == "row gate seq 6: token 2, layer 0, FFN"
    late = [f for f in report.findings if f.startswith("late")]
    assert len(report.findings) == len(late) == (0 if name.startswith("uc") else 1)


def test_a_message_that_waited_for_its_receive() -> None:
    report = recorded("rc_first_gate_rnr")
    first = report.flows[0].messages[0]
    assert (first.sends, first.rnr, first.naks) == (32, 31, 0)
    assert first.detail == "timer 12 (0.64 ms)"
    (finding,) = report.findings
    assert finding.startswith(
        "late: leader>worker row gate seq 1: token 1, layer 0, ATTN: 31 RNR NAKs"
    )
    assert "delivered" in finding


def test_a_uc_message_that_came_before_its_receive() -> None:
    (finding,) = recorded("uc_first_gate_lost").findings
    assert finding.startswith("lost: leader>worker row gate seq 1: token 1, layer 0")
    assert "1489 ms before worker>leader sent anything" in finding
    assert "gate seq 4 then timed out" in finding


@pytest.mark.parametrize("qp", ["uc", "rc"])
def test_a_direction_that_is_cut(qp: str) -> None:
    findings = recorded(f"{qp}_one_way_drop").findings
    silent = (
        "lost: leader>worker row gate seq 1: token 1, layer 0, ATTN, and 3 after it: "
        "not one packet of this direction is in the capture"
    )
    assert silent in findings
    repeated = [f for f in findings if "sent 44 times" in f]
    assert len(repeated) == (1 if qp == "rc" else 0)
    assert all("without an acknowledgement" in f for f in repeated)


# -- packets --------------------------------------------------------------------


def datagram(data: bytes) -> UdpDatagram:
    ends = Endpoint(LEADER, 49152), Endpoint(WORKER, 4791)
    return UdpDatagram(1, 0, *ends, memoryview(data), len(data))


def packet(hexed: str) -> RocePacket:
    found = read_packet(datagram(bytes.fromhex(hexed)))
    assert isinstance(found, RocePacket)
    return found


def test_an_acknowledgement_and_a_refusal() -> None:
    # recorded: an RNR NAK with timer 12, and the ACK of the same message
    nak = packet("1100ffff00000016 0068b245 2c000000 56f5a1dd")
    assert (nak.transport, nak.part, nak.dest_qp, nak.psn) == (
        "RC", "ack", 22, 0x68B245,
    )  # fmt: skip
    assert (nak.answer, nak.detail) == ("RNR NAK", "timer 12 (0.64 ms)")
    ack = packet("1100ffff00000016 0068b245 1f000001 b3faa42d")
    assert (ack.answer, ack.detail) == ("ACK", "")
    refused = packet("1100ffff00000016 0068b245 63000001 00000000")
    assert (refused.answer, refused.detail) == ("NAK", "remote operational error")
    zero = packet("1100ffff00000016 0068b245 20000001 00000000")
    assert zero.detail == "timer 0 (655.36 ms)"


def test_operations_that_gates_never_use_are_named() -> None:
    write = packet("0a00ffff00000016 0068b245" + "00" * 16 + "aabb" + "00000000")
    assert (write.part, write.detail, write.nbytes) == ("other", "RDMA WRITE", 2)
    assert packet("0c00ffff00000016 00000000" + "00" * 20).detail == "RDMA READ"


def test_pads_and_immediates_are_no_payload() -> None:
    padded = packet("2430ffff00000016 00000001" + "aa" * 4 + "00000000")
    assert (padded.transport, padded.part, padded.nbytes) == ("UC", "only", 1)
    assert (
        packet("0500ffff00000016 00000001" + "00" * 4 + "aa" * 8 + "00" * 4).nbytes == 8
    )


@pytest.mark.parametrize("size", [0, 1, 11, 12, 15])
def test_short_datagrams_are_refused(size: int) -> None:
    assert isinstance(read_packet(datagram(bytes(size))), str)


def test_any_bytes_are_read_or_refused() -> None:
    for code in range(256):
        for size in (16, 20, 24, 36, 40):
            read_packet(datagram(bytes([code, 0x30]) + bytes(size - 2)))


# -- plans ----------------------------------------------------------------------

HELLO = {
    "version": 14, "role": 1, "n_layer": 8, "n_embd": 4096, "n_vocab": 128,
    "model_id": 0, "gate_slot_start": 0, "gate_slot_step": 1, "gates_per_token": 16,
}  # fmt: skip
GIDS = {
    "leader": "00000000000000000000ffffc0000201",
    "worker": "00000000000000000000ffffc0000202",
}
PSN = {"leader": 0xFFFFFE, "worker": 100}
QPN = {"leader": 21, "worker": 22}


class Story:
    """Feeds a plan with rows as a control capture gives them."""

    def __init__(self, dialect: str = "v14", **hello: int) -> None:
        self.plan = MessagePlan()
        self._dialect = dialect
        self._time = 0.0
        self.row("leader", "HELLO", {**HELLO, **hello})
        for side in ("leader", "worker"):
            self.info(side)

    def info(self, side: str) -> None:
        words = {"qpn": QPN[side], "psn": PSN[side], "mtu": 3, "gid": GIDS[side]}
        self.row(side, "RDMA_INFO", {**words, "reliable": 1})

    def row(self, side: str, name: str, fields: dict[str, Any]) -> None:
        self._time += 0.001
        protocol = "DS4B" if name.startswith("GATE_B") else "DS4T"
        self.plan.feed(
            FrameRow(
                1, 1, "b>a", protocol, self._dialect, name, self._time, 0, 12, 1, 1,
                fields, (), self._time, self._time, "", "", side, "",
            )
        )  # fmt: skip

    def due(self, side: str = "leader") -> list[tuple[str, int]]:
        setup = self.plan.setup
        assert setup is not None
        return [(e.kind, e.nbytes) for e in setup.expected[side]]


def test_a_plan_of_every_phase() -> None:
    """Warm-up, a prompt by bulk, a token, a block, a token: what crosses, in order."""
    story = Story()
    for side in ("leader", "worker"):
        story.row(side, "RDMA_POSTED", {"tag": 0xFEED})
    for side, received in (("leader", 0), ("worker", 1), ("leader", 1), ("worker", 1)):
        story.row(side, "RDMA_WARM", {"received": received})
    story.row("leader", "SESSION_CREATE", {"session_id": 1, "ctx_size": 256})
    story.row("leader", "SYNC", {"session_id": 1, "count": 3, "tokens": (1, 2, 3)})
    for layer in range(8):
        words = {"layer": layer, "tag": 0xB16, "seq": layer + 1}
        for side in ("leader", "worker"):
            story.row(side, "GATE_BULK", words)
    story.row("leader", "EVAL", {"session_id": 1, "seq": 1, "token": 5})
    story.row("leader", "VERIFY", {"session_id": 1, "count": 2, "tokens": (6, 7)})
    story.row("leader", "VERIFY_COMMIT", {"mode": 0, "token_count": 1})
    after = [
        *[("bulk", MESSAGE)] * (8 * 3),
        *[("row", MESSAGE)] * 16,
        *[("drain", MESSAGE)] * 16,
        *[("verify", MESSAGE)] * (8 * 2),
        *[("row", MESSAGE)] * 16,
    ]
    # the leader has received nothing at first, so that the worker sends twice
    assert story.due("leader") == [("warm-up", MESSAGE), *after]
    assert story.due("worker") == [("warm-up", MESSAGE)] * 2 + after


def test_a_bulk_gate_behind_a_token_drains_the_window_first() -> None:
    story = Story()
    story.row("leader", "SESSION_CREATE", {"session_id": 1, "ctx_size": 256})
    story.row("leader", "EVAL", {"session_id": 1, "seq": 1, "token": 5})
    tokens = (5, 1, 2, 3, 4)
    story.row("leader", "SYNC", {"session_id": 1, "count": 5, "tokens": tokens})
    for seq in (1, 2):
        story.row("leader", "GATE_BULK", {"layer": seq - 1, "tag": 0xB16, "seq": seq})
    kinds = [kind for kind, _ in story.due()]
    assert kinds == ["row"] * 16 + ["drain"] * 16 + ["bulk"] * 8


def test_vectors_of_two_messages_and_prompts_behind_a_prefix() -> None:
    story = Story(n_embd=7168, n_layer=2, gates_per_token=4)
    story.row("leader", "SESSION_CREATE", {"session_id": 1, "ctx_size": 256})
    story.row("leader", "SYNC", {"session_id": 1, "count": 2, "tokens": (1, 2)})
    assert story.due() == []  # a small batch region: bulk crosses TCP
    # one more token behind the prefix runs as a token of its own
    story.row("leader", "SYNC", {"session_id": 1, "count": 3, "tokens": (1, 2, 3)})
    assert story.due() == [("row", MESSAGE), ("row", 12288)] * 4


def test_messages_of_many_packets_lost_ones_and_wraps() -> None:
    story = Story(n_layer=2, gates_per_token=4)
    story.row("leader", "EVAL", {"session_id": 1, "seq": 1, "token": 5})
    tape = RoceTape("UC")
    psn = PSN["leader"]
    for gate in range(4):
        if gate == 1:  # lost before the capture: its 16 numbers are missing
            psn = (psn + 16) & 0xFFFFFF
            continue
        psn = tape.message(LEADER, QPN["worker"], psn, MESSAGE, 1024)
    report = read_roce(story.plan, tape.capture())
    (flow,) = report.flows
    assert flow.side == "leader"
    assert [m.packets for m in flow.messages] == [16] * 3
    assert [m.gate.seq for m in flow.messages if m.gate] == [1, 3, 4]
    assert report.findings == [
        "lost: leader>worker row gate seq 2: token 1, layer 0, FFN: its packets are "
        "not in the capture, later ones are",
        "lost: worker>leader row gate seq 1: token 1, layer 0, ATTN, and 3 after it: "
        "not one packet of this direction is in the capture",
    ]


def test_names_end_where_the_commands_do_not_tell_a_length() -> None:
    story = Story()
    story.row("leader", "GATE_BULK", {"layer": 0, "tag": 0xB16, "seq": 1})
    story.row("leader", "EVAL", {"session_id": 1, "seq": 1, "token": 5})
    tape = RoceTape("UC")
    psn = tape.message(LEADER, QPN["worker"], PSN["leader"], MESSAGE, 1024)
    tape.message(LEADER, QPN["worker"], psn, MESSAGE, 1024)
    report = read_roce(story.plan, tape.capture())
    assert [m.gate for m in report.flows[0].messages] == [None, None]
    assert report.findings[0] == (
        "note: leader>worker: no names from bulk gate seq 1: layer 0 on: the commands "
        "do not tell its length"
    )


def test_an_acknowledgement_stands_for_all_before_it() -> None:
    tape = RoceTape()
    psn = 7
    for _ in range(3):
        psn = tape.message(LEADER, 22, psn, 256, 1024)
    tape.packet(WORKER, 21, 9, "ack", aeth=0x1F)
    tape.message(LEADER, 22, psn, 256, 1024)
    (flow,) = decode_roce(None, tape.capture()).flows
    assert [m.acked is not None for m in flow.messages] == [True, True, True, False]


def test_naks_and_holes_inside_a_message() -> None:
    story = Story(n_layer=2, gates_per_token=4)
    story.row("leader", "EVAL", {"session_id": 1, "seq": 1, "token": 5})
    tape = RoceTape()
    qpn, psn = QPN["worker"], PSN["leader"]
    tape.packet(LEADER, qpn, psn, "first", bytes(1024))
    tape.packet(LEADER, qpn, (psn + 15) & 0xFFFFFF, "last", bytes(1024))
    tape.packet(WORKER, QPN["leader"], psn, "ack", aeth=0x60)
    tape.message(LEADER, qpn, psn, MESSAGE, 1024)
    tape.packet(WORKER, QPN["leader"], (psn + 15) & 0xFFFFFF, "ack", aeth=0x1F)
    report = read_roce(story.plan, tape.capture())
    (message,) = report.flows[0].messages
    assert (message.sends, message.naks, message.detail) == (
        2, 1, "packet sequence error",
    )  # fmt: skip
    assert message.whole
    assert message.acked is not None
    assert report.findings[0] == (
        "repeated: leader>worker row gate seq 1: token 1, layer 0, ATTN: 1 NAKs, "
        "packet sequence error"
    )


def test_packets_of_strangers_and_captures_without_a_control_stream() -> None:
    tape = RoceTape("UC")
    tape.message(LEADER, 99, 5, 300, 1024)
    report = read_roce(Story().plan, tape.capture())
    assert [f.side for f in report.flows] == [""]
    alone = decode_roce(None, ROOT / "uc_two_tokens.roce.pcap")
    assert sum(len(f.messages) for f in alone.flows) == 16
    assert not alone.findings
    empty = decode_roce(None, io.BytesIO())
    assert not empty.flows


# -- the command ------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cmd, words, standalone_mode=False)
    status = result.return_value
    return (2 if result.exception else int(status)), result.stdout


def test_decode_shows_both() -> None:
    control, roce = (
        str(ROOT / f"rc_first_gate_rnr.{kind}.pcap") for kind in ("control", "roce")
    )
    status, text = run(control, "--roce", roce)
    assert status == 0
    assert "RC leader>worker row gate seq 1: token 1, layer 0, ATTN" in text
    assert "sent 32 times, 31 RNR NAKs" in text
    assert "16 RC ACK, 31 RC RNR NAK, 47 RC SEND only" in text
    assert run(control, "--roce", roce, "--strict")[0] == 1
    status, text = run(control, "--roce", roce, "--format", "jsonl")
    records = [json.loads(line) for line in text.splitlines()]
    messages = [r for r in records if r.get("roce") == "message"]
    assert [m["seq"] for m in messages if m["direction"] == "worker>leader"] == list(
        range(1, 9)
    )
    assert run(control, control, "--roce", roce)[0] == 2
