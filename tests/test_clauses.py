"""The clause register: package data, texts of the check tables, lint and build."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ds4proto import clauses
from ds4proto.clauses import Clause
from ds4proto.clauses_build import Entry, lint, main, read_register, read_sources

ROOT = Path(__file__).parents[1]
DIALECTS = frozenset({"upstream", "v14"})

GOOD = Clause(
    id="DS4D-WORK-01",
    chapter="ds4d-work",
    keyword="MUST",
    text="A worker MUST do it.",
    role=("worker",),
    dialects=("*",),
    evidence="measured",
    source="capture a",
    observed="an answer",
)
ISSUED = {"DS4D-WORK-01": Entry("ds4d-work")}

# The tables of checks, text by text, in the order in which a peer judges.
HELLO_ERRORS = {
    1: "bad frame magic 0x%08x",
    6: "model id mismatch: worker=%u coordinator=%u",
    7: "model family mismatch: worker=%s coordinator=%s",
    8: "layer count mismatch: worker=%u coordinator=%u",
    9: "unsupported worker quant profile Q%u",
    10: "invalid worker output-head flag %u",
    11: "invalid worker hidden-state flag %u",
    12: "invalid worker layer range %u:%u for %u layers",
    13: "worker output head requires final layer: range=%u:%u layers=%u",
    14: "worker context too small: worker=%u coordinator=%u",
    15: "invalid worker data listen port %u",
}
WORK_ERRORS = {
    1: "truncated distributed WORK frame",
    2: "invalid distributed WORK payload sizes",
    3: "WORK frame is missing distributed route",
    4: "invalid distributed WORK route metadata",
    5: "model id mismatch: work=%u worker=%u",
    6: "worker is assigned layers %u:%u but request asked for %u:%u",
    7: "invalid distributed WORK flags",
    8: "WORK frame has no tokens",
    9: "WORK token span exceeds worker context",
    10: "layer 0 WORK must not provide input hidden-state",
    11: "nonzero layer WORK requires input hidden-state",
    12: "worker was not assigned the output head",
    13: "WORK logits require final transformer layer",
    14: "WORK token id is outside the model vocabulary",
    15: "WORK token prefix hash metadata mismatch",
    16: "distributed hidden-state payload is too large",
    17: "invalid distributed activation width",
    18: "input hidden-state size does not match token span",
    19: "WORK frame has hidden bytes without input flag",
    21: "WORK layer range does not match route entry",
    22: "WORK logits flag does not match route entry",
    23: "non-final route entry requested logits",
    26: "worker KV prefix hash mismatch",
}
ROUTE_ERRORS = dict(
    enumerate(
        (
            "truncated route entry",
            "invalid route host length",
            "route host contains NUL bytes",
            "invalid route port",
            "invalid route layer range",
            "invalid route flags",
            "route logits require final layer",
            "route layer ranges are not contiguous",
            "route payload missing final destination",
            "invalid route final destination host length",
            "route final destination host contains NUL bytes",
            "unsupported route final destination",
            "invalid upstream route final destination",
            "route payload has trailing bytes",
            "route payload is missing",
        ),
        start=1,
    )
)
RESULT_ERRORS = {
    1: "distributed worker closed connection",
    3: "distributed worker returned invalid frame",
    4: "distributed result telemetry metadata mismatch",
    5: "distributed result metadata mismatch",
    6: "distributed worker returned an error",
    8: "distributed result prefix hash mismatch",
    9: "distributed route did not return logits or hidden-state",
}
SNAP_ERRORS = {
    1: "invalid distributed snapshot save request",
    2: "snapshot save request does not match worker state",
    3: "worker has no distributed session to snapshot",
    4: "worker snapshot token count mismatch",
    5: "worker snapshot token hash mismatch",
    12: "invalid distributed snapshot load header",
    13: "snapshot token count exceeds worker context size",
    14: "snapshot token id is outside the model vocabulary",
    15: "snapshot load token hash mismatch",
    16: "snapshot load request does not match worker state",
    19: "expected distributed snapshot chunk",
    20: "invalid distributed snapshot chunk",
    31: "distributed worker returned invalid snapshot frame",
    32: "invalid distributed snapshot response header",
    34: "distributed KV shard metadata mismatch",
    35: "expected distributed KV shard chunk",
    36: "invalid distributed KV shard chunk",
    37: "distributed worker returned invalid snapshot completion frame",
    38: "invalid distributed snapshot completion message",
    39: "distributed snapshot completion request mismatch",
}


@pytest.mark.parametrize(
    ("family", "texts"),
    [
        ("HELLO", HELLO_ERRORS),
        ("WORK", WORK_ERRORS),
        ("ROUTE", ROUTE_ERRORS),
        ("RESULT", RESULT_ERRORS),
        ("SNAP", SNAP_ERRORS),
    ],
)
def test_check_tables_carry_the_exact_texts_of_peers(
    family: str, texts: dict[int, str]
) -> None:
    found = {n: clauses.get(f"DS4D-{family}-{n:02d}").error for n in texts}
    assert found == texts


@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("HELLO", range(1, 17)),
        ("RESULT", range(1, 10)),
        ("WORK", range(1, 28)),
        ("SNAP", (*range(1, 7), *range(11, 23))),
    ],
)
def test_check_tables_are_complete_and_in_order(
    family: str, numbers: "range | tuple[int, ...]"
) -> None:
    wanted = [f"DS4D-{family}-{n:02d}" for n in numbers]
    place = {name: index for index, name in enumerate(clauses.ids())}
    places = [place[name] for name in wanted]
    assert places == sorted(places)


def test_there_are_as_many_clauses_as_the_pipeline_needs() -> None:
    own = [c for c in clauses.load() if c.id.startswith(("DS4D-", "FILE-", "CODEC-"))]
    assert len(own) >= 230
    assert sum(c.mandatory for c in own) >= 150


def test_an_unknown_id_names_its_neighbours() -> None:
    with pytest.raises(clauses.UnknownClauseError, match="DS4D-WORK-2"):
        clauses.get("DS4D-WORK-28")


def test_a_number_without_its_zero_finds_its_clause_first() -> None:
    with pytest.raises(clauses.UnknownClauseError, match="nearest: DS4D-WORK-07"):
        clauses.get("DS4D-WORK-7")
    with pytest.raises(clauses.UnknownClauseError, match="see spec list"):
        clauses.get("QQQQ")


def test_the_loader_needs_the_standard_library_only() -> None:
    code = (
        "import sys; from ds4proto import clauses; clauses.load(); "
        "print(sorted({'construct', 'numpy', 'msgspec', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_sources_register_and_package_data_agree() -> None:
    assert main(["check"]) == 0


CITED = re.compile(r"\b(?:DS4[DTB]|FILE|CODEC)-[A-Z0-9]+(?:-[A-Z0-9]+)*-\d{2,3}\b")


def test_every_id_that_the_code_cites_exists() -> None:
    known = set(clauses.ids())
    packages = ("ds4proto", "conformance", "fuzz", "reference_runtime")
    cited = {
        (str(path.relative_to(ROOT)), name)
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in CITED.findall(path.read_text("utf-8"))
    }
    assert cited, "no source file cites a clause: the search is broken"
    assert [entry for entry in sorted(cited) if entry[1] not in known] == []


def test_a_sound_clause_has_no_fault() -> None:
    assert lint([GOOD], ISSUED, DIALECTS) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"id": "DS4D-work-1"}, "malformed"),
        ({"keyword": "SHALL", "text": "It SHALL."}, "keyword 'SHALL' is not one of"),
        ({"text": "A worker does it."}, "text does not say MUST"),
        ({"keyword": "MUST NOT"}, "text does not say MUST NOT"),
        (
            {"keyword": "SHOULD", "text": "It SHOULD; it MUST."},
            "text says MUST under the keyword SHOULD",
        ),
        ({"role": ("server",)}, "role 'server' is not one of"),
        ({"dialects": ("v99",)}, "dialects v99 are not known"),
        ({"dialects": ("*", "v14")}, "keep one of the two"),
        ({"evidence": "heard"}, "evidence 'heard' is not one of"),
        ({"source": " "}, "needs a source"),
        ({"evidence": "exhaustive", "source": ""}, "needs a source"),
        ({"tier": "model"}, "tier 'model' is not one of"),
        ({"kind": "ours"}, "a reason goes with kind 'ours'"),
        ({"reason": "safer"}, "a reason goes with kind 'ours'"),
    ],
)
def test_lint_finds_a_broken_clause(change: dict[str, Any], fault: str) -> None:
    broken = dataclasses.replace(GOOD, **change)
    register = {broken.id: Entry("ds4d-work")}
    faults = lint([broken], register, DIALECTS)
    assert [f for f in faults if fault in f], faults


def test_evidence_that_was_only_read_needs_no_source() -> None:
    read = dataclasses.replace(GOOD, evidence="read", source="")
    assert lint([read], ISSUED, DIALECTS) == []


def test_an_id_is_used_once() -> None:
    twin = dataclasses.replace(GOOD, chapter="other", text="Another MUST.")
    faults = lint([GOOD, twin], ISSUED, DIALECTS)
    assert any("id already used in ds4d-work.toml" in f for f in faults)


def test_a_text_is_used_once_whatever_its_spacing() -> None:
    twin = dataclasses.replace(GOOD, id="DS4D-WORK-02", text=" A worker, MUST  do it")
    assert lint([GOOD, twin], ISSUED, DIALECTS) == [
        "ds4d-work.toml: DS4D-WORK-02: same text as DS4D-WORK-01; say what differs"
    ]


@pytest.mark.parametrize(
    ("register", "fault"),
    [
        ({"DS4D-WORK-01": Entry("ds4d-work", retired=True)}, "id is retired"),
        ({"DS4D-WORK-01": Entry("ds4d-old")}, "the register has it in ds4d-old"),
        (ISSUED | {"DS4D-WORK-09": Entry("ds4d-work")}, "has no clause any more"),
    ],
)
def test_an_issued_id_is_never_lost_moved_or_reused(
    register: dict[str, Entry], fault: str
) -> None:
    faults = lint([GOOD], register, DIALECTS)
    assert len(faults) == 1
    assert fault in faults[0]


def test_a_retired_id_may_be_absent() -> None:
    register = ISSUED | {"DS4D-WORK-09": Entry("ds4d-work", retired=True)}
    assert lint([GOOD], register, DIALECTS) == []


def test_register_lines_are_checked() -> None:
    text = "# head\nA-B-01 one\nA-B-01 one\nA-B-02\nA-B-03 one gone\nA-B-04 one retired"
    entries, faults = read_register(text)
    assert entries == {"A-B-01": Entry("one"), "A-B-04": Entry("one", retired=True)}
    assert [fault.split(":")[1] for fault in faults] == ["3", "4", "5"]


TOML = """
[[clause]]
id = "DS4D-WORK-01"
keyword = "MUST"
text = "A worker MUST do it."
role = ["worker"]
evidence = "read"
"""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[clause]\n", "not readable as TOML"),
        (TOML + "tone = 'kind'\n", "key 'tone' is unknown"),
        (TOML.replace('evidence = "read"\n', ""), "key 'evidence' is missing"),
        (TOML.replace('["worker"]', '"worker"'), "role must be a non-empty list"),
        (TOML.replace('"MUST"', "5"), "keyword must be a string"),
        (TOML + "[other]\n", "only [[clause]] tables are read"),
    ],
)
def test_a_misshapen_table_is_named(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    _, faults = read_sources(tmp_path)
    assert len(faults) == 1
    assert faults[0].startswith("a.toml: ")
    assert fault in faults[0]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clauses"
    folder.mkdir()
    (folder / "ds4d-work.toml").write_text(TOML)
    return folder


def run(action: str, folder: Path) -> int:
    data = folder.parent / "out" / "clauses.json"
    return main([action, "--sources", str(folder), "--data", str(data)])


def test_build_fills_register_and_data_and_then_check_passes(clone: Path) -> None:
    assert run("check", clone) == 1
    assert run("build", clone) == 0
    assert run("check", clone) == 0
    register = (clone / "register.txt").read_text()
    assert register.splitlines()[-1] == "DS4D-WORK-01 ds4d-work"
    (row,) = json.loads((clone.parent / "out" / "clauses.json").read_text())["clauses"]
    assert clauses.from_mapping(row) == Clause(
        id="DS4D-WORK-01",
        chapter="ds4d-work",
        keyword="MUST",
        text="A worker MUST do it.",
        role=("worker",),
        dialects=("*",),
        evidence="read",
        source="",
        observed="",
    )


def test_check_sees_drift(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", clone) == 0
    (clone / "ds4d-work.toml").write_text(TOML.replace("do it", "do this"))
    assert run("check", clone) == 1
    assert "clauses.json: differs from the clause files" in capsys.readouterr().err


def test_build_refuses_to_forget_an_id_and_leaves_the_data(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", clone) == 0
    before = (clone.parent / "out" / "clauses.json").read_text()
    (clone / "ds4d-work.toml").write_text(TOML.replace("WORK-01", "WORK-02"))
    assert run("build", clone) == 1
    assert "DS4D-WORK-01 has no clause any more" in capsys.readouterr().err
    assert (clone.parent / "out" / "clauses.json").read_text() == before


def test_a_folder_without_sources_is_wrong_usage(tmp_path: Path) -> None:
    assert run("check", tmp_path) == 2


def test_the_tool_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ds4proto.clauses", "check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf"{len(clauses.ids())} clauses, \d+ of them MUST or MUST NOT: in order\n",
        done.stdout,
    )
