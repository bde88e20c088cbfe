"""Lint of the declarations: documented, ruled by clauses that exist, and registered."""

import json
from collections.abc import Iterator

import pytest

from ds4proto import clauses
from ds4proto.schema import all_dialects, dialect, frames, header_of
from ds4proto.schema.declare import (
    EVERY,
    Blob,
    FieldSpec,
    FrameSpec,
    Layout,
    One,
    Records,
    Tail,
    in_dialect,
    walk_tails,
)
from ds4proto.schema.dsv4 import CONTAINERS
from ds4proto.schema.fingerprint import REGISTER, differences, main, register
from ds4proto.schema.names import field_name, field_names

SPECS = (*frames(), *CONTAINERS)
LAYOUTS: dict[int, Layout] = {}


def gather(layout: Layout) -> None:
    LAYOUTS[id(layout)] = layout
    for tail in walk_tails(layout.tails):
        if isinstance(tail, Records | One):
            gather(tail.record)


for _spec in SPECS:
    gather(_spec.body)
for _protocol in ("DS4D", "DS4T"):
    gather(header_of(_protocol))

FIELDS = [(layout, spec) for layout in LAYOUTS.values() for spec in layout.fields]
TAILS = [
    (layout, tail)
    for layout in LAYOUTS.values()
    for tail in (*walk_tails(layout.tails), *layout.tails)
]
field_cases = pytest.mark.parametrize(
    ("layout", "spec"), FIELDS, ids=[f"{la.name}.{f.path}" for la, f in FIELDS]
)


@field_cases
def test_field(layout: Layout, spec: FieldSpec) -> None:
    assert spec.doc
    assert spec.doc == spec.doc.strip()
    assert "\n" not in spec.doc
    if spec.limit is not None or spec.const is not None:
        assert spec.clause, "a limit is ruled by a clause"
    given = [spec.auto is not None, spec.const is not None]
    assert sum(given) <= 1
    low_to_high = [name.value for name in (*spec.enum, *spec.flags)]
    assert low_to_high == sorted(low_to_high)
    for name in spec.flags:
        assert name.value & (name.value - 1) == 0, "a flag is one bit"


@pytest.mark.parametrize(
    ("layout", "tail"), TAILS, ids=[f"{la.name}.{t.path}" for la, t in TAILS]
)
def test_tail(layout: Layout, tail: Tail) -> None:
    assert tail.doc
    assert tail.clause


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda la: la.name)
def test_layout(layout: Layout) -> None:
    assert layout.doc
    assert not layout.fields or layout.short_clause
    for entry in all_dialects():
        present = [
            part.path
            for part in (*layout.fields, *walk_tails(layout.tails))
            if in_dialect(part.dialects, entry.name)
        ]
        assert len(present) == len(set(present)), entry.name
    for rule in layout.rules:
        known = {part.path for part in (*layout.fields, *walk_tails(layout.tails))}
        assert rule.path in known
        assert rule.clause
        assert rule.expected


def homes(spec: FrameSpec) -> frozenset[str]:
    family = "DS4D" if spec.protocol in ("DS4D", "FILE") else "DS4T"
    all_names = frozenset(d.name for d in all_dialects() if d.protocol == family)
    return all_names if spec.dialects is EVERY else spec.dialects & all_names


def cited(
    layout: Layout, dialects: frozenset[str]
) -> Iterator[tuple[str, frozenset[str], str]]:
    """Yield each clause id with the dialects in which it is cited, and where."""

    def narrowed(own: frozenset[str]) -> frozenset[str]:
        return dialects if "*" in own else own & dialects

    for spec in layout.fields:
        yield spec.clause, narrowed(spec.dialects), f"{layout.name}.{spec.path}"
    for rule in layout.rules:
        yield rule.clause, narrowed(rule.dialects), f"{layout.name}, {rule.path}"
    for clause in (layout.short_clause, layout.trailing_clause):
        yield clause, dialects, layout.name
    for tail in layout.tails:
        if isinstance(tail, Blob):
            for clause in (tail.clause, tail.trailing_clause, tail.empty_clause):
                yield clause, narrowed(tail.dialects), tail.path
    for tail in walk_tails(layout.tails):
        yield tail.clause, narrowed(tail.dialects), tail.path
        if isinstance(tail, Records | One):
            yield from cited(tail.record, narrowed(tail.dialects))


def lineage(name: str) -> set[str]:
    """Return a dialect and those that it is described against."""
    found = {name}
    entry = dialect(name)
    while entry.base is not None:
        found.add(entry.base)
        entry = dialect(entry.base)
    return found


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.full_name)
def test_clauses_exist_and_hold_where_they_are_cited(spec: FrameSpec) -> None:
    known = {clause.id: clause for clause in clauses.load()}
    for clause, dialects, where in cited(spec.body, homes(spec)):
        if not clause:
            continue
        assert clause in known, f"{where} cites {clause}"
        held = set(known[clause].dialects)
        reach = {name for own in dialects for name in lineage(own)}
        assert "*" in held or held & reach, (
            f"{where} cites {clause} out of its dialects"
        )
        family = clause.split("-", maxsplit=1)[0]
        assert family in {spec.protocol, "DS4T" if spec.protocol == "DS4B" else family}


@pytest.mark.parametrize("protocol", ["DS4D", "DS4T"])
def test_clauses_of_the_header_exist(protocol: str) -> None:
    known = {clause.id for clause in clauses.load()}
    own = {clause for clause, _, _ in cited(header_of(protocol), frozenset())} - {""}
    assert own <= known
    assert len(own) == 3


# Rules whose clause a reader of a `problems` list will look up first: they were
# checked by hand against the wording of the clause.
WORDED = {
    "DS4D-HELLO-09": "quant_bits",
    "DS4D-ROUTE-13": "names a host or a port",
    "DS4D-WORK-08": "n_tokens 0",
    "DS4D-RESULT-26": "LOGITS payload",
    "DS4D-DIALECT-30": "IPC_INBOX",
    "DS4T-ACK-08": "reserved word",
    "DS4T-BATCH-02": "k = 0",
    "DS4T-CKPT-03": "0 start, 1 prefill chunk done",
    "DS4T-CTRL-18": "send that word as 0",
    "DS4T-HELLO-06": "gates_per_token",
    "DS4T-HELLO-19": "neither 1 nor 2",
    "DS4T-MM-04": "token_count 0",
    "DS4T-MM-07": "overlap",
    "DS4T-MTP-02": "neither 1 nor 2",
    "DS4T-RDMA-22": "24-bit",
    "DS4T-RDMA-54": "0xFEED",
    "DS4T-SESSION-05": "context value of 0",
    "DS4T-SESSION-07": "non-zero",
    "DS4T-VERIFY-02": "more than 16",
    "DS4T-VERIFY-10": "at most 4",
}


@pytest.mark.parametrize(("clause", "words"), WORDED.items())
def test_a_cited_clause_says_what_the_declaration_means(
    clause: str, words: str
) -> None:
    assert words in clauses.get(clause).text
    assert any(clause in spec.clauses for spec in SPECS)


# -- the register of layouts


def test_the_register_of_layouts_is_up_to_date() -> None:
    stored = json.loads(REGISTER.read_text("utf-8"))
    assert differences(stored) == [], "run python -m ds4proto.schema.fingerprint build"


def test_the_check_sees_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads(json.dumps(register()))
    stored["DS4D.WORK"][0]["fingerprint"] = "0" * 16
    del stored["DS4T.EVAL"]
    stored["DS4T.GONE"] = []
    lines = differences(stored)
    assert [line.split(":")[0] for line in lines] == [
        "DS4D.WORK",
        "DS4T.EVAL",
        "DS4T.GONE",
    ]
    assert "upstream" in lines[0]
    assert main(["check"]) == 0
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_a_fingerprint_covers_bytes_rules_and_names() -> None:
    from dataclasses import replace

    from construct import Int32ul

    from ds4proto.schema.declare import Limit
    from ds4proto.schema.ds4d import WORK
    from ds4proto.schema.fingerprint import fingerprint

    before = fingerprint(WORK, "upstream")
    fields = WORK.body.fields
    first = fields[0]
    changes = {
        "order": replace(first, type=Int32ul),
        "limit": replace(first, limit=Limit(0, 5), clause="DS4D-WORK-05"),
        "name": replace(first, path="model"),
        "clause": replace(first, clause="DS4D-WORK-05"),
        "enum": replace(first, enum=first.enum[:2]),
    }
    bodies = {
        name: replace(WORK.body, fields=(field, *fields[1:]))
        for name, field in changes.items()
    }
    bodies["swapped"] = replace(WORK.body, fields=(fields[1], first, *fields[2:]))
    bodies["rule"] = replace(WORK.body, rules=WORK.body.rules[1:])
    bodies["tail"] = replace(WORK.body, tails=WORK.body.tails[:2])
    for name, body in bodies.items():
        assert fingerprint(replace(WORK, body=body), "upstream") != before, name
    worded = replace(first, doc="other words", unit="ids")
    body = replace(WORK.body, fields=(worded, *fields[1:]))
    assert fingerprint(replace(WORK, body=body), "upstream") == before


# -- the names that users give to fields


def test_field_names() -> None:
    names = [entry.name for entry in field_names()]
    assert len(names) == len(set(names))
    assert {
        "ds4d.header.bytes",
        "ds4d.work.layer_start",
        "ds4d.work.route.port",
        "ds4d.result.telemetry.eval_usec",
        "ds4t.hello.gate_slot_mask2",
        "ds4t.eval.seq",
        "ds4b.gate_bulk.tag",
        "ds4t.sync_multimodal.images.fingerprint",
    } <= set(names)
    for entry in field_names():
        assert entry.doc
        assert entry.type
        assert entry.dialects, entry.name
        assert entry.name == entry.name.lower()


def test_one_field_name() -> None:
    start = field_name("ds4d.work.layer_start")
    assert (start.frame, start.path, start.type) == (
        "DS4D.WORK",
        "layer_start",
        "u32be",
    )
    assert (start.unit, start.doc) == ("layer", "first layer of this hop")
    assert "swift" not in start.dialects
    assert not start.repeated
    port = field_name("ds4d.work.route.port")
    assert port.repeated
    assert port.path == "route.port"
    assert field_name("ds4d.work.tokens").type == "u32be[]"
    assert field_name("ds4d.work.draft_cap").dialects == ("fodelf",)
    assert field_name("ds4t.eval.session_id").dialects[0] == "v7"
    with pytest.raises(KeyError):
        field_name("ds4d.work.nothing")
