"""The quality study: places, numbers, journal, reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from ds4proto_runtime.cli.quality import cmd
from ds4proto_runtime.engines.decoder import DecoderEngine
from ds4proto_runtime.engines.tokenizer import Tokenizer
from ds4proto_runtime.quality.measure import Boundary, bootstrap
from ds4proto_runtime.quality.report import NO_CONCLUSION, words, write
from ds4proto_runtime.quality.study import Journal, Plan, Study, table
from ds4proto_runtime.quality.tasks import TASKS, is_right
from ds4proto_runtime.quality.texts import plain
from ds4proto_runtime.quality.wire import SlicedModel, boundaries, format_of

from ds4proto.errors import WrongUsage

MODEL = Path(__file__).parents[2] / "data" / "tiny-moe-3m-q8_0.gguf"
TEXT = "The people of the United States have been asked to keep the peace. " * 40


@pytest.fixture(scope="module")
def engine() -> DecoderEngine:
    return DecoderEngine(MODEL, ctx=512)


@pytest.fixture(scope="module")
def tokenizer(engine: DecoderEngine) -> Tokenizer:
    return Tokenizer(engine.weights.metadata)


def _plan(**changes: Any) -> Plan:
    facts: dict[str, Any] = {
        "model": "tiny",
        "model_hash": "m",
        "text": "t",
        "text_hash": "x",
        "counts": (1, 3),
        "formats": ("f32", "f16", "e4m3"),
        "windows": 2,
        "window": 96,
        "prompts": 2,
        "continuation": 24,
        "segment": 8,
        "questions": 3,
        "seed": 5,
    }
    return Plan(**{**facts, **changes})


def _study(
    engine: DecoderEngine, tokenizer: Tokenizer, plan: Plan, path: Path
) -> tuple[Study, Journal]:
    journal = Journal(path, plan.key)
    tokens = tokenizer.encode(TEXT)
    return Study(engine, tokenizer, tokens, plan, journal), journal


@pytest.mark.parametrize(
    ("layers", "count", "places"),
    [
        (30, 1, (15,)),
        (30, 3, (8, 15, 22)),
        (30, 7, (4, 8, 11, 15, 19, 22, 26)),
        (8, 7, (1, 2, 3, 4, 5, 6, 7)),
        (8, 0, ()),
    ],
)
def test_boundaries_lie_evenly(layers: int, count: int, places: tuple[int]) -> None:
    assert boundaries(layers, count) == places


def test_too_many_boundaries_are_refused() -> None:
    with pytest.raises(ValueError, match="8 boundaries do not fit a model of 8 layers"):
        boundaries(8, 8)


def _by_hand(engine: DecoderEngine, window: list[int], cuts: list[int]) -> float:
    """Return the mean loss of one window, each step written out, 8 bits at the cuts."""
    hidden = engine.embed(window)
    for start, stop in zip([0, *cuts], [*cuts, 8], strict=True):
        if start:
            hidden = format_of("e4m3").through(hidden)
        session = engine.open(range(start, stop))
        hidden = engine.run(session, hidden, window, 0)
    losses = []
    for at in range(0, len(window) - 1, 128):
        rows = engine.heads(hidden[at : min(at + 128, len(window) - 1)])
        for index, row in enumerate(rows.astype(np.float64)):
            target = window[at + index + 1]
            losses.append(row.max() + np.log(np.exp(row - row.max()).sum()))
            losses[-1] -= row[target]
    return float(np.array(losses).mean())


@pytest.mark.parametrize(("count", "cuts"), [(1, [4]), (3, [2, 4, 6])])
def test_two_cells_recomputed_from_scratch(
    engine: DecoderEngine,
    tokenizer: Tokenizer,
    tmp_path: Path,
    count: int,
    cuts: list[int],
) -> None:
    plan = _plan(counts=(count,), formats=("e4m3",), questions=0)
    study, journal = _study(engine, tokenizer, plan, tmp_path / "j.jsonl")
    for _ in study.run():
        pass
    cell = journal.cells["nll", count, "e4m3"]
    tokens = tokenizer.encode(TEXT)
    expected = [_by_hand(engine, tokens[i : i + 96], cuts) for i in (0, 96)]
    assert cell["windows"] == expected
    assert cell["scored"] == 2 * 95


def test_a_stopped_study_goes_on_and_gives_the_same_bytes(
    engine: DecoderEngine, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plan = _plan()
    study, journal = _study(engine, tokenizer, plan, tmp_path / "whole.jsonl")
    for _ in study.run():
        pass
    first = tmp_path / "stopped.jsonl"
    study, _ = _study(engine, tokenizer, plan, first)
    running = study.run()
    for _ in range(4):
        next(running)
    running.close()
    with first.open("a", encoding="utf-8") as stream:
        stream.write('{"kind": "nll", "boun')  # a kill in the middle of a line
    study, resumed = _study(engine, tokenizer, plan, first)
    for _ in study.run():
        pass
    assert resumed.cells == journal.cells
    assert first.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_the_uncompressed_wire_is_the_same_at_every_depth(
    engine: DecoderEngine, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plan = _plan(questions=0)
    study, journal = _study(engine, tokenizer, plan, tmp_path / "j.jsonl")
    for _ in study.run():
        pass
    one, three = (journal.cells["nll", count, "f32"] for count in (1, 3))
    assert one["windows"] == three["windows"]
    assert journal.cells["agreement", 3, "f32"]["segments"] == [1.0, 1.0, 1.0]
    rows = table(plan, journal.cells)
    assert [row["delta"] for row in rows if row["format"] == "f32"] == [0.0, 0.0]
    assert all(0 <= row["top1"] <= 1 for row in rows)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]\n",
        b"7\n",
        b"{}\n",
        b'{"study": "k"}\n[1]\n',
        b"\xff\n",
        b"[" * 99999 + b"\n",
    ],
)
def test_what_is_no_journal_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(content)
    with pytest.raises(WrongUsage, match="is no journal of a study"):
        Journal(path, "k")
    assert path.read_bytes() == content


def test_a_journal_of_other_choices_is_refused(
    engine: DecoderEngine, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "j.jsonl"
    cell = {"kind": "nll", "boundaries": 1, "format": "f32"}
    Journal(path, _plan().key).add(cell)
    with pytest.raises(WrongUsage, match="belongs to a study with other choices"):
        _study(engine, tokenizer, _plan(seed=6), path)
    # more formats or depths may join
    _study(engine, tokenizer, _plan(formats=("f32", "bf16"), counts=(7,)), path)


def test_a_short_text_is_refused(
    engine: DecoderEngine, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plan = _plan(windows=200)
    with pytest.raises(WrongUsage, match="200 windows of 96 need 19200"):
        _study(engine, tokenizer, plan, tmp_path / "j.jsonl")
    assert not (tmp_path / "j.jsonl").exists()  # it would block the corrected study


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--text", "absent.txt"], "absent.txt"),
        (["--text", __file__, "--formats", "f32,bogus"], "unknown codec"),
        (["--text", __file__, "--boundaries", "1,x"], "give numbers with commas"),
    ],
)
def test_wrong_words_are_told_before_the_model_is_loaded(
    args: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("ds4proto_runtime.cli.quality._loaded", loaded)
    done = CliRunner().invoke(cmd, ["--model", "m.gguf", *args])
    assert isinstance(done.exception, WrongUsage), done.exception
    assert says in str(done.exception)


def test_what_is_no_model_is_told_with_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"[1]\n")
    done = CliRunner().invoke(cmd, ["--model", str(path), "--text", __file__])
    assert isinstance(done.exception, WrongUsage), done.exception
    assert "magic at byte 0" in str(done.exception)


def test_what_crosses_a_boundary_is_counted() -> None:
    place = Boundary()
    before = np.array([[1, -2, 240, 0], [3, 4, -1000, 0]], np.float32)
    behind = np.array([[1, -2, 240, 0], [3, 4, -240, 0]], np.float32)
    place.add(before, behind)
    found = place.summary()
    assert found["values"] == 8
    assert found["max"] == 1000.0
    assert (found["clipped"], found["clipped_tokens"]) == (2, 2)
    assert found["share_ge_240"] == 0.25
    power = 1 + 4 + 57600 + 9 + 16 + 1_000_000
    assert found["sqnr_db"] == pytest.approx(10 * np.log10(power / 760**2), rel=1e-12)
    fourth = 1 + 16 + 57600**2 + 81 + 256 + 10.0**12
    assert found["kurtosis"] == pytest.approx(fourth / 8 / (power / 8) ** 2, rel=1e-12)


def test_intervals_hold_the_mean_and_depend_on_the_seed_alone() -> None:
    deltas = [0.1, 0.2, 0.15, 0.12, 0.3]
    low, high = bootstrap(deltas, 1)
    assert low <= float(np.mean(deltas)) <= high
    assert min(deltas) <= low < high <= max(deltas)
    assert bootstrap(deltas, 1) == (low, high) != bootstrap(deltas, 2)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_tasks_are_seeded_and_answerable(name: str) -> None:
    make = TASKS[name]
    first = make(3, 20)
    assert first == make(3, 20) != make(4, 20)
    assert all(
        question.answer in question.prompt + question.answer for question in first
    )
    assert len({question.prompt for question in first}) > 5


def test_answers_are_matched_exactly() -> None:
    assert is_right("12.", "12")
    assert is_right(" 12, 13", "12")
    assert not is_right("120", "12")
    assert not is_right("", "12")


def test_markup_is_cleaned() -> None:
    text = plain(
        "{{box|{{inner}}}}The [[city|town]] of '''Rome''' is [http://x.y old].<ref"
        ">no</ref> It lies on the [[Tiber]].\n== Head ==\n* point\n"
    )
    assert text == "The town of Rome is old. It lies on the Tiber."


def test_the_reading_says_clipped_and_plumbing(tmp_path: Path) -> None:
    plan = _plan(counts=(1,), formats=("f32", "e4m3"), questions=0)
    place = {"max": 999.0, "share_ge_240": 0.5, "clipped": 31, "sqnr_db": 3.0}
    cells: dict[tuple[str, int, str], dict[str, Any]] = {
        ("nll", 1, "f32"): {"nll": 2.0, "windows": [2.0, 2.0], "top1": 1.0, "at": []},
        ("nll", 1, "e4m3"): {
            "nll": 4.0,
            "windows": [4.0, 4.0],
            "top1": 0.1,
            "at": [place],
        },
    }
    (line,) = words(plan, table(plan, cells), plumbing=False)
    assert "+100.00% likelihood loss at 1 boundaries" in line
    assert "do not use" in line
    assert "clips 31 values" in line
    first = write(plan, cells, tmp_path, 4, plumbing=True)[0]
    assert first == NO_CONCLUSION
    facts = json.loads((tmp_path / "quality.json").read_text())
    assert facts["rows"][1]["delta"] == 2.0
    page = (tmp_path / "quality.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace("http-equiv", "")
    assert not list(tmp_path.glob("*.part"))


def test_a_sliced_model_reports_what_it_sends(engine: DecoderEngine) -> None:
    model = SlicedModel(engine, (2, 5), format_of("f16"))
    seen: list[tuple[int, tuple[int, ...], float]] = []

    def watch(index: int, before: np.ndarray, behind: np.ndarray) -> None:
        seen.append((index, before.shape, float(np.abs(before - behind).max())))

    model.watch = watch
    model.run(model.open(), [53, 259, 572], 0)
    assert [(index, shape) for index, shape, _ in seen] == [
        (0, (3, 128)),
        (1, (3, 128)),
    ]
    assert all(error > 0 for _, _, error in seen)


@pytest.mark.parametrize(
    ("plain", "after", "questions", "says"),
    [
        (0.85, 0.55, 40, "right answers 85% -> 55%: the likelihood hardly moves"),
        (0.85, 0.80, 40, "right answers 85% -> 80%: harmless here"),
        (0.85, 0.55, 4, "right answers 85% -> 55%: harmless here"),  # chance does that
        (0.25, 0.00, 40, "nats): harmless here"),  # no measure: hardly any were right
    ],
)
def test_the_reading_looks_at_answers_too(
    plain: float, after: float, questions: int, says: str
) -> None:
    plan = _plan(counts=(1,), formats=("f32", "mxfp8"), questions=questions)
    cells: dict[tuple[str, int, str], dict[str, Any]] = {}
    for name, nll, correct in (("f32", 2.0, plain), ("mxfp8", 2.01, after)):
        facts = {"nll": nll, "windows": [nll, nll], "top1": 1.0, "at": []}
        cells["nll", 1, name] = facts
        cells["exact", 1, name] = {"correct": correct}
    (line,) = words(plan, table(plan, cells), plumbing=False)
    assert says in line
