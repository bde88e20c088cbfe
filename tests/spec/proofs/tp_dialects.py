"""Which DS4T dialect is this, and how are its frames read?"""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import patch

from ds4proto.link import ds4t_gate_headers, ds4t_hello
from ds4proto.link.ds4t_hello import HelloExchange
from ds4proto.link.gate_form import Due, Header
from ds4proto.preflight import rules, rules_tp
from ds4proto.schema import recognise, registry, signs
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto.schema.recognise import dialect_candidates
from tests.link import test_ds4t_control as observers
from tests.link.ds4t.pair import settings
from tests.link.ds4t.test_hello import outcome
from tests.link.test_gate_dialects import rdma_pair
from tests.preflight.plans import PAIR, checks
from tests.schema import test_dialects as dialects
from tests.spec.runs_ds4t import judged
from tests.spec.tp_showing import altered, shows

LAYERS = 4


def only(*kinds: str) -> Any:
    return lambda: patch.object(signs, "DECIDING", frozenset(kinds))


@shows(
    ("DS4T-DIALECT-01", "the version alone", only("version")),
    ("DS4T-DIALECT-02", "the version alone", only("version")),
    ("DS4T-DIALECT-03", "the pad says nothing", only("version", "hello_size")),
)
def a_dialect_is_told_by_version_length_and_pad_together() -> None:
    dialects.test_a_version_number_alone_decides_nothing()
    dialects.test_nine_is_told_by_its_length()
    dialects.test_pad_tells_the_fourteens_and_the_twelves()
    assert dialects.names({"a>b": dialects.hello("v14")}) == ["v14", "v14-odinlink"]
    for name, changes in (
        ("v14-odinlink", {"odl_ok": 1}),
        ("v12-ane", {"split_flags": 3}),
    ):
        observers.test_the_pad_word_tells_forks_of_one_version(name, changes)


def one_table(own: Any, protocol: str, dialect: str) -> Any:
    return own(protocol, "v10" if protocol == "DS4T" else dialect)


@shows(
    ("DS4T-DIALECT-05", "one table for all", altered(registry, "_codes", one_table)),
    ("DS4T-DIALECT-06", "one table for all", altered(registry, "_codes", one_table)),
)
def a_type_is_read_by_dialect() -> None:
    expected = {
        ("v10", 18): "SYNC_MULTIMODAL",
        ("v14", 18): "SYNC_MULTIMODAL",
        ("v9w", 18): "LOGITS_TOP2",
        ("v7", 18): None,
        ("v10", 22): None,
        ("v12", 22): "SYNC_CHECKPOINT",
        ("v14", 22): "SYNC_CHECKPOINT",
        ("v14", 23): None,
        ("v15", 22): "SYNC_CHECKPOINT",
        ("v15", 23): "RESTORE_PAYLOAD",
        ("v14-odinlink", 22): "SYNC_GO",
        ("v14-odinlink", 23): "SYNC_CHECKPOINT",
        ("v12-ane", 22): "CANCEL",
        ("v12-ane", 23): "ROLLBACK_CAPTURE",
    }
    found = {}
    for name, code in expected:
        spec = registry.frame_of_code("DS4T", code, dialect=name)
        found[name, code] = None if spec is None else spec.name
    assert found == expected


def unmarked(own: Any, seen: Any) -> Any:
    return [(name.rstrip("?"), settles) for name, settles in own(seen)]


@shows(
    (
        "DS4T-DIALECT-08",
        "the nearest one is taken for the right one",
        altered(recognise, "_nearest", unmarked),
    ),
    (
        "DS4T-DIALECT-08",
        "always the main dialect",
        altered(recognise, "_nearest", lambda _own, _seen: [("v14?", "")]),
    ),
)
def an_unknown_version_is_read_as_the_nearest_and_marked() -> None:
    for version, like in ((13, "v14"), (16, "v15"), (5, "v6")):
        dialects.test_a_version_that_nobody_registered(version, like)
    observers.test_an_unknown_version_is_read_as_the_nearest_and_marked()
    observers.test_a_length_that_the_version_does_not_have()


@shows(
    (
        "DS4T-DIALECT-09",
        "swapped bytes are anybody's",
        altered(ds4t_hello, "protocol_of", lambda _own, _first: None),
    )
)
def swapped_bytes_are_a_big_endian_peer() -> None:
    failure = outcome(HelloExchange(settings("tp-leader")), b"DS4T" + bytes(84))
    assert failure.text == "tp hello: bad magic (mixed byte order or wrong peer?)"
    assert "big-endian" in failure.problem.next_step
    assert recognise.protocol_of(b"DS4T" + bytes(8)) == "DS4T-BE"
    observers.test_something_else_in_the_place_of_a_hello(b"DS4T", "DS4T-DIALECT-09")


def always(own: Any, first: Any) -> str:
    return own(first) if own(first) in ("DS4T", "DS4B", "DS4D") else "DS4T"


@shows(
    (
        "DS4T-DIALECT-10",
        "the other magic is read as DS4T",
        altered(recognise, "protocol_of", always),
    ),
    (
        "DS4T-DIALECT-11",
        "whatever comes is DS4T",
        altered(recognise, "protocol_of", always),
    ),
)
def streams_are_told_by_their_content() -> None:
    swift = (0x44533444).to_bytes(4, "little") + bytes([1, 0, 0, 0]) + bytes(40)
    assert dialects.names({"a>b": swift}) == ["swift"]
    for other in (
        b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n" + bytes(64),
        b"SSH-2.0-OpenSSH_9.7\r\n" + bytes(80),
        bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + bytes(88),
        bytes(96),
    ):
        assert dialect_candidates({"a>b": other}) == []
    # no port is asked for: the same bytes are found on any
    assert dialects.names({"a>b": dialects.hello("v10")}) == ["v10"]


def first_alone(own: Any, views: Any) -> Any:
    return own(views)[:1]


@shows(
    (
        "DS4T-DIALECT-12",
        "the first candidate alone",
        altered(recognise, "_ds4t", first_alone),
    ),
    (
        "DS4T-DIALECT-12",
        "no word on what settles it",
        altered(recognise, "_ds4t", lambda own, v: [(n, "") for n, _ in own(v)]),
    ),
)
def where_two_dialects_fit_both_are_named() -> None:
    for name, both in (
        ("v14", ["v14", "v14-odinlink"]),
        ("v12", ["v12", "v12-ane"]),
        ("v9", ["v9", "v9-late"]),
    ):
        found = dialect_candidates({"a>b": dialects.hello(name)})
        assert [candidate for candidate, _ in found] == both
        assert all(settles for _, settles in found)


@shows(
    (
        "DS4T-DIALECT-23",
        "version numbers are not compared",
        altered(HelloExchange, "_judge_early", lambda _own, _machine, _now: False),
    )
)
def v12_and_v14_are_not_paired() -> None:
    for mine, theirs in (("v14", "v12"), ("v12", "v14")):
        hello = settings("tp-worker", theirs).hello()
        found = outcome(HelloExchange(settings("tp-leader", mine)), hello)
        assert found.text == f"tp hello: protocol version {theirs[1:]} != {mine[1:]}"


def without_versions() -> Any:
    left = tuple(one for one in rules.CHECKS if one is not rules_tp.versions)
    return patch.object(rules, "CHECKS", left)


@shows(("DS4T-DIALECT-30", "equal numbers will do", without_versions))
def equal_version_numbers_are_not_enough() -> None:
    for one, other in (
        ("v14", "v14-odinlink"),
        ("v12", "v12-ane"),
        ("v9", "v9w"),
    ):
        text = PAIR.replace('tp_dialect = "v14"', f'tp_dialect = "{one}"', 1)
        text = text.replace('tp_dialect = "v14"', f'tp_dialect = "{other}"')
        if one == "v14":
            text = PAIR[::-1].replace('"41v"'[::1], f'"{other[::-1]}"', 1)[::-1]
        assert "build.dialect" in checks(judged(text), "error")


@shows(
    (
        "DS4B-BULK-11",
        "a layer behind the last one is refused",
        altered(
            Due,
            "fits",
            lambda own, machine, header, pair, **more: (
                header.layer < LAYERS and own(machine, header, pair, **more)
            ),
        ),
    )
)
def the_prediction_block_has_the_layer_behind_the_last() -> None:
    pair, _ = rdma_pair("v7", n_layer=LAYERS, gates_per_token=2 * LAYERS)
    due = Due()
    for layer, fits in ((LAYERS - 1, True), (LAYERS, True), (LAYERS + 1, False)):
        header = Header("DS4B.GATE_BULK", layer, BULK_TAG, 1, None)
        assert due.fits(header, pair) is fits, layer


@shows(
    (
        "DS4T-GATE-15",
        "16 bytes as upstream has them",
        altered(
            ds4t_gate_headers,
            "read_gate_header",
            lambda own, data, dialect: own(data, dialect.removesuffix("-odinlink")),
        ),
    )
)
def the_odinlink_header_has_a_byte_count_at_16() -> None:
    data = struct.pack("<IHHQQ", 0x44533454, 7, 1, 9, 4096)
    found = ds4t_gate_headers.read_gate_header(data, "v14-odinlink")
    assert found is not None
    assert (found.shape, found.layer, found.third, found.seq) == ("row", 7, 1, 9)
    assert (found.nbytes, found.size) == (4096, 24)
    assert ds4t_gate_headers.read_gate_header(data[:23], "v14-odinlink") is None
