"""Clauses of the pipeline that recordings of real builds show."""

from __future__ import annotations

import struct
from typing import Any

from ds4proto.trace import FrameRow
from tests.spec.recordings import (
    Segment,
    altered,
    facts,
    moved,
    of,
    resent,
    retold,
    rewritten,
    rows,
    segments,
    streams,
)
from tests.spec.tp_showing import shows

TWO, THREE = "ds4d/a_s2_decode_f32", "ds4d/d_s3_forward_f16"
PREFILL = ("ds4d/e_s2_prefill_c16_w3", 16), ("ds4d/e_s3_prefill_c8_w4", 8)
SAVE, LOAD = "ds4d/f_snapshot_save_s2", "ds4d/f_snapshot_load_s3"
WHOLE = (TWO, THREE, SAVE, LOAD, *(name for name, _ in PREFILL))


def work(row: FrameRow) -> bool:
    return row.type == "WORK" and row.src_role == "coordinator"


def words_of(data: bytes) -> list[tuple[int, int]]:
    """Return type and place of each frame, read as three words and nothing else."""
    found, at = [], 0
    while at < len(data):
        magic, kind, size = struct.unpack_from(">3I", data, at)
        assert magic == 0x44533444, (at, hex(magic))
        found.append((kind, at + 12))
        at += 12 + size
    assert at == len(data)
    return found


@shows(
    (
        "DS4D-FRAME-04",
        "a length that counts the header",
        rewritten(lambda d: d[:8] + struct.pack(">I", len(d)) + d[12:]),
    ),
)
def headers_of_three_words_cut_every_stream() -> None:
    for name in WHOLE:
        for data in streams(name).values():
            assert words_of(data)


def item_words(name: str) -> dict[tuple[int, str], list[Any]]:
    """Return the frames that the JSON lists, by connection and direction."""
    found: dict[tuple[int, str], list[Any]] = {}
    for number, connection in enumerate(facts(name)["connections"]):
        for item in connection["items"]:
            way = "a>b" if item["from"] == "client" else "b>a"
            found.setdefault((number, way), []).append(item["f"])
    return found


@shows(
    (
        "DS4D-FRAME-08",
        "tokens in the other order",
        rewritten(lambda d: d.replace(struct.pack(">I", 104), struct.pack("<I", 104))),
    ),
)
def words_are_big_endian_and_the_upper_half_comes_first() -> None:
    seen = 0
    listed = item_words(TWO)
    for key, data in streams(TWO).items():
        for (kind, at), told in zip(words_of(data), listed[key], strict=True):
            if kind != 3:
                continue
            fixed = struct.unpack_from(">20I", data, at)
            halves = [fixed[i] << 32 | fixed[i + 1] for i in (1, 3, 5, 7)]
            assert halves[0] == int(told["session"], 16)
            assert halves[1] == told["request"]
            assert halves[2:] == [
                int(told[k], 16) for k in ("prefix_hash", "result_hash")
            ]
            tokens = struct.unpack_from(f">{fixed[10]}I", data, at + 80)
            assert list(tokens) == told["tokens"]
            seen += 1
    assert seen == 9


@shows(
    (
        "DS4D-COORD-15",
        "a chunk of 17",
        altered(lambda r: work(r) and r.fields["n_tokens"] == 16, n_tokens=17),
    ),
)
def no_chunk_is_above_the_cap_that_was_given() -> None:
    for name, cap in PREFILL:
        args = facts(name)["processes"][0]["args"]
        assert args[args.index("--dist-prefill-chunk") + 1] == str(cap)
        counts = [r.fields["n_tokens"] for r in rows(name) if work(r)]
        assert max(counts) == cap
        prompt = len(facts(name)["prompt_tokens"])
        assert sum(counts) == prompt + facts(name)["generate"]
        assert counts[: prompt // cap] == [cap] * (prompt // cap)
    # without the option the session's own capacity is the cap
    counts = [r.fields["n_tokens"] for r in rows(SAVE) if work(r)]
    assert max(counts) == facts(SAVE)["shape"]["prefill_cap"] == 32


def waiting(found: list[FrameRow]) -> dict[int, int]:
    """Return how many requests were unanswered when each WORK went out."""
    open_now: set[int] = set()
    most: dict[int, int] = {}
    for row in found:
        if work(row):
            open_now.add(row.fields["request"])
            most[row.fields["request"]] = len(open_now)
        elif row.type == "RESULT" and row.dst_role == "coordinator":
            open_now.discard(row.fields["request"])
    return most


@shows(
    (
        "DS4D-COORD-20",
        "a decode step beside another",
        moved(lambda r: r.type == "RESULT" and r.fields["request"] == 7, -1),
    ),
)
def only_the_long_span_is_pipelined() -> None:
    for name, cap in PREFILL:
        found = rows(name)
        most = waiting(found)
        chunks = -(-len(facts(name)["prompt_tokens"]) // cap)
        assert max(most[n] for n in range(1, chunks + 1)) > 1
        assert {most[n] for n in most if n > chunks} == {1}, name
    for name in (TWO, THREE):
        assert set(waiting(rows(name)).values()) == {1}


@shows(
    (
        "DS4D-SNAP-61",
        "the last worker first",
        moved(lambda r: r.type == "SNAPSHOT_SAVE_REQ", -1),
    ),
)
def workers_are_saved_in_route_order() -> None:
    found = of(rows(LOAD), "SNAPSHOT_SAVE_REQ")
    assert [row.fields["layer_start"] for row in found] == [2, 7]
    # the next one is asked when the one before it is done
    order = of(rows(LOAD), "SNAPSHOT_SAVE_REQ", "SNAPSHOT_DONE")
    assert [row.type for row in order[2:]] == ["SNAPSHOT_SAVE_REQ", "SNAPSHOT_DONE"] * 2


@shows(
    (
        "DS4D-WORKER-08",
        "a save beside a request",
        moved(lambda r: r.type == "SNAPSHOT_SAVE_REQ", 14),
    ),
)
def a_save_waits_for_every_answer() -> None:
    open_now = set()
    saves = 0
    for row in rows(SAVE):
        if work(row):
            open_now.add(row.fields["request"])
        elif row.type == "RESULT":
            open_now.discard(row.fields["request"])
        elif row.type == "SNAPSHOT_SAVE_REQ":
            assert not open_now, open_now
            saves += 1
    assert saves == 1


@shows(
    (
        "DS4D-SNAP-57",
        "a chunk that is not full",
        altered(lambda r: r.type == "SNAPSHOT_CHUNK", chunk_bytes=4096),
    ),
)
def a_shard_below_the_bound_is_one_full_chunk() -> None:
    for name in (SAVE, LOAD):
        begun: dict[Any, int] = {}
        for row in of(rows(name), "SNAPSHOT_BEGIN", "SNAPSHOT_LOAD_BEGIN"):
            begun[row.fields["request"]] = row.fields["payload_size"]
        chunks = of(rows(name), "SNAPSHOT_CHUNK")
        assert len(chunks) == len(begun) > 0
        for row in chunks:
            size = row.fields["chunk_bytes"]
            assert size == begun[row.fields["request"]] <= 8_388_608


@shows(
    (
        "FILE-DSV4-04",
        "another file from another route",
        retold(
            '"snapshot_resaved_identical": true', '"snapshot_resaved_identical": false'
        ),
    ),
)
def two_and_three_stages_write_the_same_file() -> None:
    saved, loaded = facts(SAVE), facts(LOAD)
    assert len(saved["topology"]["workers"]) == 1
    assert len(loaded["topology"]["workers"]) == 2
    assert saved["snapshot_file"] == loaded["snapshot_loaded"]
    assert loaded["snapshot_resaved_identical"] is True
    sizes = [
        e["bytes"]
        for f in (saved, loaded)
        for e in f["driver_events"]
        if e["event"] == "save"
    ]
    assert len(sizes) == 2
    assert len(set(sizes)) == 1


@shows(
    (
        "FILE-DSVL-04",
        "a context of the worker's own",
        rewritten(
            lambda d: d.replace(
                b"DSVL" + struct.pack("<2I", 1, 1024),
                b"DSVL" + struct.pack("<2I", 1, 2048),
            )
        ),
    ),
)
def every_shard_has_the_context_and_capacities_of_the_cluster() -> None:
    shape = facts(LOAD)["shape"]
    words = set()
    for data in streams(LOAD).values():
        for kind, at in words_of(data):
            if kind == 7:
                magic, *rest = struct.unpack_from("<14I", data, at + 12)
                assert magic == 0x4C565344
                words.add(tuple(rest[1:6]))
    assert len(words) == 1
    ((ctx, prefill_cap, _, raw_window, comp_cap),) = words
    assert (ctx, prefill_cap) == (shape["ctx"], shape["prefill_cap"])
    assert (raw_window, comp_cap) == (shape["raw_window"], shape["ctx"] // 4 + 1)


@shows(
    (
        "DS4D-ROUTE-34",
        "logits from a worker without the head",
        altered(lambda r: r.type == "RESULT", result_kind=2),
    ),
)
def a_last_worker_without_the_head_serves_a_coordinator_that_has_it() -> None:
    name = "ds4d/d_s3_hidden_return_f32"
    assert facts(name)["topology"]["workers"][-1] == "6:7"
    assert all(not r.fields["has_output"] for r in of(rows(name), "HELLO"))
    results = of(rows(name), "RESULT")
    assert {r.fields["result_kind"] for r in results} == {1}
    made = next(e for e in facts(name)["driver_events"] if e["event"] == "gen")
    assert (made["rc"], made["n"]) == (0, 8)


@shows(
    (
        "DS4D-ROUTE-36",
        "another layer named",
        retold("missing layer 4", "missing layer 5"),
    ),
)
def the_missing_layer_is_named() -> None:
    for name in ("ds4d/h_hello_reject_layers", "ds4d/g_kill_mid_request_s2"):
        first = int(facts(name)["topology"]["workers"][0].partition(":")[0])
        errors = {e["err"] for e in facts(name)["driver_events"] if e.get("err")}
        assert errors == {f"distributed route incomplete: missing layer {first}"}


@shows(
    (
        "DS4D-DIALECT-31",
        "a descriptor of 16 bytes",
        altered(lambda r: r.type == "WORK", input_hc_bytes=16),
    ),
)
def a_slot_descriptor_has_8_bytes() -> None:
    work_rows = of(rows("ds4d/l_s2_ipc_anyei"), "WORK")
    assert len(work_rows) == 5
    for row in work_rows:
        assert row.fields["input_hc_bytes"] == 8
        assert row.fields["input_hc_bits"] == 32
        assert row.fields["flags"] & 0x11 == 0x11


def late(row: FrameRow) -> bool:
    return row.type == "RESULT" and "unable to connect" in row.fields.get("error", "")


@shows(
    ("DS4D-WORKER-24", "ten tries", altered(late, later=-4.75)),
    ("DS4D-WORKER-24", "no end", altered(late, later=60.0)),
)
def a_refused_dial_takes_200_tries_25_ms_apart() -> None:
    found = rows("ds4d/i_worker_work")
    (refused,) = [row for row in found if late(row)]
    asked = [
        row for row in found if row.stream == refused.stream and row.type == "WORK"
    ]
    assert refused.fields["error"].endswith(" 127.0.0.1:1: Connection refused")
    assert 199 * 0.025 <= refused.time - asked[-1].time <= 199 * 0.025 + 1


def held(found: list[Segment]) -> list[Segment]:
    """Join what one side sends before it is acknowledged, as Nagle's rule does."""
    kept: list[Segment] = []
    for one in found:
        same = [k for k in kept if (k.number, k.way) == (one.number, one.way)]
        if one.data and same and same[-1].data and same[-1] is kept[-1]:
            kept[-1] = kept[-1]._replace(data=kept[-1].data + one.data)
        else:
            kept.append(one)
    return kept


@shows(("DS4D-WORKER-30", "small pieces held back", resent(held)))
def small_pieces_go_out_unacknowledged() -> None:
    """Without TCP_NODELAY a second small segment waits for the first one's ack."""
    at_once: set[tuple[int, str]] = set()
    for name in (TWO, THREE):
        acked: dict[tuple[int, str], int] = {}
        last: dict[tuple[int, str], Segment] = {}
        for one in segments(name):
            key = one.number, one.way
            other = one.number, "b>a" if one.way == "a>b" else "a>b"
            acked[other] = max(acked.get(other, 0), one.ack)
            if not one.data:
                continue
            before = last.get(key)
            small = before is not None and len(before.data) + len(one.data) < 1000
            if small and before is not None and acked.get(key, 0) <= before.seq:
                at_once.add(key)
            last[key] = one
    assert {way for _, way in at_once} == {"a>b", "b>a"}


@shows(
    (
        "DS4D-COORD-26",
        "other logits behind a pipelined prefill",
        retold('"matches_peer_output": true', '"matches_peer_output": false'),
    ),
)
def pipelined_and_sequential_prefill_end_in_the_bits_of_the_plain_model() -> None:
    """The recordings were made beside a model of one process, without any pipeline."""
    sequential = (TWO, "ds4d/b_s2_decode_f16", "ds4d/c_s2_decode_e4m3")
    for name in (*sequential, *(one for one, _ in PREFILL)):
        expected = facts(name)["expected"]
        assert expected["matches_peer_output"] is True, name
        last = of(rows(name), "RESULT")[-1]
        assert last.payload is not None
        assert expected["final_logits_sha256"].startswith(last.payload.hash), name
        assert (max(waiting(rows(name)).values()) > 1) == (name not in sequential)


@shows(
    (
        "DS4D-DIALECT-30",
        "a handle too few",
        altered(lambda r: r.type == "IPC_INBOX", length=344 - 64),
    ),
)
def handles_are_one_and_one_a_slot() -> None:
    (inbox,) = of(rows("ds4d/l_s2_ipc_anyei"), "IPC_INBOX")
    slots = inbox.fields["slot_count"]
    assert 0 < slots <= 8
    assert inbox.fields["slot_bytes"] == 1 << 20
    assert inbox.length == 12 + 12 + 64 * (1 + slots)
    (hello,) = of(rows("ds4d/l_s2_ipc_anyei"), "HELLO")
    assert (hello.stream, hello.stream_offset + hello.length) == (
        inbox.stream,
        inbox.stream_offset,
    )
