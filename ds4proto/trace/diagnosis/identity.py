"""Identity traps: peers that do not fit together, and those that only seem to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from ds4proto.link.ds4t_identity import Identity, all_mismatches
from ds4proto.printable import counted
from ds4proto.schema.declare import in_dialect
from ds4proto.schema.dialects import dialects_of
from ds4proto.schema.ds4d_work import WORK
from ds4proto.schema.ds4t_hello import ROLE_CODES
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.diagnosis.check import STALL, Scene
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.runs import layers_text

__all__ = ["IdentityCheck"]

LISTED: Final = 16
_FLAGS: Final = next(f for f in WORK.body.fields if f.path == "flags").flags


class IdentityCheck:
    """Hellos, dialects and extensions."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._hellos: dict[int, dict[str, FrameRow]] = {}
        self.workers: Bounded[tuple[int, int, int, int], FrameRow] = Bounded()
        self._errors: set[int] = set()
        self._dialects: dict[tuple[int, str], FrameRow] = {}
        self._extensions: dict[tuple[int, str], FrameRow] = {}
        self._contexts: dict[int, FrameRow] = {}
        self._refused: set[int] = set()
        self._lead: dict[int, FrameRow] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.run and row.dialect:
            self._dialects.setdefault((row.run, row.dialect), row)
        if not row.is_frame:
            return
        if row.type == "HELLO" and row.protocol == "DS4D":
            f = row.fields
            layers = int(f["layer_start"]), int(f["layer_end"])
            key = (row.run, *layers, int(f["has_output"]))
            self.workers.offer(key, lambda: row)
        elif row.type == "HELLO":
            role = (
                "leader"
                if row.fields.get("role") == ROLE_CODES["tp-leader"]
                else "worker"
            )
            held = self._hellos.setdefault(row.run, {})
            held[role if role not in held else f"{role} again"] = row
        elif row.type == "ERROR":
            self._refused.add(row.stream)
        elif row.type == "SESSION_CREATE":
            self._contexts.setdefault(row.run, row)
        elif row.type == "IPC_INBOX":
            self._extensions.setdefault((row.run, "type 10 (IPC_INBOX)"), row)
        elif row.type == "WORK":
            self._work(row)

    def _work(self, row: FrameRow) -> None:
        if row.fields.get("route_index") == 0:
            self._lead.setdefault(row.run, row)
        flags = int(row.fields["flags"])
        for flag in _FLAGS:
            if flag.value & flags and not in_dialect(flag.dialects, "upstream"):
                name = f"WORK flag {flag.value:#x} ({flag.name})"
                self._extensions.setdefault((row.run, name), row)
            flags &= ~flag.value
        for bit in range(flags.bit_length()):
            if flags >> bit & 1:
                name = f"WORK flag {1 << bit:#x} (unknown bit {bit})"
                self._extensions.setdefault((row.run, name), row)

    def findings(self) -> Iterator[Finding]:
        """Answer run by run."""
        for run, hellos in self._hellos.items():
            yield from self._pair(run, hellos)
        slices: dict[int, list[FrameRow]] = {}
        for row in self.workers.values():
            slices.setdefault(row.run, []).append(row)
        for run, rows in slices.items():
            yield from self._slices(run, rows)
        yield from self._byte_order()
        for (run, name), row in self._extensions.items():
            known = "unknown" not in name
            yield Finding(
                "identity.extension", "note" if known else "warning", "certain",
                f"{row.src_role} uses {name}"
                + (", a known fork extension: an upstream worker closes on it, an "
                   "upstream coordinator skips it in silence" if known
                   else ", which no known dialect has"),
                {"extension": name}, (proof(row, self._scene.file),),
                "both sides need the same fork" if known else
                "compare the builds of both sides", run, self._scene.file,
            )  # fmt: skip
        yield from self._nearest()

    # -- tensor parallelism -----------------------------------------------------

    def _pair(self, run: int, hellos: Mapping[str, FrameRow]) -> Iterator[Finding]:
        rows = list(hellos.values())
        if len(rows) < 2:
            return
        one, two = rows[0], rows[1]
        evidence = (proof(one, self._scene.file), proof(two, self._scene.file))
        mine, theirs = one.fields, two.fields
        if mine["version"] != theirs["version"]:
            yield self._versions(run, one, two)
        elif mine.get("role") == theirs.get("role"):
            yield Finding(
                "identity.role", "severe", "certain",
                f"both ranks claim role {mine.get('role')}",
                {"role": int(mine.get("role", 0))}, evidence,
                "start one as coordinator, the other as worker", run, self._scene.file,
            )  # fmt: skip
        differ = all_mismatches(Identity.of(mine), Identity.of(theirs))
        if differ and mine["version"] == theirs["version"]:
            words = "; ".join(
                item.text.replace("here", f"the {one.src_role}").replace(
                    "peer", f"the {two.src_role}"
                )
                for item in differ
            )
            features = [item for item in differ if item.field == "runtime_features"]
            hexed = "".join(
                f" ({item.mine:#010x} and {item.theirs:#010x})" for item in features
            )
            yield Finding(
                "identity.mismatch", "severe", "certain",
                f"the hellos differ in {counted(len(differ), 'word')} that "
                f"{'has' if len(differ) == 1 else 'have'} to be equal: "
                f"{words}{hexed}",
                {item.field: f"{item.mine} / {item.theirs}" for item in differ},
                evidence,
                "load the same model file on both machines, with the same build and "
                "the same DS4_ environment", run, self._scene.file,
            )  # fmt: skip
        yield from self._context(run, one, two)
        yield from self._transport(run, one, two)

    def _versions(self, run: int, one: FrameRow, two: FrameRow) -> Finding:
        rows = sorted((one, two), key=lambda row: int(row.fields["version"]))
        older, newer = (int(row.fields["version"]) for row in rows)
        name = rows[1].dialect.rstrip("?")
        known_newer = next(
            (d for d in dialects_of("DS4T") if d.name == name and d.version == newer),
            None,
        )
        changed = (
            f"{known_newer.title} changed: {'; '.join(known_newer.differs)}"
            if known_newer is not None and known_newer.differs
            else "an unknown version"
            if known_newer is None
            else known_newer.title
        )
        return Finding(
            "identity.version", "severe", "certain",
            f"the {rows[0].src_role} speaks version {older}, the {rows[1].src_role} "
            f"version {newer}: the {rows[0].src_role} is older, and only equal "
            f"versions work together. Version {newer}: {changed}",
            {"older": older, "newer": newer, "older_role": rows[0].src_role},
            (proof(one, self._scene.file), proof(two, self._scene.file)),
            "build both from the same commit, and make sure that no stale process "
            "answers; ds4proto spec diff shows what changed",
            run, self._scene.file,
        )  # fmt: skip

    def _context(self, run: int, one: FrameRow, two: FrameRow) -> Iterator[Finding]:
        sizes = {row.src_role: int(row.fields.get("ctx_size", 0)) for row in (one, two)}
        worker = sizes.get("worker", 0)
        create = self._contexts.get(run)
        if worker and worker != sizes.get("leader", worker):
            used = ""
            if create is not None:
                used = f", SESSION_CREATE uses {create.fields['ctx_size']}"
            yield Finding(
                "identity.context", "warning", "certain",
                f"the hellos name different contexts: leader {sizes['leader']}, worker "
                f"{worker}{used}; the protocol does not compare them",
                {"leader": sizes["leader"], "worker": worker},
                (proof(one, self._scene.file), proof(two, self._scene.file)),
                "start both with the same --ctx: prefill chunks follow from it",
                run, self._scene.file,
            )  # fmt: skip

    def _transport(self, run: int, one: FrameRow, two: FrameRow) -> Iterator[Finding]:
        ok = {row.src_role: bool(row.fields.get("rdma_ok", 0)) for row in (one, two)}
        if len(ok) == 2 and len(set(ok.values())) == 2:
            lacks = next(role for role, value in ok.items() if not value)
            yield Finding(
                "identity.transport", "note", "certain",
                f"only one rank offers RDMA: the {lacks} does not, so that gates cross "
                "TCP, or the other ends where RDMA was asked for outright",
                {"lacks": lacks},
                (proof(one, self._scene.file), proof(two, self._scene.file)),
                f"if RDMA was meant, run ds4proto preflight on the {lacks}'s machine",
                run, self._scene.file,
            )  # fmt: skip

    # -- pipeline ---------------------------------------------------------------

    def _slices(self, run: int, workers: list[FrameRow]) -> Iterator[Finding]:
        """Compare what the workers of one coordinator announce."""
        rows = [row for row in workers if row.stream not in self._refused]
        rows = rows or workers
        for word, what in (
            ("model_id", "models"), ("model_name", "model names"),
            ("n_layers", "layer counts"), ("quant_bits", "quantisations"),
            ("ctx_size", "contexts"),
        ):  # fmt: skip
            values = {
                row.src_role: row.fields[word] for row in rows if word in row.fields
            }
            if len(set(values.values())) < 2:
                continue
            few = dict(islice(values.items(), LISTED))
            listed = ", ".join(f"{role} {value}" for role, value in few.items())
            if len(values) > LISTED:
                listed += f" and {len(values) - LISTED} more"
            hard = word not in ("quant_bits", "ctx_size")
            yield Finding(
                "identity.workers", "severe" if hard else "note", "certain",
                f"the workers announce different {what}: {listed}",
                {role: value for role, value in few.items()},
                tuple(proof(row, self._scene.file) for row in rows[:LISTED]),
                "the smallest context counts" if word == "ctx_size" else
                "the protocol takes mixed quantisations; make sure that this is meant"
                if not hard else "load the same model everywhere",
                run, self._scene.file,
            )  # fmt: skip
        lead = self._lead.get(run)
        if lead is None and rows:
            yield from self._coverage(run, rows)

    def _coverage(self, run: int, rows: list[FrameRow]) -> Iterator[Finding]:
        """Without any request, say which layers nobody has, as far as hellos tell."""
        layers = max(int(row.fields["n_layers"]) for row in rows)
        ranges = sorted(
            (int(r.fields["layer_start"]), int(r.fields["layer_end"])) for r in rows
        )
        missing, at = [], ranges[0][0]
        for start, end in ranges:
            if start > at:
                missing.append(layers_text(at, start - 1, output=False))
            at = max(at, end + 1)
        if at < layers:
            missing.append(layers_text(at, layers - 1, output=False))
        if not missing:
            return
        watches = self._scene.decoder.decoder.ended
        over = max((watch.last_time for watch in watches), default=0.0)
        brief = over - max(row.time for row in rows) < STALL
        yield Finding(
            "route.gap", "note" if brief else "warning",
            "possible" if brief else "likely",
            f"no request was sent, and no worker in the capture has layers "
            f"{_listed(missing)} of {layers}: the coordinator waits for them, unless "
            "they are its own" + (", or come after the end of the capture"
                                  if brief else ""),
            {"missing": _listed(missing), "layers": layers},
            tuple(proof(row, self._scene.file) for row in rows[:LISTED]),
            "record longer" if brief else "start the worker for those layers",
            run, self._scene.file,
        )  # fmt: skip

    # -- dialects ---------------------------------------------------------------

    def _byte_order(self) -> Iterator[Finding]:
        for watch in self._scene.decoder.decoder.ended:
            if any("other byte order" in note for note in watch.notes):
                row = next(
                    (r for (_, _), r in self._dialects.items()
                     if r.stream == watch.number), None,
                )  # fmt: skip
                yield Finding(
                    "identity.byte-order", "severe", "certain",
                    f"stream {watch.number} ({watch.a} -> {watch.b}): the headers are "
                    "in the other byte order: another dialect with the same magic. A C "
                    "peer logs 'bad frame magic 0x44345344' and closes without a word",
                    {"stream": watch.number},
                    () if row is None else (proof(row, self._scene.file),),
                    "both sides need builds of one family", file=self._scene.file,
                )  # fmt: skip

    def _nearest(self) -> Iterator[Finding]:
        for (run, dialect), row in self._dialects.items():
            if dialect.endswith("?"):
                yield Finding(
                    "identity.dialect", "note", "possible",
                    f"this build is none that is known; read as its nearest, "
                    f"{dialect.rstrip('?')}: fields may mean something else",
                    {"dialect": dialect}, (proof(row, self._scene.file),),
                    "ds4proto decode --dialect NAME reads it as another one",
                    run, self._scene.file,
                )  # fmt: skip


def _listed(texts: list[str]) -> str:
    """Return the first few of some texts in a row."""
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return ", ".join(texts[:LISTED]) + more
