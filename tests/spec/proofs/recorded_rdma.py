"""Clauses of the queue pair that recordings of real builds show."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ds4proto.schema.slab import slab_layout, slab_size
from ds4proto.testing import captures_dir
from tests.spec import recordings
from tests.spec.recorded_pairs import GATES, leader
from tests.spec.recordings import (
    Segment,
    altered,
    dropped,
    facts,
    log,
    moved,
    of,
    placed,
    renamed,
    resent,
    retold,
    rows,
)
from tests.spec.tp_showing import shows

GENERIC: Final = "ds4t/v9_rdma_generic"
DECODE: Final = "ds4t/v9_rdma_generic_decode"
CONTROL, DATA = 1, 2
"""Numbers of the two connections."""


@shows(
    ("DS4T-RDMA-01", "RDMA over one device", retold("transport=tcp", "transport=rdma")),
    ("DS4T-RDMA-01", "no data connection", dropped(lambda r: r.stream == DATA)),
)
def rdma_needs_a_device_on_both_sides() -> None:
    name = "ds4t/v9_rdma_auto_one_device"
    assert [r.fields["rdma_ok"] for r in of(rows(name), "HELLO") if leader(r)] == [1]
    assert [r.fields["rdma_ok"] for r in of(rows(name), "HELLO") if not leader(r)] == [
        0
    ]
    assert "ds4-tp: worker connected, transport=tcp" in log(name, "leader")
    assert "ds4-tp: worker connected, transport=rdma" in log(GENERIC, "leader")
    assert {r.fields["rdma_ok"] for r in of(rows(GENERIC), "HELLO")} == {1}
    assert any(r.stream == DATA for r in rows(GENERIC))


@shows(
    (
        "DS4T-LIFE-10",
        "a session before the queue pair",
        moved(lambda r: r.type == "SESSION_CREATE", 2),
    ),
    (
        "DS4T-RDMA-50",
        "one that waits for the other's",
        moved(lambda r: r.type == "RDMA_READY", 3),
    ),
)
def queue_pair_frames_come_first() -> None:
    for name in (GENERIC, DECODE, "ds4t/v9_rdma_odl_async"):
        control = [r.type for r in rows(name) if r.stream == CONTROL]
        assert control[:6] == ["HELLO"] * 2 + ["RDMA_INFO"] * 2 + ["RDMA_READY"] * 2
        assert control[6] == "SESSION_CREATE"


@shows(
    (
        "DS4T-RDMA-62",
        "a byte on the data connection",
        placed(lambda r: r.type == "EVAL", stream=DATA),
    ),
)
def the_data_connection_is_silent_while_tokens_are_decoded() -> None:
    found = rows(DECODE)
    assert len(of(found, "EVAL")) >= 2
    assert {r.stream for r in found} == {CONTROL}
    sizes = facts(DECODE)["connections"][1]
    assert (sizes["role"], sizes["bytes_w2l"], sizes["bytes_l2w"]) == ("data", 0, 0)


@shows(
    (
        "DS4T-RDMA-82",
        "a bulk gate without header",
        dropped(lambda r: r.type == "GATE_BULK" and r.fields["layer"] == 5),
    ),
    (
        "DS4T-DIALECT-31",
        "a payload in the recording",
        altered(lambda r: r.type == "GATE_BULK", length=400),
    ),
)
def bulk_gates_show_as_bare_headers() -> None:
    for name, tag in ((GENERIC, 0x0B16), ("ds4t/v9_rdma_mlx5_waves", 0x0B17)):
        found = of(rows(name), *GATES)
        assert {r.length for r in found} == {16}
        for side in (True, False):
            bulk = [r for r in of(found, "GATE_BULK") if leader(r) is side]
            assert [r.fields["layer"] for r in bulk] == [*range(32)] * 2
            assert {r.fields["tag"] for r in bulk} == {tag}
    for row in of(rows("ds4t/v9_rdma_logits_bit"), *GATES):
        assert (row.length, row.fields["layer"]) == (16, 65534)


@shows(
    (
        "DS4T-RDMA-94",
        "a header for each layer",
        renamed(lambda r: r.type == "GATE_BULK", "GATE_BATCH"),
    ),
    (
        "DS4T-RDMA-94",
        "none behind row gates",
        dropped(lambda r: r.type == "GATE_BATCH"),
    ),
)
def only_the_first_block_behind_row_gates_has_a_header() -> None:
    name = "ds4t/v9_rdma_odl_async"
    found = rows(name)
    assert all(r.fields["runtime_features"] & 4 for r in of(found, "HELLO"))
    script = facts(name)["roles"]["leader"]["options"][1]
    assert script.index("eval") < script.index("verify")
    assert len(of(found, "VERIFY")) == 2
    for side in (True, False):
        heads = [r for r in of(found, "GATE_BATCH") if leader(r) is side]
        assert [r.fields["layer"] for r in heads] == [0]
    order = [r.type for r in found]
    first = order.index("VERIFY")
    assert first < order.index("GATE_BATCH") < order.index("VERIFY", first + 1)


@shows(
    (
        "DS4T-RDMA-89",
        "the gate goes through",
        retold("big exchange failed", "big exchange done"),
    ),
    ("DS4T-RDMA-89", "the leader lives", retold('"exit": 1', '"exit": 0')),
    (
        "DS4T-RDMA-66",
        "a wait to the end",
        retold("peer disconnected during RDMA gate", "timeout waiting gate"),
    ),
)
def a_peer_that_dies_fails_the_gate_at_once() -> None:
    name = "ds4t/v9_rdma_worker_dies_in_bulk"
    assert facts(name)["roles"]["worker"]["exit"] == -9
    assert facts(name)["roles"]["leader"]["exit"] == 1
    told = log(name, "leader")
    assert any("big exchange failed (layer 2 gate 2838 seq 3)" in line for line in told)
    name = "ds4t/v9_rdma_worker_dies"
    assert "ds4-tp: peer disconnected during RDMA gate" in log(name, "leader")
    assert facts(name)["roles"]["leader"]["seconds"] < 1


@shows(
    (
        "DS4T-OPT-46",
        "another default",
        altered(lambda r: r.type == "RDMA_INFO", decode_max_msg=8192),
    ),
    (
        "DS4T-OPT-46",
        "less is let pass",
        retold("invalid negotiated decode message size 4095", "queue pair up"),
    ),
)
def the_smaller_decode_message_holds() -> None:
    for name, size, kind in (
        (GENERIC, 16384, "generic provider"),
        ("ds4t/v9_rdma_odl_async", 131072, "OdinLink"),
    ):
        sizes = {r.fields["decode_max_msg"] for r in of(rows(name), "RDMA_INFO")}
        assert sizes == {size}
        for role in ("leader", "worker"):
            told = log(name, role)
            policy = f"ds4-tp: rdma decode message policy {size} bytes ({kind})"
            assert policy in told
            assert any(f"negotiated limit {size})" in line for line in told)
    name = "ds4t/v9_to_leader_rdma_decode_max_4095"
    text = "tp rdma: invalid negotiated decode message size 4095"
    assert log(name, "leader")[-1].endswith(text)


@shows(
    (
        "DS4T-SLAB-12",
        "one region",
        retold("slab 12584208 bytes", "slab 11535632 bytes"),
    ),
)
def direct_bulk_regions_are_appended_to_the_slab() -> None:
    name = "ds4t/v9_rdma_mlx5_waves"
    shape = facts(name)["parameters"]
    plain = slab_size(shape["n_layer"], shape["n_embd"])
    rows_each = facts(name)["roles"]["leader"]["env"]["DS4_TP_BIG_DIRECT_MAX_ROWS"]
    assert slab_layout(shape["n_layer"], shape["n_embd"])[-1].name == "batch_in"
    for role in ("leader", "worker"):
        (line,) = [one for one in log(name, role) if "bound: rank" in one]
        found = re.search(r"slab (\d+) bytes", line)
        assert found is not None
        assert int(found[1]) == plain + 2 * rows_each * 4 * shape["n_embd"]


# packets on the port


UC_SEND_ONLY, RC_SEND_ONLY, RC_ACKNOWLEDGE = 0x24, 0x04, 0x11
"""Opcodes of the base transport header."""


class Packet(NamedTuple):
    """One RoCE packet."""

    opcode: int
    sender: int
    psn: int
    payload: int


def packets(stem: str) -> list[Packet]:
    """Return the RoCE packets of a recording, taken apart by hand."""
    path = captures_dir() / "rdma" / f"{stem}.roce.pcap"
    found = [s for s in recordings._segments(path) if not s.way]
    # base transport header of 12 bytes in front, invariant CRC of 4 behind
    return [
        Packet(
            s.data[0],
            s.number,
            int.from_bytes(s.data[9:12], "big"),
            len(s.data) - 12 - 4,
        )
        for s in recordings.sent(found)
    ]


def as_writes(found: list[Segment]) -> list[Segment]:
    """Let every packet be an RDMA WRITE."""
    return [s._replace(data=bytes([s.data[0] + 6]) + s.data[1:]) for s in found]


def with_header(found: list[Segment]) -> list[Segment]:
    """Put 16 bytes in front of every vector."""
    return [s._replace(data=s.data + bytes(16)) for s in found]


@shows(
    ("DS4T-RDMA-23", "partials by RDMA WRITE", resent(as_writes)),
    ("DS4T-RDMA-63", "a header in front of the vector", resent(with_header)),
)
def gates_are_bare_vectors_by_send() -> None:
    for stem, opcode in (
        ("uc_two_tokens", UC_SEND_ONLY),
        ("rc_two_tokens", RC_SEND_ONLY),
    ):
        found = packets(stem)
        assert {one.opcode for one in found} <= {opcode, RC_ACKNOWLEDGE}
        # a packet that RC sends again has the number of the first
        sends = {(p.sender, p.psn): p.payload for p in found if p.opcode == opcode}
        assert len({sender for sender, _ in sends}) == 2
        assert len(sends) == 2 * 8
        assert set(sends.values()) == {256}


def off_by_one(found: list[Segment]) -> list[Segment]:
    """Begin at another packet number than RDMA_INFO said."""
    return [
        s._replace(data=s.data[:11] + bytes([s.data[11] ^ 1]) + s.data[12:])
        if not s.way
        else s
        for s in found
    ]


@shows(("DS4T-RDMA-22", "packets from another number on", resent(off_by_one)))
def packets_begin_at_the_number_that_rdma_info_said() -> None:
    for stem, opcode in (
        ("uc_two_tokens", UC_SEND_ONLY),
        ("rc_two_tokens", RC_SEND_ONLY),
    ):
        said = {r.fields["psn"] for r in of(rows(f"rdma/{stem}.control"), "RDMA_INFO")}
        first: dict[int, int] = {}
        for one in packets(stem):
            if one.opcode == opcode:
                first.setdefault(one.sender, one.psn)
        assert set(first.values()) == said
        assert len(said) == 2
        assert all(0 <= number < 1 << 24 for number in said)


@shows(
    ("DS4T-RDMA-42", "another text", retold("info recv failed", "info send failed")),
    ("DS4T-RDMA-42", "52 bytes are taken", retold('"exit": 1', '"exit": 0')),
    ("DS4T-RDMA-45", "no lower bound", retold("decode message size 4095", "size")),
    (
        "DS4T-RDMA-45",
        "the larger one holds",
        retold("negotiated limit 16384", "negotiated limit 4294967295"),
    ),
    ("DS4T-RDMA-51", "a payload is taken", retold("ready barrier failed", "ready")),
)
def queue_pair_frames_of_other_sizes_are_refused() -> None:
    for stem, text in (
        ("info_44", "tp rdma: info recv failed"),
        ("info_52", "tp rdma: info recv failed"),
        ("decode_max_4095", "tp rdma: invalid negotiated decode message size 4095"),
        ("ready_payload", "tp rdma: ready barrier failed"),
    ):
        name = f"ds4t/v9_to_leader_rdma_{stem}"
        assert log(name, "leader")[-1] == f"leader: {text}"
        assert facts(name)["roles"]["leader"]["exit"] == 1
    # what is too much is cut by the own limit, and the leader goes on
    for stem in ("decode_max_huge", "valid"):
        name = f"ds4t/v9_to_leader_rdma_{stem}"
        assert any("negotiated limit 16384)" in line for line in log(name, "leader"))
        assert of(rows(name), "SESSION_CREATE")
