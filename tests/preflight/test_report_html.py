"""``ds4proto preflight --report html``: the page says what the JSON says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds4proto.cli import run
from ds4proto.preflight.report import AREAS
from ds4proto.preflight.report_html import as_html
from tests.preflight.plans import PAIR, PIPELINE
from tests.trace.pictures.reading import Page

HOSTILE = "<script>alert(1)</script><img src=x onerror=y>\x1b[2J"
SPOILED = PIPELINE.replace("21:output", "22:output")
UNWEIGHED = PIPELINE.replace("layer_gib = 1.8\n", "")  # notes, which cite no clause


def page_of(folder: Path, plan: str) -> tuple[int, Page]:
    path, page = folder / "cluster.toml", folder / "page.html"
    path.write_text(plan)
    words = ["--plan", str(path), "--report", "html", "-o", str(page)]
    return run(["preflight", *words]), Page(page)


def told(folder: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capfd.readouterr()
    run(["preflight", "--plan", str(folder / "cluster.toml"), "--json"])
    return dict(json.loads(capfd.readouterr().out))


@pytest.mark.parametrize(
    ("plan", "verdict", "status"),
    [(PIPELINE, "go", 0), (PAIR, "go", 0), (SPOILED, "no go", 1), (UNWEIGHED, "go", 0)],
    ids=["pipeline", "pair", "spoiled", "unweighed"],
)
def test_the_page_holds_the_verdict_table_and_all_findings(
    plan: str,
    verdict: str,
    status: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended, page = page_of(tmp_path, plan)
    assert ended == status
    assert f"Preflight: {verdict}" in page.text
    report = told(tmp_path, capfd)
    assert report["verdict"] == verdict
    rows = page.text[page.text.index("Verdicts") :].split()
    for name, worst in report["areas"].items():
        words = name.split()
        at = next(
            i for i in range(len(rows)) if rows[i : i + len(words)] == words
        )  # fmt: skip
        assert rows[at + len(words)] == worst, name
    assert set(report["areas"]) == set(AREAS.values())
    text = " ".join(page.text.split())
    for finding in report["findings"]:
        for key in ("where", "what", "expected", "found", "next_step", "prints"):
            assert finding.get(key, "") in text
    for machine in report["machines"]:
        assert machine["layers"] in text


def test_a_gap_is_told_in_ds4s_own_words(tmp_path: Path) -> None:
    _, page = page_of(tmp_path, SPOILED)
    assert "nobody runs layers 21" in page.text
    assert "distributed route incomplete: missing layer 21" in page.text


def test_the_page_needs_neither_network_nor_script(tmp_path: Path) -> None:
    _, page = page_of(tmp_path, PIPELINE)
    assert page.scripts == []
    assert not [a for _, attrs in page.tags for a in attrs if a in ("src", "href")]
    assert "url(" not in page.styles
    assert "prefers-color-scheme: dark" in page.styles
    policy = [attrs.get("content") for tag, attrs in page.tags if tag == "meta"][1]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    plan = PIPELINE.replace('name = "b"', f"name = {json.dumps(HOSTILE)}").replace(
        '"b"', json.dumps(HOSTILE)
    )
    _, page = page_of(tmp_path, plan)
    assert "<script>alert(1)</script>" in page.text
    assert page.scripts == []
    assert "img" not in {tag for tag, _ in page.tags}
    assert "\x1b" not in page.source


def test_what_a_live_preflight_adds_is_in_the_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page_of(tmp_path, PIPELINE)
    report = told(tmp_path, capfd)
    live = {
        "measured": [
            {
                "rtt_ms": {"ping": [16, 0.21, 0.43], "hidden": [16384, 0.5, 0.9]},
                "to_gbit": 9.4, "from_gbit": 9.1, "both_gbit": 17.2,
                "local": "10.0.0.1:7600", "remote": "10.0.0.2:50001",
            }
        ],
        "rdma": {
            "b": {
                "verdict": "port down", "device": "mlx5_0", "gid": "",
                "next_step": "plug the cable", "table": [], "advice": [], "prints": "",
            }
        },
        "not_found_out": {"b": ["free memory"]},
        "widths": ["16 bits pay: 1.4 times the tokens"],
    }  # fmt: skip
    target = tmp_path / "live.html"
    target.write_text(as_html({**report, **live}), encoding="utf-8")
    text = " ".join(Page(target).text.split())
    for words in ("ping, 16 B 0.21 ms 0.43 ms 9.4 9.1 17.2", "port down mlx5_0",
                  "plug the cable", "free memory", "16 bits pay"):  # fmt: skip
        assert words in text


def test_the_page_goes_to_standard_output_or_whole_to_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, page = page_of(tmp_path, PIPELINE)
    capfd.readouterr()
    plan = str(tmp_path / "cluster.toml")
    assert run(["preflight", "--plan", plan, "--report", "html"]) == 0
    assert capfd.readouterr().out == page.source


@pytest.mark.parametrize(
    "options",
    [
        ["--report", "html", "--json"],
        ["--report", "html", "--propose"],
        ["-o", "page.html"],
        ["--report", "pdf"],
        ["--report", "html", "-o", "no/such/folder/page.html"],
    ],
)
def test_wrong_usage_writes_nothing(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.toml").write_text(PIPELINE)
    assert run(["preflight", "--plan", "cluster.toml", *options]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]


def test_an_output_is_refused_before_others_are_made_to_wait(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "no" / "page.html")
    words = ["--wait", "1s", "--report", "html", "-o", page, "--", "./ds4"]
    assert run(["preflight", *words]) == 2
    _, err = capfd.readouterr()
    assert "there is no folder" in err
    assert "waiting for" not in err
