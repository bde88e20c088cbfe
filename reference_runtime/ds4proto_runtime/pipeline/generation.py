"""One prompt through a model: prefill, decode, and what they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from ds4proto.link.ds4d_texts import text
from ds4proto_runtime.engines.base import F32, Engine, Session
from ds4proto_runtime.pipeline.telemetry import Telemetry

REPLAY_PASSED = (
    "distributed replay check passed: logits exact match across reset/replay"
)
"""ds4's line for a replay check without a difference (see DS4D-COORD-41)."""
Progress = Callable[[int], None]


class Runs(Protocol):
    """What generation needs: a route's session, or an engine alone."""

    def prefill(self, tokens: Sequence[int], progress: Progress) -> F32:
        """Bring the session to a transcript; return the logits ``[vocab]``."""

    def step(self, token: int) -> F32:
        """Add one token; return the logits."""


class Alone:
    """A whole model in this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session: Session = engine.open()

    def prefill(self, tokens: Sequence[int], progress: Progress) -> F32:
        """Evaluate what the session does not hold yet."""
        held = self.session.tokens
        at = len(held) if list(tokens[: len(held)]) == held else 0
        if not at:
            self.engine.reset(self.session)
        cap = self.engine.shape.prefill_cap
        rows = None
        while at < len(tokens):
            span = list(tokens[at : at + cap])
            rows = self._run(span, at)
            at += len(span)
            progress(len(span))
        if rows is None:
            raise ValueError("the prompt adds no token to the session")
        return self.engine.head(rows[-1])

    def step(self, token: int) -> F32:
        """Evaluate one token."""
        return self.engine.head(self._run([token], len(self.session.tokens))[-1])

    def _run(self, span: list[int], at: int) -> F32:
        return self.engine.run(self.session, self.engine.embed(span), span, at)


class OverRoute:
    """A session over a route.

    Attributes
    ----------
    busy_s, elapsed_s : float
        Seconds that all stages together computed in the last prefill, and its own.
    """

    def __init__(self, session: Any, telemetry: Telemetry | None = None) -> None:
        self.session = session
        self._telemetry = telemetry or Telemetry()
        self.busy_s = self.elapsed_s = 0.0

    @property
    def overlap(self) -> float | None:
        """Stages that computed at once in the last prefill, on average."""
        return self.busy_s / self.elapsed_s if self.busy_s and self.elapsed_s else None

    def prefill(self, tokens: Sequence[int], progress: Progress) -> F32:
        """Bring every slice to a transcript."""
        before, started = self._telemetry.busy_s, perf_counter()
        logits: F32 = self.session.sync(tokens, progress=progress).logits
        self.elapsed_s = perf_counter() - started
        self.busy_s = self._telemetry.busy_s - before
        return logits

    def step(self, token: int) -> F32:
        """Add one token on every slice."""
        logits: F32 = self.session.eval(token).logits
        return logits


class Sampler:
    """Picks the next token: the greatest logit, or by temperature from a seed."""

    def __init__(self, temp: float, seed: int) -> None:
        self._temp = temp
        self._random = np.random.default_rng(seed)

    def pick(self, logits: F32) -> int:
        """Return a token id."""
        if self._temp == 0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self._temp
        weights = np.exp(scaled - scaled.max())
        return int(self._random.choice(len(weights), p=weights / weights.sum()))


@dataclass(slots=True)
class Generated:
    """Tokens and times of one prompt; rates in tokens a second."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return len(self.prompt) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        """Decode steps a second; the first token costs none."""
        steps = max(0, len(self.tokens) - 1)
        return steps / self.decode_s if self.decode_s else 0.0


def generate(
    runs: Runs,
    prompt: Sequence[int],
    count: int,
    sampler: Sampler,
    *,
    eos: int | None = None,
    room: int | None = None,
    progress: Progress = lambda _tokens: None,
    each: Callable[[int], None] = lambda _token: None,
) -> Generated:
    """Prefill a prompt and decode up to ``count`` tokens.

    Parameters
    ----------
    eos : int, optional
        Token that ends the text.
    room : int, optional
        Context in tokens, which ends it too.
    progress, each : callable
        Told the tokens of each prefilled chunk, and each new token.
    """
    done = Generated(list(prompt))
    started = perf_counter()
    logits = runs.prefill(prompt, progress)
    done.prefill_s = perf_counter() - started
    started = perf_counter()
    while len(done.tokens) < count:
        token = sampler.pick(logits)
        done.tokens.append(token)
        each(token)
        full = room is not None and len(prompt) + len(done.tokens) >= room
        if token == eos or len(done.tokens) == count or full:
            break
        logits = runs.step(token)
    done.decode_s = perf_counter() - started
    return done


def replay_check(
    session: Any, tokens: Sequence[int], progress: Progress
) -> tuple[str | None, float]:
    """Prefill twice with reset; compare all logits.

    Returns
    -------
    tuple
        None, or ds4's line that counts differences; seconds of the second prefill.
    """
    before: F32 = session.sync(tokens, fresh=True, progress=progress).logits
    outcome = session.sync(tokens, fresh=True, progress=progress)
    after: F32 = outcome.logits
    differing = np.flatnonzero(before.view(np.uint32) != after.view(np.uint32))
    if not len(differing):
        return None, outcome.seconds
    gaps = np.abs(before - after)
    worst = int(np.nanargmax(gaps)) if not np.isnan(gaps).all() else int(differing[0])
    told = (float(gaps[worst]), worst, float(before[worst]), float(after[worst]))
    return text("DS4D-COORD-41", len(differing), *told), outcome.seconds


__all__ = [
    "REPLAY_PASSED",
    "Alone",
    "Generated",
    "OverRoute",
    "Runs",
    "Sampler",
    "generate",
    "replay_check",
]
