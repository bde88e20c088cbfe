"""A fuzz case: steps on connections, addressed by (seed, index)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

__all__ = ["PORTS", "PORT_SIZE", "THEN", "Case", "Step", "Then", "rng_of"]

Then = Literal["", "wait", "drip", "pause", "half-close", "close", "reset"]
THEN: Final[tuple[Then, ...]] = (
    "",
    "wait",
    "drip",
    "pause",
    "half-close",
    "close",
    "reset",
)
PORTS: Final = ("next", "own")
PORT_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One frame, or what stands in its place, on one connection.

    Attributes
    ----------
    on : str
        Name of the connection: ``data``, ``control``; ``above`` and ``next`` for the
        two sides of a worker that forwards.
    name : str
        Type of the frame, as ``WORK``.
    data : bytes
        What is sent.
    how : str
        How it was mutated; empty for a valid frame.
    base : bytes
        The valid frame that was mutated; empty where there is none.
    then : str
        What happens behind it: nothing (the next step goes out at once), ``wait`` for
        the answers, ``drip`` (this step goes out in small pieces), ``pause`` (a second
        client has to be served meanwhile), an end of our direction, or a close.
    vary : sequence of (offset, size)
        Bytes that differ in each repetition of the case, as ids do.
    copy : sequence of (offset, size, offset there)
        Bytes that repeat the frame which the peer sent last, as ids of an answer do.
    ports : sequence of (offset, whose)
        Words that name a port of this run: ``next`` for the next hop that we play,
        ``own`` for the data port of the peer.
    """

    on: str
    name: str
    data: bytes = field(repr=False)
    how: str = ""
    base: bytes = field(default=b"", repr=False)
    then: Then = ""
    vary: tuple[tuple[int, int], ...] = ()
    copy: tuple[tuple[int, int, int], ...] = ()
    ports: tuple[tuple[int, str], ...] = ()

    def placed(self, data: bytes, ports: Mapping[str, int]) -> bytes:
        """Return `data` with the ports of this run."""
        out = bytearray(data)
        for at, whose in self.ports:
            if at + PORT_SIZE <= len(out):
                out[at : at + PORT_SIZE] = ports[whose].to_bytes(PORT_SIZE, "big")
        return bytes(out)

    def copied(self, data: bytes, last: bytes) -> bytes:
        """Return `data` with what it repeats of the peer's last frame."""
        out = bytearray(data)
        for at, size, there in self.copy:
            if at + size <= len(out) and there + size <= len(last):
                out[at : at + size] = last[there : there + size]
        return bytes(out)

    def varied(self, turn: int) -> bytes:
        """Return the bytes of one repetition."""
        if not self.vary or not turn:
            return self.data
        data = bytearray(self.data)
        for at, size in self.vary:
            if at + size <= len(data):
                old = int.from_bytes(data[at : at + size], "big")
                new = (old + turn) % (1 << 8 * size)
                data[at : at + size] = new.to_bytes(size, "big")
        return bytes(data)

    def as_json(self) -> dict[str, Any]:
        """Return the step as a finding holds it."""
        found: dict[str, Any] = {
            "on": self.on,
            "type": self.name,
            "how": self.how,
            "then": self.then,
        }
        found["hex"] = self.data.hex()
        if self.base:
            found["base"] = self.base.hex()
        if self.vary:
            found["vary"] = self.vary
        if self.copy:
            found["copy"] = self.copy
        if self.ports:
            found["ports"] = self.ports
        return found


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes
    ----------
    state : str
        State of the peer that the prefix reaches.
    kind : str
        What is done to the peer there: the family of the mutation.
    repeat : int
        How often the steps are given, for effects that add up.
    """

    seed: int
    index: int
    state: str
    kind: str
    steps: tuple[Step, ...]
    repeat: int = 1

    def with_steps(self, steps: Sequence[Step]) -> Case:
        """Return the case with other steps."""
        return replace(self, steps=tuple(steps))

    @property
    def frames(self) -> int:
        """Frames once, without the sound lockstep that leads to a gate."""
        if any(step.name == "gate" for step in self.steps):
            return max(1, sum(bool(step.how) for step in self.steps))
        return len(self.steps)

    @property
    def size(self) -> int:
        """Bytes that are sent once."""
        return sum(len(step.data) for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return the case as a finding holds it."""
        return {
            "seed": self.seed,
            "index": self.index,
            "state": self.state,
            "kind": self.kind,
            "repeat": self.repeat,
            "steps": [step.as_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Case:
        """Return the case of a finding.

        Raises
        ------
        ValueError
            The mapping is none.
        """
        try:
            steps = tuple(
                Step(
                    step["on"],
                    step["type"],
                    bytes.fromhex(step["hex"]),
                    step["how"],
                    bytes.fromhex(step.get("base", "")),
                    _then(step["then"]),
                    tuple((int(a), int(n)) for a, n in step.get("vary", ())),
                    tuple((int(a), int(n), int(b)) for a, n, b in step.get("copy", ())),
                    tuple((int(a), _whose(w)) for a, w in step.get("ports", ())),
                )
                for step in found["steps"]
            )
            return cls(
                int(found["seed"]),
                int(found["index"]),
                str(found["state"]),
                str(found["kind"]),
                steps,
                int(found["repeat"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no fuzz case: {error!r}") from None


def _whose(word: str) -> str:
    if word not in PORTS:
        raise ValueError(f"unknown port {word!r}; known: {', '.join(PORTS)}")
    return word


def _then(word: str) -> Then:
    for known in THEN:
        if word == known:
            return known
    raise ValueError(f"unknown ending of a step {word!r}; known: {', '.join(THEN)}")


def rng_of(seed: int, index: int) -> Random:
    """Return the source of chance of one case; no other case shares it."""
    return Random(f"{seed}:{index}")
