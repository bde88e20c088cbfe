"""Text from a capture or a peer, safe to show: nothing in it steers who shows it."""

from typing import Final

__all__ = ["counted", "printable"]

_OF_ONE: Final = {
    "are": "is", "were": "was", "do": "does", "belong": "belongs", "carry": "carries",
    "tell": "tells",
}  # fmt: skip


def printable(text: str) -> str:
    r"""Return text with every control and other unprintable character escaped.

    >>> printable("ok\x1b[2J")
    'ok\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def counted(number: int, noun: str, verb: str = "", *, plural: str = "") -> str:
    """Return a number with its noun, and with the verb that fits both.

    >>> counted(1, "gate"), counted(2, "gate"), counted(0, "hash", plural="hashes")
    ('1 gate', '2 gates', '0 hashes')
    >>> counted(1, "byte", "are"), counted(2, "byte", "are")
    ('1 byte is', '2 bytes are')
    """
    one = number == 1
    words = [str(number), noun if one else plural or f"{noun}s"]
    if verb:
        words.append(_OF_ONE[verb] if one else verb)
    return " ".join(words)
