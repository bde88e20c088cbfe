"""Look at the built site in a real browser: dead anchors, and two widths.

``python docs/check_site.py build/site`` serves the folder on loopback and drives a
headless Chromium by its command line alone. Exit status 0 where all is well, 1 for a
finding, 2 where no browser or no site is found.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = {"phone": 390, "desktop": 1280}
SMALLEST_TEXT_PX = 12
LIMIT_S = 90

MEASURE = """<!doctype html><title>measure</title><body><script>
const query = new URLSearchParams(location.search);
const frame = document.createElement('iframe');
frame.width = query.get('width'); frame.height = 900; frame.src = query.get('page');
frame.onload = () => setTimeout(() => {
  const doc = frame.contentDocument, text = doc.querySelector('article p');
  const out = document.createElement('pre');
  out.id = 'measured';
  out.textContent = JSON.stringify({
    width: doc.documentElement.scrollWidth,
    text: parseFloat(frame.contentWindow.getComputedStyle(text).fontSize),
    words: doc.querySelector('article').innerText.length,
  });
  document.body.append(out);
}, 400);
document.body.append(frame);
</script></body>"""


class _Page(HTMLParser):
    """The anchors and links of one page, as the browser has them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and targets."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if tag == "a" and name == "href" and value:
                self.links.append(value)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Serve a file of the site, or the page that measures another."""
        if urlparse(self.path).path != "/__measure__":
            super().do_GET()
            return
        data = MEASURE.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def dom(browser: str, url: str, *, width: int = 1280) -> str:
    """Return the page's DOM after its scripts ran."""
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-dev-shm-usage", f"--window-size={width},900",
        "--virtual-time-budget=4000", "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return done.stdout


def dead_links(root: Path, pages: dict[str, _Page]) -> Iterator[str]:
    """Yield the links that lead nowhere inside the site."""
    for name, page in pages.items():
        for link in sorted(set(page.links)):
            target = urlparse(urljoin(f"http://site/{name}", link))
            if target.netloc != "site" or target.scheme != "http":
                continue
            path = unquote(target.path).lstrip("/") or "index.html"
            if path.endswith("/"):
                path += "index.html"
            if not (root / path).exists():
                yield f"{name}: {link} leads to no file"
            elif (
                target.fragment
                and path in pages
                and unquote(target.fragment) not in pages[path].anchors
            ):
                yield f"{name}: {link} has no anchor"


def unreadable(browser: str, base: str, name: str) -> Iterator[str]:
    """Yield what a reader with a phone or a desktop could not read."""
    for screen, width in WIDTHS.items():
        url = f"{base}/__measure__?width={width}&page=/{name}"
        found = re.search(r'<pre id="measured">(.*?)</pre>', dom(browser, url))
        if found is None:
            yield f"{name}: could not be measured on a {screen}"
            continue
        measured = json.loads(found[1])
        if measured["width"] > width + 1:
            yield f"{name}: {measured['width']} px wide on a {screen} of {width}"
        if measured["text"] < SMALLEST_TEXT_PX:
            yield f"{name}: text of {measured['text']} px on a {screen}"
        if measured["words"] < 300:
            yield f"{name}: nearly empty on a {screen}"


def main(arguments: list[str]) -> int:
    """Check a site; print findings and return the exit status."""
    root = Path(arguments[0] if arguments else "build/site")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or not (root / "index.html").is_file():
        missing = "no Chromium (apt-get install chromium)" if browser is None else root
        print(f"cannot check the site: {missing}", file=sys.stderr)
        return 2
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    names = sorted(
        str(path.relative_to(root))
        for path in root.rglob("*.html")
        if path.name != "404.html"
    )
    try:
        pages = {name: _Page(dom(browser, f"{base}/{name}")) for name in names}
        findings = list(dead_links(root, pages))
        chapters = [name for name in names if re.match(r"(\d\d-|index)", name)]
        for name in chapters:
            findings += unreadable(browser, base, name)
    finally:
        server.shutdown()
    clauses = sum(
        bool(re.fullmatch(r"[A-Z0-9]+(-[A-Z0-9]+)+-\d\d", anchor))
        for page in pages.values()
        for anchor in page.anchors
    )
    for finding in findings:
        print(finding)
    print(f"{len(pages)} pages, {clauses} clause anchors, {len(findings)} findings")
    return 1 if findings or not clauses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
