"""Draw the picture at the top of the README from what `ds4proto decode` prints.

    python docs/make_picture.py

The capture ships with the package, so that the picture is what a reader gets.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 156
FIRST, LAST = 0, 16


def lines() -> list[str]:
    """Return the first lines of the decoded three-stage run."""
    capture = files("ds4proto") / "data" / "captures" / "pipeline-three-stages.pcap.gz"
    command = [sys.executable, "-m", "ds4proto", "decode", str(capture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[FIRST:LAST]


def painted(line: str) -> Text:
    """Colour the parts of a line: time, message, hash, problem."""
    text = Text(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
    text.highlight_regex(r"^\s*[\d.]+", "dim")
    text.highlight_regex(r"\b(HELLO|WORK|RESULT|ERROR|SNAPSHOT_\w+)\b", "bold cyan")
    text.highlight_regex(r"->", "dim")
    text.highlight_regex(r"\[[-+.\d e]+ \.\. [-+.\d e]+\]", "green")
    text.highlight_regex(r"#[0-9a-f]{16}", "magenta")
    text.highlight_regex(r"^\s+!.*", "bold red")
    return text


def main() -> None:
    """Write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ ds4proto decode run.pcap", "bold"))
    for line in lines():
        console.print(painted(line), soft_wrap=False, overflow="crop", no_wrap=True)
    svg = console.export_svg(title="ds4proto")
    # no font from the network: the reader's own monospaced one will do
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    target = Path(__file__).parent / "images" / "decode.svg"
    target.write_text(svg, encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
