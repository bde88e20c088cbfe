"""Answers about the time of a pipeline: hops, nodes, bubbles, widths, slow links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ds4proto.printable import counted
from ds4proto.trace.diagnosis.check import Scene
from ds4proto.trace.diagnosis.finding import Evidence, Finding, proof
from ds4proto.trace.diagnosis.hops import Hop, Phase, PipelineRun, Pipelines
from ds4proto.trace.diagnosis.spread import milli, ms, share
from ds4proto.trace.rows import FrameRow

__all__ = ["PipelineCheck"]

SLOW: Final = 0.005
"""Seconds a request on the network, from which a hop is called slow: a wire at home
or in a rack takes well under a millisecond."""
ENOUGH: Final = 3
"""Requests before a median says something."""
HALF: Final = 0.5
SPIKE: Final = 5.0
SPIKE_S: Final = 0.05
UNEVEN: Final = 3.0
_BITS: Final = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8}


class PipelineCheck:
    """Where the time of DS4D runs went."""

    def __init__(self, scene: Scene, pipelines: Pipelines) -> None:
        self._scene = scene
        self._pipelines = pipelines

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        self._pipelines.add(row)

    def findings(self) -> Iterator[Finding]:
        """Answer for each run and hop."""
        for run in self._pipelines.runs.values():
            for hop in run.hops.values():
                for mode, phase in (("prefill", hop.prefill), ("decode", hop.decode)):
                    yield from self._time(hop, mode, phase)
                    yield from self._slow(hop, mode, phase)
                    yield from self._coordinator(hop, mode, phase)
                    yield from self._spikes(hop, mode, phase)
                yield from self._bytes(hop)
                yield from self._flight(hop)
            yield from self._nodes(run)
            yield from self._uneven(run)

    # -- where the time went ----------------------------------------------------

    def _time(self, hop: Hop, mode: str, phase: Phase) -> Iterator[Finding]:
        if not phase.answered:
            return
        unit = "token" if mode == "decode" else "request"
        numbers: dict[str, float | int | str] = {
            "hop": hop.name,
            "requests": phase.requests,
            "tokens": phase.tokens,
            "request_ms": milli(phase.seconds),
            "sending_ms": milli(phase.sending.mean + phase.receiving.mean),
            "turnaround_ms": milli(phase.turnaround.mean),
            "between_ms": milli(phase.before.mean),
        }
        words = [f"{ms(phase.sending.mean + phase.receiving.mean)} passing the bytes"]
        if phase.timed:
            numbers |= {
                "evaluation_ms": milli(phase.evaluation.mean),
                "downstream_wait_ms": milli(phase.downstream.mean),
                "forwarding_ms": milli(phase.forwarding.mean),
                "rest_ms": milli(phase.rest.mean),
            }
            words.insert(0, f"{ms(phase.evaluation.mean)} computing in {hop.dst}")
            if phase.downstream.high or phase.forwarding.high:
                words.append(
                    f"{ms(phase.downstream.mean)} waiting for the hop behind it and "
                    f"{ms(phase.forwarding.mean)} sending to it"
                )
            if phase.rest.count:
                words.append(f"{ms(phase.rest.mean)} on the network and in queues")
        else:
            words.append(
                f"{ms(phase.turnaround.mean)} until the answer; without telemetry "
                "computing and network cannot be told apart"
            )
        if phase.before.count:
            words.append(f"{ms(phase.before.mean)} in {hop.src} before the next one")
        yield Finding(
            "pipeline.time", "note", "certain" if phase.timed else "possible",
            f"{hop.name}, {mode}: {counted(phase.requests, 'request')} of "
            f"{counted(phase.tokens, 'token')}, "
            f"{ms(phase.seconds)} a {unit}: {', '.join(words)}",
            numbers, self._pair(phase.slowest, "slowest request"),
            "" if phase.timed else "workers that send telemetry tell computing apart",
            hop.run, self._scene.file,
        )  # fmt: skip

    # -- what is slow -----------------------------------------------------------

    def _slow(self, hop: Hop, mode: str, phase: Phase) -> Iterator[Finding]:
        """Find a network that takes most of a request, or bytes that trickle."""
        rest, passing = phase.rest, phase.sending.mean + phase.receiving.mean
        total = phase.turnaround.median + passing
        a_byte = hop.by_answer.seconds_a_byte() or hop.by_both.seconds_a_byte()
        slow = rest.count >= ENOUGH and rest.median >= SLOW
        if slow and a_byte and rest.mean > HALF * total:
            rate = 1 / a_byte
            yield Finding(
                "pipeline.slow-transfer", "warning", "likely",
                f"{hop.name}, {mode}: {ms(rest.median)} of {ms(total)} a request grow "
                f"with the bytes of its frames: they pass at {rate / 1e6:.3g} MB/s",
                {"hop": hop.name, "rest_ms": milli(rest.median),
                 "bytes_per_second": round(rate), "request_ms": milli(total)},
                self._pair(phase.worst_rest, "longest rest"),
                "a faster link, or a narrower activation width; check what else uses "
                "that link", hop.run, self._scene.file,
            )  # fmt: skip
            return
        if slow and rest.mean > HALF * total:
            yield Finding(
                "pipeline.slow-network", "warning", "likely",
                f"{hop.name}, {mode}: {ms(rest.median)} of {ms(total)} a request are "
                f"neither computing nor sending: {hop.dst} says it computes "
                f"{ms(phase.evaluation.median)}. The link between the place of the "
                f"recording and {hop.dst} is slow, or the worker takes requests late",
                {"hop": hop.name, "rest_ms": milli(rest.median),
                 "rest_p99_ms": milli(rest.quantile(0.99)),
                 "evaluation_ms": milli(phase.evaluation.median),
                 "request_ms": milli(total)},
                self._pair(phase.worst_rest, "longest rest"),
                "measure that very link (ds4proto preflight); check which interface "
                "the addresses belong to, Wi-Fi, and whether both ends sleep",
                hop.run, self._scene.file,
            )  # fmt: skip
        if passing >= SLOW and passing > HALF * (total or 1) and hop.bulk_seconds:
            rate = hop.bulk_bytes / hop.bulk_seconds
            row = hop.bulk_row
            yield Finding(
                "pipeline.slow-transfer", "warning", "likely",
                f"{hop.name}, {mode}: {ms(passing)} of {ms(total)} a request are bytes "
                f"that trickle: frames pass at {rate / 1e6:.2f} MB/s",
                {"hop": hop.name, "passing_ms": milli(passing),
                 "bytes_per_second": round(rate), "request_ms": milli(total)},
                () if row is None else (proof(row, self._scene.file, "largest frame"),),
                "a narrower activation width halves the bytes; else a faster link",
                hop.run, self._scene.file,
            )  # fmt: skip

    def _coordinator(self, hop: Hop, mode: str, phase: Phase) -> Iterator[Finding]:
        """Find a sender that takes far longer a layer than the worker does."""
        before = phase.before
        if hop.index or before.count < ENOUGH or before.median < 2 * SLOW:
            return
        own = max(1, hop.layers[0])
        expected = phase.evaluation.median / hop.count_layers * own
        if not phase.timed or before.median < 4 * max(expected, 0.001):
            return
        yield Finding(
            "pipeline.slow-coordinator", "note", "possible",
            f"{hop.name}, {mode}: {ms(before.median)} pass between an answer and the "
            f"next request, where {hop.dst} computes {hop.count_layers} layers in "
            f"{ms(phase.evaluation.median)}: the coordinator's {own} layers, its "
            "sampling, its user, or the link between it and the place of the recording "
            "are slow; this recording cannot tell them apart",
            {"hop": hop.name, "between_ms": milli(before.median),
             "own_layers": own, "evaluation_ms": milli(phase.evaluation.median)},
            self._pair(phase.slowest, "slowest request"),
            "record on the coordinator's machine as well, or ask it for its own times "
            "(DS4_DIST_DECODE_PROFILE)",
            hop.run, self._scene.file,
        )  # fmt: skip

    def _spikes(self, hop: Hop, mode: str, phase: Phase) -> Iterator[Finding]:
        """Find single requests that took many times the usual one."""
        for name, part, held in (
            ("computing", phase.evaluation, phase.slowest),
            ("network", phase.rest, phase.worst_rest),
        ):
            if part.count < 2 * ENOUGH or part.high < SPIKE_S or held is None:
                continue
            if part.high < SPIKE * max(part.median, 0.001):
                continue
            code = "pipeline.spike" if name == "computing" else "pipeline.jitter"
            fields = held[1].fields
            yield Finding(
                code, "warning", "likely",
                f"{hop.name}, {mode}: one request took {ms(part.high)} of {name}, the "
                f"usual one {ms(part.median)} (request {fields['request']}, position "
                f"{fields['pos0']})",
                {"hop": hop.name, "highest_ms": milli(part.high),
                 "median_ms": milli(part.median),
                 "p99_ms": milli(part.quantile(0.99)), "request": fields["request"]},
                self._pair(held, "slowest request"),
                "look at what else ran then: power saving, swapping, another job"
                if name == "computing" else
                "look at that link's load, at Wi-Fi, and at retransmissions",
                hop.run, self._scene.file,
            )  # fmt: skip

    # -- bytes and depth --------------------------------------------------------

    def _bytes(self, hop: Hop) -> Iterator[Finding]:
        if not hop.tokens or not hop.hidden_values:
            return
        bits = _BITS.get(hop.hidden_width, 0)
        values = hop.hidden_values / hop.tokens
        if not bits:
            return
        total = hop.work_bytes / hop.tokens
        payload = hop.hidden_bytes / hop.tokens
        narrower = [w for w in (16, 8) if w < bits]
        ideals = ", ".join(f"{values * w / 8:.0f} at {w} bits" for w in narrower)
        yield Finding(
            "pipeline.bytes", "note", "certain",
            f"{hop.name}: {total:.0f} bytes down a token, {payload:.0f} of them hidden "
            f"state ({values:.0f} values at {bits} bits), "
            f"{share(total - payload, total)} headers, route and tokens"
            + (f"; the state alone would take {ideals}" if ideals else "")
            + f"; {hop.result_bytes / hop.tokens:.0f} bytes back",
            {"hop": hop.name, "bytes_per_token": round(total, 1),
             "hidden_bytes_per_token": round(payload, 1), "width_bits": bits,
             "ideal_16_bytes": round(values * 2), "ideal_8_bytes": round(values),
             "back_bytes_per_token": round(hop.result_bytes / hop.tokens, 1)},
            () if hop.first_row is None else (proof(hop.first_row, self._scene.file),),
            "ds4proto whatif says what a narrower width would do to these values"
            if bits == 32 else "",
            hop.run, self._scene.file,
        )  # fmt: skip

    def _flight(self, hop: Hop) -> Iterator[Finding]:
        if not hop.depths.count:
            return
        yield Finding(
            "pipeline.in-flight", "note", "certain",
            f"{hop.name}: at most {counted(hop.deepest, 'request')} in flight, "
            f"{hop.depths.mean:.1f} on average when one is sent",
            {"hop": hop.name, "most": hop.deepest, "mean": round(hop.depths.mean, 2)},
            run=hop.run, file=self._scene.file,
        )  # fmt: skip

    # -- nodes ------------------------------------------------------------------

    def _nodes(self, run: PipelineRun) -> Iterator[Finding]:
        if run.span <= 0 or not run.nodes or run.lead is None:
            return
        hop = run.hops[run.lead]
        for node in run.nodes.values():
            node.role = self._role(run, node.layers)
        idle = {n.role: max(0.0, 1 - n.busy / run.span) for n in run.nodes.values()}
        name = max(idle, key=lambda role: idle[role])
        one = "only one request is ever in flight, so that one node works at a time"
        yield Finding(
            "pipeline.idle", "note", "certain",
            f"{name} idles most: "
            + ", ".join(
                f"{role} computes {share(1 - part, 1)}" for role, part in idle.items()
            )
            + f" of the {ms(run.span)} between first request and last answer"
            + (f"; {one}" if hop.deepest == 1 else ""),
            {"node": name, "span_ms": milli(run.span),
             **{f"idle {role}": round(part, 4) for role, part in idle.items()}},
            () if hop.first_row is None else (proof(hop.first_row, self._scene.file),),
            "several sessions at once, or a larger prefill window, fill the gaps"
            if hop.deepest == 1 else "",
            run.number, self._scene.file,
        )  # fmt: skip
        if run.chunks < 2 or run.active_prefill <= 0:
            return
        bubble = {
            node.role: max(0.0, 1 - node.busy_prefill / run.active_prefill)
            for node in run.nodes.values()
        }
        mean = sum(bubble.values()) / len(bubble)
        yield Finding(
            "pipeline.bubble", "note", "likely",
            f"prefill bubble: while chunks were under way the workers stood still for "
            f"{100 * mean:.0f} % of the time, with at most "
            f"{counted(run.prefill_depth, 'chunk')} "
            f"in flight over {len(run.nodes) + 1} stages",
            {"bubble": round(mean, 4), "chunks": run.chunks,
             "most_in_flight": run.prefill_depth,
             "active_ms": milli(run.active_prefill)},
            next_step="a window of at least the number of stages keeps all of them "
            "busy (--dist-prefill-window)"
            if run.prefill_depth <= len(run.nodes) else "",
            run=run.number, file=self._scene.file,
        )  # fmt: skip

    def _uneven(self, run: PipelineRun) -> Iterator[Finding]:
        """Find workers that need very different times a layer."""
        rates = {
            node.role: node.evaluation.median / (node.layers[1] - node.layers[0] + 1)
            for node in run.nodes.values()
            if node.evaluation.count >= ENOUGH and node.evaluation.median >= SLOW
        }
        known = [n for n in run.nodes.values() if n.evaluation.count >= ENOUGH]
        if not rates or len(known) < 2:
            return
        slow = max(rates, key=lambda role: rates[role])
        others = {
            n.role: n.evaluation.median / (n.layers[1] - n.layers[0] + 1)
            for n in known if n.role != slow
        }  # fmt: skip
        fast = min(others, key=lambda role: others[role])
        if rates[slow] < UNEVEN * others[fast]:
            return
        yield Finding(
            "pipeline.uneven", "warning", "likely",
            f"{slow} takes {ms(rates[slow])} a layer and token, {fast} "
            f"{ms(others[fast])}: the slowest stage sets the pace",
            {"slow": slow, "slow_ms_a_layer": milli(rates[slow]), "fast": fast,
             "fast_ms_a_layer": milli(others[fast])},
            next_step="give it fewer layers, or look why that machine is slow (thermal "
            "limit, swapping, another job, SSD streaming)",
            run=run.number, file=self._scene.file,
        )  # fmt: skip

    # -- common -----------------------------------------------------------------

    def _role(self, run: PipelineRun, layers: tuple[int, int]) -> str:
        for hop in run.hops.values():
            if hop.layers == layers:
                return hop.dst
        return f"worker {layers[0]}:{layers[1]}"

    def _pair(
        self, held: tuple[float, FrameRow, FrameRow] | None, text: str
    ) -> tuple[Evidence, ...]:
        if held is None:
            return ()
        file = self._scene.file
        return (proof(held[1], file, text), proof(held[2], file, "its answer"))
