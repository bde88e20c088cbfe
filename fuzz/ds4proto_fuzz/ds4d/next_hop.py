"""The next hop of a worker that forwards: ours, each case on a port of its own."""

from __future__ import annotations

import contextlib
import select
import socket
from time import monotonic
from typing import Final

from ds4proto.link.ds4d_frames import WORK_PART
from ds4proto.schema.ds4d_work import WORK
from ds4proto.schema.registry import read_body
from ds4proto_fuzz.ds4d.oracle import NEXT, Due, Expectation
from ds4proto_fuzz.ds4d.wire import Seen, Wire
from ds4proto_fuzz.effect import Effect

__all__ = ["HOST", "SIDES", "NextHop", "judge_forwarded"]

SIDES: Final = ("above", NEXT)
"""Names of the connections to and from a worker that forwards."""
HOST: Final = "127.0.0.1"
"""Where routes may lead: nobody but us is dialled on account of a case."""


class NextHop:
    """A listener that the worker is told to dial, and the connection it made."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.wire: Wire | None = None

    def accept(self, deadline: float) -> Wire | None:
        """Return the worker's connection; None where it does not dial in time."""
        if self.wire is None:
            left = max(0.0, deadline - monotonic())
            if select.select([self._listener], [], [], left)[0]:
                with contextlib.suppress(OSError):  # gone again
                    self.wire = Wire(self._listener.accept()[0])
        return self.wire

    def heard(self, due: Expectation, deadline: float) -> Effect | None:
        """Read what is due below, and judge it."""
        wire = self.accept(deadline)
        if wire is None:
            what = "the next hop of a sound route is not dialled"
            return None if due.loose else Effect("hang", what, "", "DS4D-FWD-05")
        for wanted in due.frames:
            seen = wire.frame(deadline)
            if seen is not None:
                effect = judge_forwarded(wanted, seen)
            elif due.closed:
                break
            elif wire.ended:
                what = "ends the connection to the next hop where a WORK is due"
                effect = Effect("wrong answer", what, wire.ended)
            else:
                what = "no WORK reaches the next hop of a sound route"
                effect = Effect("hang", what, "", "DS4D-FWD-01")
            if effect is not None and not due.loose:
                return effect
        if due.closed and not due.loose:
            return self._over(wire, due, deadline)
        return None

    def _over(self, wire: Wire, due: Expectation, deadline: float) -> Effect | None:
        """Tell whether the worker ends the connection, as it has to."""
        for seen in wire.frames(deadline):
            return Effect("wrong answer", f"{seen.name} behind what ends the route",
                          str(seen), due.clause)  # fmt: skip
        if wire.ended:
            return None
        what = "the connection to the next hop stays open after what ends it"
        return Effect("silent accept", what, "", due.clause)

    def surprised(self, due: Expectation) -> Effect | None:
        """Tell whether the worker has dialled without a reason."""
        if due.loose or self.accept(0.0) is None:
            return None
        what = "dials the next hop of a route that it has to refuse"
        refused = next((d.clause for d in due.frames if d.clause), due.clause)
        return Effect("silent accept", what, "", refused)

    def close(self) -> None:
        """Close connection and listener; a late dial is refused."""
        if self.wire is not None:
            self.wire.close()
        self._listener.close()


def judge_forwarded(wanted: Due, seen: Seen) -> Effect | None:
    """Compare what reached the next hop with what the route asks for.

    The hidden state is the engine's, of which the size alone is known.
    """
    if seen.name != "WORK":
        return Effect("wrong answer", f"{seen.name} reaches the next hop", str(seen))
    problems = read_body(WORK, seen.body, dialect="upstream").problems
    if problems:
        text = "a WORK that is not sound reaches the next hop"
        return Effect("wrong answer", text, str(problems[0]), problems[0].clause)
    due = wanted.frame
    wrong = [n for n in due.words if seen.words.get(n) != due.words[n]]
    if wrong:
        name = wrong[0]
        return Effect(
            "wrong answer",
            f"{name} of the forwarded WORK is wrong",
            f"due {due.words[name]}, came {seen.words.get(name)}",
            "DS4D-FWD-04",
        )
    tokens = slice(WORK_PART.size, WORK_PART.size + due.words["token_bytes"])
    blob = slice(len(due.body) - due.words["route_bytes"], None)
    for what, part in (("tokens", tokens), ("route", blob)):
        if seen.body[part] != due.body[part]:
            text = f"the {what} of the forwarded WORK differ"
            return Effect("wrong answer", text, "", "DS4D-FWD-04")
    return None
