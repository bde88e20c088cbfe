"""ds4's rules for tensor-parallel options, in its words (DS4T-OPT-01 to -22)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_texts import text_of
from ds4proto.preflight.options_ds4d import Refusal

__all__ = ["STRAY_FLAGS", "STRAY_VALUES", "cross_check", "gid_index", "strays",
           "transport"]  # fmt: skip

TRANSPORTS: Final = ("auto", "rdma", "tcp")
_INT_MAX: Final = (1 << 31) - 1
STRAY_VALUES: Final = frozenset(
    {"--transport", "--rdma-device", "--rdma-gid-index", "--debug-hash"}
)
"""Options with a value that belong to tensor parallelism alone."""
STRAY_FLAGS: Final = frozenset({"--tensor-parallel-token-prefill"})
"""Such options without one."""


def transport(_option: str, words: str) -> str:
    """Return a transport, or refuse it with ds4's text (DS4T-OPT-10)."""
    if words not in TRANSPORTS:
        raise WrongUsage(text_of("DS4T-OPT-10", words))
    return words


def gid_index(_option: str, words: str) -> int:
    """Return a GID index, or refuse it with ds4's text (DS4T-OPT-12)."""
    plain = words.isascii() and words.isdigit() and len(words.lstrip("0")) <= 10
    if not plain or int(words) > _INT_MAX:
        raise WrongUsage(text_of("DS4T-OPT-12", words))
    return int(words)


class TensorParallel(Protocol):
    """The values that the cross checks look at."""

    role: str
    listen: tuple[str, int] | None
    coordinator: tuple[str, int] | None
    given: set[str]


def _refuse(clause: str) -> Refusal:
    return Refusal(clause, text_of(clause))


def cross_check(options: TensorParallel) -> Iterator[Refusal]:
    """Yield every rule that a command with ``--tensor-parallel`` breaks."""
    if options.role not in ("coordinator", "worker"):
        yield _refuse("DS4T-OPT-01")
    if "--layers" in options.given:
        yield _refuse("DS4T-OPT-02")
    if any(o.startswith("--dist-") or o == "--debug" for o in options.given):
        yield _refuse("DS4T-OPT-03")
    if options.role == "coordinator":
        if options.listen is None:
            yield _refuse("DS4T-OPT-04")
        if options.coordinator is not None:
            yield _refuse("DS4T-OPT-05")
    elif options.role == "worker":
        if options.coordinator is None:
            yield _refuse("DS4T-OPT-06")
        if options.listen is not None:
            yield _refuse("DS4T-OPT-07")


def strays(given: set[str]) -> Iterator[Refusal]:
    """Yield the refusal of tensor-parallel options without the mode."""
    if given & (STRAY_VALUES | STRAY_FLAGS):
        yield _refuse("DS4T-OPT-09")
