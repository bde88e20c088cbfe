"""Text from a pair: many sessions, batches, and drafts checked in blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY
from ds4proto.link.ds4t_leader_frames import MAX_PREFIX
from ds4proto.schema.ds4t_gates import MAX_ROWS
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.kv import write_atomic
from ds4proto_runtime.tp.leader import TpLeader

Verdict = tuple[int, int]


class Pair(Protocol):
    """The part of a leader that generation needs."""

    def eval(self, known: int, token: int) -> F32:
        """Decode one token."""

    def batch(self, items: Sequence[tuple[int, int]]) -> list[F32]:
        """Decode one token in each session."""


@dataclass(slots=True)
class Stream:
    """One session that generates.

    Attributes
    ----------
    known : int
        Session id.
    tokens : list of int
        Prompt and what came after it.
    logits : ndarray
        Behind the last token.
    left : int
        Tokens still to generate.
    made : list of int
    pick : callable
        Takes logits, returns a token; default: the greatest.
    """

    known: int
    tokens: list[int]
    logits: F32
    left: int
    made: list[int] = field(default_factory=list)
    pick: Callable[[F32], int] = lambda logits: int(np.argmax(logits))

    def take(self) -> int:
        """Return the next token and note it."""
        token = self.pick(self.logits)
        self.tokens.append(token)
        self.made.append(token)
        self.left -= 1
        return token


@dataclass(slots=True)
class Rates:
    """Tokens and seconds of both phases, all sessions together."""

    prompt: int = 0
    prompt_s: float = 0.0
    steps: int = 0
    steps_s: float = 0.0

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Note one prefill."""
        self.prompt += tokens
        self.prompt_s += seconds

    def decoded(self, steps: int, seconds: float) -> None:
        """Note some decode steps; the first token of a text costs none."""
        self.steps += steps
        self.steps_s += seconds

    def figures(self) -> dict[str, float]:
        """Return tokens a second of both phases, for JSON."""
        return {
            "prefill_tokens_per_s": _rate(self.prompt, self.prompt_s),
            "decode_tokens_per_s": _rate(self.steps, self.steps_s),
        }

    def lines(self) -> list[str]:
        """Return them as lines to print."""
        prefill, decode = self.figures().values()
        return [
            f"prefill: {self.prompt} tokens in {self.prompt_s:.2f} s,"
            f" {prefill:.1f} tokens/s",
            f"decode: {self.steps} steps in {self.steps_s:.2f} s,"
            f" {decode:.1f} tokens/s",
        ]


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


def decode_round(
    pair: Pair, items: Sequence[tuple[int, int]], batch_from: int | None
) -> list[F32]:
    """Decode one token in each ready session: as one batch, or in order.

    Parameters
    ----------
    items : sequence of (session id, token)
    batch_from : int or None
        Ready sessions from which EVAL_BATCH is sent; None: never. CUDA V4.1 servers
        batch from five up (wire facts, chapter on batches).
    """
    if batch_from is not None and len(items) >= max(2, batch_from):
        return pair.batch(items)
    return [pair.eval(known, token) for known, token in items]


def run_streams(
    pair: Pair, streams: Sequence[Stream], batch_from: int | None, eos: int | None
) -> None:
    """Generate in all streams until each has what it wants."""
    ready = [s for s in streams if s.left > 0]
    while ready:
        items = [(s.known, s.take()) for s in ready]
        going = [s.left > 0 and s.made[-1] != eos for s in ready]
        kept = [item for item, on in zip(items, going, strict=True) if on]
        ready = [s for s, on in zip(ready, going, strict=True) if on]
        rows = decode_round(pair, kept, batch_from) if kept else []
        for stream, logits in zip(ready, rows, strict=True):
            stream.logits = logits


def propose(tokens: Sequence[int], count: int) -> list[int]:
    """Return drafts: what followed the last earlier occurrence of the last token."""
    if not tokens or count < 1:
        return []
    last = tokens[-1]
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == last:
            return list(tokens[at + 1 : at + 1 + count])
    return []


def verdict_on(
    drafts: Sequence[int],
    before: F32,
    rows: Sequence[F32],
    *,
    prefix_commit: bool,
) -> Verdict:
    """Return the greedy verdict on a block.

    Parameters
    ----------
    before : ndarray
        Logits in front of the first draft.
    rows : sequence of ndarray
        Logits behind each draft.
    prefix_commit : bool
        The dialect has mode 2 (a prefix of at most four).
    """
    accepted = 0
    for draft, logits in zip(drafts, (before, *rows), strict=False):
        if int(np.argmax(logits)) != draft:
            break
        accepted += 1
    if accepted == len(drafts):
        return KEEP_ALL, 0
    if accepted and accepted <= MAX_PREFIX and prefix_commit:
        return KEEP_PREFIX, accepted
    return REPLAY, accepted


def speculate(
    pair: TpLeader, stream: Stream, drafts_at_once: int, ctx: int, eos: int | None
) -> None:
    """Generate greedily in one stream with draft blocks of up to 8 rows."""
    limit = min(drafts_at_once, MAX_ROWS)
    while stream.left > 0:
        token = stream.take()
        if token == eos or not stream.left:
            return
        stream.logits = pair.eval(stream.known, token)
        room = ctx - len(stream.tokens)
        count = min(limit, stream.left, room)
        drafts = propose(stream.tokens, count)
        if eos in drafts:
            drafts = drafts[: drafts.index(eos)]
        if drafts:
            _block(pair, stream, drafts)


def _block(leader: TpLeader, stream: Stream, drafts: list[int]) -> None:
    before = stream.logits
    verdicts: list[Verdict] = []
    prefix = leader.settings.rules.prefix_commit

    def judge(rows: list[F32]) -> Verdict:
        verdicts.append(verdict_on(drafts, before, rows, prefix_commit=prefix))
        return verdicts[0]

    rows, last = leader.verify(stream.known, drafts, judge)
    mode, count = verdicts[0]
    kept = len(drafts) if mode == KEEP_ALL else count
    stream.tokens += drafts[:kept]
    stream.made += drafts[:kept]
    stream.left -= kept
    if last is not None:
        stream.logits = last
    elif kept:
        stream.logits = rows[kept - 1]


def save_tokens(path: Path, tokens: Sequence[int]) -> None:
    """Write the tokens of a session, whole or not at all."""
    write_atomic(path, [f"{json.dumps({'tokens': list(tokens)})}\n".encode()])


def load_tokens(path: Path, vocabulary: int) -> list[int]:
    """Return the tokens of a saved session: ours, or those of a DSV4 file.

    Raises
    ------
    WrongUsage
        Where the file holds none that this model knows.
    """
    data = path.read_bytes()
    tokens: object
    if data[:1] == b"{":
        try:
            tokens = json.loads(data).get("tokens")
        except (ValueError, RecursionError) as error:
            raise WrongUsage(f"{path} is no saved session: {error}") from None
    else:
        from ds4proto_runtime.saved_files import read_file

        tokens = list(read_file(path).values.get("tokens", ()))
    if not isinstance(tokens, list) or not all(
        isinstance(t, int) and 0 <= t < vocabulary for t in tokens
    ):
        raise WrongUsage(
            f"{path} holds no list of tokens below {vocabulary}: was it saved with "
            "another model?"
        )
    return tokens
