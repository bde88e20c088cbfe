"""What a dialect is: a named set of differences, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Evidence = Literal["measured", "read", "hypothesis", "ours"]
Live = Literal["speaks", "decodes", "recognises"]


@dataclass(frozen=True, slots=True)
class Sign:
    """One observation that points to a dialect.

    Parameters
    ----------
    kind : str
        What is looked at; the recogniser in ``recognise.py`` knows the kinds.
    value : int
        The value that the kind compares with.
    text : str
        The observation in words.
    """

    kind: str
    value: int
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """A build, or family of builds, whose bytes differ from its neighbours'.

    Parameters
    ----------
    name : str
        Unique over both protocols; used as ``--dialect NAME``.
    protocol : {"DS4D", "DS4T"}
        DS4B frames belong to the DS4T dialects.
    title, date : str
        Whose build it is, and when its text was published.
    version : int or None
        Version number in the hello; DS4D has none.
    hello_size : int or None
        Bytes of the hello (DS4T), or of the fixed part of HELLO (DS4D).
    base : str or None
        The dialect that this one is described against.
    differs : tuple of str
        What differs from ``base`` on the wire, one line each.
    signs : tuple of Sign
        How it is recognised; all must hold.
    settles : str
        What would tell it apart from its neighbours.
    evidence : {"measured", "read", "hypothesis", "ours"}
        How well the difference is known.
    live : {"speaks", "decodes", "recognises"}
        What this library does with it.
    width16 : {"f16", "bf16"}
        What 16-bit hidden states hold (DS4D).
    foreign : bool
        True where the messages are its own and none declared here fits them.
    """

    name: str
    protocol: Literal["DS4D", "DS4T"]
    title: str
    date: str
    version: int | None = None
    hello_size: int | None = None
    base: str | None = None
    differs: tuple[str, ...] = ()
    signs: tuple[Sign, ...] = ()
    settles: str = ""
    evidence: Evidence = "read"
    live: Live = "decodes"
    width16: Literal["f16", "bf16"] = "f16"
    foreign: bool = False
