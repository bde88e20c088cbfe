"""Which rank ended a tensor-parallel pair first, when, and by what."""

from __future__ import annotations

from typing import NamedTuple

from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.connections import Close, Connection, Connections
from ds4proto.trace.diagnosis.finding import Evidence, proof
from ds4proto.trace.diagnosis.tp_gates import PairRun
from ds4proto.trace.rows import FrameRow

__all__ = ["GaveUp", "PairEnds"]


class GaveUp(NamedTuple):
    """Which rank ended the pair first, when, and by what."""

    rank: str
    time: float
    how: str
    connection: Connection | None
    close: Close | None
    row: FrameRow | None


class PairEnds:
    """Finds the first end of each pair; ask it when all rows have passed."""

    def __init__(self, scene: Scene, connections: Connections) -> None:
        self._scene = scene
        self._connections = connections

    def first(self, run: PairRun) -> GaveUp | None:
        """Return which rank ended the pair, by STOP or by closing a connection."""
        found = []
        if run.stop is not None:
            found.append(
                GaveUp("leader", run.stop.time, "sent STOP", None, None, run.stop)
            )
        for held in self._connections.of_run(run.number):
            close = held.ended
            if close is not None:
                rank = self._connections.role(held, close.side)
                if self._with_stop(run, rank, close):
                    continue
                how = f"{close.verb} the {held.kind or 'connection'} connection"
                found.append(GaveUp(rank, close.time, how, held, close, None))
        return min(found, key=lambda item: item.time, default=None)

    @staticmethod
    def _with_stop(run: PairRun, rank: str, close: Close) -> bool:
        """Tell whether a leader closed a connection while its STOP was on the other."""
        if run.stop is None or rank != "leader":
            return False
        return abs(run.stop.time - close.time) < STALL

    def proof(self, gave_up: GaveUp | None) -> list[Evidence]:
        """Return what shows an end; empty where there is none."""
        if gave_up is None:
            return []
        if gave_up.row is not None:
            return [proof(gave_up.row, self._scene.file, "gave up here")]
        if gave_up.connection is None or gave_up.close is None:
            return []
        return [self._connections.close_proof(gave_up.connection, gave_up.close)]
