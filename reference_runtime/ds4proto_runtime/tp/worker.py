"""The worker: rank 1, which runs what the leader commands until STOP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ds4proto.errors import Ds4ProtoError
from ds4proto.link import ds4t_events as say_
from ds4proto.link.ds4t_events import (
    CHUNK,
    END,
    FAILED,
    INTERRUPTED,
    OK,
    START,
    Checkpoint,
    EngineFailed,
    PeerCheckpoint,
)
from ds4proto.link.ds4t_gates import TRANSPORT, GateFailed
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto_runtime.engines.base import F32, EngineError
from ds4proto_runtime.tp.bringup import join_leader
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.errors import gate_error
from ds4proto_runtime.tp.gates import TcpGates
from ds4proto_runtime.tp.rank import (
    Rank,
    RdmaProvider,
    Say,
    TpOptions,
    log_line,
    settings_of,
)


class TpWorker:
    """A pair as its worker sees it. Use as a context manager.

    Parameters
    ----------
    engine : RankEngine
        With ``rank`` 1.
    host, port
        The leader's address.
    options : TpOptions
    rdma : RdmaProvider, optional
    say : callable
        Takes log lines.

    Attributes
    ----------
    wish : callable
        Asked at each checkpoint: True cancels the running prefill on both ranks.
    """

    def __init__(
        self,
        engine: RankEngine,
        host: str,
        port: int,
        options: TpOptions | None = None,
        *,
        rdma: RdmaProvider | None = None,
        say: Say = log_line,
    ) -> None:
        self.options = options = options or TpOptions()
        self._engine = engine
        self._say = say
        self.wish: Callable[[], bool] = lambda: False
        self.settings = settings_of("tp-worker", engine, options, rdma)
        connected = join_leader(
            host,
            port,
            self.settings,
            dial_seconds=options.dial_seconds,
            buffers=options.buffers,
            hello_seconds=options.hello_seconds,
            say=say,
        )
        machine = WorkerControl(
            self.settings, limits=options.control, vision=engine.vision
        )
        try:
            self.rank = Rank(
                self.settings,
                connected,
                machine,
                engine,
                options,
                rdma=rdma,
                say=say,
            )
        except BaseException:
            connected.close()
            raise
        words = self.rank.timeout_words
        transport = connected.agreed.transport
        say(f"ds4-tp: leader connected, transport={transport}{words}")
        say(self.rank.slab_line)
        say("[ok] tp worker ready for mirrored sessions")
        self._machine = machine
        self._pipe = self.rank.pipe
        self._runner = self.rank.runner
        self._total = 0
        self._in_sync = False
        if isinstance(self.rank.transport, TcpGates):
            self.rank.transport.on_quiet = self._answer_progress

    def __enter__(self) -> TpWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both connections. Idempotent."""
        self.rank.close()

    def serve(self) -> None:
        """Run commands until STOP.

        Raises
        ------
        PairError
            When the pair is over any other way; the text says who, where and why.
        """
        while True:
            command = self._pipe.next_event(self.options.idle_seconds)
            if isinstance(command, say_.Stop):
                self._say("tp worker: leader finished")
                return
            self._run(command)

    def _run(self, command: Any) -> None:
        try:
            answer = self._answer(command)
        except GateFailed as error:
            # the leader's own text comes from its gate; an ack would hide nothing
            self._end(TRANSPORT)
            raise gate_error(error, "tp-worker") from None
        except EngineError as error:
            self._end(str(error))
            self._pipe.poll_failure()  # after a session request the worker goes on
            return
        if answer is not None:
            self._pipe.say(answer)
            self._pipe.poll_failure()

    def _end(self, text: str) -> None:
        # the connection may be gone already: the failure itself is the news
        with suppress(Ds4ProtoError, OSError):
            self._pipe.say(EngineFailed(text))

    def _answer(self, command: Any) -> Any:
        """Run a command; return its answer, None where there is none to say."""
        runner = self._runner
        match command:
            case say_.CreateSession(known, ctx):
                runner.create(known, ctx)
                return say_.SessionCreated(known)
            case say_.DestroySession(known):
                runner.destroy(known)
                return say_.SessionDestroyed(known)
            case say_.RunSync():
                return self._sync(command)
            case say_.RunEval(known, token):
                return say_.EvalDone(known, self._half(runner.eval(known, token)))
            case say_.RunBatch(items):
                rows = runner.batch(items)
                return say_.BatchDone(OK, self._halves(rows))
            case say_.RunMixed(known, tokens, items):
                rows = runner.mixed(known, tokens, items)
                return say_.MixedDone(known, OK, self._halves(rows))
            case say_.RunVerify():
                return self._verify(command)
            case say_.RunMtp(known, token, limit):
                accepted = runner.mtp(known, token, limit)
                self._machine.sessions.extend(known, *accepted)
                return say_.MtpDone(known)
            case say_.Rewind(known, position):
                runner.rewind(known, position)
            case say_.Invalidate(known):
                runner.invalidate(known)
        return None

    def _sync(self, command: say_.RunSync) -> Any:
        known, tokens = command.session_id, command.tokens
        if not self.settings.rules.checkpoints:
            hidden = self._runner.sync(known, tokens, command.images)
            assert hidden is not None
            return say_.SyncDone(known, OK, self._half(hidden))
        self._total = len(tokens)
        self._in_sync = True
        hidden, status, text = None, OK, ""
        if self._meet(START, 0):
            status = INTERRUPTED
        else:
            try:
                hidden = self._runner.sync(
                    known, tokens, command.images, lambda at: self._meet(CHUNK, at)
                )
                status = OK if hidden is not None else INTERRUPTED
            except EngineError as error:
                status, text = FAILED, str(error)
        self._in_sync = False
        self._meet(END, status)
        if hidden is None:
            self._runner.invalidate(known)
            return say_.SyncDone(known, status, None, text)
        return say_.SyncDone(known, status, self._half(hidden))

    def _meet(self, point: int, current: int) -> bool:
        """Meet the leader at a checkpoint; True where both agreed to stop.

        A leader with another engine may report more progress than this one: every
        checkpoint of it that is not the own one is answered with the same words,
        which the exchange allows (chapter 5.1).
        """
        mine = Checkpoint(point, current, self._total, point != END and self.wish())
        while True:
            event = self._pipe.next_event()
            if not isinstance(event, PeerCheckpoint):
                continue
            theirs = event.checkpoint
            due = theirs.point == point and (point == END or theirs.current == current)
            reply = mine
            if not due and theirs.point not in (START, END):
                reply = replace(theirs, cancelled=mine.cancelled)
            self._pipe.say(reply)
            agreed = self._agreed()
            if reply is mine or agreed.cancelled:
                return agreed.cancelled

    def _answer_progress(self) -> None:
        """Answer a checkpoint while a gate waits for the leader.

        An engine that reports more progress than ours stops for the answer before it
        comes to the gate; the same words are the answer (chapter 5.1).
        """
        if not self._in_sync:
            return
        event = self._pipe.event_at_hand()
        if isinstance(event, PeerCheckpoint):
            theirs = event.checkpoint
            self._pipe.say(replace(theirs, cancelled=False))
            self._agreed()

    def _agreed(self) -> Checkpoint:
        while True:
            event = self._pipe.next_event()
            if isinstance(event, Checkpoint):
                return event

    def _verify(self, command: say_.RunVerify) -> Any:
        self._runner.block(command.session_id, command.tokens)
        self._pipe.say(say_.BlockRun())
        verdict = self._pipe.next_event()
        assert isinstance(verdict, say_.CommitBlock)
        last = self._runner.commit(verdict.mode, verdict.token_count)
        half = None if last is None else self._half(last)
        return say_.BlockCommitted(command.session_id, half)

    def _half(self, hidden: F32) -> memoryview | None:
        if not self.settings.vocabulary_split:
            return None
        half = self._engine.half(hidden, 1)
        return memoryview(half.tobytes())

    def _halves(self, rows: list[F32]) -> tuple[memoryview, ...]:
        return tuple(h for h in map(self._half, rows) if h is not None)
