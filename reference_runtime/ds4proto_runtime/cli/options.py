"""The options of ``ds4proto run``: ds4's grammar, rules and texts, and a few more.

ds4's own parser is no getopt: options take one or two arguments, stand in any order,
and the first fault is what the user reads. The texts are those of the clauses
DS4D-OPT-01 to -32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ds4proto.codec.base import PROFILES
from ds4proto.codec.widths import ACTIVATION_BITS
from ds4proto.errors import WrongUsage
from ds4proto.link.ds4d_limits import MAX_PORT
from ds4proto.link.ds4d_session import MAX_WINDOW
from ds4proto.link.ds4d_texts import text
from ds4proto_runtime.pipeline.settings import number

ROLES: Final = ("none", "coordinator", "worker")
ENGINES: Final = ("toy", "decoder", "deepseek_v4")
MAX_COMPONENT: Final = 31
"""Characters of one side of a layer range (DS4D-OPT-04)."""


@dataclass(frozen=True, slots=True)
class LayerRange:
    """``A:B`` (both inclusive) or ``A:output`` (``end`` is None)."""

    start: int
    end: int | None

    @property
    def output(self) -> bool:
        """Whether the output head is part of it."""
        return self.end is None

    def resolve(self, n_layers: int, *, coordinator: bool) -> range:
        """Return the layers, or refuse them with ds4's text (DS4D-OPT-29 to -31)."""
        last = n_layers - 1
        if self.start > last:
            raise WrongUsage(text("DS4D-OPT-29", last))
        if self.end is not None and self.end > last:
            raise WrongUsage(text("DS4D-OPT-30", last))
        if coordinator and self.start != 0:
            raise WrongUsage(text("DS4D-OPT-31"))
        return range(self.start, (last if self.end is None else self.end) + 1)


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
    save: str | None = None
    load: str | None = None
    local_decode: bool = False
    as_json: bool = False
    given: set[str] = field(default_factory=set)

    @property
    def bits(self) -> int:
        """Width of hidden state on the wire."""
        return self.activation_bits or 32


def layer_range(words: str) -> LayerRange:
    """Return a ``--layers`` text (DS4D-OPT-02 to -06).

    Raises
    ------
    WrongUsage
        With ds4's text.
    """
    if words.count(":") > 1:
        raise WrongUsage(text("DS4D-OPT-03", words))
    start, colon, end = words.partition(":")
    if not colon or not start or not end:
        raise WrongUsage(text("DS4D-OPT-02", words))
    first = _component(start)
    if first is None:
        raise WrongUsage(text("DS4D-OPT-04", words, words))
    if end == "output":
        return LayerRange(first, None)
    last = _component(end)
    if last is None:
        raise WrongUsage(text("DS4D-OPT-05", words, words))
    if last < first:
        raise WrongUsage(text("DS4D-OPT-06", words, words))
    return LayerRange(first, last)


def _component(words: str) -> int | None:
    value = number(words) if len(words) <= MAX_COMPONENT else None
    return value if value is not None and value < 1 << 32 else None


def _invalid(option: str, words: str) -> WrongUsage:
    return WrongUsage(text("option", option, words))


def _positive(option: str, words: str) -> int:
    value = number(words)
    if not value or value >= 1 << 31:
        raise _invalid(option, words)
    return value


def _role(_option: str, words: str) -> str:
    if words not in ROLES:
        raise WrongUsage(text("DS4D-OPT-01", words))
    return words


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
        raise _invalid(option, words)
    return value


def _real(option: str, words: str) -> float:
    try:
        value = float(words)
    except ValueError:
        raise _invalid(option, words) from None
    if not 0 <= value < float("inf"):
        raise _invalid(option, words)
    return value


def _seconds(option: str, words: str) -> float:
    from ds4proto.cli._options import parse_duration

    try:
        return parse_duration(words)
    except ValueError:
        raise _invalid(option, words) from None


def _words(_option: str, words: str) -> str:
    return words


Taker = Callable[[str, str], Any]
VALUES: Final[dict[str, tuple[str, Taker]]] = {
    "--role": ("role", _role),
    "--layers": ("layers", lambda _option, words: layer_range(words)),
    "--dist-activation-bits": ("activation_bits", _positive),
    "--dist-prefill-chunk": ("prefill_chunk", _positive),
    "--dist-prefill-window": ("prefill_window", _positive),
    "--ctx": ("ctx", _positive),
    "-c": ("ctx", _positive),
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
    "--save": ("save", _words),
    "--load": ("load", _words),
}
"""Options with one argument: the field, and what takes the argument."""
FLAGS: Final = {
    "--dist-replay-check": "replay_check",
    "--debug": "debug",
    "--local-decode": "local_decode",
    "--json": "as_json",
}
ADDRESSES: Final = {
    "--listen": ("listen", "DS4D-OPT-07", "DS4D-OPT-08"),
    "--coordinator": ("coordinator", "DS4D-OPT-09", "DS4D-OPT-10"),
}
"""Options with a host and a port: field, clause of a bad port, clause of a second."""
DISTRIBUTED: Final = (
    "--layers",
    "--listen",
    "--coordinator",
    "--dist-activation-bits",
    "--dist-prefill-chunk",
    "--dist-prefill-window",
)
"""What needs a role (DS4D-OPT-20)."""
_COORDINATOR_ONLY: Final = {
    "--dist-prefill-chunk": "DS4D-OPT-25",
    "--dist-prefill-window": "DS4D-OPT-26",
    "--dist-activation-bits": "DS4D-OPT-27",
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
            _take_address(options, option, words)
        elif option in VALUES:
            name, take = VALUES[option]
            setattr(options, name, take(option, _argument(option, words)))
        else:
            raise WrongUsage(f"unknown option: {option} (see ds4proto run --help)")
    _cross_check(options)
    return options


def _argument(option: str, words: Iterator[str]) -> str:
    found = next(words, None)
    if found is None:
        raise WrongUsage(text("DS4D-OPT-16", option))
    return found


def _take_address(options: RunOptions, option: str, words: Iterator[str]) -> None:
    name, bad_port, twice = ADDRESSES[option]
    host = _argument(option, words)
    port_words = _argument(option, words)
    if getattr(options, name) is not None:
        raise WrongUsage(text(twice))
    port = number(port_words)
    if port is None or not 1 <= port <= MAX_PORT:
        raise WrongUsage(text(bad_port, port_words))
    setattr(options, name, (host, port))


def _cross_check(options: RunOptions) -> None:
    role = options.role
    if role != "coordinator" and options.replay_check:
        raise WrongUsage(text("DS4D-OPT-14"))
    if role == "none":
        if options.given & set(DISTRIBUTED):
            raise WrongUsage(text("DS4D-OPT-20"))
        if options.local_decode:
            raise WrongUsage("--local-decode requires --role coordinator")
        return
    if options.layers is None:
        raise WrongUsage(text("DS4D-OPT-21", role))
    if options.prefill_window is not None and options.prefill_window > MAX_WINDOW:
        raise WrongUsage(text("DS4D-OPT-12"))
    if options.activation_bits not in (None, *ACTIVATION_BITS):
        raise WrongUsage(text("DS4D-OPT-13"))
    if role == "coordinator":
        if options.listen is None:
            raise WrongUsage(text("DS4D-OPT-22"))
        if options.coordinator is not None:
            raise WrongUsage(text("DS4D-OPT-23"))
        return
    if options.coordinator is None:
        raise WrongUsage(text("DS4D-OPT-24"))
    for option, clause in _COORDINATOR_ONLY.items():
        if option in options.given:
            raise WrongUsage(text(clause))
    if options.local_decode and not options.layers.output:
        raise WrongUsage("--local-decode requires --layers N:output")
