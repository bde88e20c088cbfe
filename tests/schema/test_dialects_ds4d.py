"""DS4D dialects by the bytes of their peers: what each sign is worth."""

import random
import struct
from typing import Any

import pytest

from ds4proto.schema import dialect_candidates, frame, to_bytes
from ds4proto.schema.recognise import protocol_of


def names(first: dict[str, bytes]) -> list[str]:
    return [name for name, _ in dialect_candidates(first)]


def pipeline(name: str, kind: str, **values: Any) -> bytes:
    return to_bytes(frame(f"DS4D.{kind}", dialect=name), values, dialect=name)


def register(name: str = "upstream", **other: Any) -> bytes:
    values = {
        "model_id": 0, "quant_bits": 2, "layer_start": 2, "layer_end": 7,
        "has_output": 1, "ctx_size": 256, "n_layers": 8, "listen_port": 5555,
        "model_name": "Toy V4", **other,
    }  # fmt: skip
    return pipeline(name, "HELLO", **values)


def work(name: str = "upstream", bits: int = 32, hidden: bytes = bytes(8)) -> bytes:
    hop = {
        "host": "127.0.0.1",
        "port": 5555,
        "layer_start": 2,
        "layer_end": 7,
        "flags": 1,
    }
    return pipeline(
        name, "WORK", model_id=0, session=1, request=1, prefix_hash=2, result_hash=3,
        pos0=0, layer_start=2, layer_end=7, flags=3, input_hc_bits=bits, route_index=0,
        tokens=(5,), hidden=hidden, route=[hop],
    )  # fmt: skip


def result(name: str = "upstream") -> bytes:
    return pipeline(
        name,
        "RESULT",
        request=1,
        result_hash=3,
        status=0,
        result_kind=0,
        payload_bits=0,
    )


def snapshot(request: int) -> bytes:
    return pipeline(
        "upstream", "SNAPSHOT_SAVE_REQ", model_id=0, session=1, request=request,
        token_hash=4, token_count=1, layer_start=2, layer_end=7,
    )  # fmt: skip


def test_upstream_and_its_older_text() -> None:
    assert names({"a>b": register()}) == ["upstream", "june1"]
    assert names({"b>a": snapshot(1 << 63)}) == ["upstream"]
    assert names({"b>a": snapshot(7)})[0] == "june1"


def test_name_that_starts_at_44() -> None:
    assert names({"a>b": register("local-decode")}) == ["local-decode"]


def test_name_that_starts_at_48() -> None:
    assert names({"a>b": register("ds4proto")}) == ["ds4proto"]


def test_type_ten_right_after_hello() -> None:
    inbox = pipeline(
        "anyei", "IPC_INBOX", slot_count=1, slot_bytes=4096, handles=bytes(128)
    )
    assert names({"a>b": register() + inbox})[0] == "anyei"
    assert "anyei" not in names(
        {"a>b": register() + b"DS4D" + struct.pack(">2I", 10, 3)}
    )
    assert "anyei" not in names({"a>b": work() + inbox})


def test_frames_of_the_capability_exchange() -> None:
    words = pipeline("hello-v3", "HELLO_V3", body=bytes(32))
    assert names({"a>b": register() + words})[0] == "hello-v3"


def test_longer_fixed_parts() -> None:
    assert names({"b>a": work("fodelf")})[0] == "fodelf"
    assert names({"a>b": result("fodelf")})[0] == "fodelf"
    assert "fodelf" not in names({"b>a": work()})


def test_version_word_of_a_shard() -> None:
    shard = struct.pack("<14I", 0x4C565344, 2, *[1] * 12)
    chunk = pipeline("upstream", "SNAPSHOT_CHUNK", request=1 << 63, data=shard)
    assert names({"b>a": chunk})[0] == "xangel82"
    plain = chunk.replace(shard[:8], struct.pack("<2I", 0x4C565344, 1))
    assert "xangel82" not in names({"b>a": plain})


def test_work_on_a_connection_of_its_own() -> None:
    """Told only from both connections: the one with HELLO stays silent."""
    apart = {
        "control a>b": register(), "control b>a": b"",
        "data a>b": work(), "data b>a": result(),
    }  # fmt: skip
    assert names(apart)[0] == "sohardcement"
    together = {**apart, "control b>a": work(), "data a>b": b"", "data b>a": b""}
    assert "sohardcement" not in names(together)
    assert "sohardcement" not in names({"a>b": register(), "b>a": work()})
    forwarding = {**together, "data a>b": work()}
    assert "sohardcement" not in names(forwarding)


def activations(code: str, scale: float) -> bytes:
    numbers = random.Random(1)
    values = [numbers.gauss(0, scale) for _ in range(4096)]
    if code == "f16":
        return struct.pack("<4096e", *values)
    return b"".join(struct.pack("<f", value)[2:] for value in values)


@pytest.mark.parametrize("scale", [0.02, 1.0, 30.0])
def test_sixteen_bit_payloads(scale: float) -> None:
    assert names({"b>a": work(bits=16, hidden=activations("bf16", scale))})[0] == "bf16"
    halves = names({"b>a": work(bits=16, hidden=activations("f16", scale))})
    assert "bf16" not in halves
    assert halves[0] == "upstream"


def test_few_sixteen_bit_values_tell_nothing() -> None:
    short = activations("bf16", 1.0)[:2000]
    assert "bf16" not in names({"b>a": work(bits=16, hidden=short)})
    assert "bf16" not in names({"b>a": work(bits=16, hidden=bytes(8192))})


def test_greeting_in_front_of_the_frames() -> None:
    greeting = struct.pack(">IIHH16s", 0x1234, 7, 1, 0, bytes(10) + b"\xff\xff\n\0\0\1")
    assert len(greeting) == 28
    assert names({"a>b": greeting, "b>a": greeting}) == ["edwardtian"]
    assert names({"a>b": greeting + register()}) == ["edwardtian"]
    assert names({"a>b": greeting[:4] + bytes(24)}) == []
    assert names({"a>b": greeting + b"GET /"}) == []
    assert names({"a>b": greeting, "b>a": b"SSH-2.0-OpenSSH_9.9 and then some"}) == []


def test_little_endian_headers() -> None:
    assert names({"a>b": struct.pack("<3I", 0x44533444, 1, 0)}) == ["swift"]


@pytest.mark.parametrize(
    "first",
    [
        {},
        {"a>b": b""},
        {"a>b": b"DS4"},
        {"a>b": b"GET / HTTP/1.1\r\n"},
        {"a>b": bytes(88)},
    ],
)
def test_other_traffic_is_left_alone(first: dict[str, bytes]) -> None:
    assert dialect_candidates(first) == []


@pytest.mark.parametrize(
    ("head", "protocol"),
    [
        (b"DS4D", "DS4D"),
        (b"D4SD", "DS4D-LE"),
        (b"T4SD", "DS4T"),
        (b"DS4T", "DS4T-BE"),
        (b"B4SD", "DS4B"),
        (b"DS4B", None),
        (b"DS", None),
    ],
)
def test_protocol_by_magic(head: bytes, protocol: str | None) -> None:
    assert protocol_of(head) == protocol


def test_any_prefix_of_a_stream_is_looked_at_without_a_fault() -> None:
    for stream in (register() + work() + result(), snapshot(1)):
        for size in range(len(stream)):
            assert isinstance(names({"a>b": stream[:size]}), list)
