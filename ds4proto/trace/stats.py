"""What a capture holds, in numbers: bytes, frames, gaps, problems, runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

from ds4proto.trace.bounds import Bounded
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.rows import UNDECODED, FrameRow
from ds4proto.trace.streams import Watch

__all__ = ["CaptureStats", "total_of"]

_QUIET_S: Final = 1.0
_MAX_OPEN: Final = 65_536
_DIRECTIONS: Final = ("a>b", "b>a")


class CaptureStats:
    """Counts rows while they pass; `report` adds what the connections know.

    Parameters
    ----------
    decoder : CaptureDecoder
        Where the rows come from.
    """

    def __init__(self, decoder: CaptureDecoder) -> None:
        self._decoder = decoder
        self._problems: Counter[str] = Counter()
        self._dialects: Counter[str] = Counter()
        self._open: dict[int, set[int]] = defaultdict(set)
        self._in_flight: Counter[int] = Counter()
        self._hops: Bounded[tuple[int, str], Counter[str]] = Bounded()
        self._gates: dict[int, Counter[str]] = defaultdict(Counter)
        self._last_gate: dict[int, float] = {}
        self._last_time = 0.0
        self._stopped: set[int] = set()
        self._by_run: dict[int, Counter[str]] = defaultdict(Counter)
        self._payload: Counter[str] = Counter()

    def add(self, row: FrameRow) -> None:
        """Count a row."""
        for problem in row.problems:
            self._problems[problem.clause] += 1
        self._last_time = max(self._last_time, row.time)
        if row.type == UNDECODED:
            return
        self._dialects[row.dialect] += 1
        run = self._by_run[row.run]
        run["frames"] += 1
        run["bytes"] += row.length
        if row.payload is not None:
            for key in ("nan", "inf", "ge240", "over_f16"):
                self._payload[key] += getattr(row.payload, key)
        if row.protocol == "DS4D":
            self._pipeline(row)
        else:
            self._tensor(row)

    def _pipeline(self, row: FrameRow) -> None:
        f = row.fields
        if row.type == "WORK":
            waiting = self._open[row.stream]
            if len(waiting) < _MAX_OPEN:
                waiting.add(f["request"])
            self._in_flight[row.stream] = max(self._in_flight[row.stream], len(waiting))
            key = row.run, f"{row.src_role} -> {row.dst_role}"
            hop = self._hops.offer(key, Counter)
            if hop is not None:
                hop["work_bytes"] += row.length
                hop["requests"] += 1
                hop["tokens"] += f["n_tokens"]
        elif row.type == "RESULT":
            self._open[row.stream].discard(f["request"])
            key = row.run, f"{row.dst_role} -> {row.src_role}"
            hop = self._hops.offer(key, Counter)
            if hop is not None:
                hop["result_bytes"] += row.length

    def _tensor(self, row: FrameRow) -> None:
        f, gates = row.fields, self._gates[row.run]
        if row.type.startswith("GATE"):
            self._last_gate[row.run] = row.time
            gates[f"{row.type} {row.direction}"] += 1
            gates["gate_bytes"] += row.length
        elif row.type == "STOP":
            self._stopped.add(row.run)
        elif row.type in ("EVAL", "GLM_MTP"):
            gates["tokens"] += 1
        elif row.type in ("EVAL_BATCH", "MIXED_BATCH"):
            gates["tokens"] += len(f.get("items") or ())

    def report(self) -> dict[str, Any]:
        """Return the numbers; call it when all rows have passed."""
        watches = sorted(self._decoder.decoder.ended, key=lambda watch: watch.number)
        frames: Counter[str] = Counter()
        ways: dict[str, Counter[str]] = defaultdict(Counter)
        reasons: Counter[str] = Counter()
        accounted = 0
        gaps: Counter[str] = Counter()
        foreign = [w for w in watches if w.foreign and _bytes_of(w)]
        for watch in watches:
            for direction, totals in watch.totals.items():
                accounted += totals.accounted
                reasons.update(totals.undecoded)
                frames.update(totals.frames)
                for name, count in totals.frames.items():
                    ways[name][direction] += count
            if watch.stats is not None:
                for way in (watch.stats.ab, watch.stats.ba):
                    gaps["lost"] += way.lost_bytes
                    gaps["not captured"] += way.not_captured_bytes
        undecoded = sum(reasons.values())
        info = self._decoder.info
        return {
            "packets": self._decoder.packets,
            "packet_kinds": self._decoder.packet_counts,
            "truncated": info.truncated,
            "streams": len(watches),
            "stream_bytes": accounted + undecoded,
            "accounted_bytes": accounted,
            "undecoded_bytes": undecoded,
            "undecoded_reasons": dict(sorted(reasons.items())),
            "frames": dict(sorted(frames.items())),
            "frames_by_direction": {
                n: dict(sorted(ways[n].items())) for n in sorted(ways)
            },
            "dialects": dict(sorted(self._dialects.items())),
            "requests_in_flight": max(self._in_flight.values(), default=0),
            "hops": self._hop_report(),
            "gates": self._gate_report(),
            "gaps": {k: v for k, v in sorted(gaps.items()) if v},
            "payload_values": {k: v for k, v in sorted(self._payload.items()) if v},
            "problems": dict(sorted(self._problems.items())),
            "runs": self._runs(watches),
            "foreign_streams": len(foreign),
            "foreign_bytes": sum(_bytes_of(watch) for watch in foreign),
            "connections": [self._connection(watch) for watch in watches],
        }

    def _hop_report(self) -> list[dict[str, Any]]:
        found = []
        for (run, name), c in sorted(self._hops.items()):
            tokens = c["tokens"]
            total = c["work_bytes"] + c["result_bytes"]
            found.append(
                {
                    "run": run,
                    "hop": name,
                    "requests": c["requests"],
                    "tokens": tokens,
                    "work_bytes": c["work_bytes"],
                    "result_bytes": c["result_bytes"],
                    "bytes_per_token": round(total / tokens, 1) if tokens else None,
                }
            )
        return found

    def _gate_report(self) -> list[dict[str, Any]]:
        found = []
        for number, counts in sorted(self._gates.items()):
            run = self._run(number)
            tokens = counts["tokens"]
            rows = max(counts["GATE_ROW a>b"], counts["GATE_ROW b>a"])
            found.append(
                {
                    "run": number,
                    "gates_per_token": None if run is None else run.gates_per_token,
                    "row_gates": rows,
                    "batch_gates": max(counts[f"GATE_BATCH {d}"] for d in _DIRECTIONS),
                    "bulk_gates": max(counts[f"GATE_BULK {d}"] for d in _DIRECTIONS),
                    "tokens": tokens,
                    "row_gates_a_token": round(rows / tokens, 2) if tokens else None,
                    "gate_bytes": counts["gate_bytes"],
                    "bytes_a_token": counts["gate_bytes"] // tokens if tokens else None,
                    "last_gate": self._last_gate.get(number),
                }
            )
        return found

    def _run(self, number: int) -> Any:
        runs = self._decoder.decoder.runs
        return runs[number - 1] if 0 < number <= len(runs) else None

    def _runs(self, watches: list[Watch]) -> list[dict[str, Any]]:
        by_number = {watch.number: watch for watch in watches}
        end = max([self._last_time, *(self._relative(w) for w in watches)], default=0.0)
        found = []
        for run in self._decoder.decoder.runs:
            notes = run.told
            last = self._last_gate.get(run.number)
            running = run.number not in self._stopped
            if running and last is not None and end - last > _QUIET_S:
                notes.append(
                    f"no gates since {last:.3f} s; the capture ends at {end:.3f} s"
                )
            spaces = sorted(run.id_spaces)
            if len(spaces) > 1:
                notes.append(f"two id spaces: {' and '.join(spaces)}")
            counts = self._by_run[run.number]
            found.append(
                {
                    "run": run.number,
                    "protocol": run.protocol,
                    "frames": counts["frames"],
                    "bytes": counts["bytes"],
                    "streams": dict(sorted(run.streams.items())),
                    "roles": _roles(run.streams, by_number, self._decoder),
                    "sessions": len(run.sessions),
                    "notes": notes,
                }
            )
        return found

    def _relative(self, watch: Watch) -> float:
        return watch.last_time

    def _connection(self, watch: Watch) -> dict[str, Any]:
        table, number = self._decoder.decoder.table, watch.number
        run = table.run_of(number)
        stats = watch.stats
        found: dict[str, Any] = {
            "stream": number,
            "a": str(watch.a),
            "b": str(watch.b),
            "role_a": table.role(number, "a"),
            "role_b": table.role(number, "b"),
            "run": 0 if run is None else run.number,
            "kind": watch.kind,
            "dialect": None if watch.observer is None else watch.observer.dialect,
            "requests_in_flight": self._in_flight.get(number, 0),
            "notes": list(watch.notes),
        }
        for direction, totals in watch.totals.items():
            found[direction] = {
                "stream_bytes": totals.total,
                "accounted_bytes": totals.accounted,
                "undecoded_bytes": sum(totals.undecoded.values()),
                "undecoded_reasons": dict(sorted(totals.undecoded.items())),
                "frames": dict(sorted(totals.frames.items())),
            }
            if stats is not None:
                way = stats.ab if direction == "a>b" else stats.ba
                found[direction]["tcp"] = {
                    name: getattr(way, name)
                    for name in way.__dataclass_fields__
                    if getattr(way, name)
                }
        return found


def _bytes_of(watch: Watch) -> int:
    return sum(totals.total for totals in watch.totals.values())


def _roles(
    streams: dict[int, str], watches: dict[int, Watch], decoder: CaptureDecoder
) -> list[str]:
    table = decoder.decoder.table
    found: dict[str, None] = {}
    for number in sorted(streams):
        watch = watches.get(number)
        for side in ("a", "b"):
            role = table.role(number, side)
            if watch is not None and role is not None:
                end = watch.a if side == "a" else watch.b
                found.setdefault(f"{role} at {end.host}")
    return list(found)


def total_of(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of several reports: numbers and maps of numbers are added."""
    total: dict[str, Any] = {}
    for report in reports:
        for key, value in report.items():
            if key == "requests_in_flight":
                total[key] = max(total.get(key, 0), value)
            elif isinstance(value, bool):
                total[key] = total.get(key, False) or value
            elif isinstance(value, int):
                total[key] = total.get(key, 0) + value
            elif isinstance(value, dict) and key != "frames_by_direction":
                total[key] = dict(
                    sorted((Counter(total.get(key, {})) + Counter(value)).items())
                )
            elif isinstance(value, dict):
                ways = total.setdefault(key, {})
                for name, counts in value.items():
                    ways[name] = dict(Counter(ways.get(name, {})) + Counter(counts))
    return total
