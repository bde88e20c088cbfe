"""The outcome of a preflight as one page that needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

from ds4proto.preflight.facts import GIB
from ds4proto.preflight.report import AREAS
from ds4proto.printable import counted, printable
from ds4proto.trace.pictures.page import source_hash, template, themed

__all__ = ["as_html"]

_STYLE: Final = """
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 0 16px 40px; }
h1 { font-size: 22px; } h2 { font-size: 16px; margin: 24px 0 6px; }
.verdict { padding: 2px 10px; border-radius: 4px; border: 2px solid currentColor; }
.error, .error .severity { color: var(--bad); }
.warning, .warning .severity { color: var(--warn); }
.ok { color: var(--good); }
.finding, .finding dl { color: var(--ink); }
.quiet, dt { color: var(--dim); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
td, th { border: 1px solid var(--line); padding: 3px 10px; text-align: left;
  vertical-align: top; overflow-wrap: anywhere; unicode-bidi: isolate; }
th { background: var(--panel); font-weight: 600; }
li { margin: 10px 0; overflow-wrap: anywhere; }
dl { margin: 2px 0; } dl div { display: flex; gap: 10px; } dd { margin: 0; }
:focus-visible { outline: 2px solid var(--mark); }
"""
_CLASSES: Final = {"go": "ok", "go with care": "warning", "no go": "error"}
_DETAILS: Final = (
    ("prints", "ds4 prints"), ("expected", "expected"), ("found", "found"),
    ("next_step", "next"),
)  # fmt: skip


class _Table(NamedTuple):
    """A table of the page."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]


def as_html(report: dict[str, Any]) -> str:
    """Return the page.

    Parameters
    ----------
    report : dict
        What ``ds4proto preflight --json`` writes: of a plan, or of a live preflight
        with ``measured``, ``rdma``, ``not_found_out`` and ``widths``.
    """
    report = _safe(report)
    style = themed(_STYLE)
    found = report["findings"]
    areas = [
        (name, report["areas"][name], _count(found, key)) for key, name in AREAS.items()
    ]
    text = files("ds4proto.preflight").joinpath("report.html.j2").read_text("utf-8")
    prediction = report["prediction"]
    page: str = template(text).render(
        report=report,
        areas=areas,
        details=_DETAILS,
        classes=_CLASSES,
        tables=_tables(report),
        prediction_model=prediction[0]["model"] if prediction else "",
        widths=report.get("widths", ()),
        style=style,
        style_hash=source_hash(style),
    )
    return page


def _count(findings: list[dict[str, Any]], area: str) -> int:
    return sum(one["check"].partition(".")[0] == area for one in findings)


def _tables(report: dict[str, Any]) -> list[_Table]:
    names = [one["name"] for one in report["machines"]]
    return [
        _Table(
            "Machines",
            ("machine", "program", "role", "layers", "model", "needs GiB", "of GiB"),
            [
                (
                    one["name"], one["program"], one["role"], one["layers"],
                    one["model"], _gib(one["need_bytes"]), _gib(one["limit_bytes"]),
                )
                for one in report["machines"]
            ],
        ),
        _Table(
            "Settings that no hello carries",
            ("name", *names, ""),
            [
                (
                    row["name"], *(row["values"].get(name, "") for name in names),
                    "differ" if row["differ"] else "",
                )
                for row in report["settings"]
            ],
        ),
        _Table("Measured links", _LINK_HEAD, _links(report, names)),
        _Table(
            "RDMA",
            ("machine", "verdict", "device", "GID", "next step"),
            [
                (name, one["verdict"], one["device"], one["gid"], one["next_step"])
                for name, one in report.get("rdma", {}).items()
            ],
        ),
        _Table("Limits that the links set", _LIMIT_HEAD, _limits(report)),
        _Table(
            "Not found out",
            ("machine", "what"),
            [(n, ", ".join(w)) for n, w in report.get("not_found_out", {}).items()],
        ),
    ]  # fmt: skip


_LINK_HEAD: Final = (
    "to", "message", "round trip p50", "p99", "Gbit/s out", "in", "both",
)  # fmt: skip
_LIMIT_HEAD: Final = (
    "bits", "decode t/s", "prefill t/s", "waits a token", "message", "bound by",
)  # fmt: skip


def _links(report: dict[str, Any], names: list[str]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    # the first machine measures to each that joined
    measured = report.get("measured", ())
    hops = [" -> ".join(link["between"]) for link in measured[len(names) - 1 :]]
    for link, name in zip(measured, names[1:] + hops, strict=False):
        for kind, (size, p50, p99) in link["rtt_ms"].items():
            speeds = (link["to_gbit"], link["from_gbit"], link["both_gbit"])
            found.append(
                (
                    name, f"{kind}, {size} B", f"{p50:.3g} ms", f"{p99:.3g} ms",
                    *(f"{speed:.3g}" for speed in speeds),
                )
            )  # fmt: skip
    return found


def _limits(report: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            one["bits"], _speed(one["decode"]), _speed(one["prefill"]),
            f"{one['decode_ms']:.3g} ms, {counted(one['messages'], 'message')}",
            f"{one['message_bytes']} B, chunk {one['chunk_bytes']} B", one["bound"],
        )
        for one in report["prediction"]
    ]  # fmt: skip


def _gib(value: int | None) -> str:
    return "?" if value is None else f"{value / GIB:.1f}"


def _speed(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _safe(value: Any) -> Any:
    """Return the report without characters that steer who shows it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): _safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value
