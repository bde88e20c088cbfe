"""The register of dialects: complete, consistent, and each found by its own signs."""

import itertools
import struct
from typing import Any

import pytest

from ds4proto.schema import all_dialects, dialect, dialect_candidates, frame, to_bytes
from ds4proto.schema.recognise import hello_size
from ds4proto.schema.signs import DECIDING

PIPELINE = [
    "upstream", "june1", "edwardtian", "anyei", "xangel82", "sohardcement", "bf16",
    "local-decode", "fodelf", "hello-v3", "swift", "ds4proto",
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


def test_any_prefix_of_a_stream_is_looked_at_without_a_fault() -> None:
    for name in TENSOR:
        stream = hello(name)
        for size in range(len(stream) + 1):
            assert isinstance(names({"a>b": stream[:size]}), list)
