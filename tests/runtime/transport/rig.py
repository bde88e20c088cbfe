"""Two ranks on one simulated fabric and one virtual clock."""

from __future__ import annotations

import socket
from typing import Any, Literal

from ds4proto_runtime.tp.slab import Slab
from ds4proto_runtime.transport.options import RdmaOptions
from ds4proto_runtime.transport.rdma import RdmaTransport
from ds4proto_runtime.transport.rdma_gates import RdmaGates
from ds4proto_runtime.transport.sim import (
    Fabric,
    SimDevice,
    SimProvider,
    ipv4_gid,
    link_local_gid,
)
from ds4proto_runtime.transport.sim_clock import SimClock, run_together

from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.rdma_choice import GidEntry

TOY = Identity(999, 0, 2, 64, 32, 2, 0, 1, 4)
"""The model of the recorded RoCE sessions: 2 layers, vectors of 256 bytes."""
WIDE = Identity(999, 0, 4, 4096, 128, 2, 0, 1, 8)
"""One message a vector; a batch region of 512 KiB: bulk crosses TCP."""
BULKY = Identity(999, 0, 8, 4096, 128, 2, 0, 1, 16)
"""A batch region of 1 MiB, the least that sends bulk over the queue pair."""
DEEP = Identity(999, 0, 16, 4096, 128, 2, 0, 1, 32)
"""A batch region of 2 MiB: staged windows of up to 128 messages."""
TWO_CHUNKS = Identity(999, 0, 8, 8192, 128, 2, 0, 1, 16)
"""Vectors of 32,768 bytes: two messages, the bound."""


def table(address: str, index: int = 1) -> list[GidEntry]:
    """What a Linux port shows: link-local first, then the IPv4 address."""
    return [link_local_gid(0), ipv4_gid(index, address)]


OPEN: list[Rig] = []
"""Rigs whose sockets the tests' fixture closes."""


class Rig:
    """Leader and worker with a device each.

    Attributes
    ----------
    said : tuple of list of str
        Log lines of both.
    """

    def __init__(
        self,
        identity: Identity = TOY,
        dialect: str = "v14",
        qp_type: Literal["UC", "RC"] | None = "RC",
        *,
        system: Literal["linux", "macos"] = "macos",
        options: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
        indexes: tuple[int, int] = (1, 1),
        **both: Any,
    ) -> None:
        self.fabric = Fabric()
        self.clock = SimClock(self.fabric)
        self.devices = (
            SimDevice(self.fabric, "rxe0", table("192.0.2.1", indexes[0])),
            SimDevice(self.fabric, "rxe1", table("192.0.2.2", indexes[1])),
        )
        self.identity = identity
        self.settings = tuple(
            TpSettings(
                role,
                identity,
                dialect,
                transport="rdma",
                rdma_device=True,  # type: ignore[arg-type]
            )
            for role in ("tp-leader", "tp-worker")
        )
        self.said: tuple[list[str], list[str]] = ([], [])
        self.transports = tuple(
            RdmaTransport(
                SimProvider([device], system),
                RdmaOptions(**{"qp_type": qp_type, **both, **own}),
                clock=self.clock,
                say=said.append,
            )
            for device, own, said in zip(self.devices, options, self.said, strict=True)
        )
        self.slabs = tuple(Slab(identity.n_layer, identity.n_embd) for _ in range(2))
        self.gates: tuple[RdmaGates, ...] = ()
        self.sockets: list[socket.socket] = []
        OPEN.append(self)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()

    def together(self, *steps: Any) -> list[Any]:
        return run_together(self.clock, *steps)

    def bring_up(self) -> list[Any]:
        """Both sides' RdmaGates, or the exceptions that ended them."""
        self.close()
        control, data = socket.socketpair(), socket.socketpair()
        self.sockets = [*control, *data]
        self.links = tuple(GateLink(s) for s in self.settings)
        found = self.together(
            *(
                transport.connect_steps(c, d, link, slab, settings)
                for transport, c, d, link, slab, settings in zip(
                    self.transports,
                    control,
                    data,
                    self.links,
                    self.slabs,
                    self.settings,
                    strict=True,
                )
            )
        )
        if all(isinstance(g, RdmaGates) for g in found):
            self.gates = tuple(found)
        return found

    def up(self) -> Rig:
        """As ``bring_up``, where it has to succeed."""
        for found in self.bring_up():
            if isinstance(found, BaseException):
                raise found
        return self

    # -- gates -------------------------------------------------------------------

    def fill(self, slot: int, seed: int) -> None:
        for rank, slab in enumerate(self.slabs):
            view = slab.row_out[slot]
            view[:] = pattern(len(view), 2 * seed + rank)

    def row(self, layer: int, kind: int) -> list[Any]:
        return self.together(*(g.row_steps(layer, kind) for g in self.gates))

    def token(self, number: int = 0) -> list[list[Any]]:
        """All row gates of one token; every arrival is compared."""
        found = []
        for slot in range(2 * self.identity.n_layer):
            self.fill(slot, 100 * number + slot)
            result = self.row(slot // 2, slot % 2)
            found.append(result)
            if result == [None, None]:
                for rank, slab in enumerate(self.slabs):
                    other = self.slabs[1 - rank].row_out[slot]
                    assert bytes(slab.row_in[slot]) == bytes(other), (number, slot)
        return found

    def token_passes(self, number: int = 0) -> None:
        for result in self.token(number):
            for one in result:
                if isinstance(one, BaseException):
                    raise one

    def bulk(self, layer: int, nbytes: int, seed: int = 7) -> list[Any]:
        own = [bytearray(pattern(nbytes, seed + rank)) for rank in range(2)]
        peer = [bytearray(nbytes) for _ in range(2)]
        result = self.together(
            *(
                g.bulk_steps(layer, memoryview(o), memoryview(p))
                for g, o, p in zip(self.gates, own, peer, strict=True)
            )
        )
        if result == [None, None]:
            assert peer[0] == own[1]
            assert peer[1] == own[0]
        return result

    def block(self, rows: int, seed: int = 3) -> list[list[Any]]:
        """A verify block over all layers; every arrival is compared."""
        found = []
        for layer in range(self.identity.n_layer):
            for rank, slab in enumerate(self.slabs):
                own, _ = slab.batch(layer, rows)
                own[:] = pattern(len(own), 10 * seed + 2 * layer + rank)
            result = self.together(*(g.batch_steps(layer, rows) for g in self.gates))
            found.append(result)
            if result == [None, None]:
                for rank, slab in enumerate(self.slabs):
                    _, into = slab.batch(layer, rows)
                    own, _ = self.slabs[1 - rank].batch(layer, rows)
                    assert bytes(into) == bytes(own)
        return found


def pattern(nbytes: int, seed: int) -> bytes:
    return bytes((seed + 31 * (i % 251) + i // 251) & 0xFF for i in range(nbytes))
