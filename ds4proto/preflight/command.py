"""A ds4 command line, read as ds4 reads it, with every fault and not only the first.

The programs of the family (``ds4``, ``ds4-agent``, ``ds4-server``, ``ds4-bench``) share
the distributed options. Options that preflight does not know are set aside by name:
what they do is for ds4 to say.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4d_texts import text
from ds4proto.preflight import options_ds4d as ds4d
from ds4proto.preflight import options_ds4t as ds4t
from ds4proto.preflight.options_ds4d import LayerRange, Refusal

__all__ = ["PROGRAMS", "Command", "parse_command"]

PROGRAMS: Final = ("ds4", "ds4-agent", "ds4-server", "ds4-bench")
FEATURES: Final = ("vision", "mmproj", "mtp", "dspark", "ssd-streaming")
"""Words inside option names that switch a feature on."""
BACKENDS: Final = ("--cuda", "--metal", "--rocm", "--cpu")


@dataclass(slots=True)
class Command:
    """What a command line asks for, and what is wrong with it.

    Attributes
    ----------
    refusals : list of Refusal
        In the order in which ds4 meets them; it prints the first and ends.
    unknown : list of str
        Options that were set aside.
    """

    program: str = ""
    env: dict[str, str] = field(default_factory=dict)
    role: str = "none"
    tensor_parallel: bool = False
    layers: LayerRange | None = None
    listen: tuple[str, int] | None = None
    coordinator: tuple[str, int] | None = None
    activation_bits: int | None = None
    prefill_chunk: int | None = None
    prefill_window: int | None = None
    replay_check: bool = False
    debug: bool = False
    local_decode: bool = False
    transport: str = "auto"
    rdma_device: str | None = None
    rdma_gid_index: int | None = None
    debug_hash: str | None = None
    token_prefill: bool = False
    ctx: int | None = None
    model: str | None = None
    n_predict: int | None = None
    backend: str | None = None
    features: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    refusals: list[Refusal] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def bits(self) -> int:
        """Width of hidden state on the wire."""
        return self.activation_bits or 32

    @property
    def prints(self) -> str:
        """What ds4 prints before it ends, empty where it starts."""
        return self.refusals[0].text if self.refusals else ""


Taker = Callable[[str, str], Any]


def _word(_option: str, words: str) -> str:
    return words


def _count(option: str, words: str) -> int:
    value = ds4d.number(words)
    if value is None:
        raise ds4d.invalid(option, words)
    return value


_VALUES: Final[dict[str, tuple[str, Taker]]] = {
    "--role": ("role", ds4d.role),
    "--layers": ("layers", lambda _option, words: ds4d.layer_range(words)),
    "--dist-activation-bits": ("activation_bits", ds4d.positive),
    "--dist-prefill-chunk": ("prefill_chunk", ds4d.positive),
    "--dist-prefill-window": ("prefill_window", ds4d.positive),
    "--transport": ("transport", ds4t.transport),
    "--rdma-device": ("rdma_device", _word),
    "--rdma-gid-index": ("rdma_gid_index", ds4t.gid_index),
    "--debug-hash": ("debug_hash", _word),
    "--ctx": ("ctx", ds4d.positive),
    "-c": ("ctx", ds4d.positive),
    "--model": ("model", _word),
    "-m": ("model", _word),
    "--tokens": ("n_predict", _count),
    "-n": ("n_predict", _count),
}
_FLAGS: Final = {
    "--tensor-parallel": "tensor_parallel",
    "--tensor-parallel-token-prefill": "token_prefill",
    "--dist-replay-check": "replay_check",
    "--debug": "debug",
    "--local-decode": "local_decode",
}


def parse_command(words: str | Sequence[str]) -> Command:
    """Read a command line; nothing is raised, faults stand in ``refusals``.

    Parameters
    ----------
    words : str or sequence of str
        As typed in a shell, or split already. Leading ``NAME=VALUE`` words, and
        ``env``, are the environment.

    Raises
    ------
    WrongUsage
        Where the quotes of a text do not match.
    """
    if isinstance(words, str):
        try:
            words = shlex.split(words)
        except ValueError as error:
            raise WrongUsage(f"cannot split the command {words!r}: {error}") from None
    command = Command()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            command.env[name] = value
        elif word != "env":
            command.program = PurePosixPath(word).name
            break
    for option in rest:
        _take(command, option, rest)
    if command.tensor_parallel:
        # TP takes its own word for a role that is none of the two
        command.refusals += ds4t.cross_check(command)
    else:
        command.refusals += ds4d.cross_check(command)
        command.refusals += _local_decode(command)
        command.refusals += ds4t.strays(command.given)
    return command


def _local_decode(command: Command) -> Iterator[Refusal]:
    """Yield what a build of the local-decode dialect says of its own option."""
    if not command.local_decode:
        return
    if command.role != "worker":
        yield Refusal("DS4D-OPT-32", text("DS4D-OPT-32"))
    elif command.layers is not None and not command.layers.output:
        yield Refusal("DS4D-OPT-32", text("local-decode-layers"))


def _take(command: Command, option: str, rest: Iterator[str]) -> None:
    if not option.startswith("-"):
        command.unknown.append(option)
        return
    first = option not in command.given
    command.given.add(option)
    try:
        if option in _FLAGS:
            setattr(command, _FLAGS[option], True)
        elif option in ds4d.ADDRESSES:
            name, *_ = ds4d.ADDRESSES[option]
            value = ds4d.address(option, rest, getattr(command, name))
            setattr(command, name, value)
        elif option in _VALUES:
            name, take = _VALUES[option]
            setattr(command, name, take(option, ds4d.argument(option, rest)))
        elif option in BACKENDS:
            command.backend = option.removeprefix("--")
        else:
            _set_aside(command, option)
    except WrongUsage as error:
        clause = _clause(option) if first else "option"
        command.refusals.append(Refusal(clause, str(error)))


def _set_aside(command: Command, option: str) -> None:
    found = [feature for feature in FEATURES if feature in option]
    if found:
        command.features.add("vision" if found[0] == "mmproj" else found[0])
    else:
        command.unknown.append(option)


_CLAUSES: Final = {
    "--role": "DS4D-OPT-01",
    "--layers": "DS4D-OPT-02",
    "--listen": "DS4D-OPT-07",
    "--coordinator": "DS4D-OPT-09",
    "--dist-prefill-chunk": "DS4D-OPT-11",
    "--dist-prefill-window": "DS4D-OPT-11",
    "--dist-activation-bits": "DS4D-OPT-11",
    "--transport": "DS4T-OPT-10",
    "--rdma-gid-index": "DS4T-OPT-12",
}


def _clause(option: str) -> str:
    return _CLAUSES.get(option, "DS4D-OPT-16")
