"""One self-contained HTML page: a matrix, and every case with its frames."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from ds4proto import clauses
from ds4proto.cli._output import printable
from ds4proto_conformance.report.stream import Report
from ds4proto_conformance.report.text import summary

__all__ = ["html"]

_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--bad:#c0392b;--odd:#b9770e;--ok:#1e8449}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{border:1px solid var(--line);
padding:.2rem .5rem;text-align:left;vertical-align:top}
code,pre{font-family:ui-monospace,monospace;font-size:.85em}
pre{overflow-x:auto;border:1px solid var(--line);padding:.5rem}
.pass{color:var(--ok)}.fail,.partial,.flaky,.suite-error{color:var(--bad);font-weight:600}
.conceptual-pass,.unsupported{color:var(--odd)}.not-run,.not-applicable{opacity:.6}
details{margin:.4rem 0}summary{cursor:pointer}.frame{word-break:break-all}
.hex{opacity:.65;display:block}
"""


def html(reports: Sequence[Report]) -> str:
    """Return the page for one report, or several side by side."""
    title = "Conformance of " + ", ".join(r.peer for r in reports)
    ids = list(dict.fromkeys(name for r in reports for name in r.cases))
    body = [f"<h1>{_e(title)}</h1>"]
    body += [f"<p>{_e(line)}</p>" for r in reports for line in summary(r)]
    body += [_identity(r) for r in reports]
    body.append("<h2>Matrix</h2><table><tr><th>case</th><th>clauses</th>")
    body += [f"<th>{_e(r.peer)}</th>" for r in reports]
    body.append("</tr>")
    for name in ids:
        line = next(r.cases[name] for r in reports if name in r.cases)
        body.append(
            f'<tr><td><a href="#{_e(name)}"><code>{_e(name)}</code></a></td>'
            f"<td>{_e(' '.join(line['clauses']))}</td>"
        )
        body += [f"<td>{_verdict(r.cases.get(name))}</td>" for r in reports]
        body.append("</tr>")
    body.append("</table><h2>Cases</h2>")
    for name in ids:
        body.append(f'<section id="{_e(name)}"><h3><code>{_e(name)}</code></h3>')
        shown = [r for r in reports if name in r.cases]
        body.append(_about(shown[0].cases[name]))
        body += [_detail(r, r.cases[name]) for r in shown]
        body.append("</section>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _e(text: object) -> str:
    return escape(printable(str(text)))


def _identity(report: Report) -> str:
    pairs = {
        "peer": report.peer,
        "role": report.header.get("role"),
        "dialect": report.header.get("dialect"),
        "seed": report.header.get("seed"),
        "started": report.header.get("started"),
        **report.identity,
    }
    cells = "".join(
        f"<tr><th>{_e(k)}</th><td>{_e(v)}</td></tr>" for k, v in pairs.items()
    )
    return (
        f"<details><summary>{_e(report.peer)}</summary><table>{cells}</table></details>"
    )


def _verdict(line: dict[str, Any] | None) -> str:
    if line is None:
        return "-"
    word = line["verdict"]
    return f'<span class="{_e(word.replace(" ", "-"))}">{_e(word)}</span>'


def _about(line: dict[str, Any]) -> str:
    out = [f"<p>{_e(line.get('title', ''))}</p><ul>"]
    for name in line["clauses"]:
        try:
            text = clauses.get(name).text
        except LookupError:
            text = "(not in the register)"
        out.append(f"<li><b>{_e(name)}</b> {_e(text)}</li>")
    out.append("</ul>")
    return "".join(out)


def _detail(report: Report, line: dict[str, Any]) -> str:
    out = [
        f"<details{' open' if line['deviations'] else ''}><summary>{_e(report.peer)}: "
    ]
    out.append(f"{_verdict(line)}, {line.get('seconds', 0):.2f} s</summary>")
    for deviation in line["deviations"]:
        out.append(
            f"<p><b>{_e(deviation['clause'])}</b>"
            f" expected {_e(deviation['expected'])}; found {_e(deviation['found'])}</p>"
        )
    if line.get("combinations", 0) > 1 and line.get("failed_combinations"):
        out.append(f"<p>failing combination: {_e(line.get('combination'))}</p>")
    out += [f"<p>{_e(note)}</p>" for note in line.get("notes", ())]
    out += [_frame(frame) for frame in line.get("frames", ())]
    if line.get("output"):
        lines = "\n".join(_e(text) for text in line["output"].splitlines())
        out.append(f"<pre>{lines}</pre>")
    out.append(f"<p>seed {_e(line['seed'])}: <code>{_e(line['reproduce'])}</code></p>")
    out.append("</details>")
    return "".join(out)


def _frame(frame: dict[str, Any]) -> str:
    arrow = "peer &rarr;" if frame.get("from") == "peer" else "&rarr; peer"
    fields = ", ".join(f"{k}={v}" for k, v in (frame.get("fields") or {}).items())
    problems = "".join(
        f'<div class="fail">{_e(text)}</div>' for text in frame.get("problems", ())
    )
    return (
        f'<div class="frame">{arrow} {_e(frame.get("on", ""))}'
        f" <b>{_e(frame['type'])}</b>"
        f" {frame.get('length', 0)} B <code>{_e(fields)}</code>"
        f'<code class="hex">{_e(frame.get("hex", ""))}</code>{problems}</div>'
    )
