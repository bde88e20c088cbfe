"""Refusals, error answers, lost routes, replays and answers that fit no request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ds4proto.link.ds4d_session import SNAPSHOT_IDS
from ds4proto.printable import counted
from ds4proto.schema.ds4d_work import RESET_SESSION
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Evidence, Finding, proof
from ds4proto.trace.diagnosis.known_texts import meaning_of
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.rows import FrameRow

__all__ = ["RouteCheck"]

HEAD: Final = 16
"""Tokens by which a prompt is known again."""
_MOST: Final = 16_384
_HASH: Final = "hash mismatch"
_TEXT: Final = 200
_FAR: Final = 1000
"""A jump in request ids that is no gap, but another coordinator."""


@dataclass(slots=True)
class Session:
    """How far a session of a run is, by its WORK frames on the first hop."""

    position: int = 0
    head: tuple[int, ...] = ()
    refused: FrameRow | None = None
    replayed: int = 0


@dataclass(slots=True)
class Times:
    """The same thing, several times."""

    first: FrameRow
    count: int = 1


class RouteCheck:
    """Answers and refusals of a pipeline."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._found: list[Finding] = []
        self._errors: dict[tuple[int, str, str], Times] = {}
        self._status: dict[tuple[int, str, str], Times] = {}
        self._asked: OrderedDict[tuple[int, int], FrameRow] = OrderedDict()
        self._answered: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.sessions: Bounded[tuple[int, int], Session] = Bounded()
        self.hellos: Bounded[tuple[int, str], FrameRow] = Bounded()
        self._refused: dict[int, FrameRow] = {}
        self._stray: dict[tuple[int, str, str], Times] = {}
        self._early: dict[tuple[int, int], FrameRow] = {}
        self._first: dict[int, int] = {}
        self._numbers: dict[int, tuple[int, FrameRow]] = {}
        self._snapshots: set[int] = set()
        self._left_out: dict[int, tuple[list[int], FrameRow, FrameRow]] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol != "DS4D" or not row.is_frame:
            return
        if row.type == "WORK":
            self._work(row)
        elif row.type == "RESULT":
            self._result(row)
        elif row.type == "ERROR":
            key = (row.run, row.src_role, _short(str(row.fields.get("text", ""))))
            _count(self._errors, key, row)
        elif row.type == "HELLO":
            self._hello(row)
        elif row.type.startswith("SNAPSHOT"):
            number = row.fields.get("request")  # None: its header alone was captured
            if number is not None and len(self._snapshots) < _MOST:
                self._snapshots.add(int(number))
            if not row.fields.get("status"):
                return
            text = str(row.fields.get("message") or row.fields.get("error", ""))
            _count(self._status, (row.run, row.src_role, text), row)

    # -- rows -------------------------------------------------------------------

    def _work(self, row: FrameRow) -> None:
        f = row.fields
        key = (row.stream, int(f["request"]))
        self._first.setdefault(*key)
        early = self._early.pop(key, None)
        if early is None or early.last_packet <= row.first_packet:
            self._asked[key] = row
        if len(self._asked) > _MOST:
            self._asked.popitem(last=False)
        if f.get("route_index"):
            return
        self._number(row)
        session = self._session(row.run, int(f["session"]))
        head = tuple((f.get("tokens") or ())[:HEAD])
        if f["flags"] & RESET_SESSION and f["pos0"] == 0:
            same = head[: len(session.head)] == session.head[: len(head)]
            if session.position and same:
                self._replay(row, session)
            session.head = head
        session.position = int(f["pos0"]) + int(f["n_tokens"])

    def _session(self, run: int, number: int) -> Session:
        held = self.sessions.get((run, number))
        return held or self.sessions.put((run, number), Session())

    def _number(self, row: FrameRow) -> None:
        """Note request ids that are left out: a coordinator counts them up."""
        request = int(row.fields["request"])
        before = self._numbers.get(row.run)
        if request < SNAPSHOT_IDS:
            self._numbers[row.run] = (max(request, before[0] if before else 0), row)
        if before is None or not before[0] + 1 < request < before[0] + _FAR:
            return
        missing = set(range(before[0] + 1, request)) - self._snapshots
        if missing and (row.run not in self._left_out):
            self._left_out[row.run] = (sorted(missing), before[1], row)

    def _replay(self, row: FrameRow, session: Session) -> None:
        f, refused = row.fields, session.refused
        lost = self._refused.pop(row.run, None)
        if refused is not None:
            why = (
                f"after {refused.src_role} refused request {refused.fields['request']} "
                f"({refused.fields.get('error', '')!r}) on a route that stayed up"
            )
            shown: tuple[Evidence, ...] = (proof(refused, self._scene.file, "refusal"),)
        elif lost is not None:
            why = f"after {lost.src_role} registered again: the connection was lost"
            shown = (proof(lost, self._scene.file, "registered again"),)
        else:
            why = "without a refusal or a new registration in the capture: the same "
            why += "prompt again, or a reason on the coordinator's side"
            shown = ()
        session.refused = None
        self._tell(
            Finding(
                "route.replay", "warning" if shown else "note",
                "certain" if shown else "possible",
                f"replay from position 0: {counted(f['n_tokens'], 'token')} of a "
                "session that "
                f"stood at {session.position} are computed again, {why}",
                {"tokens": f["n_tokens"], "position": session.position},
                (*shown, proof(row, self._scene.file, "replay")),
                "a replay costs a prefill; if it comes back, find why the worker lost "
                "its session (restart, two coordinators, no memory)",
                row.run, self._scene.file,
            )
        )  # fmt: skip

    def _result(self, row: FrameRow) -> None:
        f = row.fields
        key = (row.stream, int(f["request"]))
        asked = self._asked.pop(key, None)
        if asked is None and key in self._answered:
            _count(self._stray, (row.run, row.src_role, "again"), row)
        # a request with a lower number was asked before the capture began
        within = key[1] >= self._first.get(row.stream, key[1] + 1)
        if asked is None and key not in self._answered and within:
            if len(self._early) >= _MOST:
                return
            self._early[key] = row
        self._answered[key] = None
        if len(self._answered) > _MOST:
            self._answered.popitem(last=False)
        if not f["status"]:
            return
        text = _short(str(f.get("error", "")))
        _count(self._status, (row.run, row.src_role, text), row)
        if asked is not None and _HASH in text and not asked.fields.get("route_index"):
            self._session(row.run, int(asked.fields["session"])).refused = row

    def _hello(self, row: FrameRow) -> None:
        key = (row.run, row.src_role)
        before = self.hellos.get(key)
        self.hellos.put(key, row)
        if before is not None and before.stream != row.stream:
            self._refused[row.run] = row
            refused = any(k[0] == row.run for k in self._errors)
            if refused:
                return
            self._tell(
                Finding(
                    "route.rejoined", "warning", "certain",
                    f"{row.src_role} registered again {ms(row.time - before.time)} "
                    "after it did so before: its control connection was lost in "
                    "between",
                    {"seconds": round(row.time - before.time, 6)},
                    (proof(before, self._scene.file, "before"),
                     proof(row, self._scene.file, "again")),
                    "look why the first connection ended: a restart, a network that "
                    "drops, or a receive timeout on an idle connection "
                    "(DS4_DIST_SOCKET_RECV_TIMEOUT_SEC)",
                    row.run, self._scene.file,
                )
            )  # fmt: skip

    def _tell(self, finding: Finding) -> None:
        if len(self._found) < _MOST:
            self._found.append(finding)

    # -- answers ----------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """Answer, refusals first."""
        for (run, role, text), held in self._errors.items():
            yield self._refusal(run, role, text, held)
        for (run, role, text), held in self._status.items():
            yield self._error_status(run, role, text, held)
        yield from self._found
        for row in self._early.values():
            _count(self._stray, (row.run, row.src_role, "unknown"), row)
        for (_, _, kind), held in self._stray.items():
            row = held.first
            known = kind == "again"
            yield Finding(
                "route.stray-answer", "warning" if known else "severe", "likely",
                f"{row.src_role} answered request {row.fields['request']}"
                + (" a second time" if known
                   else ", which nobody asked on this connection")
                + (f" ({held.count} such answers)" if held.count > 1 else ""),
                {"answers": held.count, "request": row.fields["request"]},
                (proof(row, self._scene.file),),
                "a peer that takes it for the answer due is out of step: look for a "
                "request dropped or changed on the way, or a cancelled one",
                row.run, self._scene.file,
            )  # fmt: skip
        for run, (missing, last, row) in self._left_out.items():
            yield self._missing(run, missing, last, row)
        yield from self._id_spaces()

    def _refusal(self, run: int, role: str, text: str, held: Times) -> Finding:
        row = held.first
        said = meaning_of(text)
        return Finding(
            "route.error", "severe", "certain",
            f"{role} refused {row.dst_role} with ERROR {text!r}"
            + (f" ({counted(held.count, 'time')})" if held.count > 1 else "")
            + (f": {said.meaning}" if said.meaning else ""),
            {"times": held.count, "text": text}, (proof(row, self._scene.file),),
            said.next_step, run, self._scene.file, said.clause,
        )  # fmt: skip

    def _error_status(self, run: int, role: str, text: str, held: Times) -> Finding:
        row = held.first
        said = meaning_of(text)
        what = f"request {row.fields['request']}" if "request" in row.fields else ""
        return Finding(
            "route.error-status",
            "warning" if _HASH in text else "severe", "certain",
            f"{role} answered {what or row.type} with status "
            f"{row.fields.get('status')} {text!r}"
            + (f", {counted(held.count, 'time')} in all" if held.count > 1 else "")
            + (f": {said.meaning}" if said.meaning else ""),
            {"times": held.count, "text": text}, (proof(row, self._scene.file),),
            said.next_step, run, self._scene.file, said.clause,
        )  # fmt: skip

    def _missing(
        self, run: int, missing: list[int], before: FrameRow, row: FrameRow
    ) -> Finding:
        shown = ", ".join(map(str, missing[:8]))
        wait = row.time - before.time
        return Finding(
            "route.request-missing", "warning", "likely",
            f"request {shown} never passed here: after request "
            f"{before.fields['request']} came {row.fields['request']}, {ms(wait)} "
            f"later: it was lost between {row.src_role} and the place of the "
            "recording, or went another way",
            {"missing": len(missing), "first": missing[0]},
            (proof(before, self._scene.file, "the one before"),
             proof(row, self._scene.file, "the next one")),
            f"record on {row.src_role}'s machine: does it send that request, and where",
            run, self._scene.file,
        )  # fmt: skip

    def _id_spaces(self) -> Iterator[Finding]:
        for run in self._scene.decoder.decoder.runs:
            if len(run.id_spaces) > 1:
                yield Finding(
                    "pipeline.id-spaces", "note", "certain",
                    f"two id spaces: {' and '.join(sorted(run.id_spaces))}; a snapshot "
                    "between two requests leaves no gap in the requests",
                    run=run.number, file=self._scene.file,
                )  # fmt: skip
            for note in run.told:
                yield Finding(
                    "pipeline.note", "note", "certain", note, run=run.number,
                    file=self._scene.file,
                )  # fmt: skip


def _short(text: str) -> str:
    """Return what a peer said, cut where it is no sentence any more."""
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


def _count(table: dict[Any, Times], key: Any, row: FrameRow) -> None:
    held = table.get(key)
    if held is None:
        if len(table) < _MOST:
            table[key] = Times(row)
    else:
        held.count += 1
