"""The hello: order of checks, exact texts, versions, transports, splits."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_hello import HelloAgreed, HelloExchange, choose_transport
from ds4proto.link.ds4t_identity import Identity, TpSettings, all_mismatches
from ds4proto.link.ds4t_rules import REFUSED, RULES, rules_of
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.link.events import Violation
from ds4proto.model.known import GLM_53_FLASH, KNOWN_MODELS
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4t_hello import HELLO
from ds4proto.schema.registry import to_bytes
from tests.link.ds4t.captured import DIALECT, FOLDER
from tests.link.ds4t.pair import SMALL, V4_FLASH, settings

# golden vectors of the four live dialects
V14_LEADER = (
    "54345344 0e000000 01000000 00000000 8967452301000000 00000000 2b000000 00100000 "
    "00f90100 02000000 00200000 00000000 01000000 56000000 00000000" + "00" * 24
)
V10_WORKER = (
    "54345344 0a000000 02000000 00000000 80e3eb3014000000 00000000 02000000 10000000 "
    "20000000 02000000 00000000 00000000 01000000 04000000 00000000" + "00" * 24
)
V7_WORKER = (
    "54345344 07000000 02000000 00000000 e703000000000000 00000000 04000000 40000000 "
    "80000000 02000000 00000000 00000000 01000000 08000000 00000000"
)
V9W_WORKER = (
    "54345344 09000000 02000000 00000000 e703000000000000 00000000 04000000 40000000 "
    "80000000 02000000 00000000 00800000 00000000 01000000 08000000 00000000 00000000"
)


def outcome(machine: HelloExchange, data: bytes | None, *, end: bool = False) -> Any:
    machine.start(0.0)
    machine.receive_data(data, 1.0)
    if end:
        machine.receive_data(None, 2.0)
    *_, last = machine.events()
    return last


def peer_hello(dialect: str = "v14", **words: int) -> bytes:
    """Return a hello that fits SMALL, with some words changed."""
    own = settings("tp-worker", dialect)
    values: dict[str, Any] = {
        **own.identity.words(),
        "version": own.version,
        "role": 2,
        **words,
    }
    return to_bytes(HELLO, values, dialect=dialect)


@pytest.mark.parametrize(
    ("own", "vector"),
    [
        (TpSettings("tp-leader", V4_FLASH, ctx_size=8192), V14_LEADER),
        (
            TpSettings(
                "tp-worker",
                Identity(86720111488, 0, 2, 16, 32, 2, 0, 1, 4),
                "v10",
                ctx_size=77,
            ),
            V10_WORKER,
        ),
        (TpSettings("tp-worker", SMALL, "v7"), V7_WORKER),
        (
            TpSettings("tp-worker", replace(SMALL, runtime_features=0x8000), "v9w"),
            V9W_WORKER,
        ),
    ],
)
def test_hellos_equal_the_golden_vectors(own: TpSettings, vector: str) -> None:
    assert own.hello() == bytes.fromhex(vector)


CHECKS: list[tuple[str, dict[str, int], str]] = [
    ("magic", {"magic": 1}, "tp hello: bad magic (mixed byte order or wrong peer?)"),
    ("version", {"version": 15}, "tp hello: protocol version 15 != 14"),
    ("role", {"role": 1}, "tp hello: both sides claim role 1"),
    (
        "identity",
        {"gguf_bytes": 5, "n_layer": 6},
        "tp hello: model mismatch (peer gguf=5 id=0 layers=6 embd=64 vocab=128 "
        "qbits=2)",
    ),
]


@pytest.mark.parametrize(
    "size", range(1, len(CHECKS) + 1), ids=lambda n: f"{n} wrong fields"
)
def test_only_the_first_failing_check_speaks(size: int) -> None:
    for chosen in itertools.combinations(CHECKS, size):
        words: dict[str, int] = {}
        for _, change, _ in chosen:
            words |= change
        last = outcome(HelloExchange(settings("tp-leader")), peer_hello(**words))
        assert isinstance(last, PairFailed)
        assert last.text == chosen[0][2]
        assert last.line("tp-worker") == f"tp worker: {last.text}"


@pytest.mark.parametrize(
    "word",
    ["gguf_bytes", "model_id", "n_layer", "n_embd", "n_vocab", "quant_bits",
     "gate_slot_start", "gate_slot_step", "gates_per_token", "gate_slot_mask0",
     "gate_slot_mask1", "gate_slot_mask2"],
)  # fmt: skip
def test_any_word_of_the_identity_is_a_mismatch_that_is_named(word: str) -> None:
    last = outcome(HelloExchange(settings("tp-leader")), peer_hello(**{word: 3}))
    assert isinstance(last, PairFailed)
    assert last.problem.clause == "DS4T-HELLO-05"
    assert word in last.problem.found


@pytest.mark.parametrize(
    ("word", "value"), [("ctx_size", 0xFFFFFFFF), ("rdma_ok", 1), ("pad", 1)]
)
def test_words_that_are_not_compared(word: str, value: int) -> None:
    machine = HelloExchange(settings("tp-leader", ctx_size=1))
    machine.start(0.0)
    machine.receive_data(peer_hello(**{word: value}), 1.0)
    *before, last = machine.events()
    assert isinstance(last, HelloAgreed)
    notes = [e.problem.next_step for e in before if isinstance(e, Violation)]
    assert [("OdinLink" in n) for n in notes] == ([True] if word == "pad" else [])


@pytest.mark.parametrize("role", [0, 3, 0xFFFFFFFF])
def test_a_strange_role_is_refused_unless_asked_for(role: int) -> None:
    strict = outcome(HelloExchange(settings("tp-leader")), peer_hello(role=role))
    assert isinstance(strict, PairFailed)
    assert strict.problem.clause == "DS4T-HELLO-19"
    real = HelloExchange(settings("tp-leader"), any_role=True)
    assert isinstance(outcome(real, peer_hello(role=role)), HelloAgreed)


def test_the_own_mask_is_judged_after_the_identity() -> None:
    # measured on v10: 9 bits in 4 slots, the same on both sides
    wrong = replace(SMALL, n_layer=2, gates_per_token=9, gate_slot_mask=(0x1FF, 0, 0))
    text = "tp hello: invalid gate schedule mask (9 bits, 9 gates, 4 slots)"
    leader = HelloExchange(settings("tp-leader", "v10", identity=wrong))
    hello = settings("tp-worker", "v10", identity=wrong).hello()
    assert outcome(leader, hello).text == text
    other = settings("tp-worker", "v10", identity=replace(wrong, n_embd=65)).hello()
    machine = HelloExchange(settings("tp-leader", "v10", identity=wrong))
    assert "model mismatch" in outcome(machine, other).text
    few = replace(SMALL, gates_per_token=8, gate_slot_mask=(0b111, 0, 0))
    assert few.mask_fault() == (3, 8, 8)
    high = replace(SMALL, gates_per_token=1, gate_slot_mask=(1 << 8, 0, 0))
    assert high.mask_fault() == (1, 1, 8)
    assert (
        replace(SMALL, gates_per_token=1, gate_slot_mask=(128, 0, 0)).mask_fault()
        is None
    )


def test_the_masks_of_known_models_are_sound() -> None:
    for model in KNOWN_MODELS:
        gates = model.gates
        identity = Identity(
            1, model.model_id, model.layers, model.width, model.vocabulary, 2,
            gates.start, gates.step, gates.gates_per_token, gates.mask,
        )  # fmt: skip
        assert identity.mask_fault() is None
    assert GLM_53_FLASH.gates.mask == (0xEAEAEAEAEAEAEAC0, 0x2EAEAEA, 0)
    with pytest.raises(WrongUsage, match="gate_slot_mask0"):
        settings(
            "tp-leader",
            "v7",
            identity=identity.__class__(
                1, 3, 45, 4096, 154880, 2, 6, 1, 53, GLM_53_FLASH.gates.mask
            ),
        )


@pytest.mark.parametrize("mine", [False, True])
@pytest.mark.parametrize("theirs", [False, True])
@pytest.mark.parametrize("request_", ["auto", "tcp", "rdma"])
def test_the_truth_table_of_transports(request_: Any, mine: bool, theirs: bool) -> None:
    own = settings("tp-leader", transport=request_, rdma_device=mine)
    assert own.hello()[12] == int(mine and request_ != "tcp")
    last = outcome(HelloExchange(own), peer_hello(rdma_ok=int(theirs)))
    if request_ == "rdma" and not (mine and theirs):
        side = "the peer" if mine else "this"
        assert last.text == f"tp: --transport rdma but {side} side has no active device"
        assert choose_transport("rdma", mine, theirs) == side
    else:
        wanted = "rdma" if request_ != "tcp" and mine and theirs else "tcp"
        assert last.transport == wanted


def test_features_are_judged_after_the_role_and_before_the_identity() -> None:
    mine = replace(SMALL, runtime_features=0x8000)
    own = settings("tp-leader", "v9w", identity=mine)
    text = "tp hello: runtime feature mismatch (local=0x00008000 peer=0x00188020)"
    hello = peer_hello(dialect="v9w", runtime_features=0x00188020, n_embd=65)
    last = outcome(HelloExchange(own), hello)
    assert last.text == text
    for word in ("GREEDY_TOP2", "unknown bit 19", "unknown bit 20"):
        assert word in last.problem.found
    role = peer_hello(dialect="v9w", runtime_features=1, role=1)
    assert "claim role" in outcome(HelloExchange(own), role).text


def test_all_mismatches_are_listed_at_once() -> None:
    theirs = replace(
        SMALL, n_embd=65, n_vocab=130, gates_per_token=9, runtime_features=1 << 25
    )
    found = all_mismatches(SMALL, theirs)
    assert [m.field for m in found] == [
        "n_embd", "n_vocab", "gates_per_token", "runtime_features",
    ]  # fmt: skip
    assert found[0].text == "n_embd: here 64, peer 65"
    assert "unknown bit 25" in found[3].text
    assert all_mismatches(SMALL, SMALL) == ()


@pytest.mark.parametrize("mine", sorted(RULES))
@pytest.mark.parametrize(
    "theirs", [d.name for d in dialects_of("DS4T") if d.hello_size]
)
def test_every_dialect_meets_every_other(mine: str, theirs: str) -> None:
    """Version first; where both hellos bear one number, their lengths decide."""
    own = settings("tp-leader", mine)
    entry = next(d for d in dialects_of("DS4T") if d.name == theirs)
    hello = to_bytes(
        HELLO,
        {**SMALL.words(), "version": entry.version, "role": 2},
        dialect=theirs,
    )
    last = outcome(HelloExchange(own), hello, end=True)
    if entry.version != own.version:
        assert (
            last.text == f"tp hello: protocol version {entry.version} != {own.version}"
        )
        assert last.problem.next_step
        return
    # v9w against the shorter and longer 9, v9 against v9-late, v14 against OdinLink
    same = HELLO.fixed_size(mine) == HELLO.fixed_size(theirs)
    assert isinstance(last, HelloAgreed) == same


@pytest.mark.parametrize(
    ("version", "words"),
    [(10, "dialect v10"), (15, "40-byte header"), (6, "one implicit session"),
     (11, "NCCL"), (77, "not in the register")],
)  # fmt: skip
def test_a_foreign_version_comes_with_advice(version: int, words: str) -> None:
    last = outcome(HelloExchange(settings("tp-leader")), peer_hello(version=version))
    assert words in last.problem.next_step


def test_the_version_is_judged_from_eight_bytes() -> None:
    machine = HelloExchange(settings("tp-leader"))
    machine.start(0.0)
    machine.receive_data(peer_hello(version=7)[:8], 1.0)
    (last,) = machine.events()
    assert last.text == "tp hello: protocol version 7 != 14"


def test_a_probe_sends_eighty_eight_bytes_and_asks_for_eight() -> None:
    machine = HelloExchange(settings("tp-worker", "v7"), probe=True)
    assert machine.wanted == 8
    (data,) = machine.start(0.0)
    assert len(data) == 88
    plain = HelloExchange(settings("tp-worker", "v7"))
    assert [len(x) for x in plain.start(0.0)] == [64]


@pytest.mark.parametrize(("leader", "worker"), [(7, 9), (7, 10), (9, 10), (10, 7)])
def test_crossed_versions_end_as_recorded(leader: int, worker: int) -> None:
    """The shorter side prints both versions, a real longer one only the exchange."""
    path = FOLDER / f"x_leader{leader}_worker{worker}.json"
    log = "\n".join(json.loads(path.read_text("utf-8"))["roles"]["leader"]["log"])
    machine = HelloExchange(settings("tp-leader", DIALECT[leader]))
    last = outcome(machine, settings("tp-worker", DIALECT[worker]).hello(), end=True)
    text = f"tp hello: protocol version {worker} != {leader}"
    assert last.text == text
    sizes = {7: 64, 9: 72, 10: 88}
    longer = sizes[leader] > sizes[worker]
    assert ("tp hello exchange failed" if longer else text) in log


@pytest.mark.parametrize(
    ("data", "clue"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "something else"),
        (b"\x44\x53\x34\x54" + bytes(84), "big-endian"),
        (b"\x44\x53\x34\x44" + bytes(84), "pipeline peer"),
        (b"B4SD" + bytes(84), "gate bytes"),
    ],
)
def test_a_wrong_magic_is_told_apart(data: bytes, clue: str) -> None:
    last = outcome(HelloExchange(settings("tp-leader")), data)
    assert last.text == "tp hello: bad magic (mixed byte order or wrong peer?)"
    assert clue in last.problem.next_step


@pytest.mark.parametrize("count", [0, 1, 7, 8, 56, 64, 87])
def test_a_short_hello_ends_with_the_exchange_text(count: int) -> None:
    last = outcome(HelloExchange(settings("tp-leader")), peer_hello()[:count], end=True)
    assert last.text == "tp hello exchange failed"
    assert last.peer_lost
    assert f"{count} bytes" in last.problem.found


def test_a_silent_client_is_given_up_at_the_deadline() -> None:
    machine = HelloExchange(settings("tp-leader"), seconds=5.0)
    machine.start(10.0)
    assert machine.deadline() == 15.0
    machine.timeout(15.0)
    (last,) = machine.events()
    assert last.text == "tp hello exchange failed"
    assert machine.deadline() is None


def test_bytes_behind_the_hello_are_handed_on() -> None:
    last = outcome(HelloExchange(settings("tp-leader")), peer_hello() + b"next")
    assert last.rest == b"next"


@hypothesis_settings(derandomize=True, deadline=None)
@given(
    data=st.binary(max_size=200)
    | st.binary(max_size=100).map(lambda b: peer_hello() + b),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_bytes_in_any_split_end_alike(data: bytes, cuts: list[int]) -> None:
    whole = HelloExchange(settings("tp-leader"))
    whole.start(0.0)
    whole.receive_data(data, 1.0)
    whole.receive_data(None, 1.0)
    pieces = HelloExchange(settings("tp-leader"))
    pieces.start(0.0)
    edges = [0, *sorted(cuts), len(data)]
    for a, b in itertools.pairwise(edges):
        pieces.receive_data(data[a:b], 1.0)
    pieces.receive_data(None, 1.0)
    mine, theirs = list(whole.events()), list(pieces.events())
    assert [getattr(e, "text", "") for e in mine] == [
        getattr(e, "text", "") for e in theirs
    ]
    assert len(mine) == 1


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_dialects_that_are_not_spoken_say_why(name: str) -> None:
    with pytest.raises(KeyError, match="not spoken live"):
        rules_of(name)
    with pytest.raises(WrongUsage, match="not spoken live"):
        settings("tp-leader", name)


def test_dialects_served_over_tcp_alone_refuse_rdma() -> None:
    for name in ("v9", "v9-late", "v12"):
        assert not settings("tp-leader", name, rdma_device=True).rdma_ok
        with pytest.raises(WrongUsage, match="TCP alone"):
            settings("tp-leader", name, transport="rdma")


def test_every_dialect_is_either_spoken_or_refused_with_a_reason() -> None:
    known = {d.name for d in dialects_of("DS4T")}
    assert known == set(RULES) | set(REFUSED)
    assert {d.name for d in dialects_of("DS4T") if d.live == "speaks"} <= set(RULES)
