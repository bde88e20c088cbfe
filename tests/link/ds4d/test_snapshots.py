"""Snapshot connections of a coordinator, and what it asks of shards and files."""

from __future__ import annotations

from typing import Any

import pytest

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.ds4d_endpoint import LocalProtocolError
from ds4proto.link.ds4d_events import (
    ShardData,
    ShardStarted,
    SnapshotDone,
    SnapshotFailed,
)
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.link.ds4d_shards import session_fault, shard_fault
from ds4proto.link.ds4d_snapshot_client import LoadClient, SaveClient, ShardKey
from ds4proto.link.ds4d_snapshot_server import full_chunks
from ds4proto.schema.dsv4 import DSV4_FILE, DSVL_FILE
from ds4proto.schema.registry import read
from tests.link.ds4d import toy
from tests.link.ds4d.build import frames, make, raw
from tests.link.ds4d.host import Host
from tests.link.ds4d.streams import CAPTURES, PROBES

KEY = ShardKey(0, 132, 1 << 63, 0x77, 2, 5, 7)
BEGIN: dict[str, Any] = {
    "model_id": 0,
    "session": 132,
    "request": 1 << 63,
    "token_hash": 0x77,
    "token_count": 0,
    "layer_start": 5,
    "layer_end": 7,
    "payload_size": 10,
    "message": "",
    "tokens": (),
}
CHUNK: dict[str, Any] = {"request": 1 << 63, "data": b"0123456789"}
DONE: dict[str, Any] = {"request": 1 << 63, "status": 0, "message": ""}
LIMITS = LinkLimits(max_shard=1000, max_empty_chunks=3)


def begin(**lies: Any) -> bytes:
    return make("SNAPSHOT_BEGIN", **{**BEGIN, **lies})


def chunk(**lies: Any) -> bytes:
    return make("SNAPSHOT_CHUNK", **{**CHUNK, **lies})


def done(**lies: Any) -> bytes:
    return make("SNAPSHOT_DONE", **{**DONE, **lies})


def padded(data: bytes, more: bytes) -> bytes:
    return raw(int.from_bytes(data[4:8], "big"), data[12:] + more)


def hear(*parts: bytes | None, step: int = 1 << 20) -> list[Any]:
    client = SaveClient(KEY, now=0.0, limits=LIMITS)
    for part in parts:
        if part is None:
            client.receive_data(None, 0.0)
            continue
        for at in range(0, len(part), step):
            client.receive_data(part[at : at + step], 0.0)
    return list(client.events())[1:]


DAMAGED: list[tuple[str, tuple[bytes | None, ...]]] = [
    ("distributed worker closed snapshot connection", (None,)),
    ("distributed worker closed snapshot connection", (begin()[:40], None)),
    ("distributed worker returned invalid snapshot frame", (done(),)),
    ("distributed worker returned invalid snapshot frame", (raw(6, bytes(59)),)),
    ("invalid distributed snapshot response header", (begin(token_bytes=4),)),
    ("invalid distributed snapshot response header", (begin(message_bytes=1),)),
    ("distributed worker refused KV snapshot", (begin(status=1, model_id=9),)),
    ("out of room", (begin(status=1, message="out of room"),)),
    ("distributed KV shard metadata mismatch", (begin(model_id=1),)),
    ("distributed KV shard metadata mismatch", (begin(session=1),)),
    ("distributed KV shard metadata mismatch", (begin(request=1),)),
    ("distributed KV shard metadata mismatch", (begin(token_hash=1),)),
    ("distributed KV shard metadata mismatch", (begin(layer_start=4),)),
    ("distributed KV shard metadata mismatch", (begin(layer_end=6),)),
    (
        "distributed KV shard metadata mismatch",
        (begin(token_count=3, tokens=(1, 2, 3)),),
    ),
    ("distributed KV shard is empty", (begin(payload_size=0),)),
    (
        "distributed KV shard is larger than this side allows",
        (begin(payload_size=1001),),
    ),
    ("distributed worker closed while sending KV shard", (begin(), None)),
    (
        "distributed worker closed while sending KV shard",
        (begin(), chunk(data=b"01234"), None),
    ),
    ("expected distributed KV shard chunk", (begin(), done())),
    ("expected distributed KV shard chunk", (begin(), raw(7, bytes(11)))),
    ("invalid distributed KV shard chunk", (begin(), chunk(request=1))),
    ("invalid distributed KV shard chunk", (begin(), chunk(chunk_bytes=9))),
    ("invalid distributed KV shard chunk", (begin(), chunk(data=bytes(11)))),
    (
        "distributed KV shard transfer makes no progress",
        (begin(), *[chunk(data=b"")] * 4),
    ),
    ("distributed worker closed before snapshot completion", (begin(), chunk(), None)),
    (
        "distributed worker returned invalid snapshot completion frame",
        (begin(), chunk(), make("ERROR", text="no")),
    ),
    (
        "distributed worker returned invalid snapshot completion frame",
        (begin(), chunk(), raw(8, bytes(15))),
    ),
    (
        "invalid distributed snapshot completion message",
        (begin(), chunk(), done(message_bytes=1)),
    ),
    (
        "distributed snapshot completion request mismatch",
        (begin(), chunk(), done(request=1)),
    ),
    (
        "distributed worker failed snapshot request",
        (begin(), chunk(), done(status=1)),
    ),
    ("disk full", (begin(), chunk(), done(status=1, message="disk full"))),
]


@pytest.mark.parametrize("step", [1 << 20, 1])
@pytest.mark.parametrize(("text", "parts"), DAMAGED)
def test_a_damaged_answer_has_its_text(
    text: str, parts: tuple[bytes | None, ...], step: int
) -> None:
    failed, _ = [
        e
        for e in hear(*parts, step=step)
        if isinstance(e, SnapshotFailed) or hasattr(e, "reason")
    ]
    assert failed.fault.text == text


@pytest.mark.parametrize(
    "parts",
    [
        (begin(), chunk(), done()),
        (begin(token_count=2, tokens=(1, 2), message="hi"), chunk(), done()),
        (padded(begin(), b"more"), chunk(), padded(done(), b"more")),
        (
            begin(),
            chunk(data=b"01234"),
            chunk(data=b""),
            chunk(data=b"56789"),
            done(message="well"),
        ),
    ],
)
def test_accepted_answers(parts: tuple[bytes, ...]) -> None:
    events = hear(*parts)
    assert events[0] == ShardStarted(10)
    data = b"".join(bytes(e.data) for e in events if isinstance(e, ShardData))
    assert data == b"0123456789"
    assert isinstance(events[-2], SnapshotDone)


def test_a_silent_worker_is_noticed() -> None:
    client = SaveClient(KEY, now=1.0, limits=LinkLimits(result_s=5.0))
    assert client.deadline() == 6.0
    client.receive_data(begin(), 2.0)
    assert client.deadline() == 7.0
    client.timeout(7.0)
    failed = [e for e in client.events() if isinstance(e, SnapshotFailed)]
    assert failed[0].fault.clause == "DS4D-RESULT-51"


def test_a_load_is_read_only_when_all_is_sent() -> None:
    client = LoadClient(KEY, (1, 2), 10, now=0.0)
    list(client.events())
    client.receive_data(done(), 0.0)
    client.chunks(b"01234", 0.0)
    assert not list(client.events())
    with pytest.raises(LocalProtocolError):
        client.chunks(b"0123456", 0.0)
    client.chunks(b"56789", 0.0)
    assert isinstance(next(client.events()), SnapshotDone)


def test_an_empty_load_is_read_at_once() -> None:
    client = LoadClient(KEY, (1, 2), 0, now=0.0)
    list(client.events())
    client.receive_data(done(status=1, message="truncated"), 0.0)
    said = [e for e in client.events() if isinstance(e, SnapshotFailed)]
    assert said[0].fault.text == "truncated"


def test_a_refusal_is_read_although_the_rest_could_not_be_sent() -> None:
    client = LoadClient(KEY, (1, 2), 10, now=0.0)
    list(client.events())
    client.stopped(0.0)
    client.receive_data(done(status=1, message="no"), 0.0)
    said = [e for e in client.events() if isinstance(e, SnapshotFailed)]
    assert said[0].fault.text == "no"


def test_chunks_are_full_but_for_the_last() -> None:
    size = 8_388_608
    pieces = [bytes(5_000_000)] * 4
    cut = [sum(map(len, part)) for part in full_chunks(pieces, 20_000_000)]
    assert cut == [size, size, 20_000_000 - 2 * size]
    with pytest.raises(ValueError, match="missing"):
        list(full_chunks([b"abc"], 4))
    with pytest.raises(ValueError, match="more than"):
        list(full_chunks([b"abcde"], 4))


def test_save_and_load_between_our_own_machines() -> None:
    host = Host(toy.facts(5, 7, head=False))
    link = host.open()
    from tests.link.ds4d.build import work

    host.give(link, work((1, 2), flags=1))
    key = ShardKey(0, 9, 1 << 63, token_hash((1, 2)), 2, 5, 7)
    save, server = SaveClient(key, now=0.0), host.open()
    (first,) = save.events()
    host.give(server, b"".join(first.buffers))
    save.receive_data(bytes(host.wrote[server]), 0.0)
    said = list(save.events())
    shard = b"".join(bytes(e.data) for e in said if isinstance(e, ShardData))
    assert shard == host.slices[9].shard()
    other = ShardKey(0, 10, 1 << 63, key.token_hash, 2, 5, 7)
    load, server = LoadClient(other, (1, 2), len(shard), now=0.0), host.open()
    (first,) = load.events()
    host.give(server, b"".join(first.buffers) + b"".join(load.chunks(shard, 0.0)))
    load.receive_data(bytes(host.wrote[server]), 0.0)
    assert isinstance(next(load.events()), SnapshotDone)
    host.give(link, work((3,), before=(1, 2), session=10, flags=1, request=2))
    assert [v["status"] for _, v in frames(host.wrote[link])] == [0, 0]


def test_a_load_above_the_cap_is_refused_before_a_byte_of_it() -> None:
    host = Host(toy.facts(5, 7, head=False), limits=LinkLimits(max_shard=100))
    link = host.open()

    key = ShardKey(0, 9, 1 << 63, token_hash((1,)), 1, 5, 7)
    (first,) = LoadClient(key, (1,), 1 << 40, now=0.0).events()
    host.give(link, b"".join(first.buffers))
    ((_, values),) = frames(host.wrote[link])
    assert values["message"] == "out of memory restoring worker KV shard"
    assert link in host.closed


def test_empty_chunks_do_not_keep_a_load_going() -> None:
    host = Host(toy.facts(5, 7, head=False), limits=LIMITS)
    link = host.open()

    key = ShardKey(0, 9, 1 << 63, token_hash((1,)), 1, 5, 7)
    (first,) = LoadClient(key, (1,), 10, now=0.0).events()
    host.give(link, b"".join(first.buffers) + chunk(data=b"") * 4)
    ((_, values),) = frames(host.wrote[link])
    assert (values["status"], link in host.closed) == (1, True)


# shards and files

RATIOS = [toy.ratio(layer) for layer in range(8)]


def shard(**changes: Any) -> dict[str, Any]:
    data = (PROBES / "toy_shard_5_7.dsvl").read_bytes()
    return {**read(DSVL_FILE, data, dialect="upstream").values, **changes}


def saved(**changes: Any) -> dict[str, Any]:
    data = (CAPTURES / "toy" / "pipeline_f32" / "session.dsv4").read_bytes()
    return {**read(DSV4_FILE, data, dialect="upstream").values, **changes}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (None, {}),
        ("unsupported distributed KV layer payload", {"version": 2}),
        ("unsupported distributed KV layer payload", {"magic": 0}),
        ("distributed KV shard range mismatch", {"layer_end": 6}),
        ("distributed KV shard layout is invalid", {"n_layers": 9}),
        ("distributed KV shard layout is invalid", {"raw_live": 1}),
        ("distributed KV shards use different layouts", {"ctx": 512}),
        ("distributed KV shards use different layouts", {"prefill_cap": 1}),
        ("distributed KV shards use different layouts", {"raw_cap": 17}),
        ("distributed KV shards use different layouts", {"comp_cap": 67}),
        ("distributed KV shards use different layouts", {"head_dim": 17}),
        ("distributed KV shard tensor byte count mismatch", {"tensors": b"abcd"}),
    ],
)
def test_shards(text: str | None, changes: dict[str, Any]) -> None:
    fault = shard_fault(
        shard(**changes), toy.MODEL, (5, 7), first=shard(), ratios=RATIOS
    )
    assert (fault.text if fault else None) == text


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (None, {}),
        ("unsupported DS4 KV payload version", {"version": 1}),
        ("DS4 KV payload does not match current distributed runtime", {"vocab": 9}),
        ("DS4 KV payload does not match current distributed runtime", {"ctx": 257}),
        (
            "DS4 KV payload does not match current distributed runtime",
            {"token_count": 256},
        ),
        ("distributed KV payload token is outside vocabulary", {"tokens": (256,)}),
        ("DS4 KV payload has invalid compressed row count", {"n_comp": (67,) * 8}),
        ("DS4 KV payload has invalid indexer row count", {"n_index_comp": (67,) * 8}),
        ("truncated distributed payload", {"tensors": b""}),
        ("DS4 KV payload has trailing bytes", {"tensors": bytes(1 << 20)}),
    ],
)
def test_saved_sessions(text: str | None, changes: dict[str, Any]) -> None:
    fault = session_fault(saved(**changes), toy.MODEL, ratios=RATIOS)
    assert (fault.text if fault else None) == text
