"""What a run is told: the peer, the model's facts, times, what may be harmed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ds4proto.peer.api import Role
from ds4proto_conformance.registry import Harm

__all__ = ["PATIENCE", "Settings"]

PATIENCE: Final = 5.0
"""Seconds that an answer may take, before ``--time-scale``."""
QUIET: Final = 0.15
"""Seconds of silence that are taken for "nothing comes", before ``--time-scale``."""
CONNECT: Final = 15.0
"""Seconds that a connection may take to come about."""
ANSWERS: Final = 24
"""Answers that are as late as they may be, and then a combination has to be over."""


@dataclass(slots=True)
class Settings:
    """One run.

    Attributes
    ----------
    peer : str
        ``--peer`` text.
    allow_harm : str
        Highest harm that a peer which we did not start may come to.
    hidden_values, vocab, ctx, n_layers : int or None
        Facts of the model that the peer does not tell.
    drive : str
        How a coordinator or leader is made to start a request; empty: by itself.
    drive_save, drive_load : str
        How a coordinator is made to save its session, or to load one.
    time_limit : float
        Seconds of the whole run; 0: as many as it takes.
    case_limit : float
        Seconds of one combination, before ``time_scale``; 0: those of some late
        answers.
    repeat : int
        Runs of every case; 1 runs a case again only when in doubt.
    retry : bool
        Whether a failed case is run again with the same seed.
    keep_frames : bool
        Whether outcomes carry the frames that crossed.
    """

    peer: str
    role: Role
    seed: int = 1
    time_scale: float = 1.0
    patience: float = PATIENCE
    quiet: float = QUIET
    connect: float = CONNECT
    dialect: str = "upstream"
    position: str = ""
    allow_harm: Harm = "none"
    allow_remote: bool = False
    drive: str = ""
    drive_save: str = ""
    drive_load: str = ""
    model: str = ""
    hidden_values: int | None = None
    vocab: int | None = None
    ctx: int | None = None
    n_layers: int | None = None
    half: str = "f16"
    time_limit: float = 0.0
    case_limit: float = 0.0
    repeat: int = 1
    strength: int = 2
    retry: bool = True
    keep_frames: bool = True
    options: dict[str, str] = field(default_factory=dict)

    @property
    def started_by_us(self) -> bool:
        """Whether the peer is a process that we may restart and harm."""
        return self.peer.startswith(("exec:", "reference:", "codec:", "loop:"))

    @property
    def case_seconds(self) -> float:
        """Seconds that one combination of a case may take, scaled."""
        longest = ANSWERS * max(self.patience, PATIENCE)
        return self.wait(self.case_limit or longest)

    def wait(self, seconds: float) -> float:
        """Return a time, scaled."""
        return seconds * self.time_scale
