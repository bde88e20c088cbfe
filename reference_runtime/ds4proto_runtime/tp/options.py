"""The options of ``ds4proto run --tensor-parallel``: ds4's rules and texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.cli._options import parse_duration
from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_prefill import c_integer
from ds4proto.link.ds4t_rules import RULES
from ds4proto.link.ds4t_texts import text_of
from ds4proto.preflight.options_ds4t import gid_index, transport
from ds4proto_runtime.tp.toy import ToyShape

MAX_PORT: Final = 65535
INT_MAX: Final = (1 << 31) - 1
V41_BATCH: Final = 5
"""Ready sessions from which a CUDA V4.1 pair batches; fewer run in order."""


@dataclass(slots=True)
class TpRunOptions:
    """What a command line asks for; the fields are named as the options."""

    role: str | None = None
    listen: tuple[str, int] | None = None
    coordinator: tuple[str, int] | None = None
    transport: str = "auto"
    rdma_device: str | None = None
    rdma_gid_index: int | None = None
    rdma_first_sender: str = "coordinator"
    dialect: str = "v14"
    ctx: int = 256
    engine: str | None = None
    model: str | None = None
    device: str = "cpu"
    toy: ToyShape = field(default_factory=ToyShape)
    prompt: str | None = None
    prompt_file: str | None = None
    n_predict: int = 32
    temp: float = 0.0
    seed: int = 1
    script: str | None = None
    draft: int = 0
    batched_session: int = 1
    batch_from: int | None = None
    prefill_chunk: int | None = None
    token_prefill: bool = False
    debug_hash: int = 0
    gate_checksums: bool = False
    gate_timeout: float | None = None
    gate_total: float = 60.0
    answer_wait: float = 600.0
    accept_wait: float = 3600.0
    hello_wait: float = 30.0
    idle_wait: float | None = None
    spin: str = "auto"
    socket_buffers: int | None = None
    save: str | None = None
    load: str | None = None
    as_json: bool = False
    fault: str | None = None


def _word(_option: str, words: str) -> str:
    return words


def _number(option: str, words: str, low: int = 0, high: int = INT_MAX) -> int:
    if not words.isdecimal() or not low <= int(words) <= high:
        raise WrongUsage(f"invalid value for {option}: {words} (from {low} to {high})")
    return int(words)


def _real(option: str, words: str) -> float:
    try:
        value = float(words)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise WrongUsage(f"invalid value for {option}: {words} (0 or more)")
    return value


def _positive(option: str, words: str) -> int:
    return _number(option, words, 1)


def _seconds(option: str, words: str) -> float:
    try:
        return parse_duration(words)
    except ValueError as error:
        raise WrongUsage(f"invalid value for {option}: {error}") from None


def _role(_option: str, words: str) -> str:
    if words not in ("coordinator", "worker"):
        raise WrongUsage(text_of("DS4T-OPT-22"))
    return words


def _dialect(_option: str, words: str) -> str:
    from ds4proto.link.ds4t_rules import rules_of

    try:
        return rules_of(words).name
    except KeyError as error:
        raise WrongUsage(str(error.args[0])) from None


def _choice(*names: str) -> Any:
    def take(option: str, words: str) -> str:
        if words not in names:
            known = ", ".join(names)
            raise WrongUsage(f"invalid value for {option}: {words} (choose {known})")
        return words

    return take


def toy_shape(words: str) -> ToyShape:
    """Return a toy model from ``n_layer=4,n_embd=64``; ``mask`` is one number.

    Raises
    ------
    WrongUsage
        For a name or a value that is not one.
    """
    known = ToyShape.__dataclass_fields__
    values: dict[str, Any] = {}
    for part in words.split(","):
        name, equals, value = part.partition("=")
        base = 16 if value.lower().startswith("0x") else 10
        try:
            number = int(value, base)
        except ValueError:
            number = -1
        if name not in known or not equals or not 0 <= number < 1 << 192:
            raise WrongUsage(
                f"--toy {part!r}: expected NAME=NUMBER with one of {', '.join(known)}"
            )
        if name == "mask":
            ones = (1 << 64) - 1
            values[name] = (number & ones, number >> 64 & ones, number >> 128)
        else:
            values[name] = bool(number) if name in ("null", "split") else number
    return ToyShape(**values)


VALUES: Final[dict[str, tuple[str, Any]]] = {
    "--role": ("role", _role),
    "--transport": ("transport", transport),
    "--rdma-device": ("rdma_device", _word),
    "--rdma-gid-index": ("rdma_gid_index", gid_index),
    "--rdma-first-sender": (
        "rdma_first_sender",
        _choice("coordinator", "worker"),
    ),
    "--dialect": ("dialect", _dialect),
    "--ctx": ("ctx", _positive),
    "-c": ("ctx", _positive),
    "--engine": ("engine", _choice("toy", "decoder", "deepseek_v4")),
    "--model": ("model", _word),
    "-m": ("model", _word),
    "--device": ("device", _word),
    "--toy": ("toy", lambda _option, words: toy_shape(words)),
    "--prompt": ("prompt", _word),
    "-p": ("prompt", _word),
    "--prompt-file": ("prompt_file", _word),
    "--tokens": ("n_predict", _number),
    "-n": ("n_predict", _number),
    "--temp": ("temp", _real),
    "--seed": ("seed", _number),
    "--script": ("script", _word),
    "--draft": ("draft", lambda o, w: _number(o, w, 0, 16)),
    "--batched-session": ("batched_session", _positive),
    "--batch-from": ("batch_from", lambda o, w: _number(o, w, 2)),
    "--prefill-chunk": ("prefill_chunk", lambda _o, w: c_integer(w)),
    "--debug-hash": ("debug_hash", _number),
    "--gate-timeout": ("gate_timeout", _seconds),
    "--gate-total": ("gate_total", _seconds),
    "--answer-wait": ("answer_wait", _seconds),
    "--accept-wait": ("accept_wait", _seconds),
    "--hello-wait": ("hello_wait", _seconds),
    "--idle-wait": ("idle_wait", _seconds),
    "--spin": ("spin", _choice("auto", "on", "off")),
    "--socket-buffers": ("socket_buffers", _positive),
    "--save": ("save", _word),
    "--load": ("load", _word),
    "--fault": ("fault", _word),
}
FLAGS: Final = {
    "--tensor-parallel-token-prefill": "token_prefill",
    "--gate-checksums": "gate_checksums",
    "--json": "as_json",
}
_PIPELINE: Final = ("--debug", "--local-decode", "--route-wait", "--rejoin")


def parse_options(arguments: Sequence[str]) -> TpRunOptions:
    """Return the options, cross-checked in ds4's words (DS4T-OPT-01 to -22).

    Raises
    ------
    WrongUsage
        With ds4's text where it has one.
    """
    options = TpRunOptions()
    words = iter(arguments)
    seen: set[str] = set()
    for option in words:
        if option == "--layers":
            raise WrongUsage(text_of("DS4T-OPT-02"))
        if option.startswith("--dist-") or option in _PIPELINE:
            raise WrongUsage(text_of("DS4T-OPT-03"))
        if option == "--role" and option in seen:
            raise WrongUsage(text_of("DS4T-OPT-08"))
        seen.add(option)
        if option in FLAGS:
            setattr(options, FLAGS[option], True)
        elif option in ("--listen", "--coordinator"):
            address = _address(option, words)
            setattr(options, option.removeprefix("--"), address)
        elif option in VALUES:
            name, take = VALUES[option]
            setattr(options, name, take(option, _argument(option, words)))
        else:
            raise WrongUsage(
                f"unknown option: {option} (see ds4proto run --tensor-parallel --help)"
            )
    _cross_check(options)
    return options


def _argument(option: str, words: Iterator[str]) -> str:
    found = next(words, None)
    if found is None:
        raise WrongUsage(text_of("DS4T-OPT-14", option))
    return found


def _address(option: str, words: Iterator[str]) -> tuple[str, int]:
    host = _argument(option, words)
    port = _argument(option, words)
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise WrongUsage(f"{option} {host} {port}: expected a port up to {MAX_PORT}")
    return host, int(port)


def _cross_check(options: TpRunOptions) -> None:
    if options.temp and options.draft:
        raise WrongUsage("--draft checks the greatest logit: give --temp 0 with it")
    if options.role is None:
        raise WrongUsage(text_of("DS4T-OPT-01"))
    if options.role == "coordinator":
        if options.listen is None:
            raise WrongUsage(text_of("DS4T-OPT-04"))
        if options.coordinator is not None:
            raise WrongUsage(text_of("DS4T-OPT-05"))
        return
    if options.coordinator is None:
        raise WrongUsage(text_of("DS4T-OPT-06"))
    if options.listen is not None:
        raise WrongUsage(text_of("DS4T-OPT-07"))


HELP: Final = f"""Usage: ds4proto run --tensor-parallel --role coordinator|worker ...

Two ranks run one model in lockstep. The coordinator (leader, rank 0) listens and reads
the prompt; the worker (rank 1) dials it, in whatever order they start.

Connection:
  --listen HOST PORT         coordinator: where the worker dials
  --coordinator HOST PORT    worker: whom to dial
  --transport auto|tcp|rdma  default auto: RDMA where both sides have it
  --rdma-device NAME, --rdma-gid-index N
  --rdma-first-sender coordinator|worker
                             v7 and v9w over RDMA, alike on both ranks: who speaks
                             first; worker where that is somebody else's build
  --dialect NAME             {", ".join(RULES)}; default v14
  --gate-timeout TIME        longest standstill of a gate; default: the dialect's
  --gate-total TIME          longest row or batch gate in all (60s)
  --accept-wait TIME, --hello-wait TIME, --answer-wait TIME, --idle-wait TIME
  --spin auto|on|off         spin briefly before a wait: auto measures what pays
  --socket-buffers BYTES     ask the kernel for so much
Model and text:
  --engine toy|decoder|deepseek_v4, -m FILE, --device cpu|cuda
  --toy NAME=N,...           shape of the toy model, n_layer=4,n_embd=64 for instance
  -p TEXT, --prompt-file FILE, -n N, --ctx N, --temp F, --seed N, --json
  --batched-session N        N prompts (lines of the file) side by side
  --batch-from N             EVAL_BATCH from N ready sessions up, fewer run in order
                             (default 2; V4.1: {V41_BATCH})
  --draft N                  speculate with up to N drafts a block
  --script OPS               run operations, create;sync:1:1-10;eval:1:5,6;destroy:1
  --save FILE, --load FILE   tokens of a session; a load is a SYNC on both ranks
Must be equal on both ranks, and no hello shows it:
  --prefill-chunk N, --tensor-parallel-token-prefill, DS4_* variables
Diagnosis:
  --debug-hash N             print a hash of every N-th gate's sum on both ranks
  --gate-checksums           print checksums of partials: enqueued, sent, received

Examples, each in a terminal of its own:
  ds4proto run --tensor-parallel --role coordinator --listen 127.0.0.1 5000 -p "1,2,3"
  ds4proto run --tensor-parallel --role worker --coordinator 127.0.0.1 5000

The wire has no authentication and no encryption: keep it on a private network.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 peer lost.
"""
