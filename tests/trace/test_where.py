"""The condition language: what it finds, what it refuses and where it points."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.errors import WrongUsage
from ds4proto.schema.problem import Problem
from ds4proto.trace.names import known_names
from ds4proto.trace.payload import PayloadSummary
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.where import WhereError, compile_where

PROBLEM = Problem("DS4D-WORK-07", "WORK.flags", 64, 64, "only 1, 2, 4, 8", "16")


def row(**given: Any) -> FrameRow:
    values: dict[str, Any] = {
        "run": 1, "stream": 3, "direction": "a>b", "protocol": "DS4D",
        "dialect": "upstream", "type": "WORK", "time": 0.5, "stream_offset": 56,
        "length": 822, "first_packet": 7, "last_packet": 9,
        "fields": {
            "request": 2**63 + 1, "layer_start": 3, "layer_end": 5, "flags": 5,
            "tokens": (1, 2, 300), "n_tokens": 3,
            "route": [{"host": "10.0.0.2", "port": 7000}, {"host": "b", "port": 7001}],
        },
        "problems": (), "first_time": 0.4, "epoch": 1.7e9, "src": "10.0.0.1:5",
        "dst": "10.0.0.2:7", "src_role": "coordinator", "dst_role": "worker 3:5",
        "payload": PayloadSummary("hidden", "f16", 640, low=-1.5, high=2.0, nan=1),
    }  # fmt: skip
    return FrameRow(**{**values, **given})


WORK = row()
RESULT = row(
    type="RESULT", fields={"result_kind": 2, "status": 0}, problems=(PROBLEM,),
    payload=None,
)  # fmt: skip
GATE = row(
    protocol="DS4T", dialect="v10", type="GATE_ROW", fields={"gate": 1, "seq": 9}
)


@pytest.mark.parametrize(
    "text",
    [
        'type == "WORK"',
        "type == 'WORK' and direction == \"a>b\"",
        "ds4d.work",
        "ds4d.work.layer_start == 3",
        "DS4D.WORK.LAYER_START == 0x3",
        "ds4d.work.layer_start < ds4d.work.layer_end",
        "ds4d.work.request > 9223372036854775807",
        "ds4d.work.flags & 4",
        'ds4d.work.flags & "RESET_SESSION"',
        'ds4d.work.flags & "ACK_ONLY|RESET_SESSION" == 4',
        "(ds4d.work.flags & 8) == 0",
        "not ds4d.work.flags & 2",
        "300 in ds4d.work.tokens",
        "ds4d.work.tokens contains 300",
        "7 not in ds4d.work.tokens",
        "1",
        "ds4d.work.route.port == 7001",
        'ds4d.work.route.host in ("a", "b")',
        "ds4d.work.hidden.nan == 1 and payload.max >= 2",
        "ds4d.work.hidden.min < -1.25",
        'src_role == "coordinator" && dst contains "10.0"',
        "!problems",
        "time < .6 or time > 1e3",
        "not not (length == 822 || length == 1)",
        "not ds4d.result",
        "type in ['HELLO', 'WORK']",
    ],
)
def test_conditions_that_hold(text: str) -> None:
    assert compile_where(text)(WORK) is True


@pytest.mark.parametrize(
    "text",
    [
        "ds4d.result",
        "ds4d.result.status == 0",
        "ds4d.result.status != 0",
        "not ds4d.work",
        "ds4d.work.layer_start == 4",
        "ds4d.work.tokens == 4",
        'type == "work"',
        "problems",
        "ds4d.work.draft_cap not in (1, 2)",
        "0",
    ],
)
def test_conditions_that_do_not_hold(text: str) -> None:
    assert compile_where(text)(WORK) is False


def test_numbers_are_compared_with_their_names() -> None:
    assert compile_where('ds4d.result.result_kind == "LOGITS"')(RESULT)
    assert compile_where('"LOGITS" == ds4d.result.result_kind')(RESULT)
    assert compile_where('ds4d.result.result_kind != "ACK"')(RESULT)
    assert not compile_where('ds4d.result.result_kind == "ACK"')(RESULT)
    assert compile_where('ds4t.gate_row.gate == "FFN"')(GATE)
    assert compile_where('ds4t.gate_row.gate in ("ATTN", "FFN")')(GATE)


def test_problems_are_a_list_of_clauses() -> None:
    assert compile_where("problems")(RESULT)
    assert compile_where('"DS4D-WORK-07" in problems')(RESULT)
    assert compile_where('problems contains "DS4D-WORK-07"')(RESULT)
    assert not compile_where('problems == "DS4D-WORK-08"')(RESULT)


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("", 1, "expected a condition"),
        ("type ==", 8, "found the end"),
        ("type = 3", 6, "write =="),
        ("type == 'WORK", 9, "closing quote"),
        ("(type == 'WORK'", 16, "expected ')'"),
        ("type == 'WORK' time", 16, "expected the end"),
        ("ds4d.work.layer_strat == 3", 1, "ds4d.work.layer_start"),
        ("length > 3 and ds4d.wrok", 16, "ds4d.work"),
        ("ds4t.gate_row.zzzz", 1, "seq"),
        ("length > $", 10, "unexpected character '$'"),
        ("and", 1, "expected a name"),
        ("length in", 10, "found the end"),
        ('ds4d.work.flags & "NO_SUCH_FLAG"', 19, "it knows"),
        ('ds4d.work.layer_start < "x"', 25, "compare with a number"),
        ('ds4d.result.result_kind == "LOGIT"', 28, "did you mean LOGITS?"),
        ('"FFM" == ds4t.gate_row.gate', 1, "did you mean FFN?"),
        ('ds4t.gate_row.gate in ("ATTN", "MLP")', 23, "no value 'MLP'"),
        ('ds4t.gate_row.gate not in ("MLP",)', 27, "it knows ATTN, FFN"),
    ],
)
def test_mistakes_point_at_the_column(text: str, column: int, part: str) -> None:
    with pytest.raises(WhereError, match=f"column {column}: ") as caught:
        compile_where(text)
    assert caught.value.column == column
    lines = str(caught.value).split("\n")
    assert part in lines[0]
    assert lines[2] == " " * (column - 1) + "^"


def test_depth_and_length_are_bounded() -> None:
    with pytest.raises(WhereError, match="nested deeper"):
        compile_where("(" * 2000 + "1" + ")" * 2000)
    with pytest.raises(WrongUsage, match="at most"):
        compile_where("1 or " * 10_000 + "1")
    assert compile_where("not " * 1000 + "1")(WORK)


def test_names_come_from_the_declarations() -> None:
    names = known_names()
    for name in (
        "ds4d.work.layer_start", "ds4d.hello.listen_port",
        "ds4d.result.telemetry.eval_usec",
        "ds4t.hello.gates_per_token", "ds4t.eval.token", "ds4t.gate_row.seq",
        "ds4b.gate_bulk.tag", "ds4d.work.hidden.over_f16", "type", "dialect",
    ):  # fmt: skip
        assert name in names
    assert len(names) == len(set(names))
