"""Clauses of the order of frames and gates that recordings of real builds show."""

from __future__ import annotations

from ds4proto.trace import FrameRow
from tests.spec.recorded_pairs import GATES, kinds, leader, worker
from tests.spec.recordings import (
    altered,
    dropped,
    moved,
    of,
    placed,
    rows,
)
from tests.spec.tp_showing import shows

# flows


def verify_flow(found: list[FrameRow]) -> list[list[str]]:
    """Return what follows each VERIFY up to the next command of another kind."""
    order = kinds(found)
    starts = [i for i, name in enumerate(order) if name == "VERIFY"]
    flows = []
    for start in starts:
        end = start + 1
        while end < len(order) and order[end] in ("GATES", "VERIFY_COMMIT", "LOGITS"):
            end += 1
        flows.append(order[start:end])
    return flows


@shows(
    (
        "DS4T-FLOW-16",
        "no logits behind a replay",
        dropped(lambda r: r.type == "LOGITS"),
    ),
    (
        "DS4T-FLOW-19",
        "the verdict in front of the gates",
        moved(lambda r: r.type == "VERIFY_COMMIT", 12),
    ),
)
def a_verify_is_gates_verdict_and_replay() -> None:
    for version in (7, 9):
        found = rows(f"ds4t/v{version}_verify_replay")
        (verdict,) = of(found, "VERIFY_COMMIT")
        assert verdict.fields["mode"] == 0
        assert verdict.fields["token_count"] > 0
        (flow,) = verify_flow(found)
        assert flow == ["VERIFY", "GATES", "VERIFY_COMMIT", "GATES", "LOGITS"]
    (flow,) = verify_flow(rows("ds4t/v10_verify_rows5"))
    assert flow[:3] == ["VERIFY", "GATES", "VERIFY_COMMIT"]
    assert "LOGITS" not in flow


@shows(
    (
        "DS4T-FLOW-17",
        "no answer to the cycle",
        dropped(lambda r: r.type == "COMMAND_ACK"),
    ),
    (
        "DS4T-MTP-03",
        "a status of 2",
        altered(lambda r: r.type == "COMMAND_ACK", status=2),
    ),
)
def a_speculative_cycle_is_command_gates_answer() -> None:
    found = rows("ds4t/v10_glm_mtp")
    order = kinds(found)
    cycles = [i for i, name in enumerate(order) if name == "GLM_MTP"]
    assert cycles
    assert all(order[i + 1 : i + 3] == ["GATES", "COMMAND_ACK"] for i in cycles)
    assert {r.fields["status"] for r in of(found, "COMMAND_ACK")} == {0}


@shows(
    (
        "DS4T-MM-11",
        "no logits behind the answer",
        dropped(lambda r: r.type == "LOGITS"),
    ),
    (
        "DS4T-FLOW-32",
        "no picture rows",
        altered(lambda r: r.type == "SYNC_MULTIMODAL", image_count=0),
    ),
)
def pictures_travel_as_rows_and_are_answered_like_a_prompt() -> None:
    found = rows("ds4t/v10_multimodal")
    order = kinds(found)
    at = order.index("SYNC_MULTIMODAL")
    assert order[at + 1 : at + 4] == ["GATES", "COMMAND_ACK", "LOGITS"]
    (asked,) = of(found, "SYNC_MULTIMODAL")[:1]
    count = asked.fields["image_count"]
    assert count > 0
    # 12 of header, 16 of the fixed part, the tokens, then 60 and rows for each picture
    rest = asked.length - 12 - 16 - 4 * asked.fields["token_count"]
    width = 4 * of(found, "HELLO")[0].fields["n_embd"]
    assert rest > 60 * count
    assert (rest - 60 * count) % width == 0
    assert "EVAL" in order[at:]


@shows(
    (
        "DS4T-FLOW-02",
        "a gate on the control connection",
        placed(lambda r: r.type == "GATE_ROW", stream=1),
    ),
)
def gates_and_control_frames_keep_to_their_connections() -> None:
    for stem in ("v7_everything", "v10_everything"):
        found = rows(f"ds4t/{stem}")
        control = of(found, "HELLO")[0].stream
        for row in found:
            on_control = row.stream == control
            assert on_control != (row.type in GATES), (stem, row.type)


@shows(
    (
        "DS4T-GATE-20",
        "another layer at the peer",
        altered(lambda r: worker(r) and r.type == "GATE_ROW", layer=7),
    ),
    (
        "DS4T-FLOW-03",
        "a gate without its partner",
        dropped(lambda r: worker(r) and r.type == "GATE_ROW" and r.fields["seq"] == 3),
    ),
)
def both_ranks_send_the_same_gates_in_the_same_order() -> None:
    for stem in ("v7_everything", "v9_verify_replay", "v10_everything"):
        sides = []
        for side in (leader, worker):
            gates = [r for r in rows(f"ds4t/{stem}") if side(r) and r.type in GATES]
            words = ("layer", "gate", "rows", "tag", "seq")
            sides.append([(r.type, r.length, *map(r.fields.get, words)) for r in gates])
        assert sides[0] == sides[1]
        assert len(sides[0]) > 10


@shows(
    (
        "DS4T-EVAL-08",
        "a token behind the vocabulary",
        altered(lambda r: r.type == "EVAL", token=32),
    ),
)
def leaders_send_tokens_of_the_vocabulary() -> None:
    for stem in ("v7_everything", "v10_everything"):
        found = rows(f"ds4t/{stem}")
        size = of(found, "HELLO")[0].fields["n_vocab"]
        tokens = [r.fields["token"] for r in of(found, "EVAL")]
        assert tokens
        assert all(0 <= token < size for token in tokens)
