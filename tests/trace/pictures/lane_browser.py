"""The page in a real browser: `make test-pictures`. Needs Chromium.

A run of 100,000 frames is built, drawn and opened. A lane of its own: it takes a
browser, a minute or two, and one of its claims is about time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4proto.trace.pictures import Drawn, draw
from tests.trace.pictures.chrome import Chrome, browser
from tests.trace.pictures.long_run import LongRun
from tests.trace.pictures.reading import Page
from tests.trace.pictures.test_page import PROBES, hostile_capture

FRAMES = 100_000
LOADED_WITHIN_MS = 5000
CANVASES = ("timeline", "throughput", "flight", "sequence", "heat")
COLOURS = """(() => {{ const c = document.getElementById('{name}');
  const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)
    .data.buffer); return new Set(d).size; }})()"""
# pixels of the timeline in the colour of each type of frame, by the type's name
BARS = """(() => { const c = document.getElementById('timeline');
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  return Object.fromEntries([...document.querySelectorAll('#legend label')].map((l) => {
    const rgb = getComputedStyle(l.querySelector('.swatch')).backgroundColor
      .match(/[0-9]+/g).map(Number);
    let count = 0;
    for (let i = 0; i < d.length; i += 4) {
      if (d[i] === rgb[0] && d[i + 1] === rgb[1] && d[i + 2] === rgb[2]) count++;
    }
    return [l.textContent.split(' ')[0], count]; })); })()"""
PAPER = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[LongRun, Path, Drawn]:
    folder = tmp_path_factory.mktemp("long")
    built = LongRun(folder / "long.pcapng", FRAMES)
    began = time.monotonic()
    page = folder / "long.html"
    drawn = draw(str(folder / "long.pcapng"), html=str(page))
    took = time.monotonic() - began
    print(f"\n{FRAMES} frames: page of {page.stat().st_size:,} bytes in {took:.1f} s")
    return built, page, drawn


@pytest.fixture
def chrome() -> Iterator[Chrome]:
    path = browser()
    if path is None:
        pytest.fail("no Chromium: apt-get install chromium, or install Chrome")
    with Chrome(path) as opened:
        yield opened


def test_the_long_page_holds_what_was_built(
    long_page: tuple[LongRun, Path, Drawn],
) -> None:
    built, path, _ = long_page
    page = Page(path)
    counts = Counter(page.names())
    assert sum(counts.values()) == built.total == FRAMES
    assert counts["DS4D.WORK"] == built.counts["DS4D.WORK"]
    assert counts["DS4T.GATE_ROW"] == built.counts["gate"]
    assert int(page.columns["length"].sum()) == built.bytes


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_long_page_loads_in_time_and_says_nothing(
    chrome: Chrome, long_page: tuple[LongRun, Path, Drawn], theme: str
) -> None:
    _, page, _ = long_page
    chrome.call(
        "Network.emulateNetworkConditions", offline=True, latency=0,
        downloadThroughput=-1, uploadThroughput=-1,
    )  # fmt: skip
    loaded = chrome.open(page, theme=theme)
    print(f"\n{theme}: drawn after {loaded:.0f} ms")
    assert loaded < LOADED_WITHIN_MS
    assert chrome.loud() == []
    assert chrome.requests() == [page.resolve().as_uri()]
    assert chrome.evaluate("document.getElementById('trouble').hidden")
    for name in CANVASES:
        assert chrome.evaluate(COLOURS.format(name=name)) > 3, name
    bars = chrome.evaluate(BARS)
    for name in ("DS4D.WORK", "DS4D.RESULT", "DS4T.GATE_ROW"):
        assert bars[name] > 1000, bars
    paper = chrome.evaluate(PAPER)
    assert (paper == "rgb(255, 255, 255)") == (theme == "light")
    # nothing is cut off at the side, on a phone neither
    for width in (1300, 390):
        chrome.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900,
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        assert chrome.evaluate("document.documentElement.scrollWidth") <= width


def test_keys_reach_everything(
    chrome: Chrome, long_page: tuple[LongRun, Path, Drawn]
) -> None:
    _, page, _ = long_page
    chrome.open(page, theme="light")
    reached = []
    chrome.press("Tab")
    assert chrome.evaluate("document.activeElement.className") == "skip"
    chrome.press("Enter", "Tab")
    assert chrome.evaluate("document.activeElement.id") == "zoom-in"
    chrome.open(page, theme="light")
    for _ in range(400):
        chrome.press("Tab")
        reached.append(chrome.evaluate("document.activeElement.id"))
        if reached[-1] == "heat":
            break
    assert {"theme", "help", "zoom-in", "timeline", "scroller", "detail", "which"} <= (
        set(reached)
    )

    def text(name: str) -> str:
        return str(chrome.evaluate(f"document.getElementById('{name}').textContent"))

    chrome.evaluate("document.getElementById('timeline').focus()")
    whole = text("span")
    chrome.press("+", "+", "ArrowRight")
    assert text("span") != whole
    chrome.press("0")
    assert text("span") == whole
    chrome.press("n", "n")
    chrome.wait_for("document.getElementById('detail').textContent.includes('WORK')")
    shown = text("detail")
    assert "n_tokens" in shown
    assert "44 53 34 44 00 00 00 03" in text("bytes")  # the magic, then type 3
    chrome.press("Enter")
    assert chrome.evaluate("document.activeElement.id") == "detail"
    chrome.evaluate("document.getElementById('scroller').focus()")
    chrome.press("End")
    chrome.wait_for("document.getElementById('detail').textContent.includes('DS4T.')")
    assert chrome.evaluate("document.getElementById('scroller').scrollTop") > 1e6
    chrome.press("Home")
    chrome.wait_for("document.getElementById('detail').textContent.includes('HELLO')")
    chrome.press("ArrowDown")
    chrome.wait_for("document.getElementById('detail').textContent.includes('WORK')")
    chrome.press("ArrowUp")
    chrome.wait_for("document.getElementById('detail').textContent.includes('HELLO')")
    chrome.evaluate("document.getElementById('heat').focus()")
    cell = text("cell")
    chrome.press("ArrowDown", "ArrowRight")
    assert text("cell") != cell
    chrome.press("t")
    assert chrome.evaluate("document.documentElement.dataset.theme") == "dark"
    chrome.press("?")
    assert chrome.evaluate("document.getElementById('keys').open")
    chrome.press("Escape")
    chrome.wait_for("!document.getElementById('keys').open")
    assert chrome.loud() == []


def test_hover_shows_fields_and_click_shows_bytes(
    chrome: Chrome, long_page: tuple[LongRun, Path, Drawn]
) -> None:
    _, page, _ = long_page
    chrome.open(page, theme="light")
    box = chrome.box("sequence")
    x, y = box["x"] + box["width"] / 2, box["y"] + 30 + 20 * 1.5  # the second row
    chrome.mouse(x, y)
    tip = "document.getElementById('tip')"
    chrome.wait_for(f"!{tip}.hidden && {tip}.textContent.includes('request 1')")
    assert "coordinator" in chrome.evaluate(f"{tip}.textContent")
    chrome.mouse(x, y, click=True)
    chrome.wait_for("document.getElementById('bytes')")
    assert "44 53 34 44" in chrome.evaluate(
        "document.getElementById('bytes').textContent"
    )
    box = chrome.box("timeline")
    span = "document.getElementById('span').textContent"
    before = chrome.evaluate(span)
    chrome.call(
        "Input.dispatchMouseEvent", type="mouseWheel", x=box["x"] + box["width"] / 2,
        y=box["y"] + 20, deltaX=0, deltaY=-240,
    )  # fmt: skip
    chrome.wait_for(f"{span} !== {before!r}")
    chrome.mouse(box["x"] + box["width"] / 4, box["y"] + 18)
    chrome.wait_for(f"!{tip}.hidden")
    # a type that is not ticked is not drawn
    rows = "document.getElementById('spacer').style.height"
    tall = chrome.evaluate(rows)
    chrome.evaluate("document.querySelectorAll('#legend input')[1].click()")
    assert chrome.evaluate(rows) != tall
    assert chrome.loud() == []


def test_findings_lead_to_their_frames(chrome: Chrome, tmp_path: Path) -> None:
    page = tmp_path / "probes.html"
    draw(str(PROBES), html=str(page))
    chrome.open(page, theme="light")
    assert chrome.evaluate("document.querySelectorAll('.jump').length") > 3
    finding = "document.querySelector('.jump').closest('li')"
    clause = chrome.evaluate(f"{finding}.querySelector('.evidence').textContent")
    chrome.evaluate("document.querySelector('.jump').click()")
    broken = "document.querySelector('#detail .broken')"
    chrome.wait_for(broken)
    shown = chrome.evaluate("document.getElementById('detail').textContent")
    assert clause.split(", ")[1] in shown
    assert chrome.evaluate("document.activeElement.id") == "detail"
    assert chrome.loud() == []


def test_hostile_text_does_nothing(chrome: Chrome, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    draw(str(hostile_capture(tmp_path)), html=str(page))
    chrome.open(page, theme="light")
    chrome.evaluate("document.getElementById('timeline').focus()")
    for _ in range(4):
        chrome.press("n")
        chrome.wait_for("document.querySelector('#detail table')")
    chrome.wait_for("document.getElementById('detail').textContent.includes('onerror')")
    assert chrome.evaluate("document.querySelectorAll('img, i').length") == 0
    assert chrome.loud() == []
    assert chrome.requests() == [page.resolve().as_uri()]


def test_the_policy_stops_a_script_that_is_not_the_pages_own(
    chrome: Chrome, tmp_path: Path
) -> None:
    page = tmp_path / "planted.html"
    draw(str(PROBES), html=str(page))
    planted = "<script>document.title = 'planted'</script></body>"
    page.write_text(page.read_text().replace("</body>", planted))
    chrome.open(page, theme="light")
    assert chrome.evaluate("document.title") == PROBES.name
    assert any("Content Security Policy" in str(event) for event in chrome.loud())
