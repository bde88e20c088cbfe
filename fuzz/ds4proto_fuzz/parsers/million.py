"""Mutated frames of each message type through the decoder, as many as are asked for.

Each frame has to give a reading without any exception, with every problem inside it;
a sample also goes through the reference reader and the builder, and, framed, through
a framer in one piece and byte by byte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from ds4proto.link.framing import Framer
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.registry import read
from ds4proto_fuzz.parsers.comparing import lasting_events
from ds4proto_fuzz.parsers.mutants import CHUNK, Mutator
from ds4proto_fuzz.parsers.schemas import FORMS, OFFSET, check_frame, check_reading
from ds4proto_fuzz.parsers.target import same

__all__ = ["TYPES", "Escaped", "Tally", "address", "frames_of", "run", "run_type"]

TYPES: Final = tuple(dict.fromkeys(spec.full_name for spec, _ in FORMS))
"""Every message type; its dialects take turns."""
BUILT_EVERY: Final = 8
EXACT_EVERY: Final = 64
FRAMED_EVERY: Final = 256


class Escaped(AssertionError):
    """A frame broke an invariant; the text names it and how to make it again."""


@dataclass(slots=True)
class Tally:
    """What became of the frames of one type.

    Attributes
    ----------
    frames, sound, odd, unreadable : int
        All; without a problem; readable with problems; not readable to their end.
    seconds : float
        Of one processor.
    """

    type: str
    seed: int
    frames: int = 0
    sound: int = 0
    odd: int = 0
    unreadable: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Frames a second."""
        return self.frames / self.seconds if self.seconds else 0.0


def frames_of(name: str, count: int, seed: int) -> Iterator[tuple[Mutator, int, bytes]]:
    """Yield form, number and bytes of the mutated frames of one type."""
    mutators = [Mutator(spec, d) for spec, d in FORMS if spec.full_name == name]
    number = 0
    for chunk in range(-(-count // CHUNK)):
        mutator = mutators[chunk % len(mutators)]
        for frame in mutator.chunk(seed, chunk):
            if number >= count:
                return
            yield mutator, number, frame
            number += 1


def address(name: str, seed: int, number: int) -> bytes:
    """Return the frame of an address.

    Raises
    ------
    KeyError
        There is no message of that name.
    """
    if name not in TYPES:
        raise KeyError(f"no message type {name!r}; there are: {', '.join(TYPES)}")
    mutators = [Mutator(spec, d) for spec, d in FORMS if spec.full_name == name]
    chunk, place = divmod(number, CHUNK)
    for at, frame in enumerate(mutators[chunk % len(mutators)].chunk(seed, chunk)):
        if at == place:
            return frame
    raise AssertionError("a chunk holds every place")


def run_type(name: str, count: int, seed: int) -> Tally:
    """Send mutated frames of one type through the decoder.

    Raises
    ------
    Escaped
        At the first frame that breaks an invariant.
    """
    tally = Tally(name, seed)
    start = time.process_time()
    for mutator, number, frame in frames_of(name, count, seed):
        spec, dialect = mutator.spec, mutator.dialect
        try:
            reading = read(spec, frame, dialect=dialect, stream_offset=OFFSET)
            if number % EXACT_EVERY:
                built = not number % BUILT_EVERY
                check_reading(spec, dialect, frame, reading, build=built)
            else:
                check_frame(spec, dialect, frame)
            if not number % FRAMED_EVERY and spec.header is not None:
                _framed(spec, dialect, frame)
        except Exception as error:
            raise Escaped(
                f"{name} ({dialect}), seed {seed}, number {number}: "
                f"{type(error).__name__}: {error}\nframe {frame.hex()}"
            ) from error
        tally.frames += 1
        if not reading.problems:
            tally.sound += 1
        elif reading.whole:
            tally.odd += 1
        else:
            tally.unreadable += 1
    tally.seconds = time.process_time() - start
    return tally


def _framed(spec: FrameSpec, dialect: str, frame: bytes) -> None:
    """Frame the bytes at once and one by one."""
    told = []
    for step in (len(frame) or 1, 1):
        protocol: Literal["DS4D", "DS4T"] = (
            "DS4D" if spec.protocol == "DS4D" else "DS4T"
        )
        framer = Framer(protocol, dialect=dialect, auto_resync=True)
        events = [
            event
            for at in range(0, len(frame), step)
            for event in framer.feed(frame[at : at + step], 0.0)
        ]
        told.append(lasting_events(events + framer.feed(None, 0.0)))
    same("whole or byte by byte", told[0], told[1])


def run(
    count: int,
    *,
    seed: int,
    types: Sequence[str] = TYPES,
    jobs: int = 1,
    journal: Path | None = None,
    told: Callable[[Tally], None] = lambda _tally: None,
) -> list[Tally]:
    """Run every type; what a journal holds already is not run again.

    Raises
    ------
    Escaped
        At the first frame that breaks an invariant.
    """
    done = {} if journal is None else _journal(journal, count, seed)
    left = [name for name in types if name not in done]
    for name in types:
        if name in done:
            told(done[name])
    for tally in _each(left, count, seed, jobs):
        done[tally.type] = tally
        if journal is not None:
            journal.parent.mkdir(parents=True, exist_ok=True)
            with journal.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(tally)) + "\n")
        told(tally)
    return [done[name] for name in types]


def _each(names: Sequence[str], count: int, seed: int, jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        for name in names:
            yield run_type(name, count, seed)
        return
    with ProcessPoolExecutor(jobs) as workers:
        running = [workers.submit(run_type, name, count, seed) for name in names]
        try:
            for one in as_completed(running):
                yield one.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _journal(path: Path, count: int, seed: int) -> dict[str, Tally]:
    """Return the tallies of a stopped run that had the same size and seed."""
    found: dict[str, Tally] = {}
    if not path.exists():
        return found
    for line in path.read_text("utf-8").splitlines():
        with suppress(ValueError, TypeError):  # a line that was cut
            tally = Tally(**json.loads(line))
            if (tally.frames, tally.seed) == (count, seed):
                found[tally.type] = tally
    return found
