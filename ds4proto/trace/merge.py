"""Several captures become one, ordered by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge as merge_sorted
from os import PathLike
from typing import BinaryIO, Final, NamedTuple

from ds4proto.pcap import CaptureError, CaptureReader, PcapngWriter
from ds4proto.trace.redact import REDACTED
from ds4proto.trace.rows import plain

__all__ = ["Merged", "merge"]


class Merged(NamedTuple):
    """What a merge wrote.

    Attributes
    ----------
    packets : int
    truncated : tuple of str
        Inputs that end inside a record.
    redacted : tuple of str
        Inputs that say that they were redacted; the output says so too.
    """

    packets: int
    truncated: tuple[str, ...]
    redacted: tuple[str, ...] = ()


_LAST_NS: Final = 2**64 - 1
"""The latest time that pcapng can state."""
Packet = tuple[int, int, int, bytes, int]
"""Time in ns, number of the input, link type, captured bytes, length on the wire."""


def _packets(
    number: int,
    name: str | PathLike[str],
    shift_ns: int,
    truncated: list[str],
    redacted: list[str],
) -> Iterator[Packet]:
    with CaptureReader(name) as reader:
        batches = iter(reader)
        first = True
        while True:
            try:
                batch = next(batches, None)
            except CaptureError as error:
                raise error.of(name) from None
            if first and reader.info.comment == REDACTED:
                redacted.append(str(name))
            first = False
            if batch is None:
                break
            for row in range(len(batch)):
                yield (
                    min(max(0, int(batch.time_ns[row]) + shift_ns), _LAST_NS),
                    number,
                    int(batch.linktype[row]),
                    bytes(batch.packet(row)),
                    int(batch.origlen[row]),
                )
        if reader.info.truncated:
            truncated.append(str(name))


def merge(
    names: Sequence[str | PathLike[str]],
    target: BinaryIO,
    *,
    shifts_ns: Sequence[int] = (),
) -> Merged:
    """Write the packets of several captures to one pcapng stream.

    Each input is taken to be in order of time by itself; an interface is written for
    each input and link type, named by the input's file. Where one input is redacted,
    the output is too, and its comment says so.

    Parameters
    ----------
    names : sequence of path
    target : binary stream
    shifts_ns : sequence of int
        Added to the times of each input, nanoseconds; none shifts nothing.

    Raises
    ------
    CaptureError
        At damage in an input.
    """
    from pathlib import Path

    truncated: list[str] = []
    redacted: list[str] = []
    shifts = [*shifts_ns, *(0 for _ in range(len(names) - len(shifts_ns)))]
    sources = [
        _packets(number, name, shifts[number], truncated, redacted)
        for number, name in enumerate(names)
    ]
    known: dict[tuple[int, int], int] = {}
    writer: PcapngWriter | None = None
    # all inputs are begun before the first packet comes, so that their marks are known
    for time_ns, number, linktype, data, size in merge_sorted(
        *sources, key=lambda one: one[:2]
    ):
        place = (number, linktype)
        name = plain(Path(names[place[0]]).name)
        if writer is None:
            comment = REDACTED if redacted else ""
            writer = PcapngWriter(
                target, linktype=place[1], comment=comment, interface_name=name
            )
            known[place] = 0
        elif place not in known:
            known[place] = writer.add_interface(place[1], name=name)
        writer.packet(time_ns, data, origlen=size, interface=known[place])
    if writer is None:
        writer = PcapngWriter(target, comment=REDACTED if redacted else "")
    writer.close()
    return Merged(writer.packets, tuple(truncated), tuple(redacted))
