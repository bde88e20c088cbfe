"""What the chapters show in bytes and numbers, held against the code."""

import struct
from typing import Any

import numpy as np
import pytest

from ds4proto import codec
from ds4proto.codec.token_hash import token_hash
from ds4proto.link.plan import PlanOptions, plan_sync, sync_gates, token_gates
from ds4proto.link.schedule import Schedule
from ds4proto.schema import frame, read
from tests.spec.chapters import SPEC, Example, examples, pages, rows_under

EXAMPLES = [example for page in pages() for example in examples(page)]


def value_at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[int(part)] if part.isdigit() else values[part]
    return values


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_decodes_to_its_table(example: Example) -> None:
    spec = frame(example.frame, dialect=example.dialect)
    data = example.data
    if spec.protocol == "DS4B" or spec.name.startswith("GATE"):
        data += bytes(4 * 64)
    reading = read(spec, data, dialect=example.dialect)
    assert reading.problems == ()
    for path, shown in example.values.items():
        found = value_at(reading.values, path)
        if isinstance(found, int):
            assert int(shown, 0) == found, path
        elif isinstance(found, tuple):
            assert tuple(map(int, shown.split())) == found, path
        elif isinstance(found, float):
            assert float(shown) == found, path
        else:
            assert shown == found, path


def test_there_are_examples_of_both_protocols() -> None:
    names = {example.frame for example in EXAMPLES}
    assert names >= {
        "DS4D.HELLO", "DS4D.WORK", "DS4D.RESULT", "DS4D.SNAPSHOT_SAVE_REQ",
        "DS4D.SNAPSHOT_BEGIN", "DS4D.SNAPSHOT_CHUNK", "DS4D.SNAPSHOT_DONE",
        "DS4T.HELLO", "DS4T.SYNC", "DS4T.EVAL", "DS4T.COMMAND_ACK", "DS4T.STOP",
        "DS4T.SYNC_CHECKPOINT", "DS4T.VERIFY_COMMIT", "DS4T.GATE_ROW",
        "DS4B.GATE_BATCH", "DS4B.GATE_BULK",
    }  # fmt: skip
    assert len(EXAMPLES) >= 20


def test_the_recovery_of_the_page_hangs_together() -> None:
    work, refusal, replay, answer = (
        read(frame(e.frame, dialect="upstream"), e.data, dialect="upstream").values
        for e in EXAMPLES
        if e.chapter == "02-ds4d.md" and e.frame in {"DS4D.WORK", "DS4D.RESULT"}
    )
    known = replay["tokens"][:-1]
    assert work["prefix_hash"] == token_hash(known)
    assert work["result_hash"] == token_hash(replay["tokens"])
    assert replay["prefix_hash"] == token_hash(())
    assert replay["result_hash"] == work["result_hash"] == answer["result_hash"]
    assert replay["n_tokens"] == work["pos0"] + 1
    assert bytes(refusal["payload"]) == b"worker KV prefix hash mismatch"
    assert (refusal["request"], answer["request"]) == (4, 5)


def test_the_hashes_of_the_page() -> None:
    text = (SPEC / "05-codecs.md").read_text("utf-8")
    rows = rows_under(text, "| tokens | hash |")
    assert len(rows) == 5
    for tokens, shown in rows:
        ids = [] if tokens == "none" else [int(word) for word in tokens.split()]
        assert token_hash(ids) == int(shown, 16), tokens


def number(text: str) -> float:
    """Return the f32 that a cell of chapter 5 names."""
    bits = {"NaN 0x7f800001": 0x7F800001, "NaN 0xffc12345": 0xFFC12345}.get(text)
    if bits is not None:
        return float(np.array([bits], "<u4").view("<f4")[0])
    return {"NaN": np.nan, "-infinity": -np.inf, "2^-25": 2.0**-25}.get(text) or float(
        text
    )


def test_the_bytes_of_the_8_bit_table() -> None:
    text = (SPEC / "05-codecs.md").read_text("utf-8")
    rows = rows_under(text, "| f32 | byte | a textbook routine says |")
    assert len(rows) == 7
    for shown, byte, _ in rows:
        x = np.array([number(shown)], "<f4")
        assert bytes(codec.get("e4m3").encode(x)).hex() == byte, shown


def test_the_thresholds_of_the_8_bit_table_are_all() -> None:
    text = (SPEC / "05-codecs.md").read_text("utf-8")
    rows = rows_under(text, "| u | byte, with 0x80 added for a negative value |")
    bits = [int(w.strip(","), 16) for w in rows[-1][1].split() if w.startswith("3")]
    assert len(bits) == 7
    around = np.array([b + d for b in bits for d in (-1, 0)], "<u4")
    got = np.frombuffer(bytes(codec.get("e4m3").encode(around.view("<f4"))), np.uint8)
    want = [sum(b <= u for b in bits) for u in around.tolist()]
    assert got.tolist() == want


@pytest.mark.parametrize(
    ("name", "head", "count"),
    [("f16", "| f32 | u16 | why |", 7), ("bf16", "| f32 bits | u16 |", 4)],
)
def test_the_16_bit_tables(name: str, head: str, count: int) -> None:
    text = (SPEC / "05-codecs.md").read_text("utf-8")
    rows = rows_under(text, head)
    assert len(rows) == count
    for row in rows:
        shown, code = row[0], row[1].split(",")[0]
        if name == "bf16":
            x = np.array([int(shown.split(",")[0], 16)], "<u4").view("<f4")
        elif shown.startswith("NaN"):
            x = np.array([int(shown.split()[1], 16)], "<u4").view("<f4")
        else:
            x = np.array([number(shown)], "<f4")
        wire = bytes(codec.get(name).encode(x))
        assert struct.unpack("<H", wire)[0] == int(code, 16), shown


def test_the_profiles_of_the_page() -> None:
    text = (SPEC / "05-codecs.md").read_text("utf-8")
    head = "| profile | built with | -0.0, negative denormals | NaN | NaN with sign |"
    x = np.array([0x80000000, 0x7FC00000, 0xFFC00000], "<u4").view("<f4")
    rows = rows_under(text, head)
    assert len(rows) == 4
    for profile, _, *codes in rows:
        wire = bytes(codec.get("e4m3", profile=profile).encode(x))
        assert [f"{byte:02x}" for byte in wire] == codes, profile


def test_the_worked_plan_is_the_plan() -> None:
    text = (SPEC / "03-ds4t.md").read_text("utf-8")
    rows = rows_under(
        text, "| batch seq | layer | gate | rows | payload bytes each way |"
    )
    schedule = Schedule(n_layer=4, gates_per_token=8)
    plan = plan_sync((), range(40), 256, PlanOptions())
    gates = list(sync_gates(plan, schedule))
    shown = [(int(r[1]), r[2], int(r[3]), int(r[4])) for r in rows]
    assert shown == [(g.layer, g.gate, g.rows, g.rows * 256) for g in gates]
    assert [int(r[0]) for r in rows] == list(range(1, 9))
    assert [(g.layer, g.gate) for g in token_gates(schedule)] == [
        (layer, kind) for layer in range(4) for kind in ("ATTN", "FFN")
    ]
    after = plan_sync(range(41), range(43), 256, PlanOptions())
    assert (after.chunks, after.single_tokens) == ((), 2)
