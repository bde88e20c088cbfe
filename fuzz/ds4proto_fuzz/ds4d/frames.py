"""Sound frames for a worker, built from its facts."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.ds4d_frames import (
    FIXED,
    RETURN_PART,
    ROUTE_PART,
    framed,
    pack_tokens,
    work_frame,
)
from ds4proto.schema.ds4d_snapshot import (
    SNAPSHOT_CHUNK,
    SNAPSHOT_LOAD_BEGIN,
    SNAPSHOT_SAVE_REQ,
)
from ds4proto.schema.ds4d_work import (
    ACK_ONLY,
    INPUT_HC,
    OUTPUT_LOGITS,
    RESET_SESSION,
)
from ds4proto_fuzz.ds4d.facts import Facts

__all__ = ["POOL", "PROBE_TOKENS", "Frames"]

POOL: Final = tuple(0x5EED_0000_0000_0001 + i for i in range(8))
"""Session ids of all cases; made at the start, so that a full table does no harm."""
PROBE_TOKENS: Final = (3, 1, 2)
_HOST: Final = b"127.0.0.1"


def _joined(buffers: Sequence[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(map(bytes, buffers))


class Frames:
    """Builds sound frames."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._rows: dict[tuple[int, int], bytes] = {}

    def hidden(self, count: int, bits: int) -> bytes:
        """Return the wire bytes of some rows of hidden state, all of them finite."""
        return self.rows(count, bits) if self.facts.layer_start else b""

    def rows(self, count: int, bits: int) -> bytes:
        """Return rows of hidden state as any hop may send them."""
        known = self._rows.get((count, bits))
        if known is None:
            values = count * self.facts.hidden_values
            form = {32: "<f", 16: "<e", 8: "<B"}[bits or 32]
            steps = [
                struct.pack(form, 0x30 + i % 8 if bits == 8 else i % 13 / 8 - 0.75)
                for i in range(104)
            ]
            whole = b"".join(steps) * (values // len(steps) + 1)
            known = self._rows[count, bits] = whole[: values * (bits or 32) // 8]
        return known

    @cached_property
    def route(self) -> bytes:
        """Route with the worker alone."""
        f = self.facts
        words = {
            "host_len": len(_HOST),
            "port": 1,
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
            "flags": int(f.has_output),
        }
        end = RETURN_PART.build({"kind": 1, "host_len": 0, "port": 0})
        return ROUTE_PART.build(words) + _HOST + end

    def work(
        self,
        session: int,
        tokens: Sequence[int],
        *,
        prefix: Sequence[int] = (),
        reset: bool = True,
        ack: bool = False,
        bits: int = 32,
        request: int = 1,
        route: bytes = b"",
        logits: bool = True,
    ) -> bytes:
        """Return a WORK that continues `prefix`, along another route if given."""
        f = self.facts
        before = token_hash(prefix) if prefix else TOKEN_HASH_START
        flags = INPUT_HC * bool(f.layer_start) | OUTPUT_LOGITS * (
            f.has_output and logits
        )
        flags |= RESET_SESSION * reset | ACK_ONLY * ack
        words = {
            "model_id": f.model_id,
            "session": session,
            "request": request,
            "prefix_hash": before,
            "result_hash": token_hash(tokens, before),
            "pos0": len(prefix),
            "n_tokens": len(tokens),
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
            "flags": flags,
            "input_hc_bits": bits,
            "route_count": 1,
            "route_index": 0,
        }
        hidden = self.hidden(len(tokens), bits)
        blob = route or self.route
        return _joined(work_frame(words, pack_tokens(tokens), hidden, blob))

    @cached_property
    def probe(self) -> bytes:
        """The WORK whose answer is known: the last of the pool, three tokens."""
        return self.work(POOL[-1], PROBE_TOKENS, request=0x5EED)

    def _state(
        self, session: int, tokens: Sequence[int], request: int
    ) -> dict[str, int]:
        f = self.facts
        return {
            "model_id": f.model_id,
            "session": session,
            "request": request,
            "token_hash": token_hash(tokens),
            "token_count": len(tokens),
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
        }

    def save(self, session: int, tokens: Sequence[int], *, request: int = 2) -> bytes:
        """Return a SNAPSHOT_SAVE_REQ for a session that holds `tokens`."""
        words = self._state(session, tokens, request)
        part = FIXED[SNAPSHOT_SAVE_REQ].build(words)
        return _joined(framed(SNAPSHOT_SAVE_REQ, [part]))

    def load_begin(
        self, session: int, tokens: Sequence[int], size: int, *, request: int = 3
    ) -> bytes:
        """Return a SNAPSHOT_LOAD_BEGIN that announces a shard of `size` bytes."""
        words = {
            **self._state(session, tokens, request),
            "payload_size": size,
            "status": 0,
            "token_bytes": 4 * len(tokens),
            "message_bytes": 0,
        }
        part = FIXED[SNAPSHOT_LOAD_BEGIN].build(words)
        return _joined(framed(SNAPSHOT_LOAD_BEGIN, [part, pack_tokens(tokens)]))

    def chunk(self, data: bytes, *, request: int = 3) -> bytes:
        """Return a SNAPSHOT_CHUNK."""
        words = {"request": request, "chunk_bytes": len(data)}
        part = FIXED[SNAPSHOT_CHUNK].build(words)
        return _joined(framed(SNAPSHOT_CHUNK, [part, data]))
