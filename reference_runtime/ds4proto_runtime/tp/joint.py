"""Gates of a rank: partials into the slab, exchange, rank 0 plus rank 1."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from ds4proto.link.schedule import GateKind, Schedule
from ds4proto.schema.ds4t_gates import ATTN, FFN, MAX_ROWS
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.tp.gates import GateTransport
from ds4proto_runtime.tp.spans import Gates, Partial, Rows

Say = Callable[[str], None]


class PairGates(Gates):
    """The joints of one rank of a pair.

    Parameters
    ----------
    schedule : Schedule
    rank : int
    transport : GateTransport
    hash_every : int
        Say a hash of every n-th gate's sum; 0 none. Equal lines on both ranks mean
        identical bits.
    checksums : bool
        Say the checksum of each partial when it is put into the slab, sent, received.
    say : callable
        Takes one line.

    Notes
    -----
    Any width of engine array is accepted for ``partial``; its bytes are copied into
    the slab once, which is the copy from the device where there is one.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        transport: GateTransport,
        *,
        hash_every: int = 0,
        checksums: bool = False,
        say: Say = print,
    ) -> None:
        super().__init__(schedule)
        self.rank: int = rank
        self._transport = transport
        self._slab = transport.slab
        self._hash_every = hash_every
        self._checksums = checksums
        self._watched = bool(hash_every or checksums)
        self._say = say
        self._count = 0
        self._strange = False
        self.on_gate: Callable[[int], None] | None = None
        """Called before each gate with its number from 1; for planted faults."""
        self.choose: Callable[[], GateTransport] | None = None
        """Called once, before the first gate, for the transport to use."""

    def sum(self, layer: int, kind: GateKind, partial: Partial) -> F32:
        """Send the own partial, receive the peer's, add them."""
        code = ATTN if kind == "ATTN" else FFN
        own = partial(self.rank)
        rows = len(own)
        if self.span.mode == "token":
            slot = 2 * layer + code
            mine, theirs = self._slab.out[slot], self._slab.peer[slot]
            np.copyto(mine, own)
            self._before(kind, layer, own, mine)
            self._transport.row(layer, code)
        elif self.span.mode == "block" and rows <= MAX_ROWS:
            mine, theirs = self._slab.batch_rows(layer, rows)
            np.copyto(mine, own)
            self._before(kind, layer, own, mine)
            self._transport.batch(layer, rows)
        else:
            mine, theirs = self._slab.bulk(rows)
            np.copyto(mine, own)
            self._before(kind, layer, own, mine)
            self._transport.bulk(layer, _bytes(mine), _bytes(theirs))
        total: F32 = mine + theirs if self.rank == 0 else theirs + mine
        self._after(kind, layer, theirs, total)
        return total

    def swapped(self, layer: int, rows: Rows) -> F32:
        """Send the own half of the rows, receive the other half, add nothing."""
        span = self.span
        half = -(-span.rows // 2)
        mine, theirs = self._slab.bulk(half)
        mine[...] = 0  # a pad row past the end of rank 1's half (DS4B-BULK)
        own = rows(span.own_rows(self.rank))
        mine[: len(own)] = own
        at = 0
        for part in span.swap:
            out, back = mine[at : at + part], theirs[at : at + part]
            self._before("ATTN", layer, out, out)
            self._transport.bulk(layer, _bytes(out), _bytes(back))
            at += part
        first, second = (mine, theirs) if self.rank == 0 else (theirs, mine)
        whole = np.concatenate((first, second))[: span.rows]
        self._after("ATTN", layer, theirs, whole)
        return whole

    def extra(self, layer: int, own: F32) -> F32:
        """Add both ranks' one row of the prediction block, by bulk gate."""
        mine, theirs = self._slab.bulk(1)
        np.copyto(mine, own)
        self._before("FFN", layer, own, mine)
        self._transport.bulk(layer, _bytes(mine), _bytes(theirs))
        total: F32 = mine + theirs if self.rank == 0 else theirs + mine
        self._after("FFN", layer, theirs, total)
        return total

    def _before(self, kind: GateKind, layer: int, own: F32, placed: F32) -> None:
        self._count += 1
        if self.choose is not None:
            self._transport, self.choose = self.choose(), None
        if self.on_gate is not None:
            self.on_gate(self._count)
        if self._watched and self._checksums:
            name = f"gate {self._count} layer {layer} {kind} rank {self.rank}"
            self._say(f"{name}: enqueue {_crc(own)} send {_crc(placed)}")

    def _after(self, kind: GateKind, layer: int, theirs: F32, total: F32) -> None:
        if not self._watched:
            return
        name = f"gate {self._count} layer {layer} {kind}"
        if not self._strange and not np.isfinite(total).all():
            self._strange = True  # the first one tells where it began
            self._say(f"{name} rank {self.rank}: the sum holds NaN or infinity")
        if self._checksums:
            self._say(f"{name} rank {self.rank}: receive {_crc(theirs)}")
        if self._hash_every and self._count % self._hash_every == 0:
            word = blake2b(np.ascontiguousarray(total).tobytes(), digest_size=8)
            self._say(f"{name}: sum {word.hexdigest()}")


def _bytes(rows: F32) -> memoryview:
    return memoryview(rows.data).cast("B")


def _crc(rows: F32) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(rows).tobytes()):08x}"
