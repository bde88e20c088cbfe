"""Small tp-workers that send, judge or use gates wrongly."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.plan import PlanOptions
from ds4proto.schema.ds4t_gates import BULK_TAG
from ds4proto_conformance.mutants.tp_tools import (
    gate_in,
    gate_kind,
    hang_up,
    payload_in,
    put,
    word,
)
from ds4proto_conformance.peers import tp_rank
from ds4proto_conformance.peers.faults import Fault, Out, patched
from ds4proto_conformance.peers.tp_rank import SmallRank


def gate_out(change: Any) -> Out:
    """Return a hook that alters gates that leave: header and payload."""

    def out(spot: Any, frame: bytes) -> list[bytes]:
        return [change(spot, frame)] if spot.kind == "data" else [frame]

    return out


def _is(frame: bytes, kind: str) -> bool:
    if frame[:1] == b"T":
        return kind == "row"
    return kind == ("bulk" if word(frame, 6, 2) == BULK_TAG else "batch")


def _other_kind(_spot: Any, frame: bytes) -> bytes:
    return put(frame, 6, 1 - word(frame, 6, 2), 2) if _is(frame, "row") else frame


def _stuck(_spot: Any, frame: bytes) -> bytes:
    return put(frame, 8, 1, 8) if _is(frame, "row") else frame


def _own_counter(spot: Any, frame: bytes) -> bytes:
    if not _is(frame, "batch"):
        return frame
    spot.memory["batch"] = spot.memory.get("batch", 0) + 1
    return put(frame, 8, spot.memory["batch"], 8)


def _reset(_spot: Any, frame: bytes) -> bytes:
    if not _is(frame, "row"):
        return frame
    return put(frame, 8, (word(frame, 8, 8) - 1) % 8 + 1, 8)


def _repeat(spot: Any, data: bytes) -> bytes:
    """Take a gate that comes again for the one that is due."""
    if spot.kind != "data" or spot.memory["part"] != "header":
        return data
    due: bytes = spot.memory["due"]
    again = gate_kind(spot) == "row" and word(data, 8, 8) == word(due, 8, 8) - 1
    return due if again else data


def _skip_surplus(spot: Any, data: bytes) -> bytes:
    """Look for the next magic behind garbage."""
    if spot.kind != "data" or spot.memory["part"] != "header":
        return data
    for _ in range(256):
        if data[:4] == spot.memory["due"][:4]:
            break
        data = data[1:] + spot.sock.recv(1)
    return data


def _one_read() -> Any:
    own = SmallRank._piece

    def piece(self: Any, size: int, limit: float | None) -> bytes:
        data = own(self, size, limit)
        return data if len(data) == size else b""

    return patched((SmallRank, "_piece", piece))


def _fill_end() -> Any:
    own = SmallRank._piece

    def piece(self: Any, size: int, limit: float | None) -> bytes:
        data = own(self, size, limit)
        if data:
            return data
        header = self.data.memory["part"] == "header"
        return bytes(self.data.memory["due"][-size:]) if header else bytes(size)

    return patched((SmallRank, "_piece", piece))


def _for_ever() -> Any:
    return patched((tp_rank, "GATE_IDLE", 3600.0))


def _drain(peer: Any, _spot: Any, event: Any) -> bool:
    """Throw away what waits on the data connection when a command comes."""
    if isinstance(event, say.RunEval):
        peer.data.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while peer.data.sock.recv(1 << 16):
                pass
        peer.data.sock.settimeout(2.0)
    return False


def _hide(peer: Any, _spot: Any, event: Any) -> bool:
    """Go on behind a failed bulk gate as if nothing had been."""
    if not isinstance(event, say.CreateSession) or peer.memory.get("hides"):
        return False
    peer.memory["hides"] = True

    def exchange(kind: Any, layer: int, third: int, own: Any) -> Any:
        try:
            return peer.exchange(kind, layer, third, own)
        except GateFailed:
            if kind != "bulk":
                raise
            link = GateLink(peer.settings)
            link.row_seq, link.batch_seq = peer.link.row_seq, peer.link.batch_seq
            peer.link = link
            return np.zeros_like(own)

    peer.engine.exchange = exchange
    return False


def _options(**words: Any) -> Any:
    """Plan with other options than the peer."""

    def event(peer: Any, _spot: Any, event: Any) -> bool:
        if isinstance(event, say.CreateSession):
            peer.engine.options = PlanOptions(**words)
        return False

    return event


def _zeros(_spot: Any, data: bytes) -> bytes:
    return bytes(len(data))


def _finite(data: bytes) -> bool:
    return bool(np.isfinite(np.frombuffer(data, np.float32)).all())


def _refuse_nan(spot: Any, data: bytes) -> bytes:
    if not _finite(data):
        hang_up(spot)
        raise tp_rank.Over("tp: a gate holds no number")
    return data


def _clear_nan(_spot: Any, data: bytes) -> bytes:
    return bytes(np.nan_to_num(np.frombuffer(data, np.float32), posinf=0.0).tobytes())


def _fault(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpw-{name}", "tp-worker", "gates", about, **hooks)


_JUDGED: Final = (
    ("row-magic-unchecked", "row", 0, 4), ("row-layer-unchecked", "row", 4, 6),
    ("row-kind-unchecked", "row", 6, 8), ("row-seq-unchecked", "row", 8, 16),
    ("row-seq-low-half", "row", 12, 16), ("batch-rows-unchecked", "batch", 6, 8),
    ("batch-layer-unchecked", "batch", 4, 6), ("batch-seq-unchecked", "batch", 8, 16),
    ("bulk-tag-unchecked", "bulk", 6, 8), ("bulk-layer-unchecked", "bulk", 4, 6),
    ("bulk-seq-unchecked", "bulk", 8, 16),
)  # fmt: skip

MUTANTS: Final = (
    *(
        _fault(name, f"judges bytes {first} to {last - 1} of {kind} headers not",
               received=gate_in(kind, first, last))
        for name, kind, first, last in _JUDGED
    ),
    _fault("ffn-first", "sends FFN before ATTN", out=gate_out(_other_kind)),
    _fault("row-seq-stuck", "numbers each row gate 1", out=gate_out(_stuck)),
    _fault("batch-own-counter", "numbers batch gates apart",
           out=gate_out(_own_counter)),
    _fault("seq-reset", "begins its numbers anew after two tokens",
           out=gate_out(_reset)),
    _fault("repeat-taken", "takes the last gate again", received=_repeat),
    _fault("surplus-skipped", "skips what is no header", received=_skip_surplus),
    _fault("gate-in-one-read", "wants a gate in one piece", patch=_one_read),
    _fault("data-end-filled", "fills up a gate that was cut", patch=_fill_end),
    _fault("gate-waits-for-ever", "has no gate timeout", patch=_for_ever),
    _fault("data-drained", "throws away gates that come early", event=_drain),
    _fault("bulk-failure-hidden", "goes on behind a failed bulk gate", event=_hide),
    _fault("no-row-swap", "never swaps attention rows",
           event=_options(split_min=1 << 30)),
    _fault("peer-rows-ignored", "adds nothing of the peer to a row",
           received=payload_in("row", _zeros)),
    _fault("bulk-rows-ignored", "adds nothing of the peer to a prefill",
           received=payload_in("bulk", _zeros)),
    _fault("nan-refused", "refuses gates that hold NaN",
           received=payload_in("row", _refuse_nan)),
    _fault("nan-cleared", "puts zeros in the place of NaN",
           received=payload_in("row", _clear_nan)),
)  # fmt: skip
