"""How far each connection came: refused, silent, half a hello, waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from ds4proto.pcap.types import Endpoint
from ds4proto.printable import counted
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.connections import Connection, Connections
from ds4proto.trace.diagnosis.finding import Evidence, Finding, Severity, proof
from ds4proto.trace.diagnosis.gate_headers import is_gate
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.rows import FrameRow

__all__ = ["ConnectingCheck"]

SILENT: Final = 2.0
"""Seconds without an answer from which a handshake is called stuck."""
LISTED: Final = 8
MANY: Final = 8
_SILENT: Final = ("refused", "never answered", "connected, 0 bytes", "reset, 0 bytes")


class ConnectingCheck:
    """Connections that did not become a run."""

    def __init__(self, scene: Scene, connections: Connections) -> None:
        self._scene = scene
        self._connections = connections
        self._answers: set[tuple[int, str]] = set()
        self._hellos: dict[int, FrameRow] = {}
        self._working: set[int] = set()
        self._spoke: set[Endpoint] = set()

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.is_frame:
            self._answers.add((row.stream, row.direction))
            if row.type == "WORK":
                self._working.add(row.run)
            if row.type == "HELLO":
                self._hellos.setdefault(row.stream, row)

    def findings(self) -> Iterator[Finding]:
        """Answer by listener, then connection by connection."""
        groups: dict[tuple[Endpoint, str], list[Connection]] = defaultdict(list)
        half: dict[Endpoint, list[Connection]] = defaultdict(list)
        self._spoke = {c.b for c in self._connections.all.values() if c.frames}
        for held in self._connections.all.values():
            if held.kind == "silent" and not self._data_of_pair(held):
                for note in _SILENT:
                    if note in held.notes:
                        groups[held.b, note].append(held)
            elif self._half(held):
                half[held.b].append(held)
            yield from self._waiting(held)
        for (listener, note), group in groups.items():
            yield from self._silent(listener, note, group)
        for listener, group in half.items():
            yield self._half_open(listener, group)

    def _data_of_pair(self, held: Connection) -> bool:
        """Tell whether a silent connection is the data connection of a pair."""
        return "connected, 0 bytes" in held.notes and any(
            hello.protocol == "DS4T"
            and self._connections.all[stream].b == held.b
            and self._connections.all[stream].a.host == held.a.host
            and self._connections.all[stream].opened <= held.opened
            for stream, hello in self._hellos.items()
        )

    def _half(self, held: Connection) -> bool:
        """Tell whether a connection to a peer never became a frame of its own."""
        if held.frames or held.holes or not held.undecoded or not self._ours(held):
            return False
        return not any(
            row.fields.get("frame") or (row.run and is_gate(row))
            for row in held.undecoded
        )

    def _ours(self, held: Connection) -> bool:
        return bool(self._scene.run_number(held.stream)) or self._known(held.b)

    def _known(self, listener: Endpoint) -> bool:
        """Tell whether a peer of the protocols listens there."""
        table = self._scene.decoder.decoder.table
        return listener in self._spoke or table.is_listener(listener)

    def _silent(
        self, listener: Endpoint, note: str, group: list[Connection]
    ) -> Iterator[Finding]:
        first, last = group[0], group[-1]
        later = [
            held for held in self._connections.all.values()
            if held.b == listener and held.frames and held.opened > first.opened
        ]  # fmt: skip
        known = self._known(listener)
        before = any(
            held.b == listener and held.frames and held.opened <= first.opened
            for held in self._connections.all.values()
        )
        numbers: dict[str, float | int | str] = {
            "listener": str(listener), "connections": len(group),
            "from_s": round(first.opened, 3), "to_s": round(last.opened, 3),
        }  # fmt: skip
        who = ", ".join(dict.fromkeys(held.a.host for held in group[:LISTED]))
        span = f"from {first.opened:.3f} s to {last.opened:.3f} s"
        evidence = tuple(self._opened(held) for held in group[:LISTED])
        times = counted(len(group), "connection")
        other = not known and any(h.frames for h in self._connections.all.values())
        severity: Severity = "note" if later or other else "severe"
        if note == "refused":
            severity = "warning" if before and severity == "severe" else severity
            yield Finding(
                "connect.refused", severity,
                "certain" if known else "possible",
                f"{times} from {who} to {listener} refused {span}: nothing listened "
                "there"
                + (f" yet; {later[0].opened:.3f} s brought one that works" if later
                   else " any more: the listener had its partner, or was gone"
                   if before else ""),
                numbers, evidence,
                "the peer that dials was started before its partner listens; it tries "
                "again" if later else
                f"start the peer that listens at {listener} and wait until its model "
                "is loaded; check address, port and firewall",
                file=self._scene.file,
            )  # fmt: skip
            return
        if note == "never answered":
            brief = self._connections.end - first.opened < STALL
            yield Finding(
                "connect.no-answer", "note" if brief else severity,
                "certain" if known else "possible",
                f"{times} from {who} to {listener} {span}: not one packet came back",
                numbers, evidence,
                "wrong address or interface, a firewall that drops, or a machine that "
                "sleeps: ping it, and see which interface the address belongs to",
                file=self._scene.file,
            )  # fmt: skip
            return
        ends = [held.ended.time if held.ended else self._connections.end
                for held in group]  # fmt: skip
        longest = max(end - h.opened for end, h in zip(ends, group, strict=True))
        numbers["longest_s"] = round(longest, 3)
        stuck = longest >= SILENT or len(group) >= MANY
        yield Finding(
            "connect.silent", "warning" if stuck and not other else "note",
            "likely" if known else "possible",
            f"{times} from {who} to {listener}: connected, waiting for HELLO, 0 bytes "
            f"either way in {ms(longest)}"
            + (", then reset" if "reset" in note else ""),
            numbers, evidence,
            "one side accepts and says nothing: a process still loading its model, a "
            "stale process on that port, or another program",
            file=self._scene.file,
        )  # fmt: skip

    def _half_open(self, listener: Endpoint, group: list[Connection]) -> Finding:
        shown = ", ".join(
            f"{held.a} ({counted(sum(held.nbytes.values()), 'byte')})"
            for held in group[:LISTED]
        )
        rest = f" and {len(group) - LISTED} more" if len(group) > LISTED else ""
        return Finding(
            "connect.half-open", "warning", "certain",
            f"{counted(len(group), 'connection')} to {listener} sent less than one "
            f"frame, or bytes of no frame: {shown}{rest}",
            {"listener": str(listener), "connections": len(group)},
            tuple(
                proof(held.undecoded[0], self._scene.file) for held in group[:LISTED]
            ),
            "a port scan, a health check or a broken peer: such connections hold a "
            "place at the listener; these ports belong behind a firewall",
            file=self._scene.file,
        )  # fmt: skip

    def _waiting(self, held: Connection) -> Iterator[Finding]:
        """Find a hello that nobody answered."""
        hello = self._hellos.get(held.stream)
        if hello is None or held.frames > 1:
            return
        other = "b>a" if hello.direction == "a>b" else "a>b"
        if (held.stream, other) in self._answers or held.nbytes[other]:
            return
        end = held.ended.time if held.ended is not None else self._connections.end
        wait = end - hello.time
        if hello.protocol == "DS4D":
            who = hello.src_role
            if hello.run in self._working:
                return  # its requests come over the hop before it
            yield Finding(
                "connect.no-request", "note", "certain",
                f"{who} said HELLO and got nothing in {ms(wait)}: the protocol answers "
                "a good HELLO with the first request alone, so that a registered "
                "worker and one that nobody reads look alike",
                {"waited_ms": round(wait * 1e3, 3)},
                (proof(hello, self._scene.file),),
                "look at the coordinator's log for 'registered worker' and for the "
                "route: it waits until all layers are covered",
                hello.run, self._scene.file,
            )  # fmt: skip
            return
        severe = held.ended is not None or wait >= SILENT
        yield Finding(
            "connect.no-hello", "severe" if severe else "note", "certain",
            f"the {hello.src_role} sent its hello and 0 bytes came back in {ms(wait)}"
            + (f"; {self._connections.role(held, held.ended.side)} {held.ended.verb} "
               "the connection" if held.ended is not None else ""),
            {"waited_ms": round(wait * 1e3, 3)}, (proof(hello, self._scene.file),),
            "the other side accepted and says nothing: it may still load its model, "
            "or another program holds that port",
            hello.run, self._scene.file,
        )  # fmt: skip

    def _opened(self, held: Connection) -> Evidence:
        return Evidence(
            self._scene.file, held.stream, "a>b", held.packet,
            time=round(held.opened, 9), text=f"{held.a} -> {held.b}",
        )  # fmt: skip
