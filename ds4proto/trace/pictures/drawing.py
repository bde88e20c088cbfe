"""One pass over a capture that feeds every picture asked for."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from ds4proto.errors import NothingRan
from ds4proto.pcap.types import CaptureError
from ds4proto.printable import counted, printable
from ds4proto.trace.cut import Selection
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.front import Examiner
from ds4proto.trace.diagnosis.values import flush_look
from ds4proto.trace.output import output_file
from ds4proto.trace.pictures.collecting import Collector
from ds4proto.trace.pictures.findings import remarks_of
from ds4proto.trace.pictures.heads import HEAD_BYTES, watch_heads
from ds4proto.trace.pictures.model import FRAMES, Picture, Remark
from ds4proto.trace.pictures.page import HEADERS_ONLY, PRIVATE, REDACTED, write_page
from ds4proto.trace.pictures.png import png_folder, write_png
from ds4proto.trace.pictures.qlog import QlogWriter
from ds4proto.trace.redact import REDACTED as REDACTED_MARK
from ds4proto.trace.redact import Redactor, head_size
from ds4proto.trace.rewriting import rewrite
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.sinks import PayloadMode
from ds4proto.trace.stats import CaptureStats

__all__ = ["Drawn", "Privacy", "draw", "safe_source"]

Privacy = Literal["", "redact", "headers-only"]
_WARNINGS = {"": PRIVATE, "redact": REDACTED, "headers-only": HEADERS_ONLY}


class Drawn(msgspec.Struct):
    """What was made of a capture.

    Attributes
    ----------
    picture : Picture
    files : list of str
    html_bytes : int or None
        Size of the page.
    damage : str
        What ended the reading before the capture's end.
    """

    picture: Picture
    files: list[str]
    html_bytes: int | None = None
    damage: str = ""


@contextmanager
def safe_source(name: str, privacy: Privacy) -> Iterator[str]:
    """Give a capture as it is, or a redacted copy of it that lives for the block.

    Raises
    ------
    CaptureError
        Where a capture that is to be redacted is damaged: a copy could lack what was
        not seen, so there is none.
    """
    if not privacy:
        yield name
        return
    with tempfile.TemporaryDirectory(prefix="ds4proto-") as folder:
        copy = Path(folder) / "redacted.pcapng"
        try:
            with copy.open("wb") as target:
                rewrite(
                    name,
                    target,
                    choice=Selection(headers_only=privacy == "headers-only"),
                    change=Redactor(secrets.token_bytes(16)).frame,
                    head=head_size,
                    comment=REDACTED_MARK,
                )
        except CaptureError as error:
            raise error.of(name) from None
        yield str(copy)


def draw(
    source: str,
    *,
    html: str | None = None,
    png: str | None = None,
    qlog: str | None = None,
    findings: Sequence[Remark] | None = None,
    where: Callable[[FrameRow], bool] | None = None,
    privacy: Privacy = "",
    head_bytes: int = HEAD_BYTES,
    limit: int = FRAMES,
    dialect: str | None = None,
) -> Drawn:
    """Read a capture once and write the pictures of it; each whole or not at all.

    Parameters
    ----------
    source : str
        Path of a capture, or ``-``.
    html, png, qlog : str, optional
        The page, the folder of PNG files, the qlog-style file.
    findings : sequence of Remark, optional
        Findings to list; without them the capture is diagnosed in the same pass.
    where : callable, optional
        Only rows that meet it are drawn.
    privacy : {"", "redact", "headers-only"}
        What is taken out before anything is looked at.
    head_bytes : int
        Bytes shown of each frame.
    limit : int
        Frames held one by one.
    dialect : str, optional
        Read everything under this dialect.

    Raises
    ------
    CaptureError
        Where the source is no capture at all; damage behind the first frame ends the
        reading, and `Drawn.damage` says where.
    ModuleNotFoundError
        For PNG files, without matplotlib.
    NothingRan
        Where there is no frame to draw; then nothing is written.
    """
    if png is not None:
        import matplotlib as mpl  # say that it is missing before the long reading

        del mpl
        png_folder(png)
    title = source if source == "-" else Path(source).name
    made: list[str] = []
    size: int | None = None
    with ExitStack() as stack:
        name = stack.enter_context(safe_source(source, privacy))
        page = stack.enter_context(output_file(html, "--html")) if html else None
        log = stack.enter_context(output_file(qlog, "--qlog")) if qlog else None
        events = QlogWriter(log, printable(title)) if log is not None else None
        # zeroed values are no values: with them gone there is nothing to summarise
        payload: PayloadMode = "none" if privacy else flush_look
        capture = CaptureDecoder(name, payload=payload, dialect=dialect)
        examiner = None if findings is not None else Examiner(source, capture)
        heads = watch_heads(
            capture, head_bytes, payload=payload, dialect=dialect,
            on_event=None if examiner is None else examiner.saw,
        )  # fmt: skip
        runs = heads.runs

        def gates(run: int) -> int | None:
            return runs[run - 1].gates_per_token if 0 < run <= len(runs) else None

        collector = Collector(limit=limit, gates=gates)
        stats = CaptureStats(capture)
        damage = ""
        try:
            for row in capture:
                head = heads.take(row)
                stats.add(row)
                if examiner is not None:
                    examiner.add(row)
                if where is not None and not where(row):
                    continue
                collector.add(row, head)
                if events is not None:
                    events.write(row)
        except CaptureError as error:
            if not collector.rows:
                raise error.of(source) from None
            damage = str(error)
        if not collector.rows:
            raise NothingRan(_nothing(source, filtered=where is not None))
        report = stats.report()
        picture = collector.picture(
            title=title,
            remarks=[
                *(findings or ()),
                *(remarks_of(examiner.findings(), source) if examiner else ()),
                *_said(report),
            ],
            summary=_summary(report),
            notes=_notes(report, damage, privacy, head_bytes),
        )
        if events is not None:
            events.finish()
        if page is not None:
            size = write_page(page, picture, _WARNINGS[privacy])
    made += [path for path in (html, qlog) if path]
    if png is not None:
        made += [str(path) for path in write_png(png, picture)]
    return Drawn(picture, made, size, damage)


def _nothing(source: str, *, filtered: bool) -> str:
    if filtered:
        return f"{source}: no frame meets --where, so nothing was drawn"
    return (
        f"{source}: no frame could be decoded, so nothing was drawn. Next: see what "
        f"the file holds with ds4proto stats {source}"
    )


def _summary(report: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "packets": report["packets"],
        "connections": report["streams"],
        "runs": len(report["runs"]),
        "dialects": ", ".join(report["dialects"]) or "none",
        "bytes of no frame": report["undecoded_bytes"],
        "broken rules": sum(report["problems"].values()),
    }
    if report["foreign_streams"]:
        found["connections of other traffic"] = report["foreign_streams"]
    if report["requests_in_flight"]:
        found["most requests in flight"] = report["requests_in_flight"]
    return found


def _said(report: dict[str, Any]) -> list[Remark]:
    """Return what the runs and connections noted about themselves."""
    found = [
        Remark("note", f"run {run['run']}: {printable(note)}")
        for run in report["runs"]
        for note in run["notes"]
    ]
    for one in report["connections"]:
        ends = f"connection {one['stream']}, {one['a']} to {one['b']}"
        found += [Remark("note", printable(f"{ends}: {note}")) for note in one["notes"]]
    return found


def _notes(
    report: dict[str, Any], damage: str, privacy: Privacy, head_bytes: int
) -> list[str]:
    found = []
    if damage:
        found.append(f"the capture is damaged, and drawn up to there: {damage}")
    if report["truncated"]:
        found.append("the capture ends inside a record; everything before it is drawn")
    if head_bytes and privacy != "headers-only":
        found.append(
            f"of each frame at most the first {counted(head_bytes, 'byte', 'are')} in "
            "the page"
        )
    if privacy:
        found.append(
            "values were taken out, so that there is no map of their range; findings "
            "are those of the redacted copy, in which segment borders, values and "
            "bytes of no frame are not those of the network"
        )
    return found
