"""A report as JUnit XML."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from ds4proto_conformance.report.stream import Report
from ds4proto_conformance.report.text import ticket
from ds4proto_conformance.verdicts import Verdict

__all__ = ["junit"]

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """Return one test suite; lesser verdicts than a pass are properties."""
    suite = ET.Element("testsuite", name=f"ds4proto {_clean(report.peer)}")
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    for line in report.cases.values():
        verdict = Verdict(line["verdict"])
        element = ET.SubElement(
            suite,
            "testcase",
            classname=f"{line.get('role', '')}.{line['category']}",
            name=_clean(line["id"]),
            time=f"{line.get('seconds', 0):.3f}",
        )
        found = line["deviations"][0] if line["deviations"] else None
        message = f"{found['clause']}: {found['found']}" if found else str(verdict)
        if verdict is Verdict.SUITE_ERROR:
            _child(element, "error", message, ticket(line, report.header))
            counts["errors"] += 1
        elif verdict.bad:
            _child(element, "failure", message, ticket(line, report.header))
            counts["failures"] += 1
        elif not verdict.judged or verdict is Verdict.UNSUPPORTED:
            notes = "; ".join(line.get("notes", ()))
            _child(element, "skipped", f"{verdict}: {notes}", "")
            counts["skipped"] += 1
        properties = ET.SubElement(element, "properties")
        for name, value in (
            ("verdict", verdict),
            ("clauses", " ".join(line["clauses"])),
            ("seed", line["seed"]),
        ):
            ET.SubElement(properties, "property", name=name, value=str(value))
    suite.set("tests", str(len(report.cases)))
    for name, number in counts.items():
        suite.set(name, str(number))
    suite.set("time", f"{report.footer.get('seconds', 0):.3f}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode")


def _child(parent: ET.Element, tag: str, message: str, text: str) -> None:
    child = ET.SubElement(parent, tag, message=_clean(message))
    child.text = _clean(text)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
