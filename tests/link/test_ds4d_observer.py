"""The two-direction observer of DS4D: ends, dialects, rules between frames."""

from typing import Any

import pytest

from ds4proto.codec.token_hash import token_hash
from tests.link.streams import HELLO, ds4d, names, problems, result, telemetry, work
from tests.link.watch import DOWN, UP, Turn, observe, state


def exchange(*turns: Turn) -> list[str]:
    """Return the clauses broken on a control connection that starts with HELLO."""
    _, events = observe([(UP, ds4d("HELLO", **HELLO)), *turns])
    return problems(events)


def chunk(request: int = 1 << 63, data: bytes = b"abc") -> bytes:
    return ds4d("SNAPSHOT_CHUNK", request=request, data=data)


def load_begin(**changes: Any) -> bytes:
    values = {
        "model_id": 0,
        "session": 77,
        "request": 1 << 63,
        "token_hash": token_hash((5, 6)),
        "layer_start": 3,
        "layer_end": 7,
        "payload_size": 6,
        "tokens": (5, 6),
    }
    return ds4d("SNAPSHOT_LOAD_BEGIN", **(values | changes))


def refusal(request: int) -> bytes:
    return ds4d(
        "RESULT",
        request=request,
        result_hash=0,
        status=1,
        result_kind=0,
        payload_bits=0,
        telemetry=[],
        payload=b"worker KV prefix hash mismatch",
    )


def test_a_sound_exchange_has_no_problem() -> None:
    observer, events = observe(
        [
            (UP, ds4d("HELLO", **HELLO)),
            (DOWN, work(1)),
            (UP, result(1)),
            (DOWN, work(2, flags=5)),
            (UP, result(2)),
        ]
    )
    assert problems(events) == []
    assert observer.protocol == "DS4D"
    assert observer.dialect == "upstream"
    assert (observer.role_of("a"), observer.role_of("b")) == ("worker", "coordinator")


def test_work_shows_the_worker_on_a_forward_connection() -> None:
    second = work(1, route_index=1, layer_start=6, layer_end=7, flags=3)
    observer, _ = observe([(UP, second)])
    assert (observer.role_of("a"), observer.role_of("b")) == ("worker", "worker")
    first, _ = observe([(UP, work(1))])
    assert (first.role_of("a"), first.role_of("b")) == ("coordinator", "worker")


def test_snapshot_requests_show_the_worker() -> None:
    observer, events = observe(
        [
            (UP, state("SNAPSHOT_SAVE_REQ")),
            (DOWN, state("SNAPSHOT_BEGIN") + chunk() + chunk()),
            (DOWN, ds4d("SNAPSHOT_DONE", request=1 << 63, status=0, message="")),
        ]
    )
    assert problems(events) == []
    assert (observer.role_of("a"), observer.role_of("b")) == ("coordinator", "worker")


@pytest.mark.parametrize("code", range(1, 10))
@pytest.mark.parametrize("size", [0, 1, 3, 11, 39, 59, 79])
def test_bodies_shorter_than_their_fixed_part_break_no_observer(
    code: int, size: int
) -> None:
    # fixed parts by type, as the protocol's table of types gives them
    fixed = {1: 40, 2: 0, 3: 80, 4: 40, 5: 40, 6: 60, 7: 12, 8: 16, 9: 60}[code]
    body = bytes(size)
    short = b"DS4D" + code.to_bytes(4, "big") + size.to_bytes(4, "big") + body
    _, events = observe([(UP, ds4d("HELLO", **HELLO)), (DOWN, short), (DOWN, work(1))])
    if size < fixed:
        assert problems(events)[0].startswith("DS4D-")
    assert "WORK" in names(events)


@pytest.mark.parametrize(
    ("frame", "clause"),
    [
        (work(1, result_hash=1), "DS4D-WORK-15"),
        (work(1, flags=5, prefix_hash=3), "DS4D-WORK-37"),
        (work(1, prefix_hash=3), "DS4D-WORK-36"),
        (work(1, pos0=4), "DS4D-WORK-36"),
    ],
)
def test_hashes_of_one_work(frame: bytes, clause: str) -> None:
    assert exchange((DOWN, frame)) == [clause]


def test_the_hash_chain_of_a_session() -> None:
    held = token_hash((5, 6))
    good = work(2, tokens=(7,), hidden=bytes(256), prefix_hash=held, pos0=2)
    answer = result(
        2, result_hash=token_hash((5, 6, 7)), telemetry=telemetry(1, 2, input_bytes=260)
    )
    first = ((DOWN, work(1, flags=5)), (UP, result(1)))
    assert exchange(*first, (DOWN, good), (UP, answer)) == []
    # another prefix may come from a load over another connection ...
    stale = work(2, tokens=(7,), hidden=bytes(256), prefix_hash=5, pos0=2)
    assert exchange(*first, (DOWN, stale)) == []
    # ... unless the worker says that it does not
    assert exchange(*first, (DOWN, stale), (UP, refusal(2))) == ["DS4D-WORK-26"]
    moved = work(2, tokens=(7,), hidden=bytes(256), prefix_hash=held, pos0=3)
    assert exchange(*first, (DOWN, moved)) == ["DS4D-SESS-04"]


def test_an_error_makes_the_session_unknown() -> None:
    later = work(2, prefix_hash=token_hash((5, 6)), pos0=40)
    assert exchange((DOWN, work(1)), (UP, refusal(1)), (DOWN, later)) == []
    known = exchange((DOWN, work(1)), (UP, result(1)), (DOWN, later))
    assert known == ["DS4D-SESS-04"]


def test_the_width_of_a_hidden_state_stays() -> None:
    wide = work(2, bytes(1024), flags=5)
    assert exchange((DOWN, work(1)), (UP, result(1)), (DOWN, wide)) == ["DS4D-WORK-18"]
    packed = work(2, bytes(128), input_hc_bits=8, flags=5)
    assert exchange((DOWN, work(1)), (UP, result(1)), (DOWN, packed)) == []


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        (result(9), "DS4D-RESULT-21"),
        (result(1, result_hash=8), "DS4D-RESULT-22"),
        (
            result(
                1,
                result_kind=0,
                payload=b"",
                payload_bits=0,
                telemetry=[telemetry()[0] | {"output_bytes": 0}, telemetry()[1]],
            ),
            "DS4D-WORK-51",
        ),
        (result(1, telemetry=[]), "DS4D-TELEM-02"),
        (result(1, telemetry=telemetry(pos0=4)), "DS4D-TELEM-04"),
        (result(1, telemetry=telemetry(input_bytes=1)), "DS4D-TELEM-05"),
        (result(1, payload=bytes(512)), "DS4D-TELEM-06"),
        (result(1, status=7, result_hash=0), "DS4D-RESULT-23"),
    ],
)
def test_answers(answer: bytes, clause: str) -> None:
    found = exchange((DOWN, work(1)), (UP, answer))
    assert found[0] == clause
    assert set(found) <= {clause}


def test_an_ack_only_request_wants_an_ack() -> None:
    found = exchange((DOWN, work(1, flags=9)), (UP, result(1)))
    assert found == ["DS4D-WORK-50"]


def test_logits_keep_their_size() -> None:
    short = result(
        2,
        payload=bytes(512),
        telemetry=[telemetry()[0] | {"output_bytes": 512}, telemetry()[1]],
    )
    turns = (DOWN, work(1)), (UP, result(1)), (DOWN, work(2, flags=5)), (UP, short)
    assert exchange(*turns) == ["DS4D-RESULT-26"]


def test_answers_come_in_order_and_one_for_each_work() -> None:
    both = (DOWN, work(1) + work(2, flags=5))
    assert exchange(both, (UP, result(1) + result(2))) == []
    swapped = exchange(both, (UP, result(2) + result(1)))
    assert swapped == ["DS4D-RESULT-21", "DS4D-RESULT-27"]
    assert exchange((UP, result(1))) == ["DS4D-RESULT-27"]


def test_snapshot_ids_do_not_disturb_the_count_of_requests() -> None:
    turns = [
        (DOWN, work(1)),
        (UP, result(1)),
        (DOWN, load_begin() + chunk() + chunk()),
        (UP, ds4d("SNAPSHOT_DONE", request=1 << 63, status=0, message="")),
        (DOWN, work(2, flags=5)),
        (UP, result(2)),
    ]
    assert exchange(*turns) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("frames", "clause"),
    [
        (load_begin(token_hash=4), "DS4D-SNAP-15"),
        (load_begin() + chunk(request=5), "DS4D-SNAP-20"),
        (load_begin() + chunk(data=bytes(7)), "DS4D-SNAP-20"),
    ],
)
def test_loads(frames: bytes, clause: str) -> None:
    assert exchange((DOWN, frames)) == [clause]


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        (state("SNAPSHOT_BEGIN", session=1), "DS4D-SNAP-34"),
        (state("SNAPSHOT_BEGIN", payload_size=0), "DS4D-SNAP-41"),
        (state("SNAPSHOT_BEGIN") + chunk(request=1), "DS4D-SNAP-36"),
        (
            state("SNAPSHOT_BEGIN")
            + chunk()
            + ds4d("SNAPSHOT_DONE", request=1 << 63, status=0, message=""),
            "DS4D-SNAP-35",
        ),
        (
            ds4d("SNAPSHOT_DONE", request=2, status=0, message=""),
            "DS4D-SNAP-39",
        ),
    ],
)
def test_saves(answer: bytes, clause: str) -> None:
    _, events = observe([(UP, state("SNAPSHOT_SAVE_REQ")), (DOWN, answer)])
    assert problems(events) == [clause]


def test_wrong_directions() -> None:
    assert exchange((UP, work(1))) == ["DS4D-RESULT-03"]
    assert exchange((DOWN, result(1)))[0] == "DS4D-WORKER-02"


def test_a_second_hello_after_other_frames() -> None:
    hello = ds4d("HELLO", **HELLO)
    assert exchange((DOWN, work(1)), (UP, result(1) + hello)) == ["DS4D-HELLO-20"]
    assert exchange((UP, hello)) == []


def test_after_a_loss_nothing_is_known_to_be_outstanding() -> None:
    lost = work(1) + b"noise" + work(4) + work(5, flags=5)
    answers = result(1) + result(2) + result(4) + result(5)
    observer, events = observe([(UP, lost), (DOWN, answers)])
    assert names(events)[:4] == ["WORK", "DS4D-FRAME-01", "not a frame", "WORK"]
    assert problems(events) == ["DS4D-FRAME-01"]
    assert observer.role_of("b") == "worker"
    # once an answer was matched, order is judged again
    _, events = observe([(UP, lost), (DOWN, answers + result(6))])
    assert problems(events) == ["DS4D-FRAME-01", "DS4D-RESULT-27"]
