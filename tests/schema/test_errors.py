"""What a refusal says: protocol, message, field, both offsets, expected and found."""

import struct
from typing import Any

import pytest

from ds4proto.schema import Problem, SchemaError, build, frame, parse, read, to_bytes
from ds4proto.schema.rules import shown

HOP = {"host": "127.0.0.1", "port": 5555, "layer_start": 2, "layer_end": 4, "flags": 0}
LAST = {"host": "10.0.0.7", "port": 5556, "layer_start": 5, "layer_end": 7, "flags": 1}
WORK = {
    "model_id": 0, "session": 1, "request": 2, "prefix_hash": 3, "result_hash": 4,
    "pos0": 0, "layer_start": 2, "layer_end": 4, "flags": 1, "input_hc_bits": 32,
    "route_index": 0, "tokens": (5, 6), "hidden": bytes(16), "route": [HOP, LAST],
}  # fmt: skip
HEADER, FIXED = 12, 80
ROUTE_AT = HEADER + FIXED + 2 * 4 + 16
LAST_AT = ROUTE_AT + 20 + len("127.0.0.1")


def work(**other: Any) -> bytes:
    return to_bytes(
        frame("DS4D.WORK", dialect="upstream"), {**WORK, **other}, dialect="upstream"
    )


def refused(data: bytes, *, offset: int = 0) -> Problem:
    spec = frame("DS4D.WORK", dialect="upstream")
    reading = read(spec, data, dialect="upstream", stream_offset=offset)
    return reading.problems[0]


def test_the_frame_itself_is_sound() -> None:
    spec = frame("DS4D.WORK", dialect="upstream")
    assert read(spec, work(), dialect="upstream").problems == ()


def test_a_field_of_the_second_record() -> None:
    problem = refused(work(route=[HOP, {**LAST, "port": 0}]), offset=1000)
    assert problem.path == "WORK.route[1].port"
    assert problem.clause == "DS4D-ROUTE-04"
    assert problem.frame_offset == LAST_AT + 4
    assert problem.stream_offset == 1000 + LAST_AT + 4
    assert (problem.expected, problem.found) == ("1..65535", "0")
    assert str(problem) == (
        f"WORK.route[1].port (frame offset {LAST_AT + 4}, stream offset"
        f" {1000 + LAST_AT + 4}): expected 1..65535, found 0 [DS4D-ROUTE-04]"
    )


def test_a_length_inside_the_second_record() -> None:
    problem = refused(work(route=[HOP, {**LAST, "host_len": 4000}]))
    assert problem.path == "WORK.route[1].host"
    assert problem.clause == "DS4D-ROUTE-01"
    assert problem.frame_offset == LAST_AT + 20
    assert problem.expected == "4000 bytes of host"
    assert problem.found == "only 20 bytes left in WORK.route[1]"
    assert problem.fatal
    assert problem.next_step


def test_a_rule_between_records() -> None:
    problem = refused(work(route=[HOP, {**LAST, "layer_start": 6}]))
    assert (problem.path, problem.clause) == ("WORK.route", "DS4D-ROUTE-08")
    assert problem.frame_offset == ROUTE_AT
    assert "gap" in problem.next_step


def test_a_short_fixed_part_names_the_field_that_is_cut() -> None:
    whole = work()[: HEADER + 50]
    short = whole[:8] + struct.pack(">I", 50) + whole[12:]
    problem = refused(short)
    assert problem.path == "WORK.layer_end"
    assert problem.clause == "DS4D-WORK-01"
    assert problem.frame_offset == HEADER + 48
    assert "80 bytes" in problem.expected
    assert "after 2 of the field's 4 bytes" in problem.found


def test_surplus_bytes() -> None:
    data = work() + b"abc"
    data = data[:8] + struct.pack(">I", len(data) - HEADER) + data[12:]
    problem = refused(data)
    assert (problem.path, problem.clause) == ("WORK", "DS4D-WORK-02")
    assert problem.frame_offset == len(data) - 3
    assert "3 of them left over" in problem.found


@pytest.mark.parametrize(
    ("data", "path", "clause", "expected", "found"),
    [
        (b"XXXX", "header.magic", "DS4D-FRAME-01", "0x44533444", "0x58585858"),
        (b"DS4D\0\0\0\4", "header.type", "DS4D-FRAME-02", "3", "4"),
        (b"DS4D\0\0\0\3\0\0\0\1", "header.bytes", "DS4D-FRAME-03", None, "1"),
    ],
)
def test_header(
    data: bytes, path: str, clause: str, expected: str | None, found: str
) -> None:
    problem = refused(data + work()[len(data) :], offset=7)
    assert problem.path == f"WORK.{path}"
    assert problem.clause == clause
    assert problem.expected == (expected or str(len(work()) - HEADER))
    assert problem.found == found
    assert problem.stream_offset == 7 + {"magic": 0, "type": 4, "bytes": 8}[path[7:]]


def test_a_header_that_is_cut_says_only_that() -> None:
    spec = frame("DS4T.EVAL", dialect="v14")
    (problem,) = read(spec, b"T4SD\2", dialect="v14").problems
    assert problem.path == "EVAL.header"
    assert problem.expected == "a header of 12 bytes"
    assert problem.found == "5 bytes"
    assert problem.fatal


def test_parse_raises_at_what_cannot_be_read() -> None:
    spec = frame("DS4D.WORK", dialect="upstream")
    with pytest.raises(SchemaError) as caught:
        parse(spec, work(route_bytes=1 << 31), dialect="upstream", stream_offset=64)
    problem = caught.value.problem
    assert problem.path == "WORK.route_blob"
    assert problem.clause.startswith("DS4D-")
    assert problem.stream_offset == 64 + ROUTE_AT
    assert str(caught.value) == str(problem)


def test_parse_hands_out_values_that_break_a_rule() -> None:
    spec = frame("DS4T.EVAL", dialect="v14")
    data = to_bytes(spec, {"session_id": 0, "seq": 1, "token": 5}, dialect="v14")
    assert parse(spec, data, dialect="v14")["session_id"] == 0


def test_every_text_names_the_protocol_by_its_clause() -> None:
    eval_spec = frame("DS4T.EVAL", dialect="v14")
    values = {"session_id": 1, "seq": 1, "token": 5, "reserved": 9}
    data = to_bytes(eval_spec, values, dialect="v14")
    (problem,) = read(eval_spec, data, dialect="v14").problems
    assert str(problem) == (
        "EVAL.reserved (frame offset 32, stream offset 32): expected 0, found 9"
        " [DS4T-CTRL-18]"
    )
    gate = frame("DS4B.GATE_BATCH", dialect="v14")
    data = to_bytes(gate, {"layer": 1, "rows": 9, "seq": 1}, dialect="v14")
    (problem,) = read(gate, data, dialect="v14").problems
    assert str(problem).startswith("GATE_BATCH.rows (frame offset 6")
    assert str(problem).endswith("expected 1..8, found 9 [DS4B-BATCH-03]")


def test_what_breaks_in_the_fixed_part_is_told_beside_unreadable_tails() -> None:
    spec = frame("DS4D.WORK", dialect="upstream")
    data = work(token_bytes=0xFFFFFFFC, n_tokens=0)
    found = {(p.path, p.clause) for p in read(spec, data, dialect="upstream").problems}
    assert ("WORK.tokens", "DS4D-WORK-02") in found
    assert ("WORK.token_bytes", "DS4D-WORK-02") in found
    assert ("WORK.n_tokens", "DS4D-WORK-08") in found


# -- building


def test_a_missing_value_says_what_to_give() -> None:
    spec = frame("DS4T.EVAL", dialect="v14")
    with pytest.raises(SchemaError) as caught:
        build(spec, {"session_id": 1, "seq": 1}, dialect="v14")
    problem = caught.value.problem
    assert problem.path == "EVAL.token"
    assert problem.expected == "a i32le: token to decode"
    assert problem.next_step == "give token to build this frame in dialect v14"


@pytest.mark.parametrize("value", [-1, 1 << 32, 1.5, "7", None])
def test_a_value_that_does_not_fit(value: Any) -> None:
    spec = frame("DS4D.SNAPSHOT_DONE", dialect="upstream")
    with pytest.raises(SchemaError) as caught:
        build(spec, {"request": 1, "status": value}, dialect="upstream")
    assert caught.value.problem.path == "SNAPSHOT_DONE.status"
    assert caught.value.problem.expected == "a u32be"


def test_a_tail_of_the_wrong_kind() -> None:
    spec = frame("DS4D.ERROR", dialect="upstream")
    with pytest.raises(SchemaError) as caught:
        build(spec, {"text": 7}, dialect="upstream")
    assert caught.value.problem.path == "ERROR.text"
    with pytest.raises(SchemaError) as caught:
        work(tokens=(1, -2))
    assert caught.value.problem.path == "WORK.tokens"


def test_a_test_can_lie_about_lengths() -> None:
    spec = frame("DS4T.SYNC", dialect="v14")
    values = {"session_id": 1, "tokens": (7, 19, 5)}
    honest = to_bytes(spec, values, dialect="v14")
    lying = to_bytes(
        spec, {**values, "count": 9}, dialect="v14", header={"bytes": 1 << 30}
    )
    assert len(lying) == len(honest)
    assert struct.unpack_from("<I", lying, 8) == (1 << 30,)
    assert struct.unpack_from("<I", lying, 20) == (9,)


def test_payloads_are_neither_copied_nor_joined() -> None:
    spec = frame("DS4B.GATE_BULK", dialect="v14")
    partial = bytearray(1 << 16)
    parts = build(
        spec, {"layer": 1, "tag": 0x0B16, "seq": 1, "partial": partial}, dialect="v14"
    )
    assert [len(part) for part in parts] == [16, 1 << 16]
    partial[0] = 7
    assert parts[1][0] == 7
    reading = read(spec, parts[0] + bytes(parts[1]), dialect="v14")
    assert isinstance(reading.values["partial"], memoryview)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"abc", "3 bytes"),
        (memoryview(bytes(1 << 20)), "1048576 bytes"),
        ((1, 2, 3), "3 items"),
        ("plain", "'plain'"),
        ("a\x1b[31m", r"'a\x1b[31m'"),
        ("x" * 500, "'" + "x" * 76 + "..."),
        (7, "7"),
    ],
)
def test_values_are_shown_short_and_without_control_characters(
    value: Any, text: str
) -> None:
    assert shown(value) == text


def test_unknown_frames_name_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"dialect v7 has no frame 'DS4T.GLM_MTP'.*EVAL"):
        frame("DS4T.GLM_MTP", dialect="v7")
    assert frame("DS4T.EVAL", dialect="v14?") is frame("DS4T.EVAL", dialect="v14")
