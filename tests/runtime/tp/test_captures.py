"""Our two ranks write what real pairs wrote: control frames and gate headers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.script import Script
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.schema.registry import frame_of_code, parse
from tests.link.ds4t.captured import Captured, frames_of, load
from tests.link.ds4t.replay import options_of
from tests.runtime.tp.rig import Relay, options, pair

EVAL, LOGITS, TOP2, IMAGES = 2, 10, 18, 18
# Scripts whose every operation a real engine could run; the gates of GLM_MTP and the
# bytes of images are the recorded engine's own.
NAMES = [
    "v7_batch_two_sessions",
    "v7_decode8",
    "v7_ident_gates_zero",
    "v7_mixed_batch",
    "v7_payload_tagged",
    "v7_prefill_decode",
    "v7_rewind_invalidate",
    "v7_sync_identical_prompt",
    "v9_batch_two_sessions",
    "v9_decode8",
    "v9_embd4096",
    "v9_prefill_decode",
    "v9_rewind_invalidate",
    "v9_top2",
    "v9_verify_prefix",
    "v9_verify_replay",
    "v9_verify_replay0",
    "v9_verify_rows1",
    "v9_verify_rows8",
    "v10_decode8",
    "v10_everything",
    "v10_gate_mask_61",
    "v10_prefill_attn_split",
    "v10_sync_identical_prompt",
]
CONTROL_ONLY = ["v10_glm_mtp", "v10_multimodal"]


def _engine(captured: Captured, rank: int) -> RankEngine:
    identity = captured.settings("tp-leader").identity
    shape = ToyShape(
        n_layer=identity.n_layer,
        n_embd=identity.n_embd,
        n_vocab=identity.n_vocab,
        split=not captured.about["parameters"].get("glm"),
    )
    engine = ToyTpEngine(shape, rank)
    engine.identity = identity
    return engine


def _script(captured: Captured) -> str:
    """The recorded script, with the tokens that the recorded engine generated."""
    words = captured.about["roles"]["leader"]["options"]
    text = words[words.index("--script") + 1]
    steps = text.split(";")
    evals = [
        parse(frame_of_code("DS4T", code, dialect=captured.dialect), data,
              dialect=captured.dialect)["token"]
        for code, data in frames_of(captured.control.from_leader[captured.hello_size:])
        if code == EVAL
    ]  # fmt: skip
    for at, step in enumerate(steps):
        if step.startswith("gen:"):
            _, known, count = step.split(":")
            tail = ",".join(map(str, evals[-int(count) :]))
            steps[at] = f"eval:{known}:{tail}"
    return ";".join(steps)


def _run(captured: Captured) -> tuple[list[dict[str, bytearray]], list[Any]]:
    relays: list[Relay] = []

    def via(address: tuple[str, int]) -> tuple[str, int]:
        relays.append(Relay(address))
        return relays[0].address

    settings = options(
        dialect=captured.dialect,
        ctx=captured.settings("tp-leader").ctx_size,
        plan=options_of(captured),
    )
    gates: list[Any] = []
    with pair(lambda rank: _engine(captured, rank), settings, via=via) as found:
        link = found.leader.rank.transport.link
        start = link._start

        def noted(
            layer: int, third: int, seq: int, own: memoryview, *rest: Any
        ) -> None:
            gates.append((layer, third, seq, own.nbytes))
            start(layer, third, seq, own, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(link), "_start", lambda self, *a: (
                noted(*a) if self is link else start.__func__(self, *a)))  # fmt: skip
            Script(found.leader, lambda _: None).run(_script(captured))
    assert found.worker_error is None
    relays[0].close()
    return relays[0].streams, gates


def _without_floats(data: bytes) -> list[tuple[int, bytes]]:
    """Frames, of LOGITS and images only type and size."""
    return [
        (code, body if code not in (LOGITS, TOP2) else body[:12])
        for code, body in frames_of(data)
    ]


@pytest.mark.parametrize("name", NAMES + CONTROL_ONLY)
def test_our_pair_writes_what_the_recorded_pair_wrote(name: str) -> None:
    captured = load(name)
    streams, gates = _run(captured)
    size = captured.hello_size
    theirs, mine = captured.control, streams[0]
    assert bytes(mine["down"][:size]) == theirs.from_leader[:size]
    assert bytes(mine["up"][:size]) == theirs.from_worker[:size]
    assert _without_floats(bytes(mine["down"][size:])) == _without_floats(
        theirs.from_leader[size:]
    )
    assert _without_floats(bytes(mine["up"][size:])) == _without_floats(
        theirs.from_worker[size:]
    )
    if name in CONTROL_ONLY:
        return
    assert gates, "a run without gates shows nothing"
    for way, recorded in (
        ("down", captured.data.from_leader),
        ("up", captured.data.from_worker),
    ):
        own = bytes(streams[1][way])
        assert len(own) == len(recorded)
        at = 0
        for *_, nbytes in gates:
            assert own[at : at + 16] == recorded[at : at + 16]
            at += 16 + nbytes
        assert at == len(own)


def test_a_changed_plan_is_seen_in_the_bytes() -> None:
    """The comparison above can fail: another split threshold gives other gates."""
    captured = load("v10_prefill_attn_split")
    changed = replace(captured, about={
        **captured.about,
        "parameters": {**captured.about["parameters"], "split_attn": 64},
    })  # fmt: skip
    streams, _ = _run(changed)
    assert len(streams[1]["up"]) != len(captured.data.from_worker)
