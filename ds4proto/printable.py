"""Text from a capture or a peer, safe to show: nothing in it steers who shows it."""

__all__ = ["printable"]


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
