"""RDMA: what RDMA_INFO frames give away, and what a RoCE capture shows of the gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.link.rdma_choice import GidEntry
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Evidence, Finding, Severity, proof
from ds4proto.trace.roce import RoceReport
from ds4proto.trace.rows import FrameRow

__all__ = ["RdmaCheck", "roce_findings"]

_INFINIBAND: Final = 1
_LATE_MS: Final = 50.0
_MOST: Final = 4096


class RdmaCheck:
    """The addresses that queue pairs were set up with."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._found: list[Finding] = []
        self._gids: dict[tuple[str, str], FrameRow] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.type != "RDMA_INFO" or not row.is_frame:
            return
        try:
            gid = GidEntry(0, bytes.fromhex(str(row.fields.get("gid", ""))))
        except ValueError:
            return
        if len(gid.gid) != 16:
            return
        shown = str(gid).partition("] ")[2]
        self._one(row, gid, shown)
        host = row.src.rpartition(":")[0]
        before = self._gids.get((row.src_role, host))
        self._gids[row.src_role, host] = row
        if before is not None and before.fields["gid"] != row.fields["gid"]:
            old = GidEntry(0, bytes.fromhex(before.fields["gid"]))
            self._tell(
                Finding(
                    "rdma.gid-changed", "warning", "certain",
                    f"the {row.src_role}'s GID changed from "
                    f"{str(old).partition('] ')[2]} to {shown} between two set-ups",
                    {}, (proof(before, self._scene.file), proof(row, self._scene.file)),
                    "the address of that interface is self-assigned or was renewed: "
                    "give it a fixed IPv4 address; a cached index fails after this",
                    row.run, self._scene.file,
                )
            )  # fmt: skip

    def _one(self, row: FrameRow, gid: GidEntry, shown: str) -> None:
        layer = int(row.fields.get("link_layer", 0))
        if layer == _INFINIBAND and not gid.mapped:
            self._tell(
                Finding(
                    "rdma.infiniband", "severe", "certain",
                    f"the {row.src_role} is on native InfiniBand (lid "
                    f"{row.fields.get('lid')}, GID {shown}): this transport needs RoCE "
                    "or Thunderbolt",
                    {}, (proof(row, self._scene.file),),
                    "use an Ethernet port, or IP over InfiniBand with --transport tcp",
                    row.run, self._scene.file,
                )
            )  # fmt: skip
            return
        if gid.mapped:
            return
        kind = "all zero" if gid.zero else "link-local" if gid.link_local else "no IPv4"
        self._tell(
            Finding(
                "rdma.gid", "severe", "certain",
                f"the {row.src_role} sent the GID {shown} ({kind}): no IPv4-mapped GID"
                ": give the interface an IPv4 address. Ready-to-receive fails with "
                "errno 22, or messages go nowhere",
                {"gid": shown}, (proof(row, self._scene.file),),
                "give the interface of that port an IPv4 address on both machines, "
                "then start both again", row.run, self._scene.file,
            )
        )  # fmt: skip

    def _tell(self, finding: Finding) -> None:
        if len(self._found) < _MOST:
            self._found.append(finding)

    def findings(self) -> Iterator[Finding]:
        """Return what was seen, in order."""
        yield from self._found


def roce_findings(report: RoceReport, file: str) -> Iterator[Finding]:
    """Answer from a RoCE capture: lost, late and repeated gates.

    Parameters
    ----------
    report : RoceReport
    file : str
        Name of the RoCE capture.
    """
    total = sum(report.packets.values())
    if not total:
        return
    kinds = ", ".join(f"{n} {name}" for name, n in sorted(report.packets.items()))
    yield Finding(
        "rdma.packets", "note", "certain", f"RoCE: {kinds}", {"packets": total},
        file=file,
    )  # fmt: skip
    for text in report.findings:
        kind, _, rest = text.partition(": ")
        code, severity, step = _ROCE.get(kind, ("rdma.note", "note", ""))
        if kind == "late":
            late = _late(report)
            severity = "warning" if late >= _LATE_MS else "note"
        evidence: tuple[Evidence, ...] = ()
        for flow, message in report.messages():
            if message.gate is not None and str(message.gate) in rest:
                evidence = (
                    Evidence(
                        file, packet=message.first_packet, frame="RoCE",
                        text=f"{flow.transport} psn {message.psn:#x}",
                    ),
                )  # fmt: skip
                break
        yield Finding(
            code,
            severity,
            "certain" if evidence else "likely",
            rest,
            {},
            evidence,
            step,
            file=file,
        )


def _late(report: RoceReport) -> float:
    waits = [
        (message.acked or message.last_time) - message.time
        for _, message in report.messages() if message.rnr
    ]  # fmt: skip
    return 1e3 * max(waits, default=0.0)


_ROCE: Final[dict[str, tuple[str, Severity, str]]] = {
    "late": (
        "rdma.late-receive", "warning",
        "the receive was posted after the message came: the rank is late, and the "
        "receiver-not-ready timer sets the price of a miss (12: 0.64 ms, 0: 655 ms)",
    ),
    "lost": (
        "rdma.lost", "severe",
        "packets of one direction do not arrive: cable, port, or a queue pair that "
        "delivers one way; on UC a message without a posted receive is lost in silence",
    ),
    "repeated": ("rdma.repeated", "warning", "packets are lost: cable, or congestion"),
    "not sent": (
        "rdma.not-sent", "severe",
        "that rank never sent it: see where it waited, its message before is lost or "
        "late",
    ),
    "incomplete": ("rdma.incomplete", "note", "record with a larger buffer"),
}  # fmt: skip
