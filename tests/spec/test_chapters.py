"""The chapters: nothing drifts, every clause stands once, links lead somewhere."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds4proto import clauses
from ds4proto.cli._spec_blocks import own_frames
from ds4proto.cli.spec import cmd
from ds4proto.schema import all_dialects, frames
from tests.spec.chapters import ROOT, SPEC, pages, prose

KEYWORD = re.compile(r"\b(?:MUST|SHOULD|MAY|SHALL)\b")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CLAUSE_ID = re.compile(r"\b[A-Z0-9]+-[A-Z0-9]+-\d{2}\b")


def heading_anchors(text: str) -> set[str]:
    """Return the anchors that GitHub and the site give to headings."""
    found = set()
    fenced = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", fenced, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(plain.replace(" ", "-"))
    return found | set(re.findall(r'<a id="([^"]+)">', text))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cmd, list(words), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def test_the_specification_is_up_to_date() -> None:
    assert run("check", "--dir", str(SPEC))[0] == 0


def test_a_changed_table_is_drift(tmp_path: Path) -> None:
    copy = tmp_path / "spec"
    shutil.copytree(SPEC, copy)
    page = copy / "02-ds4d.md"
    text = page.read_text("utf-8")
    assert text.count("| 44 | 4 | u32be | `layer_start` |") == 1
    page.write_text(
        text.replace("| 44 | 4 | u32be | `layer_start` |", "| 45 | 4 | u32be | `x` |"),
        "utf-8",
    )
    assert run("check", "--dir", str(copy))[0] == 1
    assert run("build", "--dir", str(copy))[0] == 0
    assert page.read_text("utf-8") == text
    assert run("check", "--dir", str(copy))[0] == 0


def test_a_changed_clause_is_drift(tmp_path: Path) -> None:
    copy = tmp_path / "spec"
    shutil.copytree(SPEC, copy)
    page = copy / "02-ds4d.md"
    text = page.read_text("utf-8")
    page.write_text(text.replace("A worker MUST refuse", "A worker MAY take", 1))
    assert run("check", "--dir", str(copy))[0] == 1


@pytest.mark.parametrize("block", ["nothing", "layout DS4D.NONE upstream", "layout"])
def test_a_block_that_cannot_be_made_is_named(tmp_path: Path, block: str) -> None:
    page = tmp_path / "01-page.md"
    page.write_text(f"<!-- ds4proto: {block} -->\n<!-- ds4proto: end -->\n")
    with pytest.raises(Exception, match=r"01-page\.md"):
        run("check", "--dir", str(tmp_path))


def test_a_block_without_its_end_is_named(tmp_path: Path) -> None:
    page = tmp_path / "01-page.md"
    page.write_text("<!-- ds4proto: models -->\n\ntext\n")
    with pytest.raises(Exception, match=r"01-page\.md.*models.*end"):
        run("check", "--dir", str(tmp_path))


def test_every_clause_stands_exactly_once() -> None:
    seen: Counter[str] = Counter()
    for page in pages():
        seen.update(re.findall(r'<a id="([^"]+)">', page.read_text("utf-8")))
    assert [name for name in seen if seen[name] > 1] == []
    assert set(clauses.ids()) - set(seen) == set()


def test_requirements_stand_in_clauses_alone() -> None:
    explained = {"README.md", "01-overview.md"}
    for page in pages():
        if page.name not in explained:
            assert KEYWORD.findall(prose(page.read_text("utf-8"))) == [], page.name


def test_prose_cites_clauses_that_exist() -> None:
    known = set(clauses.ids())
    for page in pages():
        cited = set(CLAUSE_ID.findall(prose(page.read_text("utf-8"))))
        assert cited - known - {"RFC-2119-00"} == set(), page.name


def test_links_lead_somewhere() -> None:
    texts = {page.resolve(): page.read_text("utf-8") for page in pages()}
    dead = []
    for page, text in texts.items():
        for target in LINK.findall(prose(text)):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            if not goal.exists() or (
                anchor and anchor not in heading_anchors(texts[goal])
            ):
                dead.append(f"{page.name}: {target}")
    assert dead == []


def test_every_chapter_opens_with_a_page_and_a_diagram() -> None:
    chapters = sorted(SPEC.glob("[0-9][0-9]-*.md"))
    assert [path.name[:2] for path in chapters] == [f"{n:02}" for n in range(1, 12)]
    for path in chapters:
        text = path.read_text("utf-8")
        page = text.partition("## The page for newcomers\n")[2].partition("\n## ")[0]
        assert len(page) > 700, path.name
        assert "```text" in page, path.name
        assert max(len(line) for line in page.splitlines()) <= 100, path.name
        assert prose(page) == page, path.name


def test_every_frame_of_a_dialect_we_speak_has_its_table() -> None:
    text = "\n".join(page.read_text("utf-8") for page in pages())
    shown = set(re.findall(r"<!-- ds4proto: layout (\S+) ", text))
    for name in re.findall(r"<!-- ds4proto: own (\S+) -->", text):
        shown |= set(own_frames(name))
    wanted = {
        spec.full_name
        for entry in all_dialects()
        if entry.live == "speaks"
        for spec in frames(dialect=entry.name)
        if not spec.opaque and (spec.body.fields or spec.body.tails)
    }
    assert wanted - shown - {"DS4T.BARRIER"} == set()


def test_dialect_pages_are_listed() -> None:
    folder = SPEC / "dialects"
    names = {path.name for path in folder.glob("*.md")} - {"README.md"}
    listed = set(LINK.findall((folder / "README.md").read_text("utf-8")))
    assert names == {name for name in listed if "/" not in name}
    assert "v9w-v14.md" in names


def test_the_repository_readme_leads_to_the_specification() -> None:
    assert "`spec/`" in (ROOT / "README.md").read_text("utf-8")
