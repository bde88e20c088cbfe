"""What v7, v9w and v10 do in another way than v14."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.tp.gates import TcpGates
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.spans import Span
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.link import ds4t_events as say
from ds4proto.link import ds4t_gates, ds4t_worker_frames
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rules import Rules
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.model import identity
from ds4proto.schema import recognise, registry
from tests.link import test_ds4t_control as observers
from tests.link.ds4t import test_control as controls
from tests.link.ds4t import test_gate_failures as failures
from tests.link.ds4t import test_gates as links
from tests.link.ds4t.gates import give, link, opened, take
from tests.link.ds4t.pair import synced, three
from tests.model import test_identity as identities
from tests.runtime.tp.rig import options, pair, toy
from tests.runtime.transport.rig import TOY
from tests.schema import test_dialects as dialects
from tests.spec.proofs.tp_dialects import one_table, only
from tests.spec.proofs.tp_gates import judged_later
from tests.spec.proofs.tp_rdma_gates import tapped
from tests.spec.proofs.tp_split import Noting, without
from tests.spec.tp_showing import altered, ranks, ruled, shows


@shows(
    (
        "DS4T-ROBUST-25",
        "a prefix verdict for everybody",
        ruled("v7", prefix_commit=True),
    ),
    (
        "DS4T-MTP-04",
        "GLM_MTP for everybody",
        lambda: patch.object(Rules, "mtp", True),
    ),
    (
        "DS4T-MM-12",
        "pictures for everybody",
        lambda: patch.object(Rules, "multimodal", True),
    ),
)
def a_leader_does_not_send_what_the_dialect_lacks() -> None:
    pair = synced("v7")
    pair.leader.send(say.RunVerify(1, (1, 2, 3)), 0.0)
    with pytest.raises(LocalProtocolError):
        pair.leader.send(say.CommitBlock(2, 1), 0.0)
    for dialect in ("v7", "v9w"):
        with pytest.raises(LocalProtocolError):
            three(dialect).leader.send(say.RunMtp(1, 1, 1), 0.0)
        picture = say.Image(0, 1, bytes(256))
        with pytest.raises(LocalProtocolError):
            three(dialect).leader.send(say.RunSync(1, (1, 2), (picture,)), 0.0)


@shows(
    (
        "DS4T-TOP2-02",
        "the half is sent all the same",
        lambda: patch.object(TpSettings, "top2", False),
    ),
    (
        "DS4T-TOP2-03",
        "positions inside the half",
        altered(ds4t_worker_frames, "top2_of", lambda own, half, _: own(half, 0)),
    ),
)
def a_v9w_worker_sends_its_two_best() -> None:
    controls.test_a_v9w_worker_sends_the_two_best_of_its_half()


@shows(
    ("DS4T-TOP2-04", "one table for all", altered(registry, "_codes", one_table)),
    ("DS4T-TOP2-04", "the version alone", only("version")),
)
def type_18_is_told_by_direction_and_hello() -> None:
    assert dialects.names({"a>b": dialects.hello("v9w")}) == ["v9w"]
    for name, words in (("v9w", "LOGITS_TOP2"), ("v9", "SYNC_MULTIMODAL")):
        spec = registry.frame_of_code("DS4T", 18, dialect=name)
        assert spec is not None
        assert spec.name == words
    observers.test_type_18_is_read_by_dialect()


@shows(
    (
        "DS4T-DIALECT-07",
        "frames behind the hello say nothing",
        altered(recognise, "misfits", lambda _own, *_: 0),
    )
)
def late_v9_is_named_when_its_frames_come() -> None:
    dialects.test_nine_is_late_once_a_frame_says_so()


@shows(
    (
        "DS4T-DIALECT-21",
        "session ids from the start",
        altered(
            registry,
            "_codes",
            lambda own, name, dialect: own(name, "v7" if dialect == "v6" else dialect),
        ),
    )
)
def v7_is_the_first_with_sessions() -> None:
    new = {13, 14, 15, 16, 17}
    for name, held in (("v1", set()), ("v6", set()), ("v7", new), ("v10", new)):
        found = {
            code
            for code in new
            if registry.frame_of_code("DS4T", code, dialect=name) is not None
        }
        assert found == held, name


@shows(
    (
        "DS4T-GATE-24",
        "the payload first",
        altered(GateLink, "received", judged_later),
    )
)
def a_wrong_header_without_payload_fails_at_once() -> None:
    for dialect in ("v7", "v9", "v9w", "v10", "v12"):
        for shape in ("row", "batch", "bulk"):
            machine = link(dialect=dialect)
            opened(shape, machine)
            head = bytearray(take(machine)[:16])
            head[4] ^= 1
            with pytest.raises(GateFailed):
                give(machine, bytes(head))


@shows(
    ("DS4B-BULK-08", "grace for a bulk header", ruled("v10", bulk_grace=2.0)),
    ("DS4B-BULK-08", "another timeout", ruled("v10", gate_timeout=2.0)),
)
def a_v10_rank_waits_the_gate_timeout_for_a_bulk_header() -> None:
    failures.test_idle_limits_by_dialect("v10", "bulk", 0.75, 0.75)


def one_wave(own: Any, machine: GateLink, *words: Any, waves: int = 0) -> None:
    own(machine, *words, waves=min(waves, 1))


@shows(
    (
        "DS4B-BULK-10",
        "the tag of bulk gates",
        lambda: patch.object(ds4t_gates, "WAVE_TAG", 0x0B16),
    ),
    (
        "DS4T-SEQ-05",
        "one number a group",
        altered(GateLink, "begin_bulk", one_wave),
    ),
)
def a_wave_group_carries_its_last_number() -> None:
    links.test_wave_groups_carry_their_last_number()


@shows(
    ("DS4T-RDMA-62", "a byte for every window", ruled("v9w", decode_barrier=True)),
)
def the_data_connection_is_silent_while_tokens_are_decoded() -> None:
    for dialect in ("v7", "v9w"):
        with ranks(TOY, dialect, qp_type="RC") as rig:
            sent = tapped(rig)
            rig.token_passes(0)
            rig.token_passes(1)
            assert sent == []


def cautious(own: Any, leader: TpLeader, command: Any) -> None:
    gates = leader.rank.transport
    assert isinstance(gates, TcpGates)
    if not gates._data.recv(1, 0x42):  # peek, do not wait
        raise RuntimeError("the data connection has ended")
    own(leader, command)


@shows(
    (
        "DS4T-FAIL-09",
        "a leader that looks at the data connection between operations",
        altered(TpLeader, "_send", cautious),
    )
)
def a_lost_data_connection_is_seen_at_the_next_gate() -> None:
    import socket

    with pair(toy(ToyShape()), options(dialect="v10")) as found:
        leader = found.leader
        known = leader.create()
        leader.eval(known, 1)
        assert found.worker is not None
        found.worker.rank._connected.data.shutdown(socket.SHUT_RDWR)
        other = leader.create()
        assert leader.destroy(other) == 0
        leader.stop()
    assert found.worker_error is None


GLM = ToyShape(n_layer=1, n_embd=16, n_vocab=32, n_expert=8, model_id=2)
V4 = ToyShape(n_layer=1, n_embd=16, n_vocab=32, n_expert=8)


def partials(shape: ToyShape, span: Span, change: Any = None) -> dict[Any, Any]:
    """Run one span; ``change`` alters the weights of the layer."""
    engine = ToyTpEngine(shape)
    if change is not None:
        change(engine._layers[0])
    gates = Noting()
    gates.span = span
    engine.run(engine.open(8), [5, 6][: span.rows], gates)
    return gates.partials


def as_token(own: Any, engine: Any, number: int, layer: Any, x: Any, gates: Any) -> Any:
    span = gates.span
    if span.mode != "block":
        return own(engine, number, layer, x, gates)
    gates.span = Span("token", span.position, span.rows)
    try:
        return own(engine, number, layer, x, gates)
    finally:
        gates.span = span


@shows(
    (
        "DS4T-SPLIT-12",
        "the shared expert in the partial",
        lambda: patch.object(ToyShape, "glm", False),
    ),
    (
        "DS4T-SPLIT-16",
        "the shared expert in the partial",
        altered(ToyTpEngine, "_experts", as_token),
    ),
)
def these_partials_hold_routed_experts_alone() -> None:
    for shape, span in ((GLM, Span("token", 0, 1)), (V4, Span("block", 0, 2))):
        sound = partials(shape, span)
        bare = partials(shape, span, without("down", slice(None)))
        gone = partials(shape, span, without("experts", slice(None)))
        for rank in (0, 1):
            assert sound["FFN", rank].tobytes() == bare["FFN", rank].tobytes()
            assert not gone["FFN", rank].any()


@shows(
    (
        "DS4T-HELLO-23",
        "another type counts as 4",
        lambda: patch.object(identity, "_Q4_GATE", "Q2_K"),
    )
)
def the_gate_tensor_of_the_first_routed_layer_decides_the_label() -> None:
    for gate, label in ((12, 4), (10, 2), (16, 2), (8, 2), (39, 2)):
        identities.test_quant_label(gate, label)
