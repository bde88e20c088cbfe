"""The register of dialects: complete, consistent, and each found by its own signs."""

import itertools
import random
import struct
from typing import Any

import pytest

from ds4proto.schema import all_dialects, dialect, dialect_candidates, frame, to_bytes
from ds4proto.schema.recognise import hello_size, protocol_of
from ds4proto.schema.signs import DECIDING

PIPELINE = [
    "upstream", "june1", "edwardtian", "anyei", "xangel82", "sohardcement", "bf16",
    "local-decode", "fodelf", "hello-v3", "swift",
]  # fmt: skip
TENSOR = [
    "v1", "v6", "v7", "v8-mesh", "v9", "v9-late", "v9w", "v10", "v11-spark", "v12",
    "v12-ane", "v14", "v14-odinlink", "v15",
]  # fmt: skip
MEASURED = {
    "upstream", "june1", "edwardtian", "anyei", "xangel82", "sohardcement",
    "v7", "v9w", "v10",
}  # fmt: skip
VERSIONS = [1, 6, 7, 8, 9, 9, 9, 10, 11, 12, 12, 14, 14, 15]


def names(first: dict[str, bytes]) -> list[str]:
    return [name for name, _ in dialect_candidates(first)]


def test_the_register_is_complete() -> None:
    entries = all_dialects()
    assert [e.name for e in entries if e.protocol == "DS4D"] == PIPELINE
    assert [e.name for e in entries if e.protocol == "DS4T"] == TENSOR
    assert [e.version for e in entries if e.protocol == "DS4T"] == VERSIONS


@pytest.mark.parametrize("name", PIPELINE + TENSOR)
def test_every_entry_says_how_it_is_known(name: str) -> None:
    entry = dialect(name)
    assert entry.signs
    assert entry.settles
    assert entry.title
    assert entry.date
    assert (entry.evidence == "measured") == (name in MEASURED)
    assert entry.differs or name == "upstream"
    assert entry.base is None or dialect(entry.base).protocol == entry.protocol
    assert {sign.kind for sign in entry.signs} != {"version"}, (
        "a number decides nothing"
    )
    assert all(sign.text for sign in entry.signs)


def test_no_two_dialects_share_all_signs_but_those_that_cannot_be_told_apart() -> None:
    signs = {e.name: {(s.kind, s.value) for s in e.signs} for e in all_dialects()}
    same = {(a, b) for a, b in itertools.combinations(signs, 2) if signs[a] == signs[b]}
    assert same == set()


def test_names_and_their_marks() -> None:
    assert dialect("v14?") is dialect("v14")
    with pytest.raises(KeyError, match="no dialect 'v13'; known: upstream"):
        dialect("v13")


# -- DS4T: hellos built from the schema

IDENTITY = {
    "role": 1, "rdma_ok": 0, "gguf_bytes": 86720111488, "model_id": 0, "n_layer": 43,
    "n_embd": 4096, "n_vocab": 129280, "quant_bits": 2, "ctx_size": 8192,
    "gate_slot_start": 0, "gate_slot_step": 1, "gates_per_token": 86,
}  # fmt: skip
WORDS = struct.pack("<Q6I", 86720111488, 0, 43, 4096, 129280, 2, 8192)
OWN: dict[str, dict[str, Any]] = {
    # the identity as in v7, then world 2 and rank 0 in front of pad
    "v8-mesh": {
        "rest": struct.pack("<I", 0) + WORDS + struct.pack("<6I", 0, 1, 86, 2, 0, 0)
    },
    # rank 0 of 2, collective, expert_only, then the identity
    "v11-spark": {"rest": struct.pack("<4I", 0, 2, 1, 0) + WORDS},
    "v9w": {"runtime_features": 0x8000},
    "v12-ane": {"split_flags": 3},
    "v14-odinlink": {"odl_ok": 1},
    "v15": {"transport": 2 | 0x600, "nonce": 0x1122334455667788},
}


def hello(name: str, **other: Any) -> bytes:
    spec = frame("DS4T.HELLO", dialect=name)
    values = {
        **IDENTITY,
        "version": dialect(name).version,
        **OWN.get(name, {}),
        **other,
    }
    return to_bytes(spec, values, dialect=name)


def control(name: str, kind: str, **values: Any) -> bytes:
    return to_bytes(frame(f"DS4T.{kind}", dialect=name), values, dialect=name)


FOUND = {
    **{name: [name] for name in TENSOR},
    "v9": ["v9", "v9-late"],
    "v9-late": ["v9", "v9-late"],
    "v12": ["v12", "v12-ane"],  # its pad may be 0 as well
    "v14": ["v14", "v14-odinlink"],
}


@pytest.mark.parametrize("name", TENSOR)
def test_hello(name: str) -> None:
    both = {"a>b": hello(name), "b>a": hello(name, role=2)}
    assert names(both) == FOUND[name]
    assert names({"a>b": hello(name)}) == FOUND[name]
    assert all(settles for _, settles in dialect_candidates(both))


@pytest.mark.parametrize("name", ["v7", "v9w", "v10", "v12", "v14", "v15"])
def test_hello_followed_by_a_frame_has_its_own_size(name: str) -> None:
    create = control(name, "SESSION_CREATE", session_id=1, ctx_size=64)
    stream = hello(name) + create
    assert hello_size(memoryview(stream)) == dialect(name).hello_size
    assert (
        hello_size(memoryview(stream[: -len(create) + 4])) == dialect(name).hello_size
    )
    assert names({"a>b": stream})[0] == name


def test_nine_is_told_by_its_length() -> None:
    assert names({"a>b": hello("v9w")}) == ["v9w"]
    assert "v9w" not in names({"a>b": hello("v9")})


def test_nine_is_late_once_a_frame_says_so() -> None:
    posted = control("v9-late", "RDMA_POSTED", tag=0xFEED)
    assert names({"a>b": hello("v9-late") + posted}) == ["v9-late", "v9"]


def test_pad_tells_the_fourteens_and_the_twelves() -> None:
    assert names({"a>b": hello("v14-odinlink"), "b>a": hello("v14")}) == [
        "v14-odinlink"
    ]
    assert names({"a>b": hello("v12-ane"), "b>a": hello("v12")}) == ["v12-ane"]


def test_frames_tell_the_fourteens_where_pad_is_zero() -> None:
    plain = hello("v14-odinlink", odl_ok=0)
    ready = control("v14-odinlink", "ODL_READY", body=b"")
    checkpoint = {"seq": 1, "point": 0, "current": 0, "total": 3, "cancelled": 0}
    assert names({"a>b": plain}) == ["v14", "v14-odinlink"]
    for name in ("v14", "v14-odinlink"):
        stream = plain + control(name, "SYNC_CHECKPOINT", **checkpoint)
        assert names({"a>b": stream})[0] == name
    assert set(names({"a>b": plain + ready})) == {"v14", "v14-odinlink"}


def test_fifteen_before_its_nonce() -> None:
    assert names({"a>b": hello("v15")[:88]}) == ["v15"]


@pytest.mark.parametrize(("version", "like"), [(13, "v14"), (16, "v15"), (5, "v6")])
def test_a_version_that_nobody_registered(version: int, like: str) -> None:
    found = names({"a>b": hello(like, version=version)})
    assert found[0] == f"{like}?"
    assert all(name.endswith("?") for name in found)
    assert (
        f"version {version}"
        in dialect_candidates({"a>b": hello(like, version=version)})[0][1]
    )


def test_thirteen_lies_between_two() -> None:
    assert names({"a>b": hello("v14", version=13)}) == ["v14?", "v12?"]


def test_a_version_number_alone_decides_nothing() -> None:
    """The same number with another length is another protocol."""
    for name in TENSOR:
        entry = dialect(name)
        other = "v7" if entry.hello_size != 64 else "v14"
        create = control(other, "SESSION_CREATE", session_id=1, ctx_size=64)
        found = names({"a>b": hello(other, version=entry.version) + create})
        assert name not in found, name
        assert all(candidate.endswith("?") for candidate in found)
    assert "version" in DECIDING


def test_peers_of_two_versions_are_both_named() -> None:
    assert names({"a>b": hello("v7", role=2), "b>a": hello("v10")}) == ["v7", "v10"]


@pytest.mark.parametrize("role", [0, 3, 0xFFFFFFFF])
def test_an_odd_role_is_still_a_hello(role: int) -> None:
    assert names({"a>b": hello("v10", role=role)}) == ["v10"]


# -- DS4T: gates


def gate(name: str, kind: str = "DS4T.GATE_ROW", **values: Any) -> bytes:
    given = {"layer": 0, "seq": 1, "partial": bytes(64), **values}
    return to_bytes(frame(kind, dialect=name), given, dialect=name)


@pytest.mark.parametrize("layer", [0, 1, 3, 42])
def test_a_row_gate_is_no_hello(layer: int) -> None:
    ones = struct.pack("<16f", *[1.0] * 16)
    for partial in (bytes(64), ones):
        first = gate("v10", layer=layer, gate=0, partial=partial) * 2
        assert names({"a>b": first, "b>a": first}) == ["v14?"]


def test_gate_headers_with_a_byte_count() -> None:
    row = gate("v14-odinlink", layer=2, gate=1) * 2
    assert names({"a>b": row})[0] == "v14-odinlink"
    row = gate("v15", layer=2, gate=1, epoch=9) * 2
    assert names({"a>b": row})[0] == "v15"
    bulk = gate("v10", "DS4B.GATE_BULK", layer=2, tag=0x0B16)
    assert names({"a>b": bulk}) == ["v14?"]


# -- DS4D


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
    for name in TENSOR:
        stream = hello(name)
        for size in range(len(stream) + 1):
            assert isinstance(names({"a>b": stream[:size]}), list)
    for stream in (register() + work() + result(), snapshot(1)):
        for size in range(len(stream)):
            assert isinstance(names({"a>b": stream[:size]}), list)
