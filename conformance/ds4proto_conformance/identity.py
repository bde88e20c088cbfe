"""What a report, a live peer or a capture says of a peer, and whether two will fit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ds4proto.errors import ExitCode, NothingRan, PeerLost, WrongUsage
from ds4proto_conformance.report.stream import Report, read_report

__all__ = ["fit", "identity_of", "profile_of"]

_NOTE = "numeric profile"
WIDTHS = (32, 16, 8)


def profile_of(report: Report) -> dict[str, Any]:
    """Return the identity of a peer as a report tells it, with its verdicts."""
    from ds4proto_conformance.report.text import verdict_counts

    found: dict[str, Any] = {"role": report.header["role"]}
    found["dialect"] = report.header.get("dialect", "?")
    found.update(report.identity)
    notes = Counter(
        note.split(": ", 1)[1]
        for line in report.cases.values()
        for note in line.get("notes", ())
        if note.startswith(_NOTE) and ": " in note
    )
    if notes and "numeric_profile" not in found:
        found["numeric_profile"] = ", ".join(notes)
    refused = {
        str(line["combination"].get("bits"))
        for line in report.cases.values()
        if line["verdict"] in ("fail", "partial")
        and "bits" in line.get("combination", {})
    }
    found["widths"] = [bits for bits in WIDTHS if str(bits) not in refused]
    found["verdicts"] = verdict_counts(report)
    return found


def identity_of(source: str, role: str | None = None) -> dict[str, Any]:
    """Return the identity of a saved report, a capture or a live peer.

    Raises
    ------
    WrongUsage
        The text names none of them.
    PeerLost, NothingRan
        The live peer went away, or the run was stopped: half of it tells nothing.
    """
    if source.startswith("capture:"):
        return _of_capture(source.partition(":")[2])
    if Path(source).is_file():
        return profile_of(read_report(source))
    if ":" not in source:
        raise WrongUsage(f"{source}: no report file, and no peer")
    from ds4proto_conformance.cli.check import role_of
    from ds4proto_conformance.front import run
    from ds4proto_conformance.settings import Settings

    settings = Settings(source, role_of(source, role))
    report, status = run(settings, "smoke")
    stopped = report.footer.get("stopped")
    if status is ExitCode.PEER_LOST:
        raise PeerLost(str(stopped))
    if stopped or status is ExitCode.NOTHING_RAN:
        why = stopped or "no case applies to it"
        raise NothingRan(f"nothing is known of {source}: {why}")
    return profile_of(report)


def _of_capture(path: str) -> dict[str, Any]:
    from ds4proto.trace import decode

    found: dict[str, Any] = {"role": "capture"}
    widths: set[int] = set()
    for row in decode(path, payload="none"):
        found.setdefault("dialect", row.dialect)
        if row.type == "HELLO" and "model_id" in row.fields:
            f = row.fields
            found |= {
                "model_id": f["model_id"],
                "model_name": f.get("model_name"),
                "n_layers": f.get("n_layers"),
                "ctx": f.get("ctx_size"),
            }
        if "input_hc_bits" in row.fields:
            widths.add(row.fields["input_hc_bits"] or 32)
    found["widths"] = sorted(widths, reverse=True)
    return found


def fit(a: dict[str, Any], b: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Return what keeps two peers apart, and the widths that both know."""
    reasons = []
    for name in (
        "dialect",
        "model_id",
        "model_name",
        "n_layers",
        "hidden_values",
        "vocab",
    ):
        one, two = a.get(name), b.get(name)
        if one is not None and two is not None and one != two:
            reasons.append(f"{name}: {one} here, {two} there")
    for one, two in ((a, b), (b, a)):
        if one["role"] == "coordinator" and (two.get("ctx") or 0) < (
            one.get("ctx") or 0
        ):
            reasons.append(
                f"context: the worker's {two.get('ctx')} is below"
                f" the coordinator's {one.get('ctx')}"
            )
    widths = [
        bits for bits in a.get("widths", WIDTHS) if bits in b.get("widths", WIDTHS)
    ]
    if not widths:
        reasons.append("no width that both know")
    one, two = a.get("numeric_profile"), b.get("numeric_profile")
    if one and two and one != two and 8 in widths:
        reasons.append(f"note: 8-bit bytes of -0 and NaN differ ({one}, {two})")
    return reasons, widths
