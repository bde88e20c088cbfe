"""A RoCE report as lines of text, or as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ds4proto.printable import counted
from ds4proto.trace.roce import RoceReport
from ds4proto.trace.roce_findings import named, way


def roce_lines(report: RoceReport) -> Iterator[str]:
    """Yield one line a message, then what went wrong, then the totals."""
    start = min((m.time for _, m in report.messages()), default=0.0)
    for flow, message in report.messages():
        marks = [f"{counted(message.nbytes, 'byte')}"]
        if message.packets > 1:
            marks.append(f"{counted(message.packets, 'packet')}")
        if message.sends > 1:
            marks.append(f"sent {counted(message.sends, 'time')}")
        if message.rnr:
            marks.append(f"{message.rnr} RNR NAKs")
        if message.naks:
            marks.append(f"{message.naks} NAKs")
        if flow.transport == "RC" and message.acked is None:
            marks.append("not acknowledged")
        yield (
            f"{message.time - start:11.6f}  {flow.transport} {named(flow, message)}  "
            f"[{', '.join(marks)}]"
        )
    for finding in report.findings:
        yield f"  ! {finding}"
    counts = ", ".join(f"{n} {name}" for name, n in sorted(report.packets.items()))
    yield f"roce: {counts or 'no packets of port 4791'}"


def roce_records(report: RoceReport) -> Iterator[dict[str, Any]]:
    """Yield one mapping a message, then one for each finding."""
    for flow, message in report.messages():
        gate = message.gate
        yield {
            "roce": "message",
            "direction": way(flow),
            "transport": flow.transport,
            "dest_qp": flow.dest_qp,
            "psn": message.psn,
            "packet": message.first_packet,
            "epoch": message.time,
            "packets": message.packets,
            "bytes": message.nbytes,
            "sends": message.sends,
            "rnr_naks": message.rnr,
            "naks": message.naks,
            "acked": message.acked,
            "gate": None if gate is None else str(gate),
            "gate_kind": None if gate is None else gate.kind,
            "seq": None if gate is None else gate.seq,
        }
    for finding in report.findings:
        yield {"roce": "finding", "text": finding}
    yield {"roce": "packets", **report.packets}
