"""ds4's grammar of the pipeline options, and the words in which it refuses them.

Pure: a command line in, values and texts out. ds4's parser is no getopt: options take
one or two arguments, stand in any order, and the first fault is what its user reads.
The texts are those of the clauses DS4D-OPT-01 to -32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ds4proto.codec.widths import ACTIVATION_BITS
from ds4proto.errors import WrongUsage
from ds4proto.link.ds4d_limits import MAX_PORT
from ds4proto.link.ds4d_session import MAX_WINDOW
from ds4proto.link.ds4d_texts import text

ROLES: Final = ("none", "coordinator", "worker")
MAX_COMPONENT: Final = 31
"""Characters of one side of a layer range (DS4D-OPT-04)."""
ADDRESSES: Final = {
    "--listen": ("listen", "DS4D-OPT-07", "DS4D-OPT-08"),
    "--coordinator": ("coordinator", "DS4D-OPT-09", "DS4D-OPT-10"),
}
"""Options with a host and a port: field, clause of a bad port, clause of a second."""
DISTRIBUTED: Final = frozenset(
    {
        "--layers",
        "--listen",
        "--coordinator",
        "--dist-activation-bits",
        "--dist-prefill-chunk",
        "--dist-prefill-window",
    }
)
"""What needs a role (DS4D-OPT-20)."""
_COORDINATOR_ONLY: Final = {
    "--dist-prefill-chunk": "DS4D-OPT-25",
    "--dist-prefill-window": "DS4D-OPT-26",
    "--dist-activation-bits": "DS4D-OPT-27",
}
_NUMBER: Final = re.compile(r"\s*\+?([0-9]{1,31})")


class Refusal(NamedTuple):
    """A rule that a command line breaks, and what ds4 prints about it."""

    clause: str
    text: str


def number(words: str) -> int | None:
    """Return a decimal number as C's strtoul takes one, None for anything else."""
    match = _NUMBER.fullmatch(words)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class LayerRange:
    """``A:B`` (both inclusive) or ``A:output`` (``end`` is None)."""

    start: int
    end: int | None

    @property
    def output(self) -> bool:
        """Whether the output head is part of it."""
        return self.end is None

    def last(self, n_layers: int) -> int:
        """Return the last layer, resolved."""
        return n_layers - 1 if self.end is None else self.end

    def refusals(self, n_layers: int, *, coordinator: bool) -> Iterator[Refusal]:
        """Yield why a one-shot run with this model refuses the range."""
        last = n_layers - 1
        if self.start > last:
            yield Refusal("DS4D-OPT-29", text("DS4D-OPT-29", last))
        if self.end is not None and self.end > last:
            yield Refusal("DS4D-OPT-30", text("DS4D-OPT-30", last))
        if coordinator and self.start != 0:
            yield Refusal("DS4D-OPT-31", text("DS4D-OPT-31"))

    def resolve(self, n_layers: int, *, coordinator: bool) -> range:
        """Return the layers, or refuse them with ds4's text (DS4D-OPT-29 to -31)."""
        for refusal in self.refusals(n_layers, coordinator=coordinator):
            raise WrongUsage(refusal.text)
        return range(self.start, self.last(n_layers) + 1)

    def __str__(self) -> str:
        return f"{self.start}:{'output' if self.end is None else self.end}"


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


def invalid(option: str, words: str) -> WrongUsage:
    """Return ds4's refusal of a value."""
    return WrongUsage(text("option", option, words))


def positive(option: str, words: str) -> int:
    """Return a positive number below 2**31, or refuse it with ds4's text."""
    value = number(words)
    if not value or value >= 1 << 31:
        raise invalid(option, words)
    return value


def role(_option: str, words: str) -> str:
    """Return a role, or refuse it with ds4's text (DS4D-OPT-01)."""
    if words not in ROLES:
        raise WrongUsage(text("DS4D-OPT-01", words))
    return words


def argument(option: str, words: Iterator[str]) -> str:
    """Return the next word, or refuse an option without one (DS4D-OPT-16)."""
    found = next(words, None)
    if found is None:
        raise WrongUsage(text("DS4D-OPT-16", option))
    return found


def address(
    option: str, words: Iterator[str], before: tuple[str, int] | None
) -> tuple[str, int]:
    """Return host and port behind an option (DS4D-OPT-07 to -10).

    Parameters
    ----------
    before
        What the same option said earlier; a second time is refused.
    """
    _, bad_port, twice = ADDRESSES[option]
    host = argument(option, words)
    port_words = argument(option, words)
    if before is not None:
        raise WrongUsage(text(twice))
    port = number(port_words)
    if port is None or not 1 <= port <= MAX_PORT:
        raise WrongUsage(text(bad_port, port_words))
    return host, port


class Distributed(Protocol):
    """The values that the cross checks look at."""

    role: str
    layers: LayerRange | None
    listen: tuple[str, int] | None
    coordinator: tuple[str, int] | None
    activation_bits: int | None
    prefill_window: int | None
    replay_check: bool
    given: set[str]


def cross_check(options: Distributed) -> Iterator[Refusal]:
    """Yield every rule between options that is broken, in ds4's order.

    ds4 stops at the first one.
    """
    if options.role != "coordinator" and options.replay_check:
        yield Refusal("DS4D-OPT-14", text("DS4D-OPT-14"))
    if options.role == "none":
        if options.given & DISTRIBUTED:
            yield Refusal("DS4D-OPT-20", text("DS4D-OPT-20"))
        return
    if options.layers is None:
        yield Refusal("DS4D-OPT-21", text("DS4D-OPT-21", options.role))
    if options.prefill_window is not None and options.prefill_window > MAX_WINDOW:
        yield Refusal("DS4D-OPT-12", text("DS4D-OPT-12"))
    if options.activation_bits not in (None, *ACTIVATION_BITS):
        yield Refusal("DS4D-OPT-13", text("DS4D-OPT-13"))
    if options.role == "coordinator":
        if options.listen is None:
            yield Refusal("DS4D-OPT-22", text("DS4D-OPT-22"))
        if options.coordinator is not None:
            yield Refusal("DS4D-OPT-23", text("DS4D-OPT-23"))
        return
    if options.coordinator is None:
        yield Refusal("DS4D-OPT-24", text("DS4D-OPT-24"))
    for option, clause in _COORDINATOR_ONLY.items():
        if option in options.given:
            yield Refusal(clause, text(clause))
