"""Which DS4D dialect a connection speaks, at its start and as frames come."""

import pytest

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.events import FrameReceived, Skipped, Violation
from ds4proto.link.observer import open_observer
from tests.link.streams import HELLO, ds4d, names, problems, work
from tests.link.watch import DOWN, UP, observe, state


def test_type_10_right_behind_hello_is_anyei() -> None:
    inbox = ds4d("IPC_INBOX", "anyei", slot_count=0, slot_bytes=0, handles=b"")
    observer, events = observe([(UP, ds4d("HELLO", **HELLO) + inbox)])
    assert names(events) == ["HELLO", "IPC_INBOX"]
    assert observer.dialect == "anyei"


def test_the_dialect_is_upgraded_when_later_bytes_show_it() -> None:
    hello = ds4d("HELLO", **HELLO)
    inbox = ds4d("IPC_INBOX", "anyei", slot_count=0, slot_bytes=0, handles=b"")
    observer = open_observer({UP: hello[:20]})
    assert observer is not None
    assert observer.dialect == "upstream"
    data = hello + inbox
    events = [
        e for i in range(len(data)) for e in observer.feed(UP, data[i : i + 1], 0.0)
    ]
    assert names(events) == ["HELLO", "IPC_INBOX"]
    assert observer.dialect == "anyei"


def test_type_10_elsewhere_stays_unknown() -> None:
    inbox = ds4d("IPC_INBOX", "anyei", slot_count=0, slot_bytes=0, handles=b"")
    observer, events = observe([(UP, work(1) + inbox)])
    assert names(events) == ["WORK", "DS4D-FRAME-02", "unknown type"]
    assert observer.dialect == "upstream"


def test_a_name_that_starts_at_44_is_local_decode() -> None:
    hello = ds4d("HELLO", "local-decode", **HELLO)
    observer = open_observer({})
    assert observer is None
    observer = open_observer({UP: hello[:12]})
    assert observer is not None
    events = list(observer.feed(UP, hello, 0.0))
    assert observer.dialect == "local-decode"
    assert problems(events) == []


def test_a_longer_fixed_part_is_fodelf() -> None:
    spec_values = {
        "model_id": 0, "session": 1, "request": 1, "pos0": 0,
        "prefix_hash": token_hash(()), "result_hash": token_hash((5,)),
        "layer_start": 3, "layer_end": 7,
        "flags": 3, "input_hc_bits": 32, "tokens": (5,), "hidden": bytes(256),
        "route": [{"port": 9, "layer_start": 3, "layer_end": 7, "flags": 1,
                   "host": "h"}],
        "route_index": 0, "route_return": {},
    }  # fmt: skip
    data = ds4d("WORK", "fodelf", **spec_values)
    observer = open_observer({UP: data[:12]})
    assert observer is not None
    events = list(observer.feed(UP, data, 0.0))
    assert observer.dialect == "fodelf"
    assert problems(events) == []


def test_a_snapshot_id_below_2_to_63_is_june1() -> None:
    observer, _ = observe([(UP, state("SNAPSHOT_SAVE_REQ", request=7))])
    assert observer.dialect == "june1"


def test_capability_frames_are_hello_v3() -> None:
    hello = ds4d("HELLO", **HELLO)
    observer = open_observer({UP: hello})
    assert observer is not None
    frames = hello + ds4d("HELLO_V3", "hello-v3", body=bytes(12))
    events = list(observer.feed(UP, frames, 0.0))
    assert names(events) == ["HELLO", "HELLO_V3"]
    assert observer.dialect == "hello-v3"


def test_a_chosen_dialect_is_kept() -> None:
    observer, events = observe(
        [(UP, ds4d("HELLO", **HELLO) + ds4d("HELLO_V3", "hello-v3", body=b""))],
        dialect="upstream",
    )
    assert observer.dialect == "upstream"
    assert "unknown type" in names(events)


def test_the_swift_dialect_is_named_and_left_undecoded() -> None:
    def swift(code: int, body: bytes) -> bytes:
        words = (0x44533444, code, len(body))
        return b"".join(w.to_bytes(4, "little") for w in words) + body

    stream = swift(3, bytes(40)) + swift(4, b"") + swift(1, b"x" * 9)
    observer, events = observe([(UP, stream)])
    assert observer.dialect == "swift"
    assert not [e for e in events if isinstance(e, FrameReceived)]
    skips = [e for e in events if isinstance(e, Skipped)]
    assert [(e.stream_offset, e.length, e.reason) for e in skips] == [
        (0, 52, "undecoded"),
        (52, 12, "undecoded"),
        (64, 21, "undecoded"),
    ]
    assert problems(events) == ["DS4D-DIALECT-17"]


@pytest.mark.parametrize(
    "gid",
    [bytes.fromhex("fe80000000000000") + bytes(8), bytes(10) + b"\xff\xff\x0a\x63\0\2"],
)
def test_a_queue_pair_greeting_is_edwardtian(gid: bytes) -> None:
    greeting = bytes(range(1, 11)) + bytes(2) + gid
    assert len(greeting) == 28
    observer, events = observe([(UP, greeting), (DOWN, greeting)])
    assert observer.dialect == "edwardtian"
    assert problems(events) == ["DS4D-DIALECT-13"] * 2


@pytest.mark.parametrize(
    "foreign",
    [
        b"GET / HTTP/1.1\r\n",
        bytes(28),
        bytes(range(28)),
        bytes(range(1, 13)) + bytes.fromhex("fe80000000000000") + bytes(8),
        b"\x16\x03\x01\x02",
    ],
)
def test_other_traffic_is_left_alone(foreign: bytes) -> None:
    assert open_observer({UP: foreign}) is None
    assert open_observer({UP: foreign, DOWN: foreign}) is None


def test_a_capture_that_begins_in_mid_stream() -> None:
    data = work(1)[200:] + work(2) + work(3, flags=5)
    observer = open_observer({UP: data[:512]}, complete=False)
    assert observer is not None
    events = list(observer.feed(UP, data, 0.0)) + list(observer.feed(UP, None, 0.0))
    assert names(events) == ["before the first header", "WORK", "WORK"]
    assert not any(isinstance(e, Violation) for e in events)
