"""What the texts of ds4 peers mean: the register of clauses read backwards.

Every text that a clause declares is a pattern here; a line of a log or an ERROR frame
that fits one gets the clause, its numbers, and what to do.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from ds4proto import clauses

__all__ = ["Meaning", "meaning_of"]

_LETTER: Final = re.compile(r"%(?P<pad>[-+ #0]*\d*)(?:ll|l|h|z)?(?P<letter>[cdiugsxX])")
_FORMS: Final = {"d": r"-?\d+", "i": r"-?\d+", "u": r"\d+", "x": r"[0-9a-fA-F]+",
                 "X": r"[0-9a-fA-F]+", "g": r"\S+", "c": r".", "s": r".*?"}  # fmt: skip
_LEAST: Final = 8
"""Characters of its own that a pattern needs; a shorter one would fit anything."""
_PREFIXES: Final = re.compile(
    r"^(?:(?:\[(?:ok|error|warn|info)\]|ds4-tp:|ds4:|leader:|worker:|tp worker:|"
    r"tp worker eval:|coordinator error:|protocol error:|op \w+ failed rc=-?\d+:)\s*)+"
)

_ADVICE: Final[dict[str, tuple[str, str]]] = {
    "DS4D-HELLO-01": (
        "the peer writes another byte order or speaks another dialect",
        "compare the builds of both sides; 0x44345344 is a little-endian fork",
    ),
    "DS4D-HELLO-06": ("the sides loaded different models", "give both the same GGUF"),
    "DS4D-HELLO-07": ("the sides loaded different models", "give both the same GGUF"),
    "DS4D-HELLO-08": (
        "the sides count different numbers of layers",
        "give both the same GGUF; a slice is cut by --layers, not by another file",
    ),
    "DS4D-HELLO-09": (
        "a worker announces 2 or 4, from its routed experts",
        "check the quantisation of that machine's GGUF (ds4proto preflight shows it)",
    ),
    "DS4D-HELLO-12": ("the range does not fit the model", "correct --layers"),
    "DS4D-HELLO-13": (
        "the output head belongs to the last layer",
        "give the last worker --layers A:output",
    ),
    "DS4D-HELLO-14": (
        "the worker was started with a smaller context",
        "start it with --ctx at least that of the coordinator",
    ),
    "DS4D-ROUTE-36": (
        "no registered worker computes that layer",
        "start, or wait for, the worker whose --layers hold it; see why it left",
    ),
    "DS4D-WORK-25": (
        "the worker holds other tokens for this session, or none after a restart; the "
        "coordinator replays the transcript on the same route",
        "once after a restart it is normal; if it returns, two coordinators may share "
        "the worker",
    ),
    "DS4D-WORK-07": (
        "the request has a flag that this build does not know",
        "a fork's extension: compare the builds of both sides",
    ),
    "DS4D-WORK-18": (
        "length, width and tokens of the hidden state do not fit",
        "compare builds and --dist-activation-bits; a fork may add bytes to each row",
    ),
    "DS4D-WORK-06": (
        "the coordinator's route is older than the worker's slice",
        "restart the coordinator, or the worker with the old --layers",
    ),
    "DS4D-WORK-09": (
        "the session grew past the worker's context",
        "start the worker with a larger --ctx",
    ),
    "DS4D-FWD-09": (
        "a worker cannot reach the data port of the next one",
        "check --listen of the next worker: it has to be an address that the other "
        "worker can dial, and not behind a firewall",
    ),
    "DS4D-FWD-10": (
        "the worker behind it went away with a request open",
        "look at the last lines of the next worker",
    ),
    "DS4D-RESULT-05": (
        "the answer is for another request than the oldest open one",
        "a frame was lost or made twice on the way, or a cancelled request was "
        "answered late",
    ),
    "DS4D-RESULT-08": (
        "the worker computed for other tokens",
        "the session differs: reset it",
    ),
    "DS4T-HELLO-02": (
        "the peer is no rank of this byte order: another program, or a mixed pair",
        "check who listens at that port",
    ),
    "DS4T-HELLO-03": (
        "the ranks are of different protocol versions; equality is exact",
        "build both from the same commit",
    ),
    "DS4T-HELLO-04": ("both have the same role", "one needs --role worker"),
    "DS4T-HELLO-05": (
        "model files or shapes differ",
        "compare the printed words with those of this side: GGUF size, id, layers, "
        "width, vocabulary and quantisation all have to be equal",
    ),
    "DS4T-HELLO-06": ("the gate schedule is not sound", "both need one build"),
    "DS4T-HELLO-07": (
        "RDMA was asked for and one side has no active device",
        "see ds4proto preflight on that machine, or use --transport tcp",
    ),
    "DS4T-HELLO-30": (
        "environment switches that change arithmetic or schedule differ",
        "start both ranks with the same DS4_ environment",
    ),
    "DS4T-RDMA-65": (
        "the partial of this gate did not arrive within the gate timeout",
        "it is a position in the model, not an early transport failure: see what the "
        "other rank did at that gate",
    ),
    "DS4T-RDMA-66": (
        "the other rank ended while this one waited",
        "look at the last lines of the other rank",
    ),
    "DS4T-RDMA-32": (
        "the port has no IPv4-mapped GID while its interface has no IPv4 address",
        "give the interface an IPv4 address on both machines",
    ),
    "DS4T-RDMA-57": (
        "the fresh queue pair does not deliver both ways",
        "unplug and replug the cable, or restart both; UC on Thunderbolt does this",
    ),
    "DS4T-GATE-01": (
        "the ranks are at different gates",
        "one rank ran a gate without the other: compare chunk, threshold, --ctx, "
        "model and build",
    ),
    "DS4T-GATE-06": (
        "the exchange of a gate failed",
        "see the line before it, and the last lines of the other rank",
    ),
    "DS4T-GATE-30": ("the exchange of a gate failed", "see the other rank's log"),
    "DS4T-HASH-03": (
        "the ranks hold different hidden states",
        "both computed something else: compare weights, environment and build",
    ),
    "DS4T-LIFE-08": (
        "the leader cannot listen there",
        "another process holds the port: end it, or choose another",
    ),
    "DS4T-FAIL-16": ("an earlier failure is latched", "restart both ranks"),
}


_MORE: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "next worker did not answer within",
        "the hop behind it has a request and gives no answer",
        "look at that worker and at the link to it: stopped, swapping, or cut off",
    ),
    (
        "distributed worker did not answer within",
        "the first worker has a request and gives no answer",
        "look at that worker, and whether it waits for the one behind it",
    ),
    (
        "KV position mismatch",
        "the request starts at another position than the worker's session has",
        "a request was lost, changed or sent twice: reset the session",
    ),
    (
        "Address already in use",
        "another process holds that port: a second session, or one that never ended",
        "find it (ss -ltnp, lsof -i :PORT), end it, or choose another port; sessions "
        "of one coordinator share its listener",
    ),
    (
        "No space left on device",
        "the disk is full: what was written last is cut off",
        "make room, and load or give away nothing that was being written then",
    ),
    (
        "Cannot allocate memory",
        "the machine had no memory left for it",
        "ds4proto preflight counts slice, KV and sessions against its memory",
    ),
    (
        "Connection timed out",
        "packets to that address got no answer at all",
        "a wrong address or interface, a firewall that drops, or a machine that "
        "sleeps: ping it from here",
    ),
    (
        "No route to host",
        "that address is not in any network of this machine, or its machine is off",
        "see which interface the address belongs to (ds4proto preflight lists them)",
    ),
    (
        "Connection reset by peer",
        "the other side ended, or refused what it got, while this one was connected",
        "look at the other side's last lines: killed, crashed, or an error of its own",
    ),
    (
        "Broken pipe",
        "the other side had closed the connection when this one wrote to it",
        "look at the other side's last lines: it ended first",
    ),
)
"""Texts of peers and systems that no clause declares: what they hold, mean, ask for."""


class Meaning(NamedTuple):
    """What a text says.

    Attributes
    ----------
    clause : str
        ``DS4D-HELLO-08``; empty for an unknown text.
    meaning, next_step : str
    values : tuple of str
        What stands in the places of its numbers.
    """

    clause: str
    meaning: str
    next_step: str
    values: tuple[str, ...] = ()


UNKNOWN: Final = Meaning("", "", "")


class _Pattern(NamedTuple):
    clause: str
    weight: int
    form: re.Pattern[str]


@cache
def _patterns() -> tuple[_Pattern, ...]:
    found: dict[str, _Pattern] = {}
    for name in clauses.ids():
        error = clauses.get(name).error
        if not error:
            continue
        plain = _LETTER.sub("", _PREFIXES.sub("", error)).strip()
        if len(plain) < _LEAST or (error in found and name not in _ADVICE):
            continue  # where clauses share a text, the one with advice counts
        found[error] = _Pattern(name, len(plain), _compiled(_PREFIXES.sub("", error)))
    return tuple(sorted(found.values(), key=lambda item: -item.weight))


def _compiled(error: str) -> re.Pattern[str]:
    parts, at = [], 0
    for match in _LETTER.finditer(error):
        parts.append(re.escape(error[at : match.start()]))
        parts.append(f"({_FORMS[match['letter']]})")
        at = match.end()
    parts.append(re.escape(error[at:]))
    if parts[-1] == "" and parts[-2:-1] == [f"({_FORMS['s']})"]:
        parts[-2] = "(.*)"
    return re.compile("".join(parts))


def meaning_of(text: str) -> Meaning:
    """Return what a text of a peer means, `UNKNOWN` where no clause declares it."""
    plain = _PREFIXES.sub("", text.strip())
    for pattern in _patterns():
        match = pattern.form.search(plain)
        if match is None:
            continue
        clause = clauses.get(pattern.clause)
        meaning, step = _ADVICE.get(pattern.clause, ("", ""))
        if not meaning:
            meaning = f"the rule is: {clause.text.rstrip('.')}"
            step = f"ds4proto spec show {clause.id}"
        return Meaning(clause.id, meaning, step, match.groups())
    for words, meaning, step in _MORE:
        if words in plain:
            return Meaning("", meaning, step)
    return UNKNOWN
