"""What every check of a diagnosis is: it sees rows, then says what it found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from ds4proto.pcap.types import CaptureError
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.finding import Finding
from ds4proto.trace.redact import REDACTED
from ds4proto.trace.rows import FrameRow

__all__ = ["STALL", "Check", "Scene", "is_redacted", "is_whole", "up_to_damage"]

STALL: Final = 1.0
"""Seconds without a byte from which a wait is a stall, and not a pause."""
_NEEDED: Final = {
    "DS4D.HELLO": ("layer_start", "layer_end", "n_layers", "has_output"),
    "DS4D.WORK": (
        "session", "request", "pos0", "n_tokens", "flags", "layer_start", "layer_end",
        "route_index",
    ),
    "DS4D.RESULT": ("request", "status", "result_kind"),
    "DS4T.HELLO": ("version", "role"),
    "DS4T.HASH": ("seq", "hash"),
    "DS4T.SESSION_CREATE": ("session_id", "ctx_size"),
}  # fmt: skip
"""Fields that checks read without asking; a cut capture may lack them."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the checks of one capture share.

    Attributes
    ----------
    decoder : CaptureDecoder
        Knows runs and connections; complete once all rows have passed.
    file : str
        Name of the capture in evidence.
    """

    decoder: CaptureDecoder
    file: str

    def role(self, stream: int, side: str) -> str:
        """Return who sits at one end (``a`` or ``b``) of a connection."""
        table = self.decoder.decoder.table
        return table.role(stream, "a" if side == "a" else "b") or f"side {side}"

    def run_number(self, stream: int) -> int:
        """Return the run of a connection, 0 where it belongs to none."""
        run = self.decoder.decoder.table.run_of(stream)
        return 0 if run is None else run.number

    @property
    def redacted(self) -> bool:
        """Whether the file says that its values and token ids were replaced."""
        return is_redacted(self.decoder)

    @property
    def made_up_packets(self) -> bool:
        """Whether segments were not those of a wire.

        Our recorders write both packets of a handshake with one time.
        """
        if not self.decoder.info.application.startswith("ds4proto"):
            return False
        watches = self.decoder.decoder.ended
        trips = {w.stats.min_rtt_ns for w in watches if w.stats and w.stats.syn_seen}
        return 0 in trips


class Check(Protocol):
    """One kind of question about a capture."""

    def add(self, row: FrameRow) -> None:
        """Take the next row."""

    def findings(self) -> Iterable[Finding]:
        """Answer, once everything has passed."""


def is_redacted(decoder: CaptureDecoder) -> bool:
    """Tell whether a file says that its values and token ids were replaced."""
    return decoder.info.comment == REDACTED


def is_whole(row: FrameRow) -> bool:
    """Tell whether a row has the fields that checks rely on.

    Of a frame that a snap length cut off, the capture may hold the header alone.
    """
    return all(name in row.fields for name in _NEEDED.get(row.name, ()))


def up_to_damage(rows: Iterable[FrameRow]) -> Iterator[FrameRow]:
    """Yield rows up to where their file is damaged, which the first pass has told."""
    try:
        yield from rows
    except CaptureError:
        return
