"""The control connection of a TP pair: hellos, dialects, rules between frames."""

import random
from typing import Any

import pytest

from ds4proto.link.events import Ended, FrameReceived, Skipped, Violation
from ds4proto.link.observer import StreamObserver, open_observer
from ds4proto.link.pair import TpPair
from tests.link.streams import accounted, ds4t, names, plain, problems
from tests.link.tp import DOWN, UP, Paper, hello, observe_pair

GOLDEN = bytes.fromhex(
    # hello of a v14 leader, V4 Flash
    "54345344 0e000000 01000000 00000000 8967452301000000 00000000 2b000000"
    "00100000 00f90100 02000000 00200000 00000000 01000000 56000000 00000000"
    + "00"
    * 24
    # SYNC, EVAL, GLM_MTP, SYNC_CHECKPOINT, VERIFY_COMMIT, STOP
    + "54345344 01000000 1c000000 0100000000000000 03000000 00000000 07000000"
    "13000000 05000000"
    "54345344 02000000 18000000 0100000000000000 0100000000000000 2a000000 00000000"
    "54345344 15000000 18000000 0100000000000000 0200000000000000 c9000000 02000000"
    "54345344 16000000 18000000 0100000000000000 00000000 00000000 03000000 00000000"
    "54345344 0c000000 08000000 02000000 03000000"
    "54345344 05000000 00000000"
)
V10_WORKER = bytes.fromhex(
    "54345344 0a000000 02000000 00000000 80e3eb3014000000 00000000 02000000 10000000"
    "20000000 02000000 00000000 00000000 01000000 04000000 00000000" + "00" * 24
)
V7_WORKER = bytes.fromhex(
    "54345344 07000000 02000000 00000000 e703000000000000 00000000 04000000 40000000"
    "80000000 02000000 00000000 00000000 01000000 08000000 00000000"
)
V9W_WORKER = bytes.fromhex(
    "54345344 09000000 02000000 00000000 e703000000000000 00000000 04000000 40000000"
    "80000000 02000000 00000000 00800000 00000000 01000000 08000000 00000000 00000000"
)


def opened(first: dict[Any, bytes], **options: Any) -> StreamObserver:
    observer = open_observer(first, **options)
    assert observer is not None
    assert observer.protocol == "DS4T"
    return observer


def one_way(data: bytes, direction: Any = DOWN, **options: Any) -> Any:
    """Return observer and events of one direction, fed whole and ended."""
    observer = opened({direction: data}, **options)
    events = list(observer.feed(direction, data, 0.0))
    events += observer.feed(direction, None, 0.0)
    assert accounted(events) == len(data)
    return observer, events


def test_the_golden_stream() -> None:
    observer, events = one_way(GOLDEN)
    assert names(events) == [
        "HELLO", "SYNC", "EVAL", "GLM_MTP", "SYNC_CHECKPOINT", "VERIFY_COMMIT", "STOP",
    ]  # fmt: skip
    assert problems(events) == []
    assert observer.dialect == "v14"
    assert observer.role_of("b") == "tp-leader"
    frame = events[0]
    assert frame.fields["gguf_bytes"] == 0x123456789
    assert frame.fields["gates_per_token"] == 86
    assert events[1].fields["tokens"] == (7, 19, 5)


@pytest.mark.parametrize(
    ("data", "dialect", "size"),
    [(V10_WORKER, "v10", 88), (V7_WORKER, "v7", 64), (V9W_WORKER, "v9w", 72)],
)
def test_measured_hellos(data: bytes, dialect: str, size: int) -> None:
    stop = ds4t("LOGITS", dialect, logits=bytes(8))
    for cut in (1, 5, 200):
        observer = opened({UP: data})
        events: list[Any] = []
        stream = data + stop
        for at in range(0, len(stream), cut):
            events += observer.feed(UP, stream[at : at + cut], 0.0)
        assert names(events) == ["HELLO", "LOGITS"]
        assert events[0].length == size
        assert events[0].dialect == observer.dialect == dialect
        assert observer.role_of("a") == "tp-worker"


@pytest.mark.parametrize(
    "dialect", ["v1", "v6", "v7", "v9", "v9w", "v10", "v12", "v14", "v15"]
)
def test_every_hello_is_measured_alone_and_with_what_follows(dialect: str) -> None:
    for tail in (b"", ds4t("STOP", dialect)):
        observer, events = one_way(hello(dialect, 1) + tail)
        assert names(events) == ["HELLO", *(["STOP"] if tail else [])]
        assert problems(events) == []
        assert observer.dialect == dialect


def test_a_v9w_hello_without_features_and_gates_waits_for_what_follows() -> None:
    data = hello("v9w", 2, runtime_features=0, gates_per_token=0, gate_slot_step=0)
    observer = opened({UP: data})
    assert list(observer.feed(UP, data, 0.0)) == []  # 72 bytes, or 16 more to come
    events = list(observer.feed(UP, ds4t("LOGITS", "v9w", logits=bytes(64)), 0.0))
    assert names(events) == ["HELLO", "LOGITS"]
    assert events[0].length == 72
    events = list(observer.feed(UP, None, 0.0))
    assert isinstance(events[-1], Ended)


@pytest.mark.parametrize(
    ("dialect", "changes"),
    [("v14-odinlink", {"odl_ok": 1}), ("v12-ane", {"split_flags": 3})],
)
def test_the_pad_word_tells_forks_of_one_version(
    dialect: str, changes: dict[str, int]
) -> None:
    observer, events = one_way(hello(dialect, 1, **changes))
    assert events[0].dialect == observer.dialect == dialect


def test_late_v9_is_named_when_its_frames_come() -> None:
    posted = ds4t("RDMA_POSTED", "v10", tag=0xFEED)
    observer, events = one_way(hello("v9", 1) + posted)
    assert names(events) == ["HELLO", "RDMA_POSTED"]
    assert observer.dialect == "v9-late"


def test_type_18_is_read_by_dialect() -> None:
    top2 = ds4t("LOGITS_TOP2", "v9w", id0=20, id1=25, value0=1.5, value1=0.5)
    _, events = one_way(hello("v9w", 2) + top2, UP)
    assert names(events) == ["HELLO", "LOGITS_TOP2"]
    assert problems(events) == []
    images = ds4t("SYNC_MULTIMODAL", session_id=1, tokens=(1, 2), images=[])
    _, events = one_way(hello("v10", 1) + images)
    assert names(events) == ["HELLO", "SYNC_MULTIMODAL"]


def test_an_unknown_version_is_read_as_the_nearest_and_marked() -> None:
    data = hello("v14", 1, version=13)
    observer, events = one_way(data + ds4t("STOP"))
    assert names(events) == ["HELLO", "STOP"]
    assert observer.dialect.endswith("?")
    assert events[0].length == 88


def test_a_length_that_the_version_does_not_have() -> None:
    data = hello("v9w", 2, version=14)
    observer, events = one_way(data, UP)
    assert names(events) == ["HELLO"]
    assert observer.dialect == "v9w?"


def test_a_short_hello() -> None:
    _, events = one_way(hello("v10", 1)[:40])
    assert names(events) == ["DS4T-HELLO-01", "truncated"]
    violation = events[0]
    assert isinstance(violation, Violation)
    assert violation.problem.expected == "88 bytes of hello"
    assert violation.problem.found == "40, then the end of the stream"


@pytest.mark.parametrize(
    ("word", "clause"),
    [(b"DS4T", "DS4T-DIALECT-09"), (b"GET ", "DS4T-HELLO-02")],
)
def test_something_else_in_the_place_of_a_hello(word: bytes, clause: str) -> None:
    first = {DOWN: hello("v10", 1), UP: word + bytes(84)}
    observer = opened(first)
    list(observer.feed(DOWN, first[DOWN], 0.0))
    events = list(observer.feed(UP, first[UP], 0.0)) + list(
        observer.feed(UP, None, 0.0)
    )
    assert names(events) == [clause, "not a frame"]
    assert accounted(events) == 88


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"version": 9}, "DS4T-HELLO-03"),
        ({"role": 1}, "DS4T-HELLO-04"),
        ({"gguf_bytes": 5}, "DS4T-HELLO-05"),
        ({"n_layer": 3}, "DS4T-HELLO-05"),
        ({"gate_slot_mask1": 1}, "DS4T-HELLO-05"),
        ({"ctx_size": 9}, None),
        ({"rdma_ok": 1}, None),
    ],
)
def test_the_second_hello_is_held_against_the_first(
    changes: dict[str, int], clause: str | None
) -> None:
    observer = opened({DOWN: hello("v10", 1)})
    list(observer.feed(DOWN, hello("v10", 1), 0.0))
    values = {"role": 2} | changes
    role = values.pop("role")
    (event,) = observer.feed(UP, hello("v10", role, **values), 0.0)
    found = [p.clause for p in event.problems if p.clause != "DS4T-HELLO-06"]
    assert found == ([] if clause is None else [clause])


def test_v9w_features_are_compared() -> None:
    observer = opened({DOWN: hello("v9w", 1)})
    list(observer.feed(DOWN, hello("v9w", 1), 0.0))
    (event,) = observer.feed(UP, hello("v9w", 2, runtime_features=0x8001), 0.0)
    assert [p.clause for p in event.problems] == ["DS4T-HELLO-30"]


# -- rules between frames -----------------------------------------------------------


def exchange(*frames: tuple[Any, bytes]) -> list[str]:
    paper = Paper()
    for way, data in frames:
        paper.command(way, data)
    control, _, _ = observe_pair(paper)
    return problems(control)


CREATE = (DOWN, ds4t("SESSION_CREATE", session_id=1, ctx_size=9))


def ack(session: int) -> tuple[Any, bytes]:
    return (UP, ds4t("COMMAND_ACK", session_id=session, status=0))


def evaluate(seq: int) -> tuple[Any, bytes]:
    return (DOWN, ds4t("EVAL", session_id=1, seq=seq, token=1))


def test_acks() -> None:
    assert exchange(CREATE, ack(1)) == []
    assert exchange(CREATE, ack(9)) == ["DS4T-ACK-10"]
    assert exchange(CREATE, ack(1), ack(1)) == ["DS4T-ACK-02"]
    batch = (DOWN, ds4t("EVAL_BATCH", items=[{"session_id": 1, "token": 4}]))
    assert exchange(batch, ack(0)) == []
    assert exchange(batch, ack(1)) == ["DS4T-ACK-10"]


def test_eval_numbers() -> None:
    assert exchange(evaluate(1), evaluate(2)) == []
    assert exchange(evaluate(1), evaluate(3)) == ["DS4T-EVAL-02"]


def test_logits_have_half_the_vocabulary() -> None:
    assert exchange((UP, ds4t("LOGITS", logits=bytes(64)))) == []
    assert exchange((UP, ds4t("LOGITS", logits=bytes(32)))) == ["DS4T-LOGITS-01"]


def test_frames_of_the_other_role() -> None:
    assert exchange((DOWN, ds4t("LOGITS", logits=bytes(64)))) == ["DS4T-CTRL-25"]
    assert "DS4T-CTRL-25" in exchange((UP, CREATE[1]))


def test_checkpoints_agree() -> None:
    def at(total: int, **changes: int) -> bytes:
        values = {"seq": 1, "point": 0, "current": 0, "total": total, "cancelled": 0}
        return ds4t("SYNC_CHECKPOINT", "v12", **(values | changes))

    for mine, theirs, clauses in (
        (at(3), at(3), []),
        (at(3), at(4), ["DS4T-CKPT-04"]),
        (at(3), at(3, seq=2), ["DS4T-CKPT-02"]),
        (at(3), at(3, point=1), ["DS4T-CKPT-03"]),
        (at(3), at(3, cancelled=1), []),
    ):
        paper = Paper("v12")
        paper.command(DOWN, mine)
        paper.command(UP, theirs)
        assert problems(observe_pair(paper)[0]) == clauses


def test_a_loss_forgets_what_was_outstanding() -> None:
    paper = Paper()
    paper.command(*CREATE)
    paper.command(DOWN, b"\0\0\0\0")
    paper.command(*evaluate(7))
    paper.command(*evaluate(8))
    paper.command(*ack(1))
    control, _, _ = observe_pair(paper)
    assert problems(control) == ["DS4T-CTRL-01"]


# -- the pair -------------------------------------------------------------------------


def test_the_first_connection_is_control_and_the_second_data() -> None:
    pair = TpPair()
    assert not pair.has_control
    control = opened({DOWN: hello("v10", 1)}, pair=pair)
    assert pair.has_control
    assert pair.wants_data
    data = open_observer({UP: ds4t("GATE_ROW", layer=0, gate=0, seq=1,
                                   partial=bytes(64))}, pair=pair)  # fmt: skip
    assert data is not None
    assert data.protocol == "DS4B"
    assert not pair.wants_data
    list(control.feed(DOWN, hello("v10", 1), 0.0))
    assert data.dialect == "v10"
    assert (data.role_of("a"), data.role_of("b")) == ("tp-worker", "tp-leader")


def test_a_pair_whose_control_connection_ended_wants_nothing() -> None:
    pair = TpPair()
    control = opened({DOWN: hello("v10", 1)}, pair=pair)
    for way in (DOWN, UP):
        list(control.feed(way, None, 0.0))
    assert not pair.wants_data


def test_a_lone_gate_stream_is_told_from_a_hello() -> None:
    rows = ds4t("GATE_ROW", layer=0, gate=0, seq=1, partial=bytes(64))
    found = open_observer({UP: rows})
    assert found is not None
    assert found.protocol == "DS4B"
    sparse = ds4t("GATE_ROW", layer=3, gate=1, seq=1, partial=bytes(64))
    found = open_observer({UP: sparse})
    assert found is not None
    assert found.protocol == "DS4B"


@pytest.mark.parametrize("seed", range(4))
def test_the_split_does_not_matter(seed: int) -> None:
    paper = Paper()
    paper.create()
    for turn in range(20):
        paper.frame(DOWN, "EVAL", session_id=1, seq=turn + 1, token=turn)
        paper.frame(UP, "LOGITS", logits=bytes(64))
    chance = random.Random(seed)

    def cuts() -> Any:
        while True:
            yield chance.choice((1, 2, 11, 13, 90))

    assert plain(observe_pair(paper, cuts())[0]) == plain(observe_pair(paper)[0])


def test_a_hello_that_fell_into_a_gap() -> None:
    observer = opened({DOWN: hello("v10", 1)})
    events = list(observer.feed(DOWN, hello("v10", 1)[:30], 0.0))
    events += observer.gap(DOWN, 58, 0.0)
    events += observer.feed(DOWN, CREATE[1] + evaluate(1)[1], 0.0)
    events += observer.feed(DOWN, None, 0.0)
    assert [e.spec.name for e in events if isinstance(e, FrameReceived)] == [
        "SESSION_CREATE",
        "EVAL",
    ]
    assert sum(e.length for e in events if isinstance(e, Skipped)) == 88
