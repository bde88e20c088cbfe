"""``ds4proto run --tensor-parallel``: one rank as a process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from ds4proto.errors import ExitCode, WrongUsage
from ds4proto.link.ds4t_limits import ControlLimits, GateLimits
from ds4proto.link.ds4t_rules import rules_of
from ds4proto.peer import exposure_warning
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.saved_files import check_target
from ds4proto_runtime.text_files import bounded_text
from ds4proto_runtime.tp.engine import RankEngine
from ds4proto_runtime.tp.environment import (
    Environment,
    read_environment,
    v9w_features,
)
from ds4proto_runtime.tp.errors import Terminated
from ds4proto_runtime.tp.options import HELP, V41_BATCH, TpRunOptions, parse_options
from ds4proto_runtime.tp.rank import RdmaProvider, TpOptions, log_line
from ds4proto_runtime.tp.toy import ToyTpEngine

TERMINATED: Final = 128 + signal.SIGTERM
RDMA_HOME: Final = "ds4proto_runtime.transport.provider"
"""Module of the RDMA transport; its ``open_provider`` gives an ``RdmaProvider``."""
_V41: Final = 4


def run(arguments: Sequence[str]) -> int:
    """Run one rank; the arguments come without ``--tensor-parallel``.

    Returns
    -------
    int
        Exit status: 0 done, 1 failed, 2 wrong usage, 3 peer lost, 143 after SIGTERM.
    """
    if not {"-h", "--help"}.isdisjoint(arguments):
        sys.stdout.write(HELP)
        return ExitCode.PASSED
    return run_tensor_parallel(parse_options(arguments))


def run_tensor_parallel(options: TpRunOptions) -> int:
    """Run one rank with options that were checked; see ``run``."""
    try:
        with _answering_sigterm():
            return _run(options)
    except Terminated:
        log_line("ds4-tp: terminated")
        return TERMINATED
    except EngineError as error:
        raise WrongUsage(str(error)) from None


def _run(options: TpRunOptions) -> int:
    leading = options.role == "coordinator"
    check_target("--save", options.save)
    # a model that does not fit is refused before any socket is opened
    engine, tokenizer = load_engine(options, 0 if leading else 1)
    env = read_environment(
        os.environ,
        options.dialect,
        chunk=options.prefill_chunk,
        model_id=engine.identity.model_id,
    )
    if leading and options.temp and env.top2:
        raise WrongUsage(
            "--temp draws from all logits, but with DS4_TP_GREEDY_TOP2 the worker sends"
            " the two best of its half alone: give --temp 0, or unset it on both ranks"
        )
    for note in env.notes:
        log_line(f"ds4-tp: {note}")
    if rules_of(options.dialect).features:
        experts = getattr(getattr(engine, "shape", None), "n_expert", 256)
        word = v9w_features(experts, top2=env.top2)
        engine.identity = replace(engine.identity, runtime_features=word)
    if options.debug_hash and not leading:
        log_line("ds4-tp: hashes are printed, not exchanged: compare both logs")
    settings = tp_options(options, env)
    rdma = load_rdma(options, env)
    if leading:
        return _lead(options, settings, env, engine, tokenizer, rdma)
    return _work(options, settings, engine, rdma)


def load_engine(options: TpRunOptions, rank: int | None) -> tuple[RankEngine, Any]:
    """Return the engine of a rank, and a tokenizer.

    Raises
    ------
    WrongUsage
        Where the model cannot be had, or is no model of that engine.
    """
    from ds4proto_runtime.pipeline.models import NoTokenizer, choose

    if options.engine == "toy" and options.model is not None:
        raise WrongUsage(
            "the toy engine has no file; omit -m or choose --engine decoder"
        )
    choice = choose(options.engine, options.model)
    if choice.engine == "toy":
        engine = ToyTpEngine(options.toy, rank)
        return engine, NoTokenizer(options.toy.n_vocab)
    from ds4proto_runtime.tp.torch_engines import TorchRank

    words: dict[str, Any] = {"ctx": options.ctx, "device": options.device}
    if choice.engine == "decoder" and choice.path is not None:
        made = TorchRank.decoder(choice.path, rank, **words)
    else:
        made = TorchRank.deepseek_v4(choice.path, rank, **words)
    metadata = made.metadata
    if metadata is None or "tokenizer.ggml.tokens" not in metadata:
        return made, NoTokenizer(made.identity.n_vocab)
    from ds4proto_runtime.engines.tokenizer import Tokenizer

    return made, Tokenizer(metadata)


def tp_options(options: TpRunOptions, env: Environment) -> TpOptions:
    """Return what a rank needs of the options and the environment."""
    idle = options.gate_timeout if options.gate_timeout is not None else env.gate_idle
    words: dict[str, Any] = {}
    if options.socket_buffers is not None:
        words["buffers"] = options.socket_buffers
    return TpOptions(
        dialect=options.dialect,
        ctx=options.ctx,
        transport=options.transport,  # type: ignore[arg-type]  # its parser checks
        plan=env.plan,
        token_prefill=options.token_prefill,
        gates=GateLimits(idle=idle, total=options.gate_total),
        control=ControlLimits(answer=options.answer_wait),
        spin=options.spin,  # type: ignore[arg-type]  # its parser checks
        hash_every=options.debug_hash,
        checksums=options.gate_checksums or env.trace,
        dial_seconds=env.dial_seconds,
        accept_seconds=options.accept_wait,
        hello_seconds=options.hello_wait,
        idle_seconds=options.idle_wait,
        **words,
    )


def load_rdma(options: TpRunOptions, env: Environment) -> RdmaProvider | None:
    """Return the RDMA transport, None where it is not asked for or not installed."""
    if options.transport == "tcp":
        return None
    try:
        found = find_spec(RDMA_HOME)
    except ModuleNotFoundError:
        found = None
    if found is None:
        return None
    home: Any = import_module(RDMA_HOME)
    provider: RdmaProvider | None = home.open_provider(
        device=options.rdma_device,
        gid_index=options.rdma_gid_index,
        warm_up=env.warm_up,
        verify_window=env.verify_window,
        first_sender=(
            "tp-worker" if options.rdma_first_sender == "worker" else "tp-leader"
        ),
        explicit=options.transport == "rdma",
    )
    return provider


def _work(
    options: TpRunOptions,
    settings: TpOptions,
    engine: RankEngine,
    rdma: RdmaProvider | None,
) -> int:
    from ds4proto_runtime.tp.worker import TpWorker

    assert options.coordinator is not None
    with TpWorker(engine, *options.coordinator, settings, rdma=rdma) as worker:
        if options.fault is not None:
            from ds4proto_runtime.tp.faults import plant

            plant(worker.rank, options.fault)
        worker.serve()
    return ExitCode.PASSED


def _lead(
    options: TpRunOptions,
    settings: TpOptions,
    env: Environment,
    engine: RankEngine,
    tokenizer: Any,
    rdma: RdmaProvider | None,
) -> int:
    from ds4proto_runtime.tp.leader import TpLeader

    assert options.listen is not None
    host, port = options.listen
    prompts = [] if options.script is not None else _prompts(options, tokenizer)
    warning = exposure_warning(host)
    if warning is not None:
        log_line(f"ds4-tp: {warning}")
    with TpLeader(engine, host, port, settings, allow_remote=True, rdma=rdma) as leader:
        leader.accept()
        if options.fault is not None:
            from ds4proto_runtime.tp.faults import plant

            plant(leader.rank, options.fault)
        start = perf_counter()
        if options.script is not None:
            from ds4proto_runtime.tp.script import Script

            Script(leader, lambda line: print(line, flush=True)).run(options.script)
        else:
            _generate(options, env, leader, tokenizer, prompts)
        if env.profile:
            link = leader.rank.transport.link
            count = link.row_seq + link.batch_seq - 2
            seconds = perf_counter() - start
            log_line(
                f"ds4-tp: {count} gates in {seconds:.3f} s, "
                f"largest skew {link.skew * 1e3:.2f} ms"
            )
    return ExitCode.PASSED


def _prompts(options: TpRunOptions, tokenizer: Any) -> list[list[int]]:
    if options.prompt_file is not None:
        text = bounded_text(options.prompt_file, "surrogateescape")
        lines = text.splitlines() if options.batched_session > 1 else [text]
        words = [line for line in lines if line]
    elif options.prompt is not None:
        words = [options.prompt]
    elif options.load is not None:
        words = []
    else:
        raise WrongUsage(
            "nothing to do: give -p TEXT, --prompt-file, --load or --script"
        )
    prompts = [list(tokenizer.encode(line)) for line in words]
    long = [p for p in prompts if not 0 < len(p) < options.ctx]
    if long:
        raise WrongUsage(
            f"a prompt has 1 to {options.ctx - 1} tokens in a context of "
            f"{options.ctx}, found {len(long[0])}; see --ctx"
        )
    return prompts


def _generate(
    options: TpRunOptions,
    env: Environment,
    leader: Any,
    tokenizer: Any,
    prompts: list[list[int]],
) -> None:
    from ds4proto_runtime.pipeline.generation import Sampler
    from ds4proto_runtime.tp.generate import (
        Rates,
        Stream,
        load_tokens,
        run_streams,
        save_tokens,
        speculate,
    )

    identity = leader.settings.identity
    if options.load is not None:
        # disk restore: the saved prefix is a SYNC, both ranks prefill it
        saved = load_tokens(Path(options.load), identity.n_vocab)
        prompts = [saved + (prompts[0] if prompts else [])]
    default = V41_BATCH if identity.model_id == _V41 else 2
    batch_from = options.batch_from or default
    eos = getattr(tokenizer, "eos", None)
    done: list[Stream] = []
    rates = Rates()
    width = options.batched_session
    for at in range(0, len(prompts), width):
        streams = []
        for number, prompt in enumerate(prompts[at : at + width], at):
            known = leader.create(options.ctx)
            started = perf_counter()
            logits = leader.sync(known, prompt)
            rates.prefilled(len(prompt), perf_counter() - started)
            left = min(options.n_predict, options.ctx - len(prompt))
            # a seed of its own: the same text whatever runs beside it
            pick = Sampler(options.temp, options.seed + number).pick
            streams.append(Stream(known, list(prompt), logits, left, pick=pick))
        started = perf_counter()
        if options.draft and len(streams) == 1:
            speculate(leader, streams[0], options.draft, options.ctx, eos)
        else:
            run_streams(leader, streams, batch_from if env.session_batch else None, eos)
        steps = sum(max(0, len(stream.made) - 1) for stream in streams)
        rates.decoded(steps, perf_counter() - started)
        for stream in streams:
            leader.destroy(stream.known)
        done += streams
    if options.save is not None and done:
        save_tokens(Path(options.save), done[0].tokens)
    for stream in done:
        text = tokenizer.decode(stream.made)
        if options.as_json:
            found = {"tokens": stream.made, "text": text, **rates.figures()}
            print(json.dumps(found), flush=True)
        else:
            print(text, flush=True)
    for line in rates.lines():
        log_line(f"ds4-tp: {line}")


@contextmanager
def _answering_sigterm() -> Iterator[None]:
    """Let SIGTERM end whatever runs, a gate included, through the usual clean-up."""

    def stop(number: int, frame: object) -> None:
        del number, frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
