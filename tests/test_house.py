"""The rules of the house that no other tool checks."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ds4proto.cli._boundary import run_command
from ds4proto.cli._commands import RESERVED
from ds4proto.cli._loader import CommandGroup

ROOT = Path(__file__).parents[1]
HEAVY = ("construct", "numba", "numpy", "scapy", "torch")
GROUP = CommandGroup("ds4proto")
AVAILABLE = GROUP.list_commands(click.Context(GROUP))


def python(*args: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def heavy_modules_after(script: str) -> set[str]:
    code = (
        f"import sys\n{script}\n"
        f"print(*sorted({set(HEAVY)!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "script",
    [
        "import ds4proto",
        "from ds4proto.cli import run; assert run(['--help']) == 0",
        "from ds4proto.cli import run; assert run(['--version']) == 0",
        "from ds4proto.cli import run; assert run(['nonsense']) == 2",
    ],
)
def test_the_library_and_its_help_load_nothing_heavy(script: str) -> None:
    assert heavy_modules_after(script) == set()


def test_the_check_of_loaded_modules_sees_what_is_loaded() -> None:
    assert heavy_modules_after("import construct") >= {"construct"}


@pytest.mark.parametrize("name", [row.name for row in RESERVED])
def test_every_command_teaches_by_example_or_says_that_it_is_missing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_command(GROUP, [name, "--help"], "ds4proto")
    out, err = capsys.readouterr()
    if name not in AVAILABLE:
        assert status == 2
        assert "not in this release" in err
        return
    assert status == 0, err
    assert re.search(r"\bExamples?\b", out), "the help has no example"
    assert re.search(rf"^ +(\$ )?ds4proto {name}\b", out, re.MULTILINE)


def test_the_readme_tells_the_true_state_of_every_command() -> None:
    done = python("mk/readme_table.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_source_files_are_short() -> None:
    done = python("mk/file_lengths.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_of_lengths_finds_long_files(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "mk").mkdir()
    (tmp_path / "mk" / "long_files.txt").write_text(
        "# comment\nlisted.py: a table\nlong.py: no reason is enough\n"
        "short.py: was long once\ngone.py: was there once\n"
    )
    for name, lines in {
        "short": 400, "bare": 401, "listed": 600, "long": 601
    }.items():  # fmt: skip
        (tmp_path / f"{name}.py").write_text("x = 1\n" * lines)
    done = python(str(ROOT / "mk" / "file_lengths.py"), str(tmp_path))
    assert done.returncode == 1
    found = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert found == {"short.py", "bare.py", "long.py", "gone.py"}


# The repository speaks of the project alone, and names no package registry. The
# patterns are written in pieces so that this file does not find itself.
FOREIGN = re.compile(
    "|".join(
        [
            r"(?<![\w.)])/wor" + "k/",
            r"/tmp/tea" + "m",
            r"\bissue" + r" #?\d",
            r"\bFR-" + r"\d{3}\b",
            r"\bpypi\." + "org",
            r"python" + "hosted",
            r"\bsub-?" + "agent",
            r"\.\./sha" + "red/",
            "architecture" + r"\.md|anchors" + r"\.md|field-" + "reports",
        ]
    ),
    re.IGNORECASE,
)


def tracked_texts() -> list[tuple[str, str]]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    texts = []
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" not in data[:8192]:
            texts.append((name, data.decode("utf-8", "replace")))
    return texts


def test_the_tree_speaks_of_the_project_alone() -> None:
    texts = tracked_texts()
    assert "pyproject.toml" in {name for name, _ in texts}
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        if FOREIGN.search(name) or FOREIGN.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "foreign"),
    [
        ("see /wor" + "k/main", True),
        ("fixes issue" + " #12", True),
        ("as in FR-" + "071", True),
        ("the frames/work/body", False),
        ("an issue with the route", False),
    ],
)
def test_the_search_for_foreign_words_finds_them(line: str, foreign: bool) -> None:
    assert bool(FOREIGN.search(line)) is foreign


def test_changelog_fragments_are_named_as_the_tool_expects() -> None:
    names = [path.name for path in (ROOT / "changes").iterdir()]
    pattern = re.compile(r"\+[a-z0-9-]+\.(added|changed|fixed|removed)\.md")
    odd = [n for n in names if n != "README.md" and not pattern.fullmatch(n)]
    assert odd == []
    assert any(pattern.fullmatch(name) for name in names)
