"""How a tensor-parallel pair ended: missing gates, stalls, who gave up first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.link.ds4t_events import INTERRUPTED
from ds4proto.link.ds4t_identity import Identity, all_mismatches
from ds4proto.printable import counted
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.connections import Connections
from ds4proto.trace.diagnosis.finding import Finding, in_its_wake, proof
from ds4proto.trace.diagnosis.gate_headers import GateHeaders
from ds4proto.trace.diagnosis.spread import ms
from ds4proto.trace.diagnosis.tp_ends import GaveUp, PairEnds
from ds4proto.trace.diagnosis.tp_gates import OTHER, SYNCS, PairRun, Pairs, gate_name
from ds4proto.trace.diagnosis.tp_rdma_ends import IDLE, no_queue_pair, stale_link
from ds4proto.trace.diagnosis.tp_refusals import Refusals
from ds4proto.trace.rows import FrameRow

__all__ = ["TpEndingCheck"]

_TIMEOUT: Final = "DS4_TP_GATE_TIMEOUT_MS"
_NO_GATES: Final = frozenset(
    {"SESSION_CREATE", "SESSION_DESTROY", "STOP", "INVALIDATE", "REWIND"}
)
_NO_ACK: Final = frozenset({"STOP", "INVALIDATE", "REWIND", "VERIFY", "VERIFY_COMMIT"})


class TpEndingCheck:
    """Ends of DS4T runs, and gates that never found their partner."""

    def __init__(
        self,
        scene: Scene,
        connections: Connections,
        pairs: Pairs,
        headers: GateHeaders,
        ends: PairEnds,
        refusals: Refusals,
    ) -> None:
        self._scene = scene
        self._connections = connections
        self._pairs = pairs
        self._headers = headers
        self._ends = ends
        self._refusals = refusals
        self._commands: dict[int, FrameRow] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol != "DS4T" or row.src_role != "leader" or not row.is_frame:
            return
        if row.type != "HELLO" and not row.type.startswith(("GATE", "RDMA_")):
            self._commands[row.run] = row

    def findings(self) -> Iterator[Finding]:
        """Answer for each pair."""
        for run in self._pairs.runs.values():
            if any(map(self._headers.differing, self._streams(run))):
                continue  # the end follows from headers that differ, told as such
            if self._connections.blind(run.number):
                continue
            gave_up = self._ends.first(run)
            explained = self._explained(run, gave_up)
            for finding in self._of(run, gave_up):
                yield in_its_wake(finding) if explained else finding

    def _of(self, run: PairRun, gave_up: GaveUp | None) -> Iterator[Finding]:
        waiting = self._waiting(run, gave_up)
        if waiting:
            yield from self._missing(run, gave_up, waiting)
        else:
            yield from self._stall(run, gave_up)
            yield from self._no_stop(run, gave_up)
        yield from self._late(run, gave_up)

    def _explained(self, run: PairRun, gave_up: GaveUp | None) -> bool:
        """Tell whether a pair ended on a frame, or a failed command, told as such."""
        refused = self._refusals.of(run.number)
        if refused is not None:
            # an answer on the control connection keeps no gate away
            return refused.sender == "leader" or not self._waiting(run, gave_up)
        if gave_up is None or gave_up.rank != "worker" or run.answered is None:
            return False
        if self._waiting(run, gave_up):
            return False  # the command failed because of it
        ack = run.answered[1]
        failed = ack.fields.get("status", 0) not in (0, INTERRUPTED)
        return failed and 0 <= gave_up.time - ack.time < STALL

    # -- gates without partners -------------------------------------------------

    def _waiting(self, run: PairRun, gave_up: GaveUp | None) -> list[FrameRow]:
        """Return the partials without a partner that were sent before the end.

        One that was sent to a rank that had gone is no cause of its going.
        """
        end = gave_up.time if gave_up is not None else self._connections.end
        return [
            row for row in run.open.values()
            if row.time <= end
            and not self._connections.doubtful(run.number, row.time)
            and not self._connections.hid(
                row.stream, "b>a" if row.direction == "a>b" else "a>b", row.first_time
            )
        ]  # fmt: skip

    def _streams(self, run: PairRun) -> list[int]:
        return [held.stream for held in self._connections.of_run(run.number)]

    def _missing(
        self, run: PairRun, gave_up: GaveUp | None, waiting: list[FrameRow]
    ) -> Iterator[Finding]:
        end = gave_up.time if gave_up is not None else self._connections.end
        senders = {row.src_role for row in waiting}
        row = min(waiting, key=lambda item: item.time)
        if len(senders) > 1 and self._both(run):
            yield self._different(run)
            return
        sender = "leader" if row.src_role == "leader" else "worker"
        missing = OTHER[sender]
        name = gate_name(row, run.schedule)
        wait = max(0.0, end - row.time)
        count = run.pairs
        were = "was" if count == 1 else "were"
        done = f"{counted(count, 'gate')} before it {were} exchanged"
        done = done if count else "0 gates passed"
        numbers: dict[str, float | int | str] = {
            "seq": int(row.fields.get("seq", 0)), "missing": missing,
            "waited_ms": round(wait * 1e3, 3), "gates": count,
        }  # fmt: skip
        evidence = [proof(row, self._scene.file, "waits for its partner")]
        evidence += self._ends.proof(gave_up)
        text = (
            f"the {missing}'s partial of {name} never came ({done}); the {sender} sent "
            f"its own at {row.time:.3f} s"
        )
        if gave_up is None:
            stalled = wait >= STALL
            yield Finding(
                "tp.stall" if stalled else "unknown.capture-end",
                "severe" if stalled else "note", "likely" if stalled else "possible",
                f"{text}; " + (
                    f"silent for {ms(wait)} until the capture ends, both connections "
                    "stay open" if stalled else
                    "the capture ends there, so that it cannot tell whether it came"),
                numbers, tuple(evidence),
                f"look where the {missing} waits or computes; compare chunk, split "
                "threshold and context of both ranks" if stalled else "record longer",
                run.number, self._scene.file,
            )  # fmt: skip
            return
        if gave_up.rank == missing and wait >= STALL:
            yield Finding(
                "tp.gate-missing", "severe", "likely",
                f"{text}; the {missing} stayed connected for {ms(wait)} without it, "
                f"then {gave_up.how} first: it was waiting too",
                numbers, tuple(evidence),
                f"the {missing}'s partial was lost on the way, or the {missing} stood "
                "elsewhere in its schedule: look at its last lines, and record on its "
                "side as well", run.number, self._scene.file,
            )  # fmt: skip
            return
        if gave_up.rank == missing:
            yield Finding(
                "tp.peer-gone", "severe", "certain",
                f"the {missing} went away first: it {gave_up.how} at "
                f"{gave_up.time:.3f} s. {text[0].upper()}{text[1:]}",
                numbers, tuple(evidence),
                f"look at the last lines of the {missing}: killed, crashed, out of "
                "memory, or an error of its own", run.number, self._scene.file,
            )  # fmt: skip
            return
        yield Finding(
            "tp.gate-missing", "severe", "certain",
            f"the {gave_up.rank} gave up first: it {gave_up.how} {ms(wait)} after its "
            f"own partial. {text[0].upper()}{text[1:]}",
            numbers, tuple(evidence),
            f"the {missing} did not reach this gate: it computes longer than "
            f"{_TIMEOUT} ({ms(wait)} here), waits elsewhere, or runs another schedule",
            run.number, self._scene.file,
        )  # fmt: skip

    def _both(self, run: PairRun) -> bool:
        """Tell whether both ranks wait, each at a gate of its own."""
        last: dict[str, float] = {}
        for row in run.open.values():
            last[row.src_role] = max(last.get(row.src_role, 0.0), row.time)
        return len(last) > 1

    def _different(self, run: PairRun) -> Finding:
        shown: dict[str, FrameRow] = {}
        for row in run.open.values():
            shown.setdefault(row.src_role, row)
        parts = [
            f"the {role} at {gate_name(row, run.schedule)}"
            for role, row in sorted(shown.items())
        ]
        return Finding(
            "tp.schedule", "severe", "certain",
            f"the ranks wait for each other at different gates: {' and '.join(parts)}; "
            f"{counted(run.pairs, 'gate')} matched before",
            {"gates": run.pairs},
            tuple(proof(row, self._scene.file) for row in shown.values()),
            "the ranks run different schedules: compare prefill chunk "
            "(DS4_METAL_PREFILL_CHUNK), split threshold (DS4_TP_PREFILL_SPLIT_MIN), "
            "--ctx, model and build of both", run.number, self._scene.file,
        )  # fmt: skip

    # -- silence without any gate -----------------------------------------------

    def _stall(self, run: PairRun, gave_up: GaveUp | None) -> Iterator[Finding]:
        command = self._commands.get(run.number)
        if not run.handshake or run.pairs or run.last_row is None:
            return
        rdma = all(hello.get("rdma_ok") for hello in run.hello.values())
        last = run.last_row
        end = gave_up.time if gave_up is not None else self._connections.end
        quiet = max(0.0, end - last.time)
        if len(run.infos) == 1 and last.type == "RDMA_INFO" and quiet >= STALL:
            yield self._no_info(run, gave_up, last, quiet)
            return
        idle = command is not None and command.type in _NO_GATES
        if rdma or idle or quiet < STALL:
            return
        data = run.data >= 0 or len(list(self._connections.of_run(run.number))) > 1
        evidence = [proof(last, self._scene.file, "last frame")]
        evidence += self._ends.proof(gave_up)
        yield Finding(
            "tp.stall", "severe", "certain",
            f"handshake complete, 0 gates, silent since {last.time:.3f} s"
            f" ({ms(quiet)} until "
            + (f"the {gave_up.rank} {gave_up.how}" if gave_up is not None
               else "the capture ends")
            + ")" + (f", although {command.type} asked for gates"
                     if command is not None else "; the leader sent no command")
            + ("" if data else "; the data connection was never made"),
            {"gates": 0, "silent_ms": round(quiet * 1e3, 3)}, tuple(evidence),
            "look where each rank waits: the worker for its data connection or for a "
            "command, the leader for the model to load or for a prompt",
            run.number, self._scene.file,
        )  # fmt: skip

    def _no_info(
        self, run: PairRun, gave_up: GaveUp | None, last: FrameRow, quiet: float
    ) -> Finding:
        missing = OTHER[last.src_role]
        return Finding(
            "tp.answer-missing", "severe", "certain",
            f"the {last.src_role}'s RDMA_INFO was never answered: no RDMA_INFO of the "
            f"{missing} came in {ms(quiet)}, until "
            + (f"the {gave_up.rank} {gave_up.how}" if gave_up is not None
               else "the capture ends"),
            {"waited_ms": round(quiet * 1e3, 3)},
            (proof(last, self._scene.file, "not answered"), *self._ends.proof(gave_up)),
            f"the {missing} hangs where it opens its device: look at its last lines "
            "and run ds4proto preflight there; --transport tcp does without",
            run.number, self._scene.file,
        )  # fmt: skip

    def _no_stop(self, run: PairRun, gave_up: GaveUp | None) -> Iterator[Finding]:
        """Tell an end without STOP; the data connection may go first."""
        stopped = gave_up is not None and gave_up.row is not None
        if gave_up is None or stopped or not run.handshake:
            return
        if run.number not in self._commands:
            yield from self._after_hello(run, gave_up)
            return
        token = run.token
        busy = token is not None and (token.gates > 0 or not self._sees_gates(run))
        worker = gave_up.rank != "leader"
        evidence = self._ends.proof(gave_up)
        owed = self._owed(run)
        if owed is not None and gave_up.time - owed[0].time >= STALL:
            row, what = owed
            yield Finding(
                "tp.answer-missing", "severe", "certain",
                f"the worker's {what} never came: the {gave_up.rank} {gave_up.how} "
                f"{ms(gave_up.time - row.time)} after "
                + ("the acknowledgement of SYNC" if row.type.endswith("_ACK")
                   else row.type) + ", although "
                + (f"all {counted(token.gates, 'gate')} of the token were exchanged"
                   if token is not None else "no gate is open"),
                {"waited_ms": round((gave_up.time - row.time) * 1e3, 3)},
                (proof(row, self._scene.file, "not answered"), *evidence),
                "the worker sent no answer, or it was lost on the control connection: "
                "look at the worker's last lines", run.number, self._scene.file,
            )  # fmt: skip
            return
        if token is not None and run.pause >= IDLE and not self._sees_gates(run):
            yield stale_link(run, token, gave_up, self._ends, self._scene.file)
            return
        if token is not None:
            evidence.append(proof(token.row, self._scene.file, "was under way"))
        under_way = self._under_way(run, gave_up.time)
        if token is None and under_way is not None:
            evidence.append(proof(under_way, self._scene.file, "was under way"))
        severe = worker or busy or under_way is not None
        step = (
            f"look at the last lines of the {gave_up.rank}: killed, crashed, or an "
            "error of its own"
        )
        yield Finding(
            "tp.peer-gone" if severe else "end.no-stop",
            "severe" if severe else "warning", "certain",
            f"the {gave_up.rank} went away first: it {gave_up.how} at "
            f"{gave_up.time:.3f} s without STOP"
            + (f", {counted(token.gates, 'gate')} into token {run.token_count}"
               if token is not None and busy
               else f", with EVAL {token.row.fields.get('seq', '')} open"
               if token is not None
               else f", with {under_way.type} open" if under_way is not None
               else ", between commands"),
            {"gates": run.pairs, "time_s": round(gave_up.time, 6)},
            tuple(evidence),
            step, run.number, self._scene.file,
        )  # fmt: skip

    @staticmethod
    def _owed(run: PairRun) -> tuple[FrameRow, str] | None:
        """Return the command whose answer is due although its gates are done."""
        schedule, token = run.schedule, run.token
        if token is not None and schedule is not None and schedule.slots:
            done = token.gates >= len(schedule.slots)
            return (token.row, "LOGITS") if done else None
        if run.asked is not None and run.asked.type not in _NO_ACK:
            return run.asked, "acknowledgement"
        if run.answered is not None and run.logits_due:
            return run.answered[1], "LOGITS"
        return None

    @staticmethod
    def _under_way(run: PairRun, time: float) -> FrameRow | None:
        """Return the command with gates that was not done at a time.

        A draft block is done when the leader says what it keeps of it.
        """
        row = run.asked
        if row is None and run.answered is not None:
            command, ack = run.answered
            row = command if ack.time > time else None
        gates = row is not None and (row.type in SYNCS or row.type == "VERIFY")
        return row if gates else None

    def _sees_gates(self, run: PairRun) -> bool:
        """Tell whether row gates pass where this capture can see them."""
        return not all(hello.get("rdma_ok") for hello in run.hello.values())

    def _after_hello(self, run: PairRun, gave_up: GaveUp) -> Iterator[Finding]:
        """Tell an end before the first command: a hello was refused."""
        one, two = (Identity.of(run.hello[rank]) for rank in ("leader", "worker"))
        versions = {hello.get("version") for hello in run.hello.values()}
        differ = len(versions) > 1 or bool(all_mismatches(one, two))
        rows = [run.hello_rows[rank] for rank in ("leader", "worker")]
        evidence = [proof(row, self._scene.file) for row in rows]
        quiet = gave_up.time - rows[-1].time
        if quiet >= STALL:
            return  # a stall, told as such
        ready = len(run.infos) == 2 and not run.rdma_ready
        if ready and not differ:
            yield no_queue_pair(run, gave_up, quiet, self._ends, self._scene.file)
            return
        yield Finding(
            "tp.refused", "note" if differ else "severe", "certain",
            f"the {gave_up.rank} {gave_up.how} {ms(max(quiet, 0.0))} after the hellos, "
            "before any command" + ("" if differ else
            ", although every word that has to be equal is equal"),
            {"time_s": round(gave_up.time, 6)},
            (*evidence, *self._ends.proof(gave_up)),
            "" if differ else "a reason that no hello carries: --transport rdma "
            "without a device, an unsound gate mask, memory, a model that does not "
            f"load; the {gave_up.rank}'s log names it", run.number, self._scene.file,
        )  # fmt: skip

    def _late(self, run: PairRun, gave_up: GaveUp | None) -> Iterator[Finding]:
        """Find a partial that came when the other rank had given up already."""
        if gave_up is None:
            return
        for rank, (wait, first, row) in run.worst.items():
            if not first.time < gave_up.time <= row.first_time:
                continue
            patience = gave_up.time - first.time
            yield Finding(
                "tp.gate-timeout", "severe", "certain",
                f"the {OTHER[rank]} gave up first: it {gave_up.how} {ms(patience)} "
                f"after its partial of {gate_name(row, run.schedule)}; the {rank}'s "
                f"came {ms(wait)} behind it, {ms(wait - patience)} too late",
                {"late_ms": round(wait * 1e3, 3), "rank": rank,
                 "patience_ms": round(patience * 1e3, 3),
                 "seq": int(row.fields.get("seq", 0))},
                (proof(first, self._scene.file, "waited"),
                 proof(row, self._scene.file, "came too late")),
                f"the gate timeout ({_TIMEOUT}) is shorter than what the {rank} needs "
                "here: raise it on both sides, or find why that rank was late",
                run.number, self._scene.file,
            )  # fmt: skip
