"""The DS4T vectors: every row holds for our code, and fails where a rule is broken.

For each family a few faults are planted. Together they must turn rows of every clause
of the family red: a clause that no fault reaches would be claimed for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.cli import options as pipeline_options
from ds4proto_runtime.tp import environment, slab
from ds4proto_runtime.tp import options as tp_options

from ds4proto.link import ds4t_gates, ds4t_prefill, ds4t_rdma_windows, plan, schedule
from ds4proto.model import identity, known
from ds4proto.preflight import options_ds4t, rules, rules_settings, rules_tp
from ds4proto.rule_vectors import Row, load
from ds4proto.schema import registry
from ds4proto.schema import slab as slab_schema
from tests.spec.runs_ds4t import RUNS, Fault, assert_all_broken

ROWS = [(name, row) for name in RUNS for row in load(name).rows]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_a_row_holds(name: str, row: Row) -> None:
    RUNS[name](row, load(name).base)


def both(*faults: Any) -> Fault:
    """Several patches at once."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault)
            yield

    return planted


def without(*clauses: str) -> Fault:
    """Both parsers overlook what a clause refuses."""
    own, cross = options_ds4t.cross_check, options_ds4t.strays
    read = tp_options._cross_check

    def lenient(options: Any) -> None:
        if options.role is None:
            if "DS4T-OPT-01" in clauses:
                return
        elif "DS4T-OPT-04" in clauses or "DS4T-OPT-06" in clauses:
            if not options.listen and not options.coordinator:
                return
        elif options.listen and options.coordinator:
            return
        read(options)

    return both(
        patch.object(
            options_ds4t,
            "cross_check",
            lambda o: (r for r in own(o) if r.clause not in clauses),
        ),
        patch.object(tp_options, "_cross_check", lenient),
        patch.object(
            pipeline_options,
            "strays",
            lambda given: () if "DS4T-OPT-09" in clauses else cross(given),
        ),
    )


def changed(module: Any, name: str, value: Any) -> Fault:
    return lambda: patch.object(module, name, value)


def values(**changes: Any) -> Fault:
    """The option table of the runtime takes other values."""
    table = dict(tp_options.VALUES)
    for name, take in changes.items():
        option = "--" + name.replace("_", "-")
        table[option] = (table[option][0], take)
    return lambda: patch.object(tp_options, "VALUES", table)


def settings_as(read: Callable[[str | None], str]) -> Fault:
    """Preflight reads every setting in another way."""
    table = tuple(replace(one, read=read) for one in rules_settings.MUST_MATCH)
    return lambda: patch.object(rules_settings, "MUST_MATCH", table)


def unchecked(check: Any) -> Fault:
    """Preflight leaves a check out."""
    left = tuple(one for one in rules.CHECKS if one is not check)
    assert len(left) < len(rules.CHECKS)
    return lambda: patch.object(rules, "CHECKS", left)


def model_with(model_id: int, **changes: Any) -> Fault:
    """A model is known with other facts."""
    from ds4proto.model import facts

    made = tuple(
        replace(m, **changes) if m.model_id == model_id else m
        for m in known.KNOWN_MODELS
    )
    return both(
        patch.object(known, "KNOWN_MODELS", made),
        patch.object(facts, "KNOWN_MODELS", made),
    )


def schedule_of(slots: Callable[[schedule.Schedule], tuple[int, ...]]) -> Fault:
    """Schedules fire other slots."""
    return lambda: patch.object(schedule.Schedule, "slots", property(slots))


def regions(change: Callable[[list[Any]], list[Any]]) -> Fault:
    """The slab has other regions."""
    made = tuple(change(list(slab_schema._REGIONS)))
    return lambda: patch.object(slab_schema, "_REGIONS", made)


def longer(name: str) -> Fault:
    """One region of the slab is a word longer."""

    def change(rows: list[Any]) -> list[Any]:
        return [
            (n, (lambda s, v, f=f: f(s, v) + 4) if n == name else f, doc, travels)
            for n, f, doc, travels in rows
        ]

    return regions(change)


def plan_of(**changes: Any) -> Fault:
    """Chunks and gates by another constant of the plan."""
    return both(*(patch.object(plan, name, value) for name, value in changes.items()))


def _whole(slots: schedule.Schedule) -> tuple[int, ...]:
    return tuple(range(2 * slots.n_layer))


def _from_the_top(self: schedule.Schedule) -> tuple[int, ...]:
    found = [s for s in range(192) if self.mask[s // 64] >> s % 64 & 1]
    if found:
        return tuple(reversed(found))
    count = self.gates_per_token or 2 * self.n_layer
    return tuple(self.start + k * self.step for k in range(count))


def _stepless(self: schedule.Schedule) -> tuple[int, ...]:
    if any(self.mask):
        return tuple(s for s in range(192) if self.mask[s // 64] >> s % 64 & 1)
    return tuple(range(self.gates_per_token or 2 * self.n_layer + 1))


_chunk_gates = plan.chunk_gates
_plan_new = plan.plan_new


def _swap_everywhere(chunk: Any, *rest: Any, **words: Any) -> Any:
    return _chunk_gates(plan.Chunk(0, max(chunk.rows, 32)), *rest, **words)


def _swap_nowhere(chunk: Any, *rest: Any, **words: Any) -> Any:
    return [g for g in _chunk_gates(chunk, *rest, **words) if g.gate == "FFN"]


def _by_prompt(kept: int, new: int, context: int, *rest: Any, **words: Any) -> Any:
    """Chunks that depend on the length of the prompt."""
    return _plan_new(kept, new, min(context, max(new // 2, 1)), *rest, **words)


def _never_single(kept: int, new: int, *rest: Any, **words: Any) -> Any:
    found = _plan_new(kept, new, *rest, **words)
    return found._replace(
        chunks=found.chunks or (plan.Chunk(kept, new),), single_tokens=0
    )


def _always_single(kept: int, new: int, *rest: Any, **words: Any) -> Any:
    return _plan_new(kept, new, *rest, **words)._replace(chunks=(), single_tokens=new)


def _uncut(position: int, rows: int, limit: int, most: int) -> Iterator[Any]:
    """Chunks of the limit from wherever the prefix ends."""
    while rows > 0:
        size = min(rows, most)
        yield plan.Chunk(position, size)
        position += size
        rows -= size


def _blind_options(*_: Any, **__: Any) -> plan.PlanOptions:
    return plan.PlanOptions()


def _batches_as_bulk(rows: int, one: schedule.Schedule) -> Iterator[Any]:
    for layer in one.ffn_layers:
        yield plan.PlannedGate("bulk", layer, "FFN", rows)


_build, _read = registry.build, registry.read


def built(change: Callable[[bytes], bytes]) -> Fault:
    """Frames leave in another form."""
    return changed(
        registry, "build",
        lambda *words, **more: [change(b"".join(map(bytes, _build(*words, **more))))],
    )  # fmt: skip


def _reserved_set(data: bytes) -> bytes:
    return data[:-4] + b"\1\0\0\0" if data[-4:] == bytes(4) else data


FAULTS: dict[str, dict[str, Fault]] = {
    "frames-ds4t": {
        "a fourth word in the header": built(lambda b: b[:12] + bytes(4) + b[12:]),
        "big-endian words": built(
            lambda b: b"".join(b[i : i + 4][::-1] for i in range(0, len(b), 4))
        ),
        "reserved words set": built(_reserved_set),
        "sizes in 32 bits": built(lambda b: b[:20] + bytes(4) + b[24:]),
        "everything is sound": changed(
            registry, "read",
            lambda *words, **more: _read(*words, **more)._replace(problems=()),
        ),
    },
    "options-ds4t": {
        f"{clause} is overlooked": without(clause)
        for clause in (
            "DS4T-OPT-01", "DS4T-OPT-02", "DS4T-OPT-03", "DS4T-OPT-04", "DS4T-OPT-05",
            "DS4T-OPT-06", "DS4T-OPT-07", "DS4T-OPT-09",
        )
    } | {
        "any transport": values(transport=lambda _option, words: words),
        "any index": values(rdma_gid_index=lambda _option, words: len(words)),
        "the device in capitals": values(
            rdma_device=lambda _option, words: words.upper()
        ),
        "the flag leads nowhere": changed(
            tp_options, "FLAGS", {**tp_options.FLAGS,
            "--tensor-parallel-token-prefill": "gate_checksums"},
        ),
        "an empty argument for a missing one": changed(
            tp_options, "_argument", lambda _option, words: next(words, "1")
        ),
    },
    "environment-ds4t": {
        "one limit for all": changed(environment, "_dial", lambda *_, **__: 60.0),
        "unbounded": changed(environment, "GATE_MS_MAX", 1 << 31),
    },
    "settings-ds4t": {
        "as typed": settings_as(str),
        "not compared": settings_as(lambda _: ""),
        "in silence": unchecked(rules_settings.must_match),
        "the flag is not compared": changed(
            rules_settings, "settings_table",
            lambda case, own=rules_settings.settings_table: [
                row for row in own(case) if not row[0].startswith("--")
            ],
        ),
    },
    "starts-ds4t": {
        "every back end will do": unchecked(rules_tp.backends),
    },
    "models-ds4t": {
        f"model {n} with another schedule": model_with(
            n, gates=known.GateSchedule(0, 1, 2),
            gates_streaming=known.GateSchedule(0, 1, 2),
        )
        for n in range(5)
    } | {
        "all logits split": changed(identity, "_split", lambda *_: True),
        "prediction blocks are layers": model_with(2, layers=79),
    },
    "schedules-ds4t": {
        "every slot fires": schedule_of(_whole),
        "from the highest bit": schedule_of(_from_the_top),
        "start and step ignored": schedule_of(_stepless),
        "kinds the other way round": both(
            patch.object(schedule, "_KINDS", ("FFN", "ATTN")),
            patch.object(schedule, "FFN", 0),
        ),
        "tokens from 0": changed(
            schedule, "gate_of",
            lambda seq, one, own=schedule.gate_of: own(seq, one)._replace(token=0),
        ),
        "any order": both(
            patch.object(ds4t_gates, "text_of", lambda *_: "no"),
            patch.object(ds4t_rdma_windows, "text_of", lambda *_: "no"),
        ),
    },
    "plans-ds4t": {
        "other thresholds": plan_of(
            LONG_CONTEXT=1024, PRO_CHUNK=1024, GLM_EXACT_MAX=8, SUBGATE_ROWS=4
        ),
        "by the prompt": changed(plan, "plan_new", _by_prompt),
        "never one by one": changed(plan, "plan_new", _never_single),
        "always one by one": changed(plan, "plan_new", _always_single),
        "chunks from the prefix on": changed(plan, "cut_chunks", _uncut),
        "swapped always": changed(plan, "chunk_gates", _swap_everywhere),
        "swapped never": changed(plan, "chunk_gates", _swap_nowhere),
        "variables ignored": changed(ds4t_prefill, "plan_options", _blind_options),
    },
    "blocks-ds4t": {
        "batches as bulk": changed(plan, "verify_gates", _batches_as_bulk),
        "one row a gate": changed(
            slab.Slab, "batch",
            lambda self, layer, rows: self._batches[layer, max(1, rows - 1)],
        ),
    },
    "slab-ds4t": {
        f"{name} is longer": longer(name)
        for name in ("out", "in", "in_flags", "token", "out_flags", "gpu_flags",
                     "batch_out")
    } | {
        "flags travel": regions(lambda rows: [(n, f, d, True) for n, f, d, _ in rows]),
        "rows from the end": changed(
            slab.Slab, "batch",
            lambda self, layer, rows: (self.batch_out[layer][-rows * 256:],) * 2,
        ),
        "every layer of the file": changed(
            slab_schema, "slab_layout",
            lambda n, w, own=slab_schema.slab_layout: own(n + 1, w),
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_clause_of_a_family_is_broken_by_a_planted_fault(name: str) -> None:
    assert_all_broken(name, RUNS[name], FAULTS[name])
