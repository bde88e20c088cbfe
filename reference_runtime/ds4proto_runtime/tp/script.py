"""A leader's operations as one line of text: for tests, peers and bug reports.

``create;sync:1:1-10;eval:1:5,6;verify:1:8,9,10:prefix=2;batch:1=3,2=4;destroy:1``:
operations are separated by semicolons, fields by colons; tokens are numbers, ranges
and repetitions, ``1-4,9,5x3``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY, Image
from ds4proto_runtime.engines.base import F32
from ds4proto_runtime.tp.leader import TpLeader

MAX_TOKENS: Final = 1 << 20
Tell = Callable[[str], None]


def tokens(words: str) -> list[int]:
    """Return the tokens of ``1-4,9,5x3``.

    Raises
    ------
    WrongUsage
        For anything else, or more than a million tokens.
    """
    found: list[int] = []
    for part in words.split(","):
        try:
            if "x" in part:
                token, count = map(int, part.split("x"))
                _bounded(len(found) + count)
                found += [token] * count
            elif "-" in part[1:]:
                first, last = map(int, part.split("-"))
                _bounded(len(found) + last - first)
                found += range(first, last + 1)
            else:
                found.append(int(part))
        except ValueError:
            raise WrongUsage(
                f"{part!r} are no tokens: expected 5, 1-4 or 7x3"
            ) from None
    return found


def _bounded(count: int) -> None:
    if count > MAX_TOKENS:
        raise WrongUsage(f"a script names at most {MAX_TOKENS} tokens at once")


def _items(words: str) -> list[tuple[int, int]]:
    pairs = [part.split("=") for part in words.split(",")]
    return [(int(known), int(token)) for known, token in pairs]


class Script:
    """Runs operations on a leader and tells what came of each.

    Parameters
    ----------
    leader : TpLeader
        After ``accept``.
    tell : callable
        Takes one line an operation: its name, session, length, best token.
    """

    def __init__(self, leader: TpLeader, tell: Tell) -> None:
        self._leader = leader
        self._tell = tell
        self._last: dict[int, F32] = {}

    def run(self, text: str) -> None:
        """Run every operation in order.

        Raises
        ------
        WrongUsage
            For an operation that is not one; those before it have run.
        """
        for words in filter(None, (part.strip() for part in text.split(";"))):
            name, *fields = words.split(":")
            step: Any = getattr(self, f"_do_{name}", None)
            if step is None:
                known = sorted(n[4:] for n in dir(self) if n.startswith("_do_"))
                raise WrongUsage(f"{name!r} is no operation: {', '.join(known)}")
            try:
                step(*fields)
            except (TypeError, ValueError, IndexError) as error:
                raise WrongUsage(f"{words!r}: {error}") from None

    def _note(self, name: str, known: int, logits: F32 | None = None) -> None:
        held = self._leader.rank.runner[known]
        line = f"op={name} rank=0 sid={known} len={len(held.tokens)}"
        if logits is not None:
            self._last[known] = logits
            line += f" argmax={int(np.argmax(logits))}"
        self._tell(line)

    def _do_create(self, ctx: str = "") -> None:
        self._note("create", self._leader.create(int(ctx) if ctx else None))

    def _do_destroy(self, known: str) -> None:
        self._leader.destroy(int(known))
        self._tell(f"op=destroy rank=0 sid={known}")

    def _do_sync(self, known: str, words: str, how: str = "") -> None:
        cancel = (lambda: True) if how == "cancel" else None
        logits = self._leader.sync(int(known), tokens(words), cancel=cancel)
        name = "sync" if logits is not None else "sync_interrupted"
        self._note(name, int(known), logits)

    def _do_mm(self, known: str, words: str, images: str) -> None:
        found = []
        width = self._leader.settings.identity.n_embd
        for part in images.split("+"):
            values = dict(item.split("=") for item in part.split(","))
            start, count = int(values["start"]), int(values["count"])
            rows = np.linspace(-1, 1, count * width, dtype=np.float32)
            size = int(values.get("w", 28)), int(values.get("h", 28))
            found.append(Image(start, count, memoryview(rows.tobytes()), *size, *size))
        logits = self._leader.sync(int(known), tokens(words), images=found)
        self._note("sync_multimodal", int(known), logits)

    def _do_eval(self, known: str, words: str) -> None:
        for token in tokens(words):
            self._note("eval", int(known), self._leader.eval(int(known), token))

    def _do_gen(self, known: str, count: str) -> None:
        session = int(known)
        for _ in range(int(count)):
            best = int(np.argmax(self._last[session]))
            self._note("gen", session, self._leader.eval(session, best))

    def _do_batch(self, words: str) -> None:
        items = _items(words)
        for (known, _), logits in zip(items, self._leader.batch(items), strict=True):
            self._note("batch", known, logits)

    def _do_mixed(self, known: str, words: str, items: str) -> None:
        first, session = _items(items), int(known)
        prompt = tokens(words)
        logits = self._leader.mixed(session, prompt, first)
        self._note("mixed_prefill", session, logits[0])
        for (other, _), row in zip(first, logits[1:], strict=True):
            self._note("mixed", other, row)

    def _do_verify(self, known: str, words: str, verdict: str) -> None:
        name, _, count = verdict.partition("=")
        modes = {"full": KEEP_ALL, "prefix": KEEP_PREFIX, "replay": REPLAY}
        if name not in modes:
            raise ValueError(f"the verdict is one of {', '.join(modes)}")
        choice = (modes[name], int(count or 0))
        rows, last = self._leader.verify(int(known), tokens(words), lambda _: choice)
        kept = len(rows) if name == "full" else choice[1]
        if last is None:
            last = rows[kept - 1] if kept else self._last.get(int(known))
        self._note("verify", int(known), last)

    def _do_mtp(self, known: str, token: str, limit: str) -> None:
        accepted, logits = self._leader.mtp(int(known), int(token), int(limit))
        self._note(f"mtp{len(accepted)}", int(known), logits)

    def _do_rewind(self, known: str, position: str) -> None:
        self._leader.rewind(int(known), int(position))
        self._note("rewind", int(known))

    def _do_invalidate(self, known: str) -> None:
        self._leader.invalidate(int(known))
        self._note("invalidate", int(known))
