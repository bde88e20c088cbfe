"""``ds4proto view``: the terminal browser, and the command around the pictures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Static

from ds4proto.cli import run
from ds4proto.cli._view_app import Browser
from ds4proto.cli._view_list import FrameList
from ds4proto.cli._view_rows import Kept, RowReader, RowStore
from ds4proto.testing import captures_dir
from ds4proto.trace import decode
from ds4proto.trace.pictures.findings import OF_A_KIND
from ds4proto.trace.where import compile_where
from tests.trace.pictures.reading import Page

ROOT = captures_dir()
THREE = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
PROBES = ROOT / "ds4d" / "i_worker_work.pcap"
SIZE = (150, 40)
GENERATIONS = 12
"""Messages one behind the other, from a key to what the panes show, at most."""
PATIENCE = 300.0
Steps = Callable[[Browser, Any], Awaitable[None]]


def browse(
    path: Path, steps: Steps, *, keep: int = 1000, follow: bool = False, **more: Any
) -> RowStore:
    """Open the browser on a screen of memory, wait for the reader, take steps."""
    reader = RowReader(str(path), follow=follow, **more)
    store = RowStore(keep, newest=follow)
    app = Browser(path.name, reader, store, follow=follow)

    async def go() -> None:
        async with app.run_test(size=SIZE) as pilot:
            if not follow:
                await app.workers.wait_for_complete()
            await settle(pilot)
            await steps(app, pilot)

    asyncio.run(go())
    return store


async def settle(pilot: Any) -> None:
    """Have all messages handled, and those that follow from them.

    The pilot's own pause is over as soon as the process gets no processor time.
    """
    for _ in range(GENERATIONS):
        await pilot.pause(0)


def text_of(app: Browser, pane: str) -> str:
    return str(app.query_one(pane, Static).render())


def lines_of(app: Browser) -> list[str]:
    frames = app.query_one(FrameList)
    return [frames.render_line(y).text for y in range(frames.size.height)]


def test_the_list_holds_every_frame_and_draws_those_on_the_screen() -> None:
    async def steps(app: Browser, _pilot: Any) -> None:
        shown = lines_of(app)
        assert "HELLO" in shown[0]
        assert "worker 3:5 -> coordinator" in shown[0]
        assert "request 1 pos 0+5 layers 3:5 hop 1/2" in shown[2]
        head = text_of(app, "#head")
        assert "38 of 38 frames" in head
        assert "read to the end" in head
        assert "prompts" in head

    store = browse(THREE, steps)
    assert [kept.row for kept in store.rows] == list(decode(THREE))


def test_the_keys_move_the_cursor_and_the_panes_follow() -> None:
    async def steps(app: Browser, pilot: Any) -> None:
        assert "DS4D.HELLO  56 bytes" in text_of(app, "#field-text")
        await pilot.press("j", "down")
        await settle(pilot)
        fields = text_of(app, "#field-text")
        assert "DS4D.WORK  822 bytes" in fields
        assert "payload: hidden 5x64 f16" in fields
        assert "n_tokens: 5" in fields
        data = text_of(app, "#byte-text")
        # magic DS4D, type 3, then the length of the body: 822 - 12
        assert data.startswith("00000000  44 53 34 44 00 00 00 03 00 00 03 2a")
        assert "... 310 more bytes" in data
        await pilot.press("end")
        await settle(pilot)
        assert app.query_one(FrameList).cursor == 37
        assert "DS4D.RESULT" in text_of(app, "#field-text")
        await pilot.press("g", "pagedown", "k")
        await settle(pilot)
        height = app.query_one(FrameList).size.height
        assert app.query_one(FrameList).cursor == height - 2

    browse(THREE, steps)


def test_a_filter_chooses_and_a_wrong_one_says_what_it_lacks() -> None:
    async def steps(app: Browser, pilot: Any) -> None:
        await pilot.press("slash")
        app.query_one("#filter", Input).value = "ds4d.wrok.n_tokens > 1"
        await pilot.press("enter")
        await settle(pilot)
        assert "ds4d.work.n_tokens" in text_of(app, "#head")
        assert "38 of 38" in text_of(app, "#head")
        app.query_one("#filter", Input).value = "ds4d.work.n_tokens > 1"
        await pilot.press("enter")
        await settle(pilot)
        wanted = [
            row for row in decode(THREE) if row.fields.get("n_tokens", 0) > 1
        ]  # fmt: skip
        assert len(wanted) == 2
        assert "2 of 38 frames" in text_of(app, "#head")
        assert [kept.row for kept in map(app._store.at, range(2)) if kept] == wanted
        assert app.focused is app.query_one(FrameList)
        await pilot.press("slash")
        app.query_one("#filter", Input).value = ""
        await pilot.press("enter")
        await settle(pilot)
        assert "38 of 38 frames" in text_of(app, "#head")

    browse(THREE, steps)


def test_e_goes_to_the_next_frame_that_breaks_a_rule() -> None:
    rows = list(decode(PROBES))
    odd = [at for at, row in enumerate(rows) if row.problems or not row.is_frame]
    assert {rows[at].is_frame for at in odd} == {True, False}

    async def steps(app: Browser, pilot: Any) -> None:
        frames = app.query_one(FrameList)
        found = []
        for _ in odd:
            frames.action_broken()
            found.append(frames.cursor)
        assert found == odd
        await pilot.press("home", "e")
        await settle(pilot)
        assert frames.cursor == odd[0]
        assert "! DS4D-" in text_of(app, "#field-text")
        line = lines_of(app)[odd[0] - int(frames.scroll_y)]
        assert line[0] == "!"

    browse(PROBES, steps)


def test_reading_stops_at_the_cap_and_says_so() -> None:
    async def steps(app: Browser, _pilot: Any) -> None:
        assert "stopped after 10 frames; --keep N holds more" in text_of(app, "#head")

    store = browse(THREE, steps, keep=10)
    assert len(store.rows) == 10


def test_damage_is_told_and_what_came_before_it_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(THREE.read_bytes()[:-5])

    async def steps(app: Browser, _pilot: Any) -> None:
        assert "ends inside a record" in text_of(app, "#head")

    assert len(browse(path, steps).rows) >= 37


def test_a_growing_file_is_followed_to_its_end(tmp_path: Path) -> None:
    whole = THREE.read_bytes()
    path = tmp_path / "growing.pcap"
    path.write_bytes(whole[: len(whole) // 2])
    at_end: queue.Queue[None] = queue.Queue()
    go_on: queue.Queue[bool] = queue.Queue()

    def wait() -> bool:
        at_end.put(None)
        return go_on.get(timeout=PATIENCE)

    async def reader_waits() -> None:
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: at_end.get(timeout=PATIENCE)
        )

    async def steps(app: Browser, pilot: Any) -> None:
        await reader_waits()
        await settle(pilot)
        frames = app.query_one(FrameList)
        half = len(app._store.rows)
        assert 0 < half < 38
        assert frames.cursor == half - 1  # the cursor stays on the newest
        await pilot.press("home")
        with path.open("ab") as file:
            file.write(whole[len(whole) // 2 :])
        go_on.put(True)
        await reader_waits()
        await settle(pilot)
        assert len(app._store.rows) == 38
        assert frames.cursor == 0  # unless somebody looks elsewhere
        go_on.put(False)
        await app.workers.wait_for_complete()

    store = browse(path, steps, follow=True, wait=wait)
    assert [kept.row.type for kept in store.rows] == [r.type for r in decode(THREE)]


def test_the_oldest_rows_go_when_a_followed_file_grows_past_the_cap() -> None:
    rows = [Kept(row, b"") for row in decode(THREE)]
    store = RowStore(20, newest=True)
    store.filter(compile_where('type == "WORK"'))
    for start in range(0, len(rows), 5):
        store.add(rows[start : start + 5])
    assert store.rows == rows[-len(store.rows) :]
    assert len(store.rows) <= 20
    assert store.dropped + len(store.rows) == 38
    shown = [store.rows[at].row.type for at in store.shown]
    assert shown == [k.row.type for k in store.rows if k.row.type == "WORK"]
    assert not store.full


def test_the_command_opens_in_a_real_terminal_and_q_ends_it() -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ds4proto", "view", str(THREE)],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        deadline = time.monotonic() + PATIENCE
        while b"38 of 38 frames" not in seen:
            left = deadline - time.monotonic()
            assert select.select([ours], [], [], max(left, 0))[0], seen[-500:]
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        with contextlib.suppress(OSError):  # Linux says so when the other end is gone
            while select.select([ours], [], [], PATIENCE)[0] and os.read(ours, 65536):
                pass
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [("textual", "view", []), ("matplotlib", "plot", ["--png", "pictures"])],
)
def test_a_missing_package_is_named_with_its_extra(
    module: str,
    extra: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ds4proto.cli.view._terminal", lambda: True)
    for name in list(sys.modules):
        if name.startswith("ds4proto.cli._view"):
            monkeypatch.delitem(sys.modules, name)
        elif name.partition(".")[0] == module:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    assert run(["view", str(THREE), *arguments]) == 2
    assert f"pip install 'ds4proto[{extra}]'" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((str(THREE),), "needs a terminal"),
        (("-",), "keys from standard input"),
        ((str(THREE), "--html", "x", "--follow"), "--follow goes with the browser"),
        ((str(THREE), "--json", "--redact", "--headers-only"), "give one"),
        ((str(THREE), "--html", str(THREE)), "that is an input itself"),
        ((str(THREE), "--json", "--dialect", "nonsense"), "no dialect"),
        ((str(THREE), "--json", "--where", "nonsense ="), "--where"),
        (("no-such-file.pcap", "--json"), "no-such-file.pcap"),
        ((str(THREE), "--html", "no/such/folder/x.html"), "--html"),
        ((str(THREE), "--json", "--where", "time > 1e9"), "no frame meets"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    arguments: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["view", *arguments]) == 2
    out, err = capfd.readouterr()
    assert words in err
    assert out == ""
    assert "Traceback" not in err


def test_json_tells_counts_series_and_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "run.html"
    assert run(["view", str(THREE), "--json", "--html", str(page)]) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert told["summary"]["frames"] == 38
    assert told["files"] == [str(page)]
    assert told["html_bytes"] == page.stat().st_size
    assert [node["name"] for node in told["nodes"]] == [
        "coordinator", "worker 3:5", "worker 6:output",
    ]  # fmt: skip
    assert "prompts" in err


def test_a_capture_without_frames_leaves_no_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(THREE.read_bytes()[:24])
    page = tmp_path / "page.html"
    log = tmp_path / "log.qlog"
    assert run(["view", str(empty), "--html", str(page), "--qlog", str(log)]) == 2
    assert "no frame could be decoded" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.pcap"]


def test_diagnose_draws_the_first_capture_with_its_findings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4: tensor-parallel timeout waiting gate seq 128\n")
    page = tmp_path / "why.html"
    status = run(["diagnose", str(log), str(PROBES), "--html", str(page), "--json"])
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert status in (0, 1)
    assert f"drew {PROBES}" in err
    text = " ".join(Page(page).text.split())
    assert len(told["findings"]) >= 3
    kinds: Counter[str] = Counter()
    for finding in told["findings"]:
        kinds[finding["code"]] += 1
        if kinds[finding["code"]] > OF_A_KIND:
            continue
        sentence = finding["sentence"]
        assert " ".join((sentence[:1].upper() + sentence[1:]).split()) in text


def test_diagnose_has_nothing_to_draw_of_logs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("ds4: tensor-parallel timeout waiting gate seq 128\n")
    page = tmp_path / "why.html"
    assert run(["diagnose", str(log), "--html", str(page)]) == 2
    assert "none of the files is a capture" in capfd.readouterr().err
    assert not page.exists()
