"""Reference peers and mutants: looked up by name, started as processes.

A package that offers peers registers a function in the entry-point group
``ds4proto.peers``. Its name is a role; ``ROLE-mutant`` is asked first where a mutant is
wanted. The function takes the mutant's name or None and returns an argv in which
``{host}``, ``{port}``, ``{port2}`` .. stand for the addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from ds4proto.peer.errors import PeerSpecError
from ds4proto.peer.grammar import Reference

GROUP: Final = "ds4proto.peers"
PeerFactory = Callable[[str | None], Sequence[str]]


def reference_argv(peer: Reference, spec: str) -> tuple[str, ...]:
    """Return the argv, placeholders and all, of a registered peer.

    Raises
    ------
    PeerSpecError
        Nothing is registered under that name, or the function refuses the mutant.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    names = [peer.role] if peer.mutant is None else [f"{peer.role}-mutant", peer.role]
    point = next((found[name] for name in names if name in found), None)
    start = spec.index(":") + 1
    if point is None:
        known = ", ".join(sorted(found)) or "none; install the package that has them"
        raise PeerSpecError(
            f"no reference peer {peer.role!r}; registered: {known}",
            spec=spec,
            start=start,
        )
    return _call(point, peer, spec, start)


def _call(point: EntryPoint, peer: Reference, spec: str, start: int) -> tuple[str, ...]:
    try:
        factory: PeerFactory = point.load()
        argv = tuple(factory(peer.mutant))
    except (ImportError, AttributeError) as error:
        reason = f"{point.value} cannot be loaded ({error}); install its extra"
    except (ValueError, KeyError) as error:
        reason = f"{point.value} refuses it: {error}"
        start += len(peer.role) + 1 if peer.mutant is not None else 0
    else:
        if argv and all(isinstance(word, str) for word in argv):
            return argv
        reason = f"{point.value} returned no command"
    raise PeerSpecError(reason, spec=spec, start=start)
