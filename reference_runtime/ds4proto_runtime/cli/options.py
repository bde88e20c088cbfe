"""The options of ``ds4proto run``: ds4's grammar, rules and texts, and a few more.

ds4's own parser is no getopt: options take one or two arguments, stand in any order,
and the first fault is what the user reads. The texts are those of the clauses
DS4D-OPT-01 to -32; options of a tensor-parallel pair are refused with that of
DS4T-OPT-09.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.codec.base import PROFILES
from ds4proto.errors import WrongUsage
from ds4proto.preflight.options_ds4d import (
    ADDRESSES,
    LayerRange,
    address,
    argument,
    cross_check,
    invalid,
    layer_range,
    number,
    positive,
    role,
)
from ds4proto.preflight.options_ds4t import STRAY_FLAGS, STRAY_VALUES, strays
from ds4proto.schema.ds4d_private import DIALECT as PRIVATE_DIALECT
from ds4proto.schema.ds4d_private import FORMAT_IDS

ENGINES: Final = ("toy", "decoder", "deepseek_v4")
DIALECTS: Final = ("upstream", PRIVATE_DIALECT)


@dataclass(slots=True)
class RunOptions:
    """What a command line asks for."""

    role: str = "none"
    layers: LayerRange | None = None
    listen: tuple[str, int] | None = None
    coordinator: tuple[str, int] | None = None
    activation_bits: int | None = None
    prefill_chunk: int | None = None
    prefill_window: int | None = None
    replay_check: bool = False
    debug: bool = False
    ctx: int | None = None
    model: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None
    n_predict: int = 32
    temp: float = 0.0
    seed: int = 1
    engine: str | None = None
    device: str = "cpu"
    profile: str = "strict"
    trace: str | None = None
    route_wait: float = 60.0
    rejoin: float = 15.0
    dial_limit: float | None = None
    link: float | None = None
    save: str | None = None
    load: str | None = None
    local_decode: bool = False
    dialect: str = "upstream"
    wire_format: str | None = None
    as_json: bool = False
    given: set[str] = field(default_factory=set)

    @property
    def bits(self) -> int:
        """Width word of hidden state on the wire."""
        if self.wire_format is not None:
            return FORMAT_IDS[self.wire_format]
        return self.activation_bits or 32


def _one_of(choices: Sequence[str]) -> Callable[[str, str], str]:
    def take(option: str, words: str) -> str:
        if words not in choices:
            raise WrongUsage(
                f"invalid value for {option}: {words} (choose {', '.join(choices)})"
            )
        return words

    return take


def _count(option: str, words: str) -> int:
    value = number(words)
    if value is None:
        raise invalid(option, words)
    return value


def _real(option: str, words: str) -> float:
    try:
        value = float(words)
    except ValueError:
        raise invalid(option, words) from None
    if not 0 <= value < float("inf"):
        raise invalid(option, words)
    return value


def _seconds(option: str, words: str) -> float:
    from ds4proto.cli._options import parse_duration

    try:
        return parse_duration(words)
    except ValueError:
        raise invalid(option, words) from None


def _rate(option: str, words: str) -> float:
    from ds4proto_runtime.handover import quantity

    try:
        value = quantity(words)
    except ValueError as error:
        raise WrongUsage(f"invalid value for {option}: {error}") from None
    if value <= 0:
        raise invalid(option, words)
    return value


def _words(_option: str, words: str) -> str:
    return words


Taker = Callable[[str, str], Any]
VALUES: Final[dict[str, tuple[str, Taker]]] = {
    "--role": ("role", role),
    "--layers": ("layers", lambda _option, words: layer_range(words)),
    "--dist-activation-bits": ("activation_bits", positive),
    "--dist-prefill-chunk": ("prefill_chunk", positive),
    "--dist-prefill-window": ("prefill_window", positive),
    "--ctx": ("ctx", positive),
    "-c": ("ctx", positive),
    "--model": ("model", _words),
    "-m": ("model", _words),
    "--prompt": ("prompt", _words),
    "-p": ("prompt", _words),
    "--prompt-file": ("prompt_file", _words),
    "--tokens": ("n_predict", _count),
    "-n": ("n_predict", _count),
    "--temp": ("temp", _real),
    "--seed": ("seed", _count),
    "--engine": ("engine", _one_of(ENGINES)),
    "--device": ("device", _words),
    "--numeric-profile": ("profile", _one_of(PROFILES)),
    "--trace": ("trace", _words),
    "--route-wait": ("route_wait", _seconds),
    "--rejoin": ("rejoin", _seconds),
    "--link": ("link", _rate),
    "--dial-limit": ("dial_limit", _seconds),
    "--save": ("save", _words),
    "--load": ("load", _words),
    "--dialect": ("dialect", _one_of(DIALECTS)),
    "--wire-format": ("wire_format", _one_of(tuple(FORMAT_IDS))),
}
"""Options with one argument: the field, and what takes the argument."""
FLAGS: Final = {
    "--dist-replay-check": "replay_check",
    "--debug": "debug",
    "--local-decode": "local_decode",
    "--json": "as_json",
}


def parse_options(arguments: Sequence[str]) -> RunOptions:
    """Return the options of a command line, cross-checked.

    Raises
    ------
    WrongUsage
        With ds4's text where it has one.
    """
    options = RunOptions()
    words = iter(arguments)
    for option in words:
        options.given.add(option)
        if option in FLAGS:
            setattr(options, FLAGS[option], True)
        elif option in ADDRESSES:
            name = ADDRESSES[option][0]
            value = address(option, words, getattr(options, name))
            setattr(options, name, value)
        elif option in VALUES:
            name, take = VALUES[option]
            setattr(options, name, take(option, argument(option, words)))
        elif option in STRAY_VALUES:
            argument(option, words)
        elif option not in STRAY_FLAGS:
            raise WrongUsage(f"unknown option: {option} (see ds4proto run --help)")
    _cross_check(options)
    return options


def _cross_check(options: RunOptions) -> None:
    for refusal in (*cross_check(options), *strays(options.given)):
        raise WrongUsage(refusal.text)
    if options.wire_format is not None:
        if options.dialect != PRIVATE_DIALECT:
            raise WrongUsage(f"--wire-format requires --dialect {PRIVATE_DIALECT}")
        if options.role != "coordinator":
            raise WrongUsage("--wire-format requires --role coordinator")
        if options.activation_bits is not None:
            raise WrongUsage("give --wire-format or --dist-activation-bits, not both")
    if options.dial_limit is not None and options.role != "worker":
        raise WrongUsage("--dial-limit requires --role worker")
    if options.link is not None and not options.local_decode:
        raise WrongUsage("--link predicts a hand-over: give --local-decode with it")
    if options.role == "none":
        if options.trace is not None:
            raise WrongUsage(
                "--trace records connections, and one process alone has none: give"
                " --role coordinator or --role worker"
            )
        if options.local_decode:
            raise WrongUsage("--local-decode requires --role coordinator")
        if "--dialect" in options.given:
            raise WrongUsage("--dialect requires --role coordinator or --role worker")
        return
    layers = options.layers
    worker = options.role == "worker"
    if worker and options.local_decode and layers is not None and not layers.output:
        raise WrongUsage("--local-decode requires --layers N:output")
