"""What our own code makes of a row of the DS4T vectors: one function a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from ds4proto_runtime.cli import options as pipeline_options
from ds4proto_runtime.tp import environment, slab
from ds4proto_runtime.tp import options as tp_options

from ds4proto.errors import WrongUsage
from ds4proto.link import ds4t_prefill, plan, schedule
from ds4proto.link.ds4t_gates import GateLink
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.model import known
from ds4proto.model.facts import model_facts
from ds4proto.model.gguf import read_gguf
from ds4proto.model.identity import ds4t_identity
from ds4proto.preflight import command as preflight
from ds4proto.rule_vectors import Row, load
from ds4proto.schema import registry
from ds4proto.schema import slab as slab_schema
from tests.model import gguf_writer
from tests.preflight.plans import CUDA, PAIR, findings

Run = Callable[[Row, Mapping[str, Any]], None]
Fault = Callable[[], AbstractContextManager[Any]]
IDLE_MS = 750


def options(row: Row, _: Mapping[str, Any]) -> None:
    """The parser that runs and the parser of preflight say the same."""
    words: list[str] = row["argv"]
    text, found = _refusal(words)
    assert text == row["text"]
    command = preflight.parse_command(["./ds4", *words])
    assert command.prints == (row["text"] or "")
    for name, value in row.values.get("values", {}).items():
        assert getattr(found, name) == value
        assert getattr(command, name) == value


def _refusal(words: list[str]) -> tuple[str | None, Any]:
    rest = [word for word in words if word != "--tensor-parallel"]
    parse: Any = pipeline_options.parse_options
    if "--tensor-parallel" in words:
        parse = tp_options.parse_options
    try:
        return None, parse(rest)
    except WrongUsage as error:
        return str(error), None


def variables(row: Row, _: Mapping[str, Any]) -> None:
    """A rank reads its variables so."""
    found = environment.read_environment(row["env"], row["dialect"])
    if "dial_seconds" in row.values:
        assert found.dial_seconds == row["dial_seconds"]
    if "gate_ms" in row.values:
        idle = found.gate_idle
        assert (IDLE_MS if idle is None else round(idle * 1000)) == row["gate_ms"]


def settings(row: Row, _: Mapping[str, Any]) -> None:
    """Preflight names the setting, and says that the hello does not check it."""
    name = row["name"]
    text = PAIR
    for rank in ("leader", "worker"):
        value = row[rank]
        if name.startswith("--") and value is not None:
            program = "./ds4-server" if rank == "leader" else "./ds4"
            text = text.replace(f"{program} --tensor", f"{program} {name} --tensor", 1)
        elif value is not None:
            old = 'env = { DS4_TP_TIMEOUT_SEC = "300" }'
            at = text.index(old) if rank == "leader" else text.rindex(old)
            text = f'{text[:at]}env = {{ {name} = "{value}" }}{text[at + len(old) :]}'
    told = [f for f in judged(text) if name in f.what and "hello does not" in f.what]
    assert bool(told) == row["differ"]
    for finding in told:
        assert finding.severity == "error"
        assert finding.clause in row.clauses


def judged(text: str) -> list[Any]:
    """Judge a plan given as text."""
    with TemporaryDirectory() as folder:
        return list(findings(Path(folder), text))


def starts(row: Row, _: Mapping[str, Any]) -> None:
    """Preflight foretells the text with which a rank ends."""
    text = CUDA if row["model"] == "v41" else PAIR
    text = text.replace('backend = "cuda"\n', "")
    wanted = f'backend = "{row["backend"]}"\n'
    if row["backend"] == "metal":
        wanted = ""
    text = text.replace(
        'tp_dialect = "v14"', f'{wanted}tp_dialect = "{row["dialect"]}"'
    )
    if "gpus" in row.values:
        text = text.replace("gpus = 1", f"gpus = {row['gpus']}")
    if row.values.get("streaming"):
        text = text.replace("--tensor-parallel", "--ssd-streaming --tensor-parallel")
    prints = {f.prints for f in judged(text) if f.check.startswith("backend.")}
    assert prints - {""} == ({row["text"]} if row["text"] else set())


def models(row: Row, _: Mapping[str, Any]) -> None:
    """A rank with this model announces these words."""
    model = known.known_model(row["model_id"])
    assert model is not None
    arch, prediction = model.architectures[0], row["prediction_layers"]
    file = gguf_writer.model(
        arch,
        blocks=row["block_count"],
        width=row["hello"]["n_embd"],
        vocabulary=row["hello"]["n_vocab"],
        extra={"nextn_predict_layers": prediction} if prediction else {},
    )
    facts = model_facts(read_gguf(file.header(), file_size=1 << 33))
    found = ds4t_identity(
        facts, backend=row["backend"], streaming=row.values.get("streaming", False)
    )
    assert found.vocabulary_split is row["split"]
    words = {
        "n_layer": found.n_layer,
        "n_embd": found.n_embd,
        "n_vocab": found.n_vocab,
        "gate_slot_start": found.gates.start,
        "gate_slot_step": found.gates.step,
        "gates_per_token": found.gates.gates_per_token,
        "gate_slot_mask": [hex(word) for word in found.gates.mask],
    }
    assert words == row["hello"]


def schedules(row: Row, base: Mapping[str, Any]) -> None:
    """Sequence numbers and places are the same thing."""
    words = base["schedules"][row["schedule"]]
    one = made(words)
    if "ffn_layers" in row.values:
        layers = one.ffn_layers
        assert [*layers[:1], *layers[-1:], len(layers)] == row["ffn_layers"]
        return
    if "refused" in row.values:
        refused_order(row, words)
        return
    place = schedule.gate_of(row["seq"], one)
    assert list(place) == [row["token"], row["layer"], row["gate"]]
    assert one.slot_of(row["seq"]) == row["slot"]
    assert schedule.seq_of(*place, one) == row["seq"]


def made(words: Mapping[str, Any]) -> schedule.Schedule:
    """A schedule as a hello with these words gives it."""
    mask = [int(word, 16) for word in words["mask"]]
    return schedule.Schedule.from_hello(
        {
            "n_layer": words["n_layer"],
            "gates_per_token": words["gates"],
            "gate_slot_start": words["start"],
            "gate_slot_step": words["step"],
            **{f"gate_slot_mask{n}": word for n, word in enumerate(mask)},
        }
    )


def refused_order(row: Row, words: Mapping[str, Any]) -> None:
    """A sender that is asked for another gate says so, over TCP and RDMA alike."""
    from ds4proto.link.ds4t_rdma_windows import DecodeWindow
    from ds4proto.link.rdma_attributes import attributes_for

    shape = Identity(1, 0, words["n_layer"], 16, 32, 2, 0, 1, words["gates"])
    link = GateLink(TpSettings("tp-leader", shape))
    link.row_seq = row["seq"]
    vector = memoryview(bytearray(64))
    layer, kind = row["refused"]
    window = DecodeWindow(link._settings, attributes_for("v14", "linux"))
    window.opened()
    for ask in (
        lambda: link.begin_row(layer, kind, vector, vector, 0.0),
        lambda: window.sends(layer, kind, row["seq"]),
    ):
        with pytest.raises(LocalProtocolError) as caught:
            ask()
        assert str(caught.value) == row["text"]


def plans(row: Row, _: Mapping[str, Any]) -> None:
    """Session and settings give this plan."""
    model_id = row["model_id"]
    chosen = ds4t_prefill.plan_options(row["env"], model_id=model_id)
    found = plan.plan_new(
        row["kept"], row["new"], row["context"], chosen, model_id=model_id
    )
    assert [list(chunk) for chunk in found.chunks] == row["chunks"]
    assert found.single_tokens == row["single"]
    if "gates" in row.values:
        gates = plan.chunk_gates(
            found.chunks[0], schedule.Schedule(1), chosen, model_id=model_id
        )
        assert [[g.gate, g.rows] for g in gates] == row["gates"]


def blocks(row: Row, _: Mapping[str, Any]) -> None:
    """A block of that size has these gates; the link refuses another payload."""
    one = schedule.Schedule(row["layers"])
    gates = list(plan.verify_gates(row["rows"], one))
    assert [g.kind for g in gates] == [row["kind"]] * row["layers"]
    assert {4 * row["n_embd"] * g.rows for g in gates} == {row["payload"]}
    if row["kind"] == "batch":
        area = slab.Slab(row["layers"], row["n_embd"])
        own, peer = area.batch(0, row["rows"])
        assert own.nbytes == row["payload"]
        shape = Identity(1, 0, row["layers"], row["n_embd"], 32, 2, 0, 1, 0)
        link = GateLink(TpSettings("tp-leader", shape))
        link.begin_batch(0, row["rows"], own, peer, 0.0)
        assert sum(len(view) for view in link.send_views) == 16 + row["payload"]


def slabs(row: Row, _: Mapping[str, Any]) -> None:
    """Regions, size, and what is sent from where."""
    layer_count, width = row["n_layer"], row["n_embd"]
    regions = slab_schema.slab_layout(layer_count, width)
    if "offsets" in row.values:
        assert {r.name: r.offset for r in regions} == row["offsets"]
    if "size" in row.values:
        assert slab_schema.slab_size(layer_count, width) == row["size"]
    if "travels" in row.values:
        assert [r.name for r in regions if r.travels] == row["travels"]
    if "batch" in row.values:
        area = slab.Slab(layer_count, width)
        own = area.batch(*row["batch"])[0]
        area.memory[:] = 0
        own[:] = b"\xff" * len(own)
        touched = area.memory.nonzero()[0]
        assert [int(touched[0]), len(touched)] == row["span"]
        assert int(touched[-1]) == row["span"][0] + row["span"][1] - 1


def frames(row: Row, _: Mapping[str, Any]) -> None:
    """Built and read, a frame is the same; what is broken is named."""
    dialect, data = row["dialect"], bytes.fromhex(row["bytes"])
    spec = registry.frame(row["frame"], dialect=dialect)
    found = registry.read(spec, data, dialect=dialect)
    if "broken" in row.values:
        assert row["broken"] in {problem.clause for problem in found.problems}
        return
    assert not found.problems
    wanted = row["values"]
    assert {name: plain(found.values[name]) for name in wanted} == wanted
    values = buffers(wanted)
    built = b"".join(map(bytes, registry.build(spec, values, dialect=dialect)))
    assert built == data


def plain(value: Any) -> Any:
    """A value as a vector file writes it."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value


def buffers(value: Any) -> Any:
    """The other way round: texts are buffers."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    if isinstance(value, list):
        return [buffers(item) for item in value]
    if isinstance(value, dict):
        return {name: buffers(item) for name, item in value.items()}
    return value


RUNS: dict[str, Run] = {
    "frames-ds4t": frames,
    "options-ds4t": options,
    "environment-ds4t": variables,
    "settings-ds4t": settings,
    "starts-ds4t": starts,
    "models-ds4t": models,
    "schedules-ds4t": schedules,
    "plans-ds4t": plans,
    "blocks-ds4t": blocks,
    "slab-ds4t": slabs,
}


def failing(name: str, run: Run) -> set[str]:
    """Return the clauses of the rows that our code does not give."""
    file = load(name)
    red: set[str] = set()
    for row in file.rows:
        try:
            run(row, file.base)
        except (AssertionError, pytest.fail.Exception):
            red.update(row.clauses)
    return red


def assert_all_broken(name: str, run: Run, faults: Mapping[str, Fault]) -> None:
    """Assert that the faults of a family turn rows of every clause of it red."""
    red: set[str] = set()
    for words, fault in faults.items():
        with fault():
            found = failing(name, run)
        assert found, f"{name}: no row sees that {words}"
        red |= found
    claimed = {clause for row in load(name).rows for clause in row.clauses}
    assert claimed - red == set()
    assert failing(name, run) == set()
