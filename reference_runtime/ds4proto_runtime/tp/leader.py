"""The leader: rank 0, which commands; one method for each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from ds4proto.link import ds4t_events as say_
from ds4proto.link.ds4t_events import (
    CHUNK,
    END,
    FAILED,
    INTERRUPTED,
    OK,
    START,
    BatchItem,
    Checkpoint,
    Image,
    Top2,
)
from ds4proto.link.ds4t_gates import GateFailed
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_prefill import may_mix
from ds4proto.link.ds4t_texts import LocalProtocolError
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

Wish = Callable[[], bool]
"""Asked at each checkpoint of a prefill: True cancels it on both ranks."""
Verdict = tuple[int, int]
"""Mode and token count of a VERIFY_COMMIT."""


class TpLeader:
    """A pair as its leader sees it. Use as a context manager.

    Parameters
    ----------
    engine : RankEngine
        With ``rank`` 0.
    host, port
        Where to listen; port 0 lets the system choose, see ``address``.
    options : TpOptions
    allow_remote : bool
        Needed for any address that is not loopback.
    rdma : RdmaProvider, optional
    say : callable
        Takes log lines.

    Notes
    -----
    Logits are float32 ``[n_vocab]``. Where the dialect sends the two best of the
    worker's half (v9w, GREEDY_TOP2), the rest of that half is minus infinity.
    """

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

    def __enter__(self) -> TpLeader:
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

    def create(self, ctx: int | None = None) -> int:
        """Open a session on both ranks and return its id.

        Raises
        ------
        SyncRefused
            If the worker cannot; the pair goes on.
        """
        known: int = self.machine.next_session_id
        size = self.options.ctx if ctx is None else ctx
        self.rank.runner.create(known, size)
        done = self._ask(say_.CreateSession(known, size))
        if done.status != OK:
            self.rank.runner.destroy(known)
            raise SyncRefused(done.text)
        return known

    def destroy(self, known: int) -> int:
        """Close a session on both ranks; returns the worker's status."""
        done = self._ask(say_.DestroySession(known))
        self.rank.runner.destroy(known)
        return int(done.status)

    def sync(
        self,
        known: int,
        tokens: Sequence[int],
        *,
        cancel: Wish | None = None,
        images: Sequence[Image] = (),
    ) -> F32 | None:
        """Bring a session to a prompt on both ranks.

        Returns
        -------
        ndarray or None
            Logits of the last token; None after a cancel that both agreed on.

        Raises
        ------
        SyncRefused
            If the worker failed; the session is empty then.
        """
        wish = cancel or (lambda: False)
        if images and not self._engine.vision:
            raise EngineError("vision encoder is not loaded")
        prompt = tuple(tokens)
        self._send(say_.RunSync(known, prompt, tuple(images)))
        total = len(prompt)
        meets = self.settings.rules.checkpoints
        hidden: F32 | None = None
        status = OK
        if meets and self._meet(START, 0, total, wish()):
            status = INTERRUPTED
        if status == OK:

            def progress(reached: int) -> bool:
                return meets and self._meet(CHUNK, reached, total, wish())

            try:
                hidden = self._work(
                    lambda: self.rank.runner.sync(known, prompt, images, progress)
                )
            except EngineError:
                if meets:
                    self._meet(END, FAILED, total, False)
                self._finish_failed(known)
                raise
            if hidden is None:
                status = INTERRUPTED
        if meets:
            self._meet(END, status, total, False)
        done = self._await(say_.SyncDone)
        if done.status != OK or hidden is None:
            self._finish_failed(known, drain=False)
            if done.status == INTERRUPTED and not done.text:
                return None
            raise SyncRefused(done.text)
        return self._joined(hidden, done.logits)

    def _finish_failed(self, known: int, *, drain: bool = True) -> None:
        """Empty the session on both ranks (DS4T-FAIL-12, DS4T-SYNC-11)."""
        if drain and self._await(say_.SyncDone).status == OK:
            self.invalidate(known)  # after another status the machine says it
            return
        self.rank.runner.invalidate(known)

    def eval(self, known: int, token: int) -> F32:
        """Decode one token and return its logits."""
        split = self.settings.vocabulary_split
        self.rank.runner.ready(known)
        self._send(say_.RunEval(known, token))
        hidden = self._work(lambda: self.rank.runner.eval(known, token))
        done = self._await(say_.EvalDone) if split else None
        return self._joined(hidden, None if done is None else done.logits)

    def batch(self, items: Sequence[tuple[int, int]]) -> list[F32]:
        """Decode one token in each of two or more sessions (EVAL_BATCH)."""
        command = say_.RunBatch(tuple(BatchItem(*item) for item in items))
        for item in command.items:
            self.rank.runner.ready(item.session_id)
        self._send(command)
        rows = self._work(lambda: self.rank.runner.batch(command.items))
        done = self._await(say_.BatchDone)
        return self._joined_all(rows, done)

    def may_mix(self, known: int, prompt: Sequence[int]) -> bool:
        """Tell whether a leader would send MIXED_BATCH for this prompt."""
        session = self.machine.sessions[known]
        model = self.settings.identity.model_id
        return self.rank.runner[known].valid and may_mix(
            session, tuple(prompt), self.options.plan, model_id=model
        )

    def mixed(
        self, known: int, prompt: Sequence[int], items: Sequence[tuple[int, int]]
    ) -> list[F32]:
        """Prefill one session and decode in others; logits of the prefill first."""
        batch = tuple(BatchItem(*item) for item in items)
        command = say_.RunMixed(known, tuple(prompt), batch)
        for each in (known, *(item.session_id for item in batch)):
            self.rank.runner.ready(each, int(each != known))
        self._send(command)
        rows = self._work(
            lambda: self.rank.runner.mixed(known, command.tokens, command.items)
        )
        done = self._await(say_.MixedDone)
        return self._joined_all(rows, done)

    def verify(
        self,
        known: int,
        drafts: Sequence[int],
        judge: Callable[[list[F32]], Verdict],
    ) -> tuple[list[F32], F32 | None]:
        """Run a draft block and say the verdict on it.

        Parameters
        ----------
        judge : callable
            Takes the logits behind each draft, which the leader computes alone, and
            returns mode (``REPLAY``, ``KEEP_ALL``, ``KEEP_PREFIX``) and count.

        Returns
        -------
        list of ndarray
            Logits behind each draft.
        ndarray or None
            Logits of the last replayed token; None without a replay.
        """
        block = tuple(drafts)
        self.rank.runner.ready(known, len(block))
        self._send(say_.RunVerify(known, block))
        runner = self.rank.runner
        rows = self._work(lambda: runner.block(known, block))
        logits = [self._engine.full(row) for row in rows]
        mode, count = judge(logits)
        self._send(say_.CommitBlock(mode, count))
        last = self._work(lambda: runner.commit(mode, count))
        if last is None:
            return logits, None
        half = None
        if self.settings.vocabulary_split:
            half = self._await(say_.BlockCommitted).logits
        return logits, self._joined(last, half)

    def mtp(self, known: int, token: int, limit: int) -> tuple[list[int], F32]:
        """Run one GLM speculative cycle: accepted tokens, logits behind the last."""
        self.rank.runner.ready(known)
        self._send(say_.RunMtp(known, token, limit))
        runner = self.rank.runner
        accepted = self._work(lambda: runner.mtp(known, token, limit))
        done = self._await(say_.MtpDone)
        if done.status != OK:
            raise SyncRefused(done.text)
        self.machine.sessions.extend(known, *accepted)
        hidden = runner[known].hidden
        assert hidden is not None
        return accepted, self._engine.full(hidden)

    def rewind(self, known: int, position: int) -> None:
        """Shorten a session on both ranks; no answer comes."""
        self._send(say_.Rewind(known, position))
        self.rank.runner.rewind(known, position)

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

    def _work(self, run: Callable[[], Any]) -> Any:
        """Run this rank's share; a failed gate ends the pair."""
        try:
            return run()
        except GateFailed as error:
            self.machine.mark_failed(error.failure.text, monotonic())
            raise gate_error(error, "tp-leader") from None

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
