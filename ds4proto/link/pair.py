"""The shared state of one leader and worker: two connections in lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ds4proto.link.lockstep import Lockstep
from ds4proto.link.plan import PlanOptions
from ds4proto.link.schedule import Schedule

VALUE_BYTES = 4
"""A gate payload is f32."""
STAGED_MIN = 1 << 20
"""Batch region from which bulk and batch gates use RDMA (64 messages of 16 KiB)."""
REGION_ROWS = 8


class TpPair:
    """State that the control and the data connection of one TP pair share.

    Hand the same object to ``open_observer`` for both connections; the first one
    becomes the control connection, the second the data connection.

    Parameters
    ----------
    options : PlanOptions, optional
        Prefill options of the peers where they are known; else they are learned.
    """

    def __init__(self, options: PlanOptions | None = None) -> None:
        self._options = options
        self._control = "none"
        self._data = False
        self.dialect: str | None = None
        self.hello: Mapping[str, Any] | None = None
        self.schedule: Schedule | None = None
        self.lockstep: Lockstep | None = None
        self.n_embd: int | None = None
        self.rdma_info: set[str] = set()
        self._rdma_ok: dict[str, bool] = {}
        self.worker_end: str = "a"

    @property
    def has_control(self) -> bool:
        """True once a control connection was opened with this pair."""
        return self._control != "none"

    @property
    def wants_data(self) -> bool:
        """True while the pair has a live control connection and no data connection."""
        return self._control == "open" and not self._data

    def attach_control(self) -> None:
        """Note the control connection."""
        self._control = "open"

    def control_ended(self) -> None:
        """Note the end of the control connection."""
        self._control = "ended"

    def attach_data(self) -> None:
        """Note the data connection."""
        self._data = True

    def greet(self, end: str, dialect: str, fields: Mapping[str, Any]) -> None:
        """Take the hello of one end; the leader's wins."""
        self._rdma_ok[end] = bool(fields.get("rdma_ok", 0))
        if "n_embd" not in fields:
            self.dialect = self.dialect or dialect
            return
        if self.hello is not None and fields["role"] != 1:
            return
        self.dialect = dialect
        self.hello = fields
        self.n_embd = fields["n_embd"]
        self.schedule = Schedule.from_hello(fields)
        self.lockstep = Lockstep(self.schedule, fields["model_id"], self._options)

    @property
    def vector(self) -> int | None:
        """Bytes of one row of a gate payload, None while unknown."""
        return None if not self.n_embd else VALUE_BYTES * self.n_embd

    @property
    def rdma(self) -> bool:
        """True where both ends agreed on RDMA and exchanged their queue pairs."""
        return len(self.rdma_info) == 2 and all(self._rdma_ok.values())

    @property
    def bulk_on_rdma(self) -> bool:
        """True where batch and bulk payloads travel outside TCP."""
        if not self.rdma or self.hello is None or self.vector is None:
            return False
        region = self.hello["n_layer"] * REGION_ROWS * self.vector
        return bool(region >= STAGED_MIN)

    def command(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take one frame of the leader."""
        if self.lockstep is not None:
            self.lockstep.command(name, fields)
