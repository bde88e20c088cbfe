"""Ranks that say or judge a hello wrongly; each fault once for either role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from ds4proto.link import ds4t_hello
from ds4proto.link.ds4t_hello import HelloExchange
from ds4proto.link.ds4t_identity import Identity
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.ds4t_hello import HELLO
from ds4proto.schema.fast import struct_of
from ds4proto_conformance.mutants.tp_tools import frame_bytes, hang_up, put
from ds4proto_conformance.peers.faults import Fault, Out, patched

ROLES: Final[tuple[tuple[Literal["tp-worker", "tp-leader"], str], ...]] = (
    ("tp-worker", "tpw"),
    ("tp-leader", "tpl"),
)
_MODEL: Final = ("gguf_bytes", "model_id", "n_layer", "n_embd", "n_vocab", "quant_bits")
_SCHEDULE: Final = ("gate_slot_start", "gate_slot_step", "gates_per_token")
_MASK: Final = ("gate_slot_mask0", "gate_slot_mask1", "gate_slot_mask2")


def _said(name: str, value: int) -> Out:
    """Return a hook that writes another word into the own hello."""

    def out(spot: Any, frame: bytes) -> list[bytes]:
        if spot.kind != "hello":
            return [frame]
        return [put(frame, offsets_of(HELLO.body, "v14")[name], value)]

    return out


def _words(exchange: Any, data: bytes) -> dict[str, int]:
    dialect = exchange._settings.dialect
    names = offsets_of(HELLO.body, dialect)
    found = struct_of(HELLO.body, dialect).unpack_from(data)
    return dict(zip(names, found, strict=True))


def _passed(*names: str, when: Callable[[int, int], bool] = lambda _t, _m: True) -> Any:
    """Return a patch that takes some words of the peer for right.

    ``when(theirs, mine)`` says which.
    """

    def patch() -> Any:
        own = HelloExchange.receive_data

        def receive_data(self: Any, data: Any, now: float) -> None:
            if data is None or self._over:
                own(self, data, now)
                return
            mine = bytearray(self._settings.hello())
            dialect = self._settings.dialect
            start, held = len(self._got), bytearray(self._got + bytes(data))
            places = offsets_of(HELLO.body, dialect)
            mine[places["role"]] = 3 - mine[places["role"]]
            for name in names:
                at = places.get(name)
                if at is None:
                    continue
                size = 8 if name == "gguf_bytes" or "mask" in name else 4
                theirs = int.from_bytes(held[at : at + size], "little")
                if len(held) >= at + size and when(
                    theirs, int.from_bytes(mine[at : at + size], "little")
                ):
                    held[at : at + size] = mine[at : at + size]
            own(self, bytes(held[start:]), now)

        return patched((HelloExchange, "receive_data", receive_data))

    return patch


def _held() -> Any:
    """Neither take nor refuse a hello of an unknown role."""
    own = HelloExchange.receive_data

    def receive_data(self: Any, data: Any, now: float) -> None:
        at = offsets_of(HELLO.body, self._settings.dialect)["role"]
        role = int.from_bytes(bytes(data or b"")[at : at + 4], "little")
        if data is None or self._over or role in (1, 2):
            own(self, data, now)

    return patched((HelloExchange, "receive_data", receive_data))


def _judged(before: Callable[[Any, dict[str, int], float], PairFailed | None]) -> Any:
    """Return a patch with a further check in front of the others."""

    def patch() -> Any:
        own = HelloExchange._judge

        def judge(self: Any, now: float) -> None:
            failure = before(self, _words(self, bytes(self._got)), now)
            if failure is None:
                own(self, now)
            else:
                self._fail(failure)

        return patched((HelloExchange, "_judge", judge))

    return patch


def _model_first(exchange: Any, words: dict[str, int], now: float) -> Any:
    return exchange._identity(Identity.of(words), now)


def _context(exchange: Any, words: dict[str, int], now: float) -> Any:
    known = words["ctx_size"] in (0, 256)
    return None if known else exchange._bad_magic(now)


def _device(exchange: Any, words: dict[str, int], now: float) -> Any:
    return exchange._bad_magic(now) if words["rdma_ok"] else None


def _filled() -> Any:
    """Take a hello that was cut for a whole one."""
    own = HelloExchange.receive_data

    def receive_data(self: Any, data: Any, now: float) -> None:
        if data is None and not self._over:
            mine = bytearray(self._settings.hello())
            mine[8] = 3 - mine[8]
            data = bytes(mine[len(self._got) :])
        own(self, data, now)

    return patched((HelloExchange, "receive_data", receive_data))


def _one_read(spot: Any, data: bytes) -> bytes:
    """Want the first words of a hello at once."""
    if spot.kind == "hello" and not spot.memory.get("begun"):
        spot.memory["begun"] = True
        if len(data) < ds4t_hello.EARLY.size:
            return hang_up(spot)
    return data


def _reject(_rank: Any, spot: Any, event: Any) -> bool:
    """Tell the peer why it is refused, which the protocol cannot."""
    if isinstance(event, PairFailed) and spot.kind == "hello":
        spot.sock.sendall(frame_bytes(17, bytes(16)))
    return False


_FAULTS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("role-zero", "says role 0", {"out": _said("role", 0)}),
    ("pad-set", "leaves something in the padding", {"out": _said("pad", 1)}),
    ("magic-unchecked", "takes any magic", {"patch": _passed("magic")}),
    ("older-taken", "takes an older version for its own",
     {"patch": _passed("version", when=lambda theirs, mine: theirs < mine)}),
    ("version-unchecked", "takes any version", {"patch": _passed("version")}),
    ("role-unchecked", "takes its own role", {"patch": _passed("role")}),
    ("any-role", "takes roles that do not exist",
     {"patch": _passed("role", when=lambda theirs, _: theirs not in (1, 2))}),
    ("odd-role-hangs", "neither takes nor refuses an unknown role", {"patch": _held}),
    ("layers-uncompared", "leaves the layers out of the comparison",
     {"patch": _passed("n_layer")}),
    ("model-unchecked", "compares no word of the model", {"patch": _passed(*_MODEL)}),
    ("schedule-uncompared", "leaves the gate schedule out",
     {"patch": _passed(*_SCHEDULE)}),
    ("mask-uncompared", "leaves the gate mask out", {"patch": _passed(*_MASK)}),
    ("features-uncompared", "leaves the runtime features out",
     {"patch": _passed("runtime_features"), "position": "v9w"}),
    ("model-before-role", "compares the model before the role",
     {"patch": _judged(_model_first)}),
    ("cut-hello-filled", "takes a cut hello for a whole one", {"patch": _filled}),
    ("hello-in-one-read", "wants the hello in one piece", {"received": _one_read}),
    ("reject-frame", "sends a frame about a refused hello", {"event": _reject}),
    ("ctx-compared", "compares the context", {"patch": _judged(_context)}),
    ("rdma-compared", "refuses a peer with a device", {"patch": _judged(_device)}),
)  # fmt: skip

MUTANTS: Final = tuple(
    Fault(f"{prefix}-{name}", role, "handshake", about, **hooks)
    for role, prefix in ROLES
    for name, about, hooks in _FAULTS
)
