"""Answers about the time of a tensor-parallel pair: skew, tokens, stalls, schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.printable import counted
from ds4proto.schema.slab import VALUE
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Evidence, Finding, proof
from ds4proto.trace.diagnosis.spread import Spread, milli, ms, share
from ds4proto.trace.diagnosis.tp_gates import OTHER, RANKS, PairRun, Pairs, gate_name
from ds4proto.trace.rows import FrameRow

__all__ = ["TensorCheck"]

ENOUGH: Final = 8
"""Gates before a median says something."""
SLOW_GATE: Final = 0.001
"""Seconds a gate from which the exchange is called slow; a direct link takes tens of
microseconds."""
SKEW: Final = 0.001
SPIKE_S: Final = 0.05
TIMES: Final = 5.0
LISTED: Final = 5


class TensorCheck:
    """Where the time of DS4T runs went."""

    def __init__(self, scene: Scene, pairs: Pairs) -> None:
        self._scene = scene
        self._pairs = pairs

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        self._pairs.add(row)

    def findings(self) -> Iterator[Finding]:
        """Answer for each pair."""
        for run in self._pairs.runs.values():
            if run.pairs:
                yield from self._time(run)
                yield from self._skew(run)
                yield from self._slow(run)
                yield from self._spike(run)
            yield from self._hidden(run)

    def _time(self, run: PairRun) -> Iterator[Finding]:
        schedule = run.schedule
        a_token = len(schedule.slots) if schedule is not None else 0
        words = [
            f"{counted(run.pairs, 'gate')} exchanged: {run.row_pairs} row, "
            f"{run.bulk} bulk, {run.pairs - run.row_pairs - run.bulk} batch; "
            f"{counted(run.gate_bytes, 'byte')}"
        ]
        numbers: dict[str, float | int | str] = {
            "gates": run.pairs, "row_gates": run.row_pairs,
            "gate_bytes": run.gate_bytes, "gates_per_token": a_token,
        }  # fmt: skip
        if run.tokens.count:
            step = run.steps.median
            words.append(
                f"a token takes {ms(run.tokens.median)} (median of {run.tokens.count})"
                f", {share(run.gate_share.total, run.tokens.total)} of it one rank "
                "waits for the other's partial"
            )
            numbers |= {
                "token_ms": milli(run.tokens.median),
                "token_p99_ms": milli(run.tokens.quantile(0.99)),
                "wait_share": round(run.gate_share.total / run.tokens.total, 4)
                if run.tokens.total else 0,
            }  # fmt: skip
            if a_token and run.steps.count:
                words.append(
                    f"{counted(a_token, 'gate')} a token x {ms(step)} from one gate to "
                    "the next "
                    f"(computing included) = {ms(a_token * step)}"
                )
                numbers["gate_step_ms"] = milli(step)
        vector = int((run.hello.get("leader") or {}).get("n_embd", 0)) * VALUE
        if run.token_count and run.row_pairs and vector and a_token:
            ideal = a_token * vector
            words.append(
                f"{counted(2 * ideal, 'byte')} of partials a token both ways, {ideal} "
                "of them "
                f"at 16 bits"
            )
            numbers["partial_bytes_per_token"] = 2 * ideal
        row = run.last_gate
        yield Finding(
            "tp.time", "note", "certain", "; ".join(words), numbers,
            () if row is None else (proof(row, self._scene.file, "last gate"),),
            "compare with one machine alone: a split pays when the gates of a token "
            "take less than the computing that it saves",
            run.number, self._scene.file,
        )  # fmt: skip

    def _skew(self, run: PairRun) -> Iterator[Finding]:
        """Say which rank is waited for, where and how long."""
        late = {rank: run.lateness.get(rank, Spread()) for rank in RANKS}
        total = sum(spread.total for spread in late.values())
        if not total:
            return
        rank = max(RANKS, key=lambda name: late[name].total)
        spread = late[rank]
        layers = sorted(
            ((s, layer, kind) for (who, layer, kind), s in run.waits.items()
             if who == rank), key=lambda item: -item[0].total,
        )[:LISTED]  # fmt: skip
        listed = ", ".join(
            f"layer {layer} {kind} {ms(s.median)}" for s, layer, kind in layers
        )
        heavy = (
            spread.count >= ENOUGH
            and spread.median >= SKEW
            and spread.total > 0.75 * total
            and spread.count > 0.6 * run.pairs
        )
        yield Finding(
            "tp.skew", "warning" if heavy else "note",
            "likely" if heavy else "possible",
            f"the {rank}'s partial comes last in {spread.count} of "
            f"{counted(run.pairs, 'gate')}, "
            f"{ms(spread.median)} behind the {OTHER[rank]}'s (median; "
            f"{ms(spread.quantile(0.99))} at 99 %); most in {listed}. Seen from one "
            "place, a slow rank and a slow link to it look alike",
            {"rank": rank, "gates": spread.count, "of": run.pairs,
             "median_ms": milli(spread.median),
             "p99_ms": milli(spread.quantile(0.99)),
             "total_ms": milli(spread.total)},
            self._worst(run, rank),
            "give ds4proto diagnose a recording of each side: gates align them without "
            "clocks and tell a slow rank from a slow link" if heavy else "",
            run.number, self._scene.file,
        )  # fmt: skip

    def _slow(self, run: PairRun) -> Iterator[Finding]:
        """Find gates that all take long, and what the control connection says of it."""
        steps = run.steps
        if steps.count < ENOUGH or steps.median < 2 * SLOW_GATE:
            return
        trip = run.acks.low if run.acks.count else 0.0
        schedule = run.schedule
        a_token = len(schedule.slots) if schedule is not None else 0
        link = trip >= SLOW_GATE
        yield Finding(
            "tp.slow-gates", "warning", "likely" if link else "possible",
            f"from one gate to the next it takes {ms(steps.median)}"
            + (f", {ms(a_token * steps.median)} a token" if a_token else "")
            + (f"; SESSION_CREATE, which computes nothing, takes {ms(trip)} as well: "
               "the link between the place of the recording and the worker is "
               "slow" if link else
               f"; a command that computes nothing is answered after {ms(trip)}, so "
               "that computing or the leader's side of the link takes the time"
               if run.acks.count else
               "; computing and network cannot be told apart here"),
            {"gate_step_ms": milli(steps.median), "ack_ms": milli(trip),
             "gates_per_token": a_token},
            () if run.last_gate is None else (proof(run.last_gate, self._scene.file),),
            "measure that very link with ds4proto preflight; gates want a direct cable "
            "or RDMA" if link else
            "record on both sides and give both files to ds4proto diagnose",
            run.number, self._scene.file,
        )  # fmt: skip

    def _spike(self, run: PairRun) -> Iterator[Finding]:
        """Find single gates that one rank came to very late."""
        for rank, (wait, first, row) in run.worst.items():
            usual = run.lateness[rank].median
            if wait < SPIKE_S or wait < TIMES * max(usual, 0.001):
                continue
            yield Finding(
                "tp.spike", "warning", "certain",
                f"the {rank} came {ms(wait)} late to {gate_name(row, run.schedule)}, "
                f"usually {ms(usual)}",
                {"rank": rank, "late_ms": milli(wait), "usual_ms": milli(usual),
                 "seq": int(row.fields.get("seq", 0))},
                (proof(first, self._scene.file, "the partial that waited"),
                 proof(row, self._scene.file, "the late one")),
                "look at what else ran on that machine, and at retransmissions",
                run.number, self._scene.file,
            )  # fmt: skip

    def _hidden(self, run: PairRun) -> Iterator[Finding]:
        """Say where gates cross that a TCP capture cannot show."""
        hellos = run.hello.values()
        if len(run.hello) < 2 or not all(h.get("rdma_ok") for h in hellos):
            return
        if run.row_pairs:
            return
        row = run.hello_rows["leader"]
        yield Finding(
            "unknown.rdma-gates", "note", "certain",
            "both ranks have RDMA and no row gate crossed TCP: row gates go past the "
            "kernel, and this capture shows the control stream alone. When each gate "
            "came, and which rank was late, it cannot tell",
            {"tokens": run.token_count}, (proof(row, self._scene.file),),
            "give the RoCE capture of the port as well (udp port 4791), a runtime "
            "trace, or run once with --transport tcp", run.number, self._scene.file,
        )  # fmt: skip

    def _worst(self, run: PairRun, rank: str) -> tuple[Evidence, ...]:
        if rank not in run.worst:
            return ()
        _, first, row = run.worst[rank]
        file = self._scene.file
        return (proof(first, file, "came first"), proof(row, file, "came last"))
