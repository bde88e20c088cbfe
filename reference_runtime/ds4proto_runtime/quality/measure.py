"""The measurements: likelihood, agreement, exact answers, activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4proto_runtime.engines.base import F32, Engine
from ds4proto_runtime.quality.wire import SlicedModel

F64 = npt.NDArray[np.float64]
ROWS_AT_ONCE = 128
CLIP = 240.0
"""Largest magnitude of the unscaled 8-bit byte."""


def log_likelihoods(
    model: SlicedModel, window: Sequence[int], first: F32 | None = None
) -> tuple[F64, list[int]]:
    """Return the negative log likelihood of tokens 1.. and the best token at each.

    Parameters
    ----------
    window : sequence of int
        Token ids; the first one is given, the rest is scored.
    first : array or None
        What ``model.first`` gave for this window, where it is known.
    """
    hidden = model.run(model.open(), window, 0, first)
    return token_losses(model.engine, hidden, window)


def token_losses(
    engine: Engine, hidden: F32, window: Sequence[int]
) -> tuple[F64, list[int]]:
    """Return losses and best tokens from the last hidden states of a window.

    Parameters
    ----------
    hidden : array
        ``[n, values]``, one row a token of the window; the last row scores nothing.
    """
    targets = np.asarray(window[1:])
    losses = np.empty(len(targets))
    best: list[int] = []
    for start in range(0, len(targets), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(targets)))
        logits = engine.heads(hidden[rows]).astype(np.float64)
        top = logits.max(-1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        losses[rows] = total - logits[np.arange(len(logits)), targets[rows]]
        best.extend(int(token) for token in logits.argmax(-1))
    return losses, best


def greedy(model: SlicedModel, prompt: Sequence[int], count: int) -> list[int]:
    """Return ``count`` tokens of greedy continuation."""
    sessions = model.open()
    found: list[int] = []
    span, pos = list(prompt), 0
    while len(found) < count:
        hidden = model.run(sessions, span, pos)
        pos += len(span)
        span = [int(np.argmax(model.engine.head(hidden[-1])))]
        found += span
    return found


def agreement(
    model: SlicedModel, prompt: Sequence[int], frozen: Sequence[int], segment: int
) -> list[tuple[int, int]]:
    """Return (agreeing, scored) per segment of a frozen continuation.

    The continuation is fed, not generated, so that one early difference does not
    decide all later ones.
    """
    whole = [*prompt, *frozen]
    hidden = model.run(model.open(), whole[:-1], 0)[len(prompt) - 1 :]
    found: list[tuple[int, int]] = []
    for start in range(0, len(frozen), segment):
        wanted = np.asarray(frozen[start : start + segment])
        logits = model.engine.heads(hidden[start : start + segment])
        same = int((logits.argmax(-1) == wanted).sum())
        found.append((same, len(wanted)))
    return found


@dataclass(slots=True)
class Boundary:
    """Running totals of what crosses one boundary."""

    values: int = 0
    largest: float = 0.0
    clipped: int = 0
    nonfinite: int = 0
    power: float = 0.0
    fourth: float = 0.0
    noise: float = 0.0
    clipped_tokens: set[int] = field(default_factory=set)

    def add(self, before: F32, behind: F32, pos: int = 0) -> None:
        """Take one span, ``[n, values]`` each."""
        x = before.astype(np.float64)
        self.values += x.size
        self.nonfinite += int((~np.isfinite(x)).sum())
        size = np.abs(x)
        over = size >= CLIP
        self.largest = max(self.largest, float(size.max(initial=0.0)))
        self.clipped += int(over.sum())
        self.clipped_tokens.update(int(t) + pos for t in np.nonzero(over.any(-1))[0])
        square = x * x
        self.power += float(square.sum())
        self.fourth += float((square * square).sum())
        self.noise += float(((behind.astype(np.float64) - x) ** 2).sum())

    def summary(self) -> dict[str, Any]:
        """Return the totals as plain numbers; SQNR in decibels."""
        mean = self.power / max(1, self.values)
        ratio = self.power / self.noise if self.noise > 0 else None
        return {
            "values": self.values,
            "max": self.largest,
            "kurtosis": self.fourth / max(1, self.values) / mean**2 if mean else None,
            "share_ge_240": self.clipped / max(1, self.values),
            "clipped": self.clipped,
            "clipped_tokens": len(self.clipped_tokens),
            "first_clipped_token": min(self.clipped_tokens, default=None),
            "nonfinite": self.nonfinite,
            "sqnr_db": None if ratio is None else 10 * float(np.log10(ratio)),
        }


def bootstrap(
    deltas: Sequence[float], seed: int, rounds: int = 2000
) -> tuple[float, float]:
    """Return the 95 % interval of the mean over resampled windows."""
    values = np.asarray(deltas, np.float64)
    draw = np.random.default_rng(seed)
    picks = draw.integers(0, len(values), (rounds, len(values)))
    means = np.sort(values[picks].mean(-1))
    low, high = int(0.025 * rounds), int(0.975 * rounds) - 1
    return float(means[low]), float(means[high])
