"""The chapters as the tests read them: prose, generated blocks, examples."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"

BLOCK = re.compile(r"<!-- ds4proto: .*?<!-- ds4proto: end -->", re.DOTALL)
_EXAMPLE = re.compile(
    r"<!-- example: (?P<frame>\S+) (?P<dialect>\S+) -->\n\n"
    r"```text\n(?P<bytes>[^`]*)```\n"
    r"(?:\n\| field \| value \|\n\|---\|---\|\n(?P<rows>(?:\|[^\n]*\n?)*))?",
    re.DOTALL,
)
_LEFT_OUT = re.compile(r"\((\d+) bytes\)")


@dataclass(frozen=True)
class Example:
    """One frame in hexadecimal, and what the page says it holds."""

    chapter: str
    frame: str
    dialect: str
    data: bytes
    values: dict[str, str]

    def __str__(self) -> str:
        return f"{self.chapter}-{self.frame}-{self.data[8:24].hex()}"


def pages() -> list[Path]:
    return sorted(SPEC.rglob("*.md"))


def prose(text: str) -> str:
    """Return a chapter without its generated blocks."""
    return BLOCK.sub("", text)


def examples(path: Path) -> list[Example]:
    found = []
    for match in _EXAMPLE.finditer(path.read_text("utf-8")):
        digits = _LEFT_OUT.sub(lambda cut: "00" * int(cut[1]), match["bytes"])
        rows = [
            line.strip("|").split("|") for line in (match["rows"] or "").splitlines()
        ]
        values = {name.strip("` "): value.strip() for name, value in rows}
        data = bytes.fromhex("".join(digits.split()))
        found.append(Example(path.name, match["frame"], match["dialect"], data, values))
    return found


def rows_under(text: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose head line is ``head``."""
    lines = text.splitlines()
    at = lines.index(head) + 2
    rows = []
    while at < len(lines) and lines[at].startswith("|"):
        rows.append([cell.strip(" `") for cell in lines[at].strip("|").split("|")])
        at += 1
    return rows
