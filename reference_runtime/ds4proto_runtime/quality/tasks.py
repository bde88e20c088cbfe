"""Small exact-match tasks, generated from a seed.

A task is fit for a model only where the uncompressed wire answers most of it, so
the study tries them in order and takes the first one with at least 60 %.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

SHOTS = 6
WORDS = ("river", "stone", "window", "garden", "music", "paper", "silver", "engine")
ENOUGH = 0.6


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the one right answer behind it."""

    prompt: str
    answer: str


def _shots(lines: list[str], question: str) -> str:
    return "\n".join([*lines, question])


def word_problems(seed: int, count: int) -> list[Question]:
    """Return one-step word problems with numbers below twenty."""
    draw = random.Random(f"word problems {seed}")
    names = ("Ann", "Ben", "Eve", "Max", "Tom")
    things = ("apples", "books", "coins", "pens", "cards")

    def one() -> tuple[str, str]:
        who, what = draw.choice(names), draw.choice(things)
        first, second = draw.randint(1, 9), draw.randint(1, 9)
        text = f"Q: {who} has {first} {what} and gets {second} more. How many?\nA:"
        return text, str(first + second)

    return _built(one, count)


def additions(seed: int, count: int) -> list[Question]:
    """Return sums of two digits."""
    draw = random.Random(f"additions {seed}")

    def one() -> tuple[str, str]:
        first, second = draw.randint(0, 9), draw.randint(0, 9)
        return f"{first} + {second} =", str(first + second)

    return _built(one, count)


def successors(seed: int, count: int) -> list[Question]:
    """Return sequences of numbers to be continued."""
    draw = random.Random(f"successors {seed}")

    def one() -> tuple[str, str]:
        first = draw.randint(1, 80)
        row = ", ".join(str(first + step) for step in range(4))
        return f"{row},", str(first + 4)

    return _built(one, count)


def copies(seed: int, count: int) -> list[Question]:
    """Return words to be repeated."""
    draw = random.Random(f"copies {seed}")

    def one() -> tuple[str, str]:
        word = draw.choice(WORDS)
        return f"say {word}:", word

    return _built(one, count)


def _built(one: Callable[[], tuple[str, str]], count: int) -> list[Question]:
    shots = [" ".join(one()) for _ in range(SHOTS)]
    found = []
    for _ in range(count):
        text, answer = one()
        found.append(Question(_shots(shots, text), answer))
    return found


TASKS: dict[str, Callable[[int, int], list[Question]]] = {
    "word problems": word_problems,
    "additions": additions,
    "successors": successors,
    "copies": copies,
}


def is_right(text: str, answer: str) -> bool:
    """Tell whether a continuation starts with the answer and stops there."""
    words = text.replace(",", " ").replace(".", " ").split()
    return bool(words) and words[0] == answer
