"""The leader's end of a pair: joining, asking, giving up, ending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Self

import numpy as np

from ds4proto.link import ds4t_events as say_
from ds4proto.link.ds4t_events import OK, Checkpoint, Top2
from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.peer.errors import PeerLost
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.tp.bringup import LeaderDoor
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.errors import PairError, SyncRefused, gate_error
from ds4proto_runtime.tp.rank import (
    Rank,
    RdmaProvider,
    Say,
    TpOptions,
    log_line,
    settings_of,
)


class LeaderEnd:
    """What every operation of ``TpLeader`` stands on; its parameters are those."""

    def __init__(
        self,
        engine: RankEngine,
        host: str = "127.0.0.1",
        port: int = 0,
        options: TpOptions | None = None,
        *,
        allow_remote: bool = False,
        rdma: RdmaProvider | None = None,
        say: Say = log_line,
    ) -> None:
        self.options = options = options or TpOptions()
        self.settings = settings_of("tp-leader", engine, options, rdma)
        self._engine = engine
        self._rdma = rdma
        self._say = say
        self._door = LeaderDoor(
            host,
            port,
            self.settings,
            allow_remote=allow_remote,
            buffers=options.buffers,
            hello_seconds=options.hello_seconds,
            say=say,
        )
        self.address = self._door.address
        self._rank: Rank | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(stop=kind is None or not issubclass(kind, PairError))

    def accept(self) -> None:
        """Wait for the worker and agree with it; see ``LeaderDoor.wait``."""
        connected = self._door.wait(monotonic() + self.options.accept_seconds)
        machine = LeaderControl(self.settings, limits=self.options.control)
        try:
            self._rank = rank = Rank(
                self.settings,
                connected,
                machine,
                self._engine,
                self.options,
                rdma=self._rdma,
                say=self._say,
            )
        except BaseException:
            connected.close()
            raise
        words = rank.timeout_words
        rank.watch_door(self._door)
        transport = connected.agreed.transport
        self._say(f"ds4-tp: worker connected, transport={transport}{words}")
        self._say(rank.slab_line)

    @property
    def rank(self) -> Rank:
        """The rank, after ``accept``."""
        if self._rank is None:
            raise LocalProtocolError("no worker has joined; call accept() first")
        return self._rank

    @property
    def machine(self) -> Any:
        """The control machine: sessions, state, next session id."""
        return self.rank.pipe.machine

    def invalidate(self, known: int) -> None:
        """Empty a session on both ranks; no answer comes."""
        self._send(say_.Invalidate(known))
        self.rank.runner.invalidate(known)

    def stop(self) -> None:
        """Say STOP: the worker ends with status 0."""
        self._send(say_.Stop())

    def close(self, *, stop: bool = False) -> None:
        """Close everything; with ``stop`` the worker is told first. Idempotent."""
        rank, self._rank = self._rank, None
        if rank is not None:
            try:
                if stop and rank.pipe.machine.state.name not in ("STOPPED", "FAILED"):
                    rank.pipe.say(say_.Stop())
            except Exception as error:  # the worker is gone: nothing is left to say
                self._say(f"ds4-tp: STOP was not sent: {error}")
            rank.close()
        self._door.close()

    def _send(self, command: Any) -> None:
        self.rank.pipe.poll_failure()
        self.rank.pipe.say(command)

    def _ask(self, command: Any) -> Any:
        self._send(command)
        kinds = {
            say_.CreateSession: say_.SessionCreated,
            say_.DestroySession: say_.SessionDestroyed,
        }
        return self._await(kinds[type(command)])

    def _await(self, kind: type) -> Any:
        while True:
            event = self.rank.pipe.next_event()
            if isinstance(event, kind):
                return event

    def _meet(self, point: int, current: int, total: int, wish: bool) -> bool:
        """Say a checkpoint, wait for the worker's, return whether both stop."""
        self.rank.pipe.say(Checkpoint(point, current, total, wish))
        agreed: Checkpoint = self._await(Checkpoint)
        return agreed.cancelled

    def _work(
        self, run: Callable[[], Any], known: Sequence[int] = (), due: Any = None
    ) -> Any:
        """Run this rank's share; a failed gate ends the pair.

        A failure of the engine empties the sessions ``known`` on both ranks
        (DS4T-FAIL-12), behind the answer that is ``due``, or the command that the
        worker waits for.
        """
        try:
            return run()
        except GateFailed as error:
            self.machine.mark_failed(error.failure.text, monotonic())
            raise gate_error(error, "tp-leader") from None
        except EngineError:
            if known:
                self._give_up(known, due)
            raise

    def _give_up(self, known: Sequence[int], due: Any) -> None:
        runner = self.rank.runner
        try:
            if isinstance(due, type):
                self._await(due)
            elif due is not None:
                self._send(due)
            for each in known:
                self.invalidate(each)
        except (PairError, PeerLost) as lost:
            # the engine's own error is what the caller hears
            self._say(f"ds4-tp: the pair ended as well: {lost}")
            for each in known:
                runner.invalidate(each)

    def _joined(self, hidden: F32, half: Any) -> F32:
        """Return the whole logits: own half first, then the worker's."""
        if not self.settings.vocabulary_split or half is None:
            return self._engine.full(hidden)
        own = self._engine.half(hidden, 0)
        if isinstance(half, Top2):
            rest = np.full(len(own), -np.inf, np.float32)
            for token, value in zip(half.ids, half.values, strict=True):
                rest[token - len(own)] = value
        else:
            rest = np.frombuffer(half, np.float32)
        return np.concatenate((own, rest))

    def _joined_all(self, rows: Iterable[F32], done: Any) -> list[F32]:
        if done.status != OK:
            raise SyncRefused(done.text)
        rows = list(rows)
        halves = done.logits or (None,) * len(rows)
        return [self._joined(r, h) for r, h in zip(rows, halves, strict=True)]
