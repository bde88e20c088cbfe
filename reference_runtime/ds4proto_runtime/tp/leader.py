"""The leader: rank 0, which commands; one method for each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ds4proto.link import ds4t_events as say_
from ds4proto.link.ds4t_events import (
    CHUNK,
    END,
    FAILED,
    INTERRUPTED,
    OK,
    REPLAY,
    START,
    BatchItem,
    Image,
)
from ds4proto.link.ds4t_prefill import may_mix
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.tp.errors import SyncRefused
from ds4proto_runtime.tp.leader_end import LeaderEnd

Wish = Callable[[], bool]
"""Asked at each checkpoint of a prefill: True cancels it on both ranks."""
Verdict = tuple[int, int]
"""Mode and token count of a VERIFY_COMMIT."""


class TpLeader(LeaderEnd):
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
        hidden = self._work(
            lambda: self.rank.runner.eval(known, token),
            (known,),
            say_.EvalDone if split else None,
        )
        done = self._await(say_.EvalDone) if split else None
        return self._joined(hidden, None if done is None else done.logits)

    def batch(self, items: Sequence[tuple[int, int]]) -> list[F32]:
        """Decode one token in each of two or more sessions (EVAL_BATCH)."""
        command = say_.RunBatch(tuple(BatchItem(*item) for item in items))
        for item in command.items:
            self.rank.runner.ready(item.session_id)
        self._send(command)
        rows = self._work(
            lambda: self.rank.runner.batch(command.items),
            [item.session_id for item in command.items],
            say_.BatchDone,
        )
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
            lambda: self.rank.runner.mixed(known, command.tokens, command.items),
            [known, *(item.session_id for item in batch)],
            say_.MixedDone,
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
        logits: list[F32] = self._work(
            lambda: [self._engine.full(row) for row in runner.block(known, block)],
            (known,),
            say_.CommitBlock(REPLAY, 0),  # the worker waits for a verdict
        )
        mode, count = judge(logits)
        self._send(say_.CommitBlock(mode, count))
        halves = self.settings.vocabulary_split and mode == REPLAY and count > 0
        due = say_.BlockCommitted if halves else None
        last = self._work(lambda: runner.commit(mode, count), (known,), due)
        if last is None:
            return logits, None
        half = self._await(say_.BlockCommitted).logits if halves else None
        return logits, self._joined(last, half)

    def mtp(self, known: int, token: int, limit: int) -> tuple[list[int], F32]:
        """Run one GLM speculative cycle: accepted tokens, logits behind the last."""
        self.rank.runner.ready(known)
        self._send(say_.RunMtp(known, token, limit))
        runner = self.rank.runner
        accepted = self._work(
            lambda: runner.mtp(known, token, limit), (known,), say_.MtpDone
        )
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
