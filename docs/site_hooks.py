"""What the site adds to the chapters: links from clause ids to their anchors.

The chapters stay plain Markdown that reads everywhere; here each clause id in prose
becomes a link to the page that holds the clause.
"""

import re
from pathlib import Path
from typing import Any

ANCHOR = re.compile(r'<a id="([A-Z0-9]+(?:-[A-Z0-9]+)+-\d{2})"></a>')
IN_PROSE = re.compile(r"(?<![\w#\"`*/-])([A-Z0-9]+-[A-Z0-9]+-\d{2})(?![\w\"`*-])")
CSS = """\
.md-typeset table:not([class]) { font-size: 0.64rem; }
.md-typeset table:not([class]) td, .md-typeset table:not([class]) th {
  min-width: 0; padding: 0.4em 0.8em; overflow-wrap: anywhere;
}
.md-typeset pre > code { font-size: 0.72em; line-height: 1.25; }
.md-typeset a[id]:target { scroll-margin-top: 4rem; }
.md-grid { max-width: 76rem; }
"""

_homes: dict[str, str] = {}


def on_files(files: Any, config: Any) -> Any:
    """Note which page holds which clause, and add the style sheet."""
    from mkdocs.structure.files import File

    _homes.clear()
    for file in files.documentation_pages():
        text = Path(file.abs_src_path).read_text("utf-8")
        for clause in ANCHOR.findall(text):
            _homes[clause] = file.src_uri
    files.append(File.generated(config, "site.css", content=CSS))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn clause ids into links; the id of a clause links to itself."""
    lines = []
    fenced = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        lines.append(line if fenced else _linked(line, page.file.src_uri))
    return "\n".join(lines)


def _linked(line: str, here: str) -> str:
    def link(match: re.Match[str]) -> str:
        clause = match[1]
        home = _homes.get(clause)
        if home is None:
            return clause
        up = "../" * here.count("/")
        path = "" if home == here else up + home
        return f"[{clause}]({path}#{clause})"

    line = re.sub(r'(<a id="([A-Z0-9-]+)"></a>)\*\*\2\*\*', r"\1**[\2](#\2)**", line)
    head, mark, rest = line.partition("</a>**[")
    if mark:
        own, close, tail = rest.partition(")** ")
        return head + mark + own + close + IN_PROSE.sub(link, tail)
    return IN_PROSE.sub(link, line)
