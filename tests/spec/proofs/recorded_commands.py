"""Clauses of the pair's commands and answers that recordings of real builds show."""

from __future__ import annotations

import re
from typing import Final

from ds4proto.testing import captures_dir
from tests.spec.recorded_pairs import GATES, UPPER, exits, kinds, leader, worker
from tests.spec.recordings import (
    altered,
    dropped,
    facts,
    log,
    of,
    renamed,
    retold,
    rows,
)
from tests.spec.tp_showing import shows

# commands and answers


@shows(
    (
        "DS4T-ACK-13",
        "another operation named",
        retold("session create send failed", "session send failed"),
    ),
    (
        "DS4T-ACK-13",
        "the operation goes on",
        retold("op create failed rc=1", "op create done rc=0"),
    ),
)
def a_command_that_cannot_be_sent_fails_under_its_name() -> None:
    for name in ("ds4t/v7_worker_dies_before_ack", "ds4t/v9_worker_dies_before_ack"):
        told = log(name, "leader")
        assert "leader: tp: worker session create send failed" in told
        assert any(line.startswith("leader: op create failed rc=1") for line in told)
        assert "leader: tp: worker session destroy send failed" in told
        assert exits(name)["leader"] == 1


ACK_WORDS: Final = {"session create", "session destroy", "prefill sync"}


@shows(
    ("DS4T-ACK-11", "a word of its own", retold("prefill sync", "sync")),
)
def leaders_name_operations_in_these_words() -> None:
    seen = set()
    for path in sorted((captures_dir() / "ds4t").glob("v*_to_leader_*.json")):
        for line in log(f"ds4t/{path.stem}", "leader"):
            failed = re.search(r"tp: worker failed during (.+)$", line)
            refused = re.search(r"tp: worker (.+) failed \(session", line)
            seen |= {found[1] for found in (failed, refused) if found}
    allowed = {*ACK_WORDS, "decode batch", "mixed prefill/decode batch", "GLM MTP"}
    assert ACK_WORDS <= seen <= allowed, seen


@shows(
    ("DS4T-HASH-03", "no sequence number", retold("DIVERGENCE at seq 2", "DIVERGENCE")),
    ("DS4T-HASH-03", "a rank that goes on", retold('"exit": 1', '"exit": 0')),
)
def ranks_with_other_hashes_end_and_name_the_number() -> None:
    for name in ("ds4t/v7_debug_hash_divergence", "ds4t/v9_debug_hash_divergence"):
        mine: dict[str, str] = {}
        for role in ("leader", "worker"):
            (line,) = [one for one in log(name, role) if "DIVERGENCE" in one]
            found = re.search(r"DIVERGENCE at seq (\d+): local (\w+) peer (\w+)$", line)
            assert found is not None, line
            mine[role] = found[2]
            last = of(rows(name), "HASH", src="leader" if role == "leader" else "tp")
            last = last or [r for r in of(rows(name), "HASH") if worker(r)]
            assert last[-1].fields["seq"] == int(found[1])
            assert last[-1].fields["hash"] == int(found[2], 16)
        assert mine["leader"] != mine["worker"]
        assert set(exits(name).values()) == {1}


@shows(
    (
        "DS4T-CTRL-16",
        "refused at the header",
        retold("type 99 (65536 bytes)", "type 99 (0 bytes)"),
    ),
    (
        "DS4T-CTRL-16",
        "refused before its end",
        retold('"still_running_at_timeout": true', '"still_running_at_timeout": false'),
    ),
)
def a_worker_reads_a_refused_frame_to_its_end() -> None:
    name = "ds4t/v10_to_worker_oversized_unknown_64k"
    assert log(name, "worker")[-1].endswith(
        "invalid command frame type 99 (65536 bytes)"
    )
    (bad,) = [r for r in rows(name) if leader(r) and not r.is_frame]
    assert bad.length == 12 + 65536
    name = "ds4t/v10_to_worker_oversized_stop_1g"
    one = facts(name)["roles"]["worker"]
    assert one["still_running_at_timeout"] is True
    assert not any("invalid command" in line for line in one["log"])


V10_TYPES: Final = {1, 2, 3, 4, 5, 11, 13, 14, 15, 16, 18, 21}


@shows(
    (
        "DS4T-CTRL-21",
        "type 19 is taken",
        retold("invalid command frame type 19 ", "type 19 "),
    ),
    (
        "DS4T-CTRL-21",
        "type 21 is refused",
        retold(
            "[default] tp worker: leader finished",
            "tp: invalid command frame type 21 (24 bytes)",
        ),
    ),
)
def a_v10_worker_takes_exactly_these_types() -> None:
    taken: set[int] = set()
    codes = {
        "SYNC": 1, "EVAL": 2, "REWIND": 3, "INVALIDATE": 4, "STOP": 5, "VERIFY": 11,
        "SESSION_CREATE": 13, "SESSION_DESTROY": 14, "EVAL_BATCH": 15,
        "MIXED_BATCH": 16, "SYNC_MULTIMODAL": 18, "GLM_MTP": 21,
    }  # fmt: skip
    for stem in ("v10_everything", "v10_multimodal", "v10_glm_mtp"):
        name = f"ds4t/{stem}"
        assert log(name, "worker")[-1] == "[default] tp worker: leader finished"
        taken |= {codes[r.type] for r in rows(name) if leader(r) and r.type in codes}
    refused = set()
    for path in sorted((captures_dir() / "ds4t").glob("v10_to_worker_type_*.json")):
        line = log(f"ds4t/{path.stem}", "worker")[-1]
        found = re.search(r"invalid command frame type (\d+) ", line)
        assert found is not None, (path.stem, line)
        refused.add(int(found[1]))
    assert taken == V10_TYPES
    assert len(refused) >= 5
    assert not refused & V10_TYPES


@shows(
    (
        "DS4T-CTRL-14",
        "the number is taken",
        retold("invalid command frame type 4294967295", "command 4294967295"),
    ),
)
def the_internal_number_is_refused_like_any_other() -> None:
    name = "ds4t/v10_to_worker_type_ffffffff"
    line = log(name, "worker")[-1]
    assert line.endswith("tp: invalid command frame type 4294967295 (16 bytes)")
    assert exits(name)["worker"] == 1


# logits


@shows(
    (
        "DS4T-LOGITS-05",
        "an extra frame",
        renamed(lambda r: worker(r) and r.type == "COMMAND_ACK", "LOGITS"),
    ),
    (
        "DS4T-FLOW-21",
        "an extra frame",
        renamed(lambda r: worker(r) and r.type == "COMMAND_ACK", "LOGITS"),
    ),
)
def without_a_split_vocabulary_no_logits_travel() -> None:
    for version in (7, 9, 10):
        name = f"ds4t/v{version}_glm_schedule"
        found = rows(name)
        assert not of(found, "LOGITS", "LOGITS_TOP2")
        assert len(of(found, "EVAL")) == 3
        assert exits(name) == {"leader": 0, "worker": 0}


@shows(
    ("DS4T-LOGITS-04", "the sync succeeds", retold("op sync failed", "op sync done")),
    ("DS4T-SYNC-13", "the sync succeeds", retold("op sync failed", "op sync done")),
)
def a_sync_without_its_logits_has_failed() -> None:
    """An odd vocabulary cannot be halved: the first sync gets no LOGITS."""
    name = "ds4t/v7_odd_vocab"
    hello = of(rows(name), "HELLO")[0]
    assert hello.fields["n_vocab"] % 2 == 1
    text = "op sync failed rc=1: tp: worker sync logits half missing"
    assert any(line.endswith(text) for line in log(name, "leader"))
    assert not of(rows(name), "LOGITS")


@shows(
    (
        "DS4T-LOGITS-08",
        "the row number for seq",
        altered(lambda r: r.type == "GATE_BULK", seq=64),
    ),
    (
        "DS4T-LOGITS-08",
        "another layer",
        altered(lambda r: r.type == "GATE_BULK", layer=31),
    ),
    ("DS4T-LOGITS-08", "no LOGITS over TCP", dropped(lambda r: r.type == "LOGITS")),
)
def logits_are_a_bulk_gate_of_layer_65534_over_rdma_alone() -> None:
    name = "ds4t/v9_rdma_logits_bit"
    assert all(r.fields["runtime_features"] & 8 for r in of(rows(name), "HELLO"))
    for side in (leader, worker):
        gates = [r.fields for r in of(rows(name), "GATE_BULK") if side(r)]
        assert [(g["layer"], g["seq"]) for g in gates] == [(65534, 1), (65534, 2)]
    assert not of(rows(name), "LOGITS")
    name = "ds4t/v9_rdma_logits_bit_tcp"
    assert all(r.fields["runtime_features"] & 8 for r in of(rows(name), "HELLO"))
    assert len(of(rows(name), "LOGITS")) == 4
    assert {r.fields["layer"] for r in of(rows(name), "GATE_BULK")} == {0, 1}


@shows(
    (
        "DS4T-TOP2-02",
        "halves in place of two rows",
        renamed(lambda r: r.type == "LOGITS_TOP2", "LOGITS"),
    ),
    (
        "DS4T-TOP2-03",
        "positions inside the half",
        altered(lambda r: r.type == "LOGITS_TOP2", id0=4),
    ),
)
def two_rows_stand_where_logits_are_due() -> None:
    name = "ds4t/v9_top2"
    assert all(r.fields["runtime_features"] & 32 for r in of(rows(name), "HELLO"))
    order = [k for k in kinds(rows(name)) if k != "HELLO"]
    token = ["EVAL", "GATES", "LOGITS_TOP2"]
    assert order == [
        "SESSION_CREATE", "COMMAND_ACK", "SYNC", "GATES", "COMMAND_ACK", "LOGITS_TOP2",
        *token * 3, "SESSION_DESTROY", "COMMAND_ACK", "STOP",
    ]  # fmt: skip
    for row in of(rows(name), "LOGITS_TOP2"):
        ids = {row.fields["id0"], row.fields["id1"]}
        assert all(UPPER <= number < 2 * UPPER for number in ids)
    plain = "ds4t/v9_prefill_decode"
    assert not any(r.fields["runtime_features"] & 32 for r in of(rows(plain), "HELLO"))
    assert not of(rows(plain), "LOGITS_TOP2")
    assert of(rows(plain), "LOGITS")


@shows(
    (
        "DS4T-OPT-47",
        "a word without the bits",
        altered(lambda r: r.type == "HELLO", runtime_features=0x8000),
    ),
)
def settings_of_v9w_are_bits_of_the_hello() -> None:
    for stem, bit in (
        ("v9_top2", 5), ("v9_rdma_logits_bit", 3), ("v9_rdma_odl_async", 2),
    ):  # fmt: skip
        name = f"ds4t/{stem}"
        words = {r.fields["runtime_features"] for r in of(rows(name), "HELLO")}
        assert words == {0x8000 | 1 << bit}, (stem, words)


@shows(
    (
        "DS4T-HASH-01",
        "four bytes more",
        altered(lambda r: r.type == "HASH", length=12 + 20),
    ),
    (
        "DS4T-TOP2-01",
        "the second one first",
        altered(lambda r: r.type == "LOGITS_TOP2", value0=-1.0),
    ),
    (
        "DS4T-HELLO-31",
        "the expert in the lowest bits",
        altered(lambda r: r.type == "HELLO", runtime_features=0x80),
    ),
)
def words_of_16_bytes_and_of_features() -> None:
    for version in (7, 9):
        found = of(rows(f"ds4t/v{version}_debug_hash_divergence"), "HASH")
        assert [r.length for r in found] == [12 + 16] * 4
    found = of(rows("ds4t/v9_top2"), "LOGITS_TOP2")
    assert {r.length for r in found} == {12 + 16}
    assert all(r.fields["value0"] >= r.fields["value1"] for r in found)
    hellos = of(rows("ds4t/v9_decode8"), "HELLO")
    assert [r.fields["runtime_features"] for r in hellos] == [0x8000] * 2


@shows(
    (
        "DS4T-HASH-02",
        "a worker that takes it",
        retold("invalid command frame type 6 ", "hash "),
    ),
    (
        "DS4T-HASH-02",
        "a leader that takes it",
        retold("bad logits frame (type 6 bytes 16)", "hash"),
    ),
)
def a_hash_is_refused_where_something_else_is_due() -> None:
    for stem in ("v10_to_worker_type_6", "v9_to_worker_type_6"):
        line = log(f"ds4t/{stem}", "worker")[-1]
        assert line.endswith("tp: invalid command frame type 6 (16 bytes)")
    told = log("ds4t/v10_to_leader_worker_sends_hash", "leader")
    assert "ds4-tp: bad logits frame (type 6 bytes 16)" in told


@shows(
    (
        "DS4T-GATE-24",
        "the own gate is cut",
        altered(lambda r: leader(r) and r.type in GATES, length=16),
    ),
    ("DS4T-GATE-24", "the gate is taken", retold("failure latched", "done")),
)
def a_rank_writes_its_gate_whole_and_judges_the_header() -> None:
    name = "ds4t/v10_to_leader_gate_seq_zero"
    assert any("row exchange failed" in line and "latched" in line
               for line in log(name, "leader"))  # fmt: skip
    width = 4 * of(rows(name), "HELLO")[0].fields["n_embd"]
    (own,) = [r for r in of(rows(name), "GATE_ROW") if leader(r)]
    assert own.length == 16 + width
    name = "ds4t/v10_to_leader_batch_rows_0"
    assert any("batch exchange failed" in line and "latched" in line
               for line in log(name, "leader"))  # fmt: skip
    (own,) = [r for r in of(rows(name), "GATE_BATCH") if leader(r)]
    assert own.length == 16 + 3 * width
