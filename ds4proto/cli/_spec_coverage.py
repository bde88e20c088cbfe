"""Which clauses something checks: conformance cases, vectors, planted faults.

Packages contribute through the entry-point group ``ds4proto.coverage``: a name and a
function without arguments that returns a mapping from clause id to what covers it. The
library's own share is here: the packaged codec vectors, the rows of the rule vectors
(``ds4proto.rule_vectors``), the faults that ``emit.faults`` plants in single frames,
and the proofs of ``tests/spec/proofs``, each a check with a planted fault that the
tests prove to be caught. Some ask recordings of real builds, the others our own code
alone; what rests on the latter only is counted apart. Proofs are read from an index in
the package data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any, Final

from ds4proto import clauses, rule_vectors
from ds4proto.clauses import Clause
from ds4proto.schema.declare import FieldSpec, FrameSpec, Rule
from ds4proto.schema.dialects import DEFAULT_DS4T

GROUP: Final = "ds4proto.coverage"

TARGET: Final = 0.95
"""Share of the clauses of the target that is to be covered."""
PROOFS: Final = "data/proofs.json"

_OWN_CODE: Final = ("check ", "planted fault ")

Covered = Mapping[str, Sequence[str]]

# Clause, vector file, and the flag of the tests that show it.
_VECTORS: Final[tuple[tuple[str, str, str], ...]] = (
    ("CODEC-F32-01", "f32", "CodeValue"),
    ("CODEC-F32-02", "f32", "NaN"),
    ("CODEC-F16-01", "f16", "Tie"),
    ("CODEC-F16-02", "f16", "Overflow"),
    ("CODEC-F16-03", "f16", "Tiny"),
    ("CODEC-F16-04", "f16", "NaN"),
    ("CODEC-F16-05", "f16", "CodeValue"),
    ("CODEC-BF16-01", "bf16", "Tie"),
    ("CODEC-BF16-02", "bf16", "NaN"),
    ("CODEC-BF16-03", "bf16", "CodeValue"),
    ("CODEC-E4M3-01", "e4m3", "Measured"),
    ("CODEC-E4M3-02", "e4m3", "CodeValue"),
    ("CODEC-E4M3-03", "e4m3", "NeverEncoded"),
    ("CODEC-E4M3-04", "e4m3", "Tie"),
    ("CODEC-E4M3-05", "e4m3", "Clip"),
    ("CODEC-E4M3-06", "e4m3", "NearTie"),
    ("CODEC-E4M3-07", "e4m3", "SubnormalClamp"),
    ("CODEC-E4M3-08", "e4m3", "DoubleRounding"),
    ("CODEC-E4M3-09", "e4m3", "NegativeZero"),
    ("CODEC-E4M3-10", "e4m3", "NaN"),
    ("CODEC-E4M3-11", "e4m3", "CodeValue"),
    ("CODEC-E4M3-12", "e4m3", "ForeignScale"),
    ("CODEC-E4M3-20", "e4m3", "NegativeZero"),
    ("CODEC-E4M3-21", "e4m3", "NaN"),
    ("CODEC-E4M3-22", "e4m3", "Denormal"),
    ("CODEC-E4M3-23", "e4m3", "Denormal"),
    ("CODEC-HASH-01", "token_hash", "Measured"),
    ("CODEC-HASH-02", "token_hash", "Measured"),
    ("CODEC-HASH-03", "token_hash", "Measured"),
    ("CODEC-HASH-04", "token_hash", "Prefix"),
    ("CODEC-SIZE-01", "e4m3", "ExactSize"),
    ("CODEC-SIZE-03", "f16", "WrongSize"),
    ("CODEC-ROW-01", "mxfp4", "NaNBlock"),
    ("CODEC-ROW-02", "nvfp4", "ShortBlock"),
    ("CODEC-ROW-03", "int8", "TinyBlock"),
    ("CODEC-ROW-04", "mxfp4", "NibbleOrder"),
    ("CODEC-ROW-05", "mxfp4", "NibbleOrder"),
    ("CODEC-ROW-06", "int8", "ShortBlock"),
    ("CODEC-ROW-08", "int8", "WrongSize"),
    ("CODEC-ELEM-01", "fp8", "ElementTie"),
    ("CODEC-ELEM-02", "mxfp4", "ElementTie"),
    ("CODEC-ELEM-03", "int8", "OperationOrder"),
    ("CODEC-ELEM-04", "nvfp4", "OddScale"),
    ("CODEC-INT8-01", "int8", "TinyBlock"),
    ("CODEC-INT8-02", "int8", "ElementTie"),
    ("CODEC-INT8-03", "int8", "NaNBlock"),
    ("CODEC-INT8-04", "int8", "OddScale"),
    ("CODEC-INT4-01", "int4", "TinyBlock"),
    ("CODEC-INT4-02", "int4", "ElementTie"),
    ("CODEC-INT4-03", "int4", "NaNBlock"),
    ("CODEC-INT4-04", "int4", "OddScale"),
    ("CODEC-FP8-01", "fp8", "TinyBlock"),
    ("CODEC-FP8-02", "fp8", "OperationOrder"),
    ("CODEC-FP8-03", "fp8", "NaNBlock"),
    ("CODEC-FP8-04", "fp8", "OddScale"),
    ("CODEC-MX-01", "mxfp4", "ScaleEdge"),
    ("CODEC-MX-02", "mxfp4", "ScaleEdge"),
    ("CODEC-MX-03", "mxfp4", "ScaleEdge"),
    ("CODEC-MX-04", "mxfp4", "ScaleEdge"),
    ("CODEC-MX-05", "mxfp8", "ElementTie"),
    ("CODEC-MX-06", "mxfp4", "ZeroBlock"),
    ("CODEC-MX-07", "mxfp4", "NaNBlock"),
    ("CODEC-MX-08", "mxfp4", "InfBlock"),
    ("CODEC-MX-09", "mxfp8", "OddScale"),
    ("CODEC-MX-10", "e2m1-e8m0-16", "ShortBlock"),
    ("CODEC-NVFP4-01", "nvfp4", "TinyBlock"),
    ("CODEC-NVFP4-02", "nvfp4", "HugeBlock"),
    ("CODEC-NVFP4-03", "nvfp4", "OperationOrder"),
    ("CODEC-NVFP4-04", "nvfp4", "ZeroBlock"),
    ("CODEC-NVFP4-05", "nvfp4", "OperationOrder"),
    ("CODEC-NVFP4-06", "nvfp4", "TinyBlock"),
    ("CODEC-NVFP4-07", "nvfp4", "NaNBlock"),
    ("CODEC-NVFP4-08", "nvfp4", "OddScale"),
    ("CODEC-NVFP4-09", "e2m1-e4m3-32", "ShortBlock"),
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is covered, clause by clause.

    Parameters
    ----------
    found : tuple of Clause
        The clauses looked at.
    by_clause : mapping
        Clause id to what covers it.
    """

    found: tuple[Clause, ...]
    by_clause: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def musts(self) -> tuple[Clause, ...]:
        """The clauses that say MUST or MUST NOT."""
        return tuple(clause for clause in self.found if clause.mandatory)

    @property
    def must_total(self) -> int:
        """Number of MUST clauses."""
        return len(self.musts)

    @property
    def must_covered(self) -> int:
        """Number of MUST clauses that something covers."""
        return sum(clause.id in self.by_clause for clause in self.musts)

    @property
    def target(self) -> tuple[Clause, ...]:
        """The MUST clauses that the target is about."""
        return tuple(clause for clause in self.musts if in_target(clause))

    @property
    def target_total(self) -> int:
        """Number of MUST clauses of the target."""
        return len(self.target)

    @property
    def target_covered(self) -> int:
        """Number of MUST clauses of the target that something covers."""
        return sum(clause.id in self.by_clause for clause in self.target)

    @property
    def own_code_only(self) -> tuple[str, ...]:
        """MUST clauses that only checks of this package's own code show.

        No peer, recording or row of a vector file stands behind them: a port finds
        nothing there to run.
        """
        return tuple(
            clause.id
            for clause in self.musts
            if clause.id in self.by_clause
            and all(w.startswith(_OWN_CODE) for w in self.by_clause[clause.id])
        )

    def by_chapter(self) -> dict[str, tuple[int, int]]:
        """Return covered and all MUST clauses of each chapter."""
        counts: dict[str, tuple[int, int]] = {}
        for clause in self.musts:
            covered, total = counts.get(clause.chapter, (0, 0))
            covered += clause.id in self.by_clause
            counts[clause.chapter] = covered, total + 1
        return counts

    def uncovered(self) -> dict[str, str]:
        """Return the MUST clauses that nothing covers, and why."""
        return {
            clause.id: reason(clause)
            for clause in self.musts
            if clause.id not in self.by_clause
        }

    def sentence(self) -> str:
        """Return the numbers in words."""
        return (
            f"{self.must_covered} of {self.must_total} MUST clauses"
            f" ({_percent(self.must_covered, self.must_total)} %) are"
            " covered by a conformance case, a vector or a planted fault. Of DS4D, the"
            f" codecs and DS4T and DS4B as {DEFAULT_DS4T} speaks them,"
            f" {self.target_covered} of {self.target_total}"
            f" ({_percent(self.target_covered, self.target_total)} %) are; the target"
            f" is {100 * TARGET:.0f} %. Behind {len(self.own_code_only)} stand checks"
            " of this package's own code alone, no peer, recording or vector."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for ``--json``."""
        return {
            "must_total": self.must_total,
            "must_covered": self.must_covered,
            "target_total": self.target_total,
            "target_covered": self.target_covered,
            "target_share": TARGET,
            "own_code_only": list(self.own_code_only),
            "chapters": {
                name: {"must_covered": covered, "must_total": total}
                for name, (covered, total) in self.by_chapter().items()
            },
            "covered": {name: list(what) for name, what in self.by_clause.items()},
            "uncovered": self.uncovered(),
        }


def _percent(covered: int, total: int) -> int:
    """Return a share in whole percent, rounded down: 94.9 is not 95."""
    return 100 * covered // total if total else 0


def in_target(clause: Clause) -> bool:
    """Tell whether the target counts a clause.

    DS4D, files and codecs count in every dialect. Of DS4T and DS4B count the clauses
    that bind the main dialect; what only older and newer ones have stands outside.
    """
    if not clause.id.startswith(("DS4T-", "DS4B-")):
        return True
    return bool({"*", DEFAULT_DS4T} & set(clause.dialects))


def gather(family: str = "") -> Coverage:
    """Return the coverage of the clauses whose id begins with ``family``."""
    found = tuple(c for c in clauses.load() if c.id.startswith(family))
    known = {clause.id for clause in found}
    merged: dict[str, list[str]] = {}
    own = (planted_faults, vectors, rule_vectors.by_clause, proofs)
    for source in (*own, *contributors()):
        for name, what in source().items():
            if name in known:
                merged.setdefault(name, []).extend(what)
    ordered = {c.id: tuple(merged[c.id]) for c in found if c.id in merged}
    return Coverage(found, ordered)


def contributors() -> Iterator[Callable[[], Covered]]:
    """Yield what other packages registered in the group, by name."""
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        yield entry.load()


def vectors() -> dict[str, list[str]]:
    """Return the clauses that packaged codec vectors show."""
    from ds4proto.codec import vectors as packaged

    counts: dict[tuple[str, str], int] = {}
    for name in packaged.names():
        for group in packaged.load(name)["testGroups"]:
            for test in group["tests"]:
                for flag in test.get("flags", ()):
                    counts[name, flag] = counts.get((name, flag), 0) + 1
    return {
        clause: [f"{counts[name, flag]} vectors {name}/{flag}"]
        for clause, name, flag in _VECTORS
        if counts.get((name, flag))
    }


def proofs() -> dict[str, list[str]]:
    """Return the clauses that a check with a planted fault of its own shows."""
    text = files("ds4proto").joinpath(PROOFS).read_text("utf-8")
    found: dict[str, list[str]] = json.loads(text)
    return found


def planted_faults() -> dict[str, list[str]]:
    """Return the clauses whose fault in one frame the decoder is shown to catch."""
    from ds4proto.emit.faults import faults
    from ds4proto.schema.dialects import all_dialects
    from ds4proto.schema.registry import frames

    found: dict[str, list[str]] = {}
    for entry in all_dialects():
        for spec in frames(dialect=entry.name):
            for fault in faults(spec, entry.name):
                clause = _clause_of(fault, spec)
                what = f"planted fault in {spec.full_name}"
                if clause and what not in found.setdefault(clause, []):
                    found[clause].append(what)
    return found


def _clause_of(fault: Any, spec: FrameSpec) -> str:
    if isinstance(fault, FieldSpec | Rule):
        return fault.clause
    if isinstance(fault, tuple):
        return str(fault[1].clause)
    body = spec.body
    if fault == "long":
        return body.trailing_clause or body.short_clause
    return body.tails[-1].clause if fault == "ragged" else body.short_clause


def _of_a_fork(clause: Clause) -> bool:
    ends = {"coordinator", "worker", "tp-leader", "tp-worker"}
    return "dialects" in clause.chapter and bool(ends & set(clause.role))


_REASONS: Final[tuple[tuple[Callable[[Clause], bool], str], ...]] = (
    (lambda c: c.tier == "engine", "the engine decides: no test peer has the model"),
    (lambda c: c.evidence == "hypothesis", "a hypothesis: no build was seen doing it"),
    (lambda c: "options" in c.chapter, "an option of the ds4 programs themselves"),
    (lambda c: c.chapter == "rdma", "needs RDMA devices or a simulated provider"),
    (_of_a_fork, "binds builds of a fork that no peer here speaks"),
    (lambda c: "dialects" in c.chapter, "the layout around it is not known"),
    (lambda c: c.kind == "defect", "a defect of known peers that nothing here plants"),
    (lambda c: c.evidence == "read", "read in a build's source; no running build"),
)


def reason(clause: Clause) -> str:
    """Return why nothing covers a clause yet."""
    for holds, text in _REASONS:
        if holds(clause):
            return text
    return "no case yet"
