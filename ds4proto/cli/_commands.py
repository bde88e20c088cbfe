"""The commands that ds4proto reserves: what ``--help`` says without loading them.

Where a command lives is declared once, in the entry points of ``pyproject.toml``;
this table adds the order, the heading and one line of help. A command that another
distribution registers appears under its own heading.
"""

from typing import Final, NamedTuple

__all__ = ["RESERVED", "Reserved"]


class Reserved(NamedTuple):
    """One reserved command: its name, its heading in the help, one line of help."""

    name: str
    heading: str
    summary: str


_READ: Final = "Read traffic"
_LIVE: Final = "Work beside a live cluster"
_KNOW: Final = "Know the protocols"
_JUDGE: Final = "Judge a peer"
_RUN: Final = "Run the reference runtime"

RESERVED: Final = (
    Reserved("decode", _READ, "Show every frame of a capture, one readable line each."),
    Reserved("stats", _READ, "Count frames, bytes, gaps and problems of a capture."),
    Reserved("trace", _READ, "Redact, cut or merge captures."),
    Reserved("view", _READ, "Browse a capture in the terminal."),
    Reserved("diagnose", _READ, "Name the fault that a capture shows, and the remedy."),
    Reserved("whatif", _READ, "Say what narrower widths do to a run's hidden states."),
    Reserved("preflight", _LIVE, "Check machines, model and options before a run."),
    Reserved("proxy", _LIVE, "Stand between two peers, record and explain."),
    Reserved("capture", _LIVE, "Record the protocol traffic of this machine."),
    Reserved("codec", _KNOW, "List, describe and verify the payload codecs."),
    Reserved("spec", _KNOW, "Read the specification: chapters, frames, clauses."),
    Reserved("demo", _KNOW, "Decode two real runs and verify the codecs."),
    Reserved("smoke", _JUDGE, "Is this peer reachable and sane? Takes seconds."),
    Reserved("check", _JUDGE, "Run the conformance cases against a peer."),
    Reserved("compare", _JUDGE, "Compare reports of two peers or two runs."),
    Reserved("fuzz", _JUDGE, "Search for input that a peer does not survive."),
    Reserved("run", _RUN, "Start a coordinator, worker or tensor-parallel pair."),
    Reserved("snapshot", _RUN, "Inspect, verify and compare saved sessions."),
    Reserved("quality", _RUN, "Measure what a wire codec costs in model quality."),
)
