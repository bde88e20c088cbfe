"""Gate streams of pairs that run over RDMA, and of dialects with counted headers."""

from typing import Any

import pytest

from ds4proto.link.observer import open_observer
from ds4proto.link.pair import TpPair
from tests.link.streams import ds4t, names, problems
from tests.link.tp import DOWN, UP, hello


def rdma_pair(dialect: str, **shape: int) -> tuple[TpPair, Any]:
    """Return a pair that agreed on RDMA, and its control observer."""
    pair = TpPair()
    shape = {"n_layer": 32, "n_embd": 4096, "gates_per_token": 64, "rdma_ok": 1} | shape
    down = hello(dialect, 1, **shape) + _info(dialect)
    up = hello(dialect, 2, **shape) + _info(dialect)
    control = open_observer({DOWN: down, UP: up}, pair=pair)
    assert control is not None
    events = [*control.feed(DOWN, down, 0.0), *control.feed(UP, up, 0.0)]
    assert names(events) == ["HELLO", "RDMA_INFO"] * 2
    return pair, control


def _info(dialect: str) -> bytes:
    values = {
        "slab_base": 1, "rkey": 2, "qpn": 3, "psn": 4, "mtu": 3, "lid": 0,
        "gid": bytes(16), "link_layer": 2, "reliable": 0, "decode_max_msg": 16384,
    }  # fmt: skip
    return ds4t("RDMA_INFO", dialect, **values)


def bulk(layer: int, seq: int, dialect: str = "v9w", tag: int = 0x0B16) -> bytes:
    return ds4t("DS4B.GATE_BULK", dialect, layer=layer, tag=tag, seq=seq, partial=b"")


def test_over_rdma_headers_come_alone() -> None:
    pair, _ = rdma_pair("v9w")
    stream = b"".join(bulk(layer, layer + 1) for layer in range(32))
    observer = open_observer({UP: stream}, pair=pair)
    assert observer is not None
    events = list(observer.feed(UP, stream, 0.0)) + list(observer.feed(UP, None, 0.0))
    assert names(events) == ["GATE_BULK"] * 32
    assert problems(events) == []


def test_v9w_waves_and_logits_gates() -> None:
    pair, _ = rdma_pair("v9w")
    stream = bulk(0, 4, tag=0x0B17) + bulk(1, 8, tag=0x0B17) + bulk(65534, 1)
    stream += bulk(2, 9)
    observer = open_observer({UP: stream}, pair=pair)
    assert observer is not None
    events = list(observer.feed(UP, stream, 0.0)) + list(observer.feed(UP, None, 0.0))
    assert names(events) == ["GATE_BULK"] * 4
    assert problems(events) == []


def test_barrier_bytes_of_upstream() -> None:
    pair, _ = rdma_pair("v10")
    stream = b"\xd1" + bulk(0, 1, "v10") + b"\1\2" + bulk(1, 2, "v10") + b"\x42\xb5"
    for size in (1, 2, 100):
        pair, _ = rdma_pair("v10")
        observer = open_observer({UP: stream}, pair=pair)
        assert observer is not None
        events: list[Any] = []
        for at in range(0, len(stream), size):
            events += observer.feed(UP, stream[at : at + size], 0.0)
        events += observer.feed(UP, None, 0.0)
        assert names(events) == [
            "BARRIER", "GATE_BULK", "BARRIER", "BARRIER", "GATE_BULK", "BARRIER",
            "BARRIER",
        ]  # fmt: skip
        values = [e.fields["value"] for e in events if getattr(e, "length", 0) == 1]
        assert values == [0xD1, 1, 2, 0x42, 0xB5]


def test_a_small_slab_keeps_bulk_on_tcp() -> None:
    pair, _ = rdma_pair("v9w", n_layer=2, n_embd=16, gates_per_token=4)
    stream = ds4t("DS4B.GATE_BATCH", "v9w", layer=0, rows=2, seq=1, partial=bytes(128))
    observer = open_observer({UP: stream}, pair=pair)
    assert observer is not None
    (event,) = observer.feed(UP, stream, 0.0)
    assert event.length == 16 + 128


@pytest.mark.parametrize("dialect", ["v14-odinlink", "v15"])
def test_dialects_whose_headers_count_their_payload(dialect: str) -> None:
    extra = {"odl_ok": 1} if dialect == "v14-odinlink" else {}
    pair = TpPair()
    both = {DOWN: hello(dialect, 1, **extra), UP: hello(dialect, 2, **extra)}
    control = open_observer(both, pair=pair)
    assert control is not None
    for way, data in both.items():
        list(control.feed(way, data, 0.0))
    assert control.dialect == dialect
    if dialect == "v15":
        row = ds4t("GATE_ROW", dialect, layer=0, gate=0, epoch=0, seq=1, bytes=64,
                   partial=bytes(64))  # fmt: skip
        wide = ds4t("DS4B.GATE_BULK", dialect, layer=0, zero=0, epoch=0, seq=1,
                    bytes=320, partial=bytes(320))  # fmt: skip
    else:
        row = ds4t("GATE_ROW", dialect, layer=0, gate=0, seq=1, bytes=64,
                   partial=bytes(64))  # fmt: skip
        wide = ds4t("DS4B.GATE_BULK", dialect, layer=0, tag=0x0B16, seq=1, bytes=320,
                    partial=bytes(320))  # fmt: skip
    observer = open_observer({UP: row}, pair=pair)
    assert observer is not None
    events = list(observer.feed(UP, row + wide, 0.0))
    assert names(events) == ["GATE_ROW", "GATE_BULK"]
    assert [e.length for e in events] == [len(row), len(wide)]


def test_a_counted_payload_above_the_limit_is_refused() -> None:
    pair = TpPair()
    both = {DOWN: hello("v15", 1), UP: hello("v15", 2)}
    control = open_observer(both, pair=pair)
    assert control is not None
    for way, data in both.items():
        list(control.feed(way, data, 0.0))
    huge = ds4t("GATE_ROW", "v15", layer=0, gate=0, epoch=0, seq=1, bytes=1 << 60,
                partial=b"")  # fmt: skip
    observer = open_observer({UP: huge}, pair=pair)
    assert observer is not None
    events = list(observer.feed(UP, huge, 0.0)) + list(observer.feed(UP, None, 0.0))
    assert names(events) == ["DS4T-GATE-05", "too long"]
