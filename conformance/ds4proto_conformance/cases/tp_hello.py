"""The hello of a tensor-parallel pair, for both ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from ds4proto.link.ds4t_texts import text_of
from ds4proto_conformance.bench.tp import TpBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable

Body = Callable[..., None]
ROLES: Final[tuple[tuple[Literal["tp-worker", "tp-leader"], str], ...]] = (
    ("tp-worker", "tpw"),
    ("tp-leader", "tpl"),
)


def both(
    name: str,
    *clauses: str,
    mutants: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    smoke: bool = False,
    harmless: bool = False,
) -> Callable[[Body], Body]:
    """Declare a case for both ranks; mutants get the prefix of the role."""

    def declare(body: Body) -> Body:
        for role, prefix in ROLES:
            case(
                f"{role}/hello/{name}",
                clauses=clauses,
                role=role,
                category="handshake",
                params=params,
                mutants=tuple(f"{prefix}-{mutant}" for mutant in mutants),
                harm="none" if harmless else "process",
                needs_restart=not harmless,
                smoke=smoke,
            )(body)
        return body

    return declare


@both(
    "own-words", "DS4T-HELLO-15", "DS4T-HELLO-18", "DS4T-HELLO-24", "DS4T-HELLO-26",
    mutants=["role-zero", "pad-set"], smoke=True, harmless=True,
)  # fmt: skip
def own_words(peer: TpBench) -> None:
    """The rank writes first; role, context and padding are what they have to be."""
    hello = peer.hello
    role = 1 if peer.ours == "tp-worker" else 2
    if hello["role"] != role:
        raise Deviation("DS4T-HELLO-18", f"role {role}", str(hello["role"]))
    if role == 2 and hello["ctx_size"]:
        raise Deviation("DS4T-HELLO-24", "ctx_size 0", str(hello["ctx_size"]))
    if hello.get("pad"):
        raise Deviation("DS4T-HELLO-26", "pad 0", hex(hello["pad"]))
    if hello["rdma_ok"] not in (0, 1):
        raise Deviation("DS4T-HELLO-20", "rdma_ok 0 or 1", str(hello["rdma_ok"]))
    fault = peer.identity.mask_fault()
    if fault is not None:
        raise Deviation("DS4T-HELLO-06", "a sound mask", f"bits, gates, slots {fault}")


@both(
    "bad-magic", "DS4T-HELLO-02",
    params={"magic": (b"DS4T", b"T4SE", b"B4SD", b"GET ")}, mutants=["magic-unchecked"],
)  # fmt: skip
def bad_magic(peer: TpBench, p: dict[str, Any]) -> None:
    """A hello that begins with other bytes is refused, byte-swapped ones included."""
    peer.say_hello(p["magic"] + peer.own_hello()[4:])
    peer.turned_down("DS4T-HELLO-02")
    peer.said("DS4T-HELLO-02")


@both(
    "version", "DS4T-HELLO-03",
    params={"version": (0, 1, -1, 255)}, mutants=["older-taken", "version-unchecked"],
)  # fmt: skip
def version(peer: TpBench, p: dict[str, Any]) -> None:
    """Any other version number is refused, older and newer alike."""
    mine = peer.hello["version"]
    theirs = {1: mine + 1, -1: mine - 1}.get(p["version"], p["version"])
    peer.say_hello(peer.own_hello(version=theirs).ljust(88, b"\0"))
    peer.turned_down("DS4T-HELLO-03")
    peer.said("DS4T-HELLO-03", theirs, mine)


@both("role-clash", "DS4T-HELLO-04", mutants=["role-unchecked"])
def role_clash(peer: TpBench) -> None:
    """A rank does not pair with one of its own role."""
    role = peer.hello["role"]
    peer.say_hello(peer.own_hello(role=role))
    peer.turned_down("DS4T-HELLO-04")
    peer.said("DS4T-HELLO-04", role)


@both("unknown-role", "DS4T-HELLO-19", params={"role": (0, 3, 0xFFFFFFFF)},
      mutants=["odd-role-hangs", "any-role"])  # fmt: skip
def unknown_role(peer: TpBench, p: dict[str, Any]) -> None:
    """A role that is neither leader nor worker should be refused; real ones take it."""
    peer.say_hello(peer.own_hello(role=p["role"]))
    try:
        peer.turned_down("DS4T-HELLO-19")
    except Deviation:
        peer.accepted("DS4T-HELLO-19")
        peer.concept(f"takes role {p['role']} for the other rank")


@both(
    "model", "DS4T-HELLO-05",
    params={"word": ("gguf_bytes", "model_id", "n_layer", "n_embd", "n_vocab",
                     "quant_bits")},
    mutants=["layers-uncompared", "model-unchecked"],
)  # fmt: skip
def model(peer: TpBench, p: dict[str, Any]) -> None:
    """A difference in any word of the model is refused."""
    differs(peer, p["word"])


@both(
    "schedule", "DS4T-HELLO-05", "DS4T-HELLO-08",
    params={"word": ("gate_slot_start", "gate_slot_step", "gates_per_token")},
    mutants=["schedule-uncompared"],
)  # fmt: skip
def schedule(peer: TpBench, p: dict[str, Any]) -> None:
    """A difference in the gate schedule is refused, though no text prints it."""
    differs(peer, p["word"])


@both("mask", "DS4T-HELLO-05", "DS4T-HELLO-28",
      params={"word": ("gate_slot_mask0", "gate_slot_mask1", "gate_slot_mask2")},
      mutants=["mask-uncompared"])  # fmt: skip
def mask(peer: TpBench, p: dict[str, Any]) -> None:
    """A mask that differs in any of its three words is refused."""
    peer.since_v9()
    differs(peer, p["word"])


def differs(peer: TpBench, word: str) -> None:
    """Send a hello that is wrong in one word; it has to be refused."""
    changed = peer.hello[word] ^ 1
    words = {**peer.hello, word: changed}
    peer.say_hello(peer.own_hello(**{word: changed}))
    peer.turned_down("DS4T-HELLO-05")
    names = ("gguf_bytes", "model_id", "n_layer", "n_embd", "n_vocab", "quant_bits")
    peer.said("DS4T-HELLO-05", *[words[name] for name in names])


@both("features", "DS4T-HELLO-30", params={"bit": (5, 7, 18)},
      mutants=["features-uncompared"])  # fmt: skip
def features(peer: TpBench, p: dict[str, Any]) -> None:
    """A v9w rank refuses other runtime features, before it looks at the model."""
    peer.needs("features")
    mine = peer.hello["runtime_features"]
    theirs = mine ^ 1 << p["bit"]
    changed = peer.hello["n_layer"] + 1
    peer.say_hello(peer.own_hello(runtime_features=theirs, n_layer=changed))
    peer.turned_down("DS4T-HELLO-30")
    peer.said("DS4T-HELLO-30", mine, theirs)


@both("order", "DS4T-HELLO-08",
      params={"from": (0, 1, 2)}, mutants=["model-before-role"])  # fmt: skip
def order(peer: TpBench, p: dict[str, Any]) -> None:
    """Of several faults only the first in the order of checks is told."""
    faults: list[tuple[str, dict[str, int], tuple[int, ...]]] = [
        ("DS4T-HELLO-02", {"magic": 0x44533400}, ()),
        ("DS4T-HELLO-03", {"version": 250}, (250, peer.hello["version"])),
        ("DS4T-HELLO-04", {"role": peer.hello["role"]}, (peer.hello["role"],)),
        ("DS4T-HELLO-05", {"n_layer": peer.hello["n_layer"] + 1}, ()),
    ]
    wrong: dict[str, int] = {}
    for _, change, _ in faults[p["from"] :]:
        wrong |= change
    peer.say_hello(peer.own_hello(**wrong).ljust(88, b"\0"))
    clause, _, words = faults[p["from"]]
    peer.turned_down(clause)
    peer.said(clause, *words)
    head = text_of("DS4T-HELLO-05").split("(")[0]
    if head in peer.connections.output():
        raise Deviation("DS4T-HELLO-08", f"the text of {clause} alone", head)


@both("cut", "DS4T-HELLO-01", "DS4T-FAIL-02", params={"keep": (0, 8, 40, -1)},
      mutants=["cut-hello-filled"])  # fmt: skip
def cut(peer: TpBench, p: dict[str, Any]) -> None:
    """A hello that ends early is refused."""
    hello = peer.own_hello()
    peer.say_hello(hello[: p["keep"]])
    peer.control.half_close()
    peer.turned_down("DS4T-HELLO-01")
    peer.said("DS4T-HELLO-01")


@both("in-pieces", "DS4T-HELLO-10", "DS4T-HELLO-16", params={"size": (1, 7, 48)},
      mutants=["hello-in-one-read"])  # fmt: skip
def in_pieces(peer: TpBench, p: dict[str, Any]) -> None:
    """A hello that arrives in pieces is read as one."""
    peer.control.send_pieces(peer.own_hello(), p["size"], "DS4T.HELLO")
    peer.accepted("DS4T-HELLO-10")


@both("no-reject-frame", "DS4T-HELLO-09", "DS4T-FAIL-01", mutants=["reject-frame"])
def no_reject_frame(peer: TpBench) -> None:
    """Behind a refused hello nothing comes but the end."""
    peer.say_hello(peer.own_hello(n_embd=peer.hello["n_embd"] * 2))
    peer.turned_down("DS4T-HELLO-09")


@both("context-ignored", "DS4T-HELLO-25", params={"ctx": (1, 77, 0xFFFFFFFF)},
      mutants=["ctx-compared"])  # fmt: skip
def context_ignored(peer: TpBench, p: dict[str, Any]) -> None:
    """ctx_size is not compared: any value is accepted."""
    peer.say_hello(peer.own_hello(ctx_size=p["ctx"]))
    peer.accepted("DS4T-HELLO-25")


@both("rdma-claimed", "DS4T-HELLO-27", "DS4T-HELLO-29", mutants=["rdma-compared"])
def rdma_claimed(peer: TpBench) -> None:
    """A rank without a device goes on over TCP with one that has a device."""
    if peer.hello["rdma_ok"]:
        raise NotApplicable("the rank has a device: a claim would start RDMA")
    peer.say_hello(peer.own_hello(rdma_ok=1))
    peer.accepted("DS4T-HELLO-27")
