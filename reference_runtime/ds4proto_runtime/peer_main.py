"""``python -m ds4proto_runtime.peer_main ROLE``: one pipeline peer on the toy engine.

A worker serves until it is ended. A coordinator carries out commands:

===================  ==========================================================
``sync T T ...``     bring the session to this transcript
``eval T``           one more token
``save FILE``        write the session; ``load FILE`` restores one
``route SECONDS``    wait for a complete route
``session``          go on with a new session
``loop COUNT``       ``sync`` of 5 to 9, then two ``eval``, COUNT times (0: for ever),
                     a new session each time
===================  ==========================================================

Each answers one line: the command, ``ok`` or ``error``, and what came of it. Commands
come as arguments (``--do``), else from stdin (``--stdin``), else ``loop 0``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.ds4d_limits import LinkLimits
from ds4proto.peer import Recorder
from ds4proto_runtime.engines.toy import LAYERS, ToyEngine
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator, PipelineSession
from ds4proto_runtime.pipeline.settings import worker_limits
from ds4proto_runtime.pipeline.worker import PipelineWorker

PACE_S = 0.05
"""Pause between two rounds of ``loop``, and after a failed one."""


def _say(line: str) -> None:
    # one write a line: several threads say something
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def layers_of(words: str) -> tuple[range, bool]:
    """Return layers and head of ``A:B`` or ``A:output``."""
    start, _, end = words.partition(":")
    last = LAYERS - 1 if end == "output" else int(end)
    return range(int(start), last + 1), end == "output"


def _engine(options: argparse.Namespace, *, head: bool) -> ToyEngine:
    layers, owns_head = layers_of(options.layers)
    return ToyEngine(
        layers,
        ctx=options.ctx,
        prefill_cap=options.prefill_cap,
        has_head=head or owns_head,
        null=options.null,
    )


class Script:
    """Carries out the commands of a coordinator."""

    def __init__(self, coordinator: PipelineCoordinator, seed: int | None) -> None:
        self._coordinator = coordinator
        self._seed = seed
        self._session = self._new()
        self.stop = threading.Event()

    def _new(self) -> PipelineSession:
        session = self._coordinator.session(self._seed)
        if self._seed is not None:
            self._seed += 1
        return session

    def run(self, command: str) -> bool:
        """Carry out one command; return whether it succeeded."""
        name, *words = command.split()
        try:
            result = self._do(name, words)
        except (Ds4ProtoError, OSError) as error:
            _say(f"{name} error {error}")
            return False
        except (ValueError, LookupError) as error:
            _say(f"{name} error not a command: {command!r} ({error})")
            return False
        _say(f"{name} ok {result}".rstrip())
        return True

    def _do(self, name: str, words: list[str]) -> str:
        session = self._session
        if name == "sync":
            return self._logits(session.sync([int(word) for word in words]))
        if name == "eval":
            return self._logits(session.eval(int(words[0])))
        if name == "save":
            return f"bytes={session.save(Path(words[0]))}"
        if name == "load":
            session.load(Path(words[0]))
            return f"len={len(session.tokens)}"
        if name == "route":
            return str(self._coordinator.wait_route(float(words[0])))
        if name == "session":
            self._session = self._new()
            return ""
        if name == "loop":
            return self._loop(int(words[0]))
        raise LookupError(name)

    def _logits(self, outcome: Any) -> str:
        session = self._session
        value = zlib.crc32(outcome.logits.tobytes())
        again = " replayed" if outcome.replayed else ""
        return (
            f"len={len(session.tokens)} sent={outcome.n_tokens} crc={value:08x}"
            f" next={int(outcome.logits.argmax())}{again}"
        )

    def _loop(self, count: int) -> str:
        rounds = failed = 0
        while not self.stop.is_set() and (not count or rounds < count):
            rounds += 1
            self._session = self._new()
            try:
                self._coordinator.wait_route(3600.0 if not count else 30.0)
                self._session.sync([5, 6, 7, 8, 9])
                self._session.eval(42)
                self._session.eval(43)
            except Ds4ProtoError as error:
                failed += 1
                _say(f"round error {error}")
            self.stop.wait(PACE_S)
        return f"rounds={rounds} failed={failed}"


def _commands(options: argparse.Namespace) -> Iterator[str]:
    if options.stdin:
        yield from (line.strip() for line in sys.stdin if line.strip())
    else:
        yield from options.do or ["loop 0"]


def _coordinate(options: argparse.Namespace, recorder: Recorder | None) -> int:
    with PipelineCoordinator(
        _engine(options, head=not options.no_head),
        listen=(options.address[0], int(options.address[1])),
        bits=options.bits,
        dialect=options.dialect,
        chunk=options.chunk,
        window=options.window,
        rejoin_s=options.rejoin,
        limits=_limits(options),
        recorder=recorder,
        log=_say,
        debug=_say if options.debug else lambda _line: None,
    ) as coordinator:
        _say(f"listening on {coordinator.address[0]}:{coordinator.address[1]}")
        script = Script(coordinator, options.seed)
        signal.signal(signal.SIGTERM, lambda *_: script.stop.set())
        done = [script.run(command) for command in _commands(options)]
    return 0 if all(done) else 1


def _limits(options: argparse.Namespace) -> LinkLimits:
    return LinkLimits(
        result_s=options.patience,
        forward_s=options.patience,
        stall_s=min(60.0, options.patience),
    )


def _work(options: argparse.Namespace, recorder: Recorder | None) -> int:
    listen = None
    if options.listen is not None:
        listen = (options.listen[0], int(options.listen[1]))
    worker = PipelineWorker(
        _engine(options, head=False),
        (options.address[0], int(options.address[1])),
        listen=listen,
        limits=worker_limits(_limits(options)),
        dialect=options.dialect,
        recorder=recorder,
        log=_say,
        debug=_say if options.debug else lambda _line: None,
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
    return 0


def main() -> int:
    """Run one peer; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("coordinator", "worker"))
    parser.add_argument("--address", nargs=2, required=True, metavar=("HOST", "PORT"))
    parser.add_argument("--listen", nargs=2, metavar=("HOST", "PORT"))
    parser.add_argument("--layers", default=None)
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--prefill-cap", type=int, default=16)
    parser.add_argument("--bits", type=int, default=32, choices=(32, 16, 8))
    parser.add_argument("--dialect", default="upstream")
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--window", type=int)
    parser.add_argument("--rejoin", type=float, default=0.0)
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-head", action="store_true")
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--stdin", action="store_true")
    parser.add_argument("--do", action="append")
    options = parser.parse_args()
    if options.layers is None:
        options.layers = "0:1" if options.role == "coordinator" else "5:output"
    recorder = Recorder(options.record) if options.record is not None else None
    try:
        run = _coordinate if options.role == "coordinator" else _work
        return run(options, recorder)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        _say(str(error))
        return 2
    finally:
        if recorder is not None:
            recorder.close()


if __name__ == "__main__":
    sys.exit(main())
