"""``ds4proto run``: one prompt and the end, or a worker until it is ended."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds4proto.cli._output import printable, progress, stderr, write_json
from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.link.ds4d_limits import DEFAULT
from ds4proto.peer import Recorder
from ds4proto.schema.ds4d_private import DIALECT as PRIVATE_DIALECT
from ds4proto_runtime import kv
from ds4proto_runtime.cli.options import RunOptions
from ds4proto_runtime.engines.base import Engine, EngineError
from ds4proto_runtime.pipeline import models
from ds4proto_runtime.pipeline.coordinator import PipelineCoordinator
from ds4proto_runtime.pipeline.generation import (
    REPLAY_PASSED,
    Alone,
    Generated,
    OverRoute,
    Runs,
    Sampler,
    generate,
    replay_check,
)
from ds4proto_runtime.pipeline.kv_spans import spans_of
from ds4proto_runtime.pipeline.remote_decode import RemoteDecode
from ds4proto_runtime.pipeline.report import show_hops, show_rates
from ds4proto_runtime.pipeline.settings import SocketSettings, worker_limits
from ds4proto_runtime.pipeline.worker import PipelineWorker
from ds4proto_runtime.saved_files import check_target
from ds4proto_runtime.text_files import bounded_text


def say(line: str) -> None:
    """Print one line on standard error, safe for a terminal."""
    sys.stderr.write(f"ds4proto run: {printable(line)}\n")
    sys.stderr.flush()


def run(options: RunOptions) -> int:
    """Do what the options ask for; return the exit status."""
    check_target("--save", options.save)
    choice = models.choose(options.engine, options.model)
    if options.role == "worker":
        return _work(options, choice)
    prompt = _prompt(options)
    if options.role == "none":
        return _alone(options, choice, prompt)
    return _coordinate(options, choice, prompt)


def _prompt(options: RunOptions) -> str:
    if options.prompt is not None and options.prompt_file is not None:
        raise WrongUsage("give -p or --prompt-file, not both")
    if options.prompt_file is not None:
        return bounded_text(options.prompt_file, "surrogateescape")
    if options.prompt is None and options.load is None:
        raise WrongUsage("give a prompt: -p TEXT or --prompt-file FILE")
    return options.prompt or ""


def _load(
    options: RunOptions, choice: models.ModelChoice, layers: range, *, head: bool
) -> Engine:
    with progress("load", None):
        return models.open_engine(
            choice, layers, head=head, ctx=options.ctx, device=options.device
        )


@contextlib.contextmanager
def _of_file(path: str) -> Iterator[None]:
    """Name the saved session in what is refused of it."""
    try:
        yield
    except EngineError as error:
        raise EngineError(
            f"--load {path}: {error} (ds4proto snapshot inspect {path} says more)"
        ) from None


@contextlib.contextmanager
def _recording(options: RunOptions) -> Iterator[Recorder | None]:
    if options.trace is None:
        yield None
        return
    with Recorder(options.trace) as recorder:
        yield recorder


def _work(options: RunOptions, choice: models.ModelChoice) -> int:
    if options.layers is None or options.coordinator is None:
        raise AssertionError("cross-checked before")
    if options.local_decode and options.dialect != PRIVATE_DIALECT:
        raise WrongUsage(
            f"--local-decode of a worker requires --dialect {PRIVATE_DIALECT};"
            " stock peers: use --local-decode with --role coordinator"
        )
    layers = options.layers.resolve(choice.n_layers, coordinator=False)
    loaded = range(choice.n_layers) if options.local_decode else layers
    engine = _load(options, choice, loaded, head=options.layers.output)
    if options.local_decode:
        spans_of(engine)
    with _recording(options) as recorder:
        worker = PipelineWorker(
            engine,
            options.coordinator,
            listen=options.listen,
            limits=worker_limits(DEFAULT),
            sockets=SocketSettings.of(),
            profile=options.profile,
            dialect=options.dialect,
            layers=layers,
            local_decode=options.local_decode,
            dial_limit_s=options.dial_limit,
            recorder=recorder,
            log=say,
            debug=say if options.debug else lambda _line: None,
        )
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()
    return ExitCode.PASSED


def _alone(options: RunOptions, choice: models.ModelChoice, prompt: str) -> int:
    engine = _load(options, choice, range(choice.n_layers), head=True)
    alone = Alone(engine)
    start: list[int] = []
    if options.load is not None:
        with _of_file(options.load):
            alone.session, _ = kv.load_session(Path(options.load), engine)
        start = list(alone.session.tokens)
    tokenizer, ids = _tokens(engine, prompt, start)
    done = _generate(options, alone, ids, tokenizer, engine)
    if options.save is not None:
        logits = alone.step(done.tokens[-1]) if done.tokens else None
        if logits is not None:
            kv.save_session(Path(options.save), engine, alone.session, logits)
    _report(options, done, tokenizer, {})
    return ExitCode.PASSED


def _tokens(engine: Engine, prompt: str, start: list[int]) -> tuple[Any, list[int]]:
    tokenizer = models.tokenizer_of(engine)
    ids = [*start, *(tokenizer.encode(prompt) if prompt else [])]
    if len(ids) >= engine.shape.ctx:
        raise WrongUsage(
            f"the prompt has {len(ids)} tokens, the context {engine.shape.ctx};"
            " raise --ctx or shorten the prompt"
        )
    if len(ids) == len(start):
        raise WrongUsage("the prompt is empty: give at least one token with -p")
    return tokenizer, ids


def _generate(
    options: RunOptions,
    runs: Runs | RemoteDecode,
    ids: list[int],
    tokenizer: Any,
    engine: Engine,
) -> Generated:
    printed = ""
    seen: list[int] = []

    def each(token: int) -> None:
        nonlocal printed
        seen.append(token)
        if options.as_json:
            return
        whole = tokenizer.decode(seen)
        if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
            sys.stdout.write(whole[len(printed) :])
            sys.stdout.flush()
            printed = whole

    with progress("prefill", len(ids)) as advance:
        if isinstance(runs, RemoteDecode):
            done = runs.generate(
                ids,
                options.n_predict,
                temp=options.temp,
                seed=options.seed,
                eos=tokenizer.eos,
                progress=advance,
                each=each,
            )
        else:
            done = generate(
                runs,
                ids,
                options.n_predict,
                Sampler(options.temp, options.seed),
                eos=tokenizer.eos,
                room=engine.shape.ctx,
                progress=advance,
                each=each,
            )
    if not options.as_json:
        sys.stdout.write("\n")
    return done


def _report(
    options: RunOptions, done: Generated, tokenizer: Any, more: dict[str, Any]
) -> None:
    if options.as_json:
        write_json(
            {
                "prompt_tokens": len(done.prompt),
                "tokens": done.tokens,
                "text": tokenizer.decode(done.tokens),
                "prefill_tokens_per_s": round(done.prefill_rate, 3),
                "decode_tokens_per_s": round(done.decode_rate, 3),
                **more,
            }
        )
        return
    show_rates(stderr(), done)
    if more.get("prefill_stages_at_once"):
        at_once = more["prefill_stages_at_once"]
        say(f"in the prefill {at_once:.2f} stages computed at once, on average")
    if more.get("hops"):
        show_hops(stderr(), more["own"], more["hops"])
    if "handover" in more:
        for line in more["handover"]["lines"]:
            say(line)


def _coordinate(options: RunOptions, choice: models.ModelChoice, prompt: str) -> int:
    if options.layers is None or options.listen is None:
        raise AssertionError("cross-checked before")
    layers = options.layers.resolve(choice.n_layers, coordinator=True)
    whole = options.local_decode and options.dialect != PRIVATE_DIALECT
    loaded = range(choice.n_layers) if whole else layers
    engine = _load(options, choice, loaded, head=True)
    with (
        _recording(options) as recorder,
        PipelineCoordinator(
            engine,
            listen=options.listen,
            layers=layers,
            bits=options.bits,
            chunk=options.prefill_chunk,
            window=options.prefill_window,
            rejoin_s=options.rejoin,
            sockets=SocketSettings.of(),
            profile=options.profile,
            dialect=options.dialect,
            link=options.link,
            recorder=recorder,
            log=say,
            debug=say if options.debug else lambda _line: None,
        ) as coordinator,
    ):
        say(f"waiting for workers on {options.listen[0]}:{coordinator.address[1]}")
        say(f"route ready: {coordinator.wait_route(options.route_wait)}")
        return _one_prompt(options, coordinator, engine, prompt)


def _one_prompt(
    options: RunOptions, coordinator: PipelineCoordinator, engine: Engine, prompt: str
) -> int:
    session = coordinator.session()
    start: list[int] = []
    if options.load is not None:
        with _of_file(options.load):
            session.load(Path(options.load))
        start = list(session.tokens)
    tokenizer, ids = _tokens(engine, prompt, start)
    checked_s = 0.0
    if options.replay_check:
        with progress("replay check", 2 * len(ids)) as advance:
            fault, checked_s = replay_check(session, ids, advance)
        if fault is not None:
            say(fault)
            return ExitCode.FAILED
        say(REPLAY_PASSED)
    more: dict[str, Any] = {}
    if options.local_decode and options.dialect == PRIVATE_DIALECT:
        remote = RemoteDecode(coordinator, session, log=say)
        try:
            done = _generate(options, remote, ids, tokenizer, engine)
            more["handover"] = remote.report(done)
        finally:
            remote.close()
    elif options.local_decode:
        from ds4proto_runtime.pipeline.local_decode import LocalDecode

        local = LocalDecode(coordinator, session, log=say)
        done = _generate(options, local, ids, tokenizer, engine)
        more["handover"] = local.report(done)
    else:
        plain = OverRoute(session, coordinator.telemetry)
        done = _generate(options, plain, ids, tokenizer, engine)
        overlap = plain.overlap
        more["prefill_stages_at_once"] = overlap and round(overlap, 3)
    # after a replay check nothing is left to prefill
    done.prefill_s = checked_s or done.prefill_s
    if options.save is not None:
        # after a local decode the route is behind; else only the last token is due
        if done.tokens:
            session.sync([*ids, *done.tokens])
        session.save(Path(options.save))
    more["own"] = asdict(coordinator.telemetry.own)
    more["hops"] = coordinator.telemetry.rows()
    _report(options, done, tokenizer, more)
    return ExitCode.PASSED
