"""Read a page as a browser would: its text, its JSON, its columns and details."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"f8": "<f8", "u4": "<u4", "u1": "u1"}


class Page(HTMLParser):
    """A page taken apart.

    Attributes
    ----------
    scripts : list of (attributes, text)
    tags : list of (name, attributes)
    text : str
        What a reader without scripts sees.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.styles = ""
        self._inside = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            if tag == "script":
                self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""
        elif tag in ("td", "th", "dt", "dd"):
            self.text += " "

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self._inside == "style":
            self.styles += data
        else:
            self.text += data

    def block(self, name: str) -> str:
        """Return the text of one data block."""
        (found,) = [text for attrs, text in self.scripts if attrs.get("id") == name]
        return found

    @property
    def code(self) -> list[str]:
        """Return the scripts that a browser runs."""
        return [text for attrs, text in self.scripts if "type" not in attrs]

    @property
    def meta(self) -> dict[str, Any]:
        found = json.loads(self.block("meta"))
        assert isinstance(found, dict)
        return found

    @property
    def columns(self) -> dict[str, Any]:
        data = zlib.decompress(base64.b64decode(self.block("columns")))
        return {
            name: np.frombuffer(data, DTYPES[kind], count, offset)
            for name, kind, offset, count in self.meta["columns"]
        }

    @property
    def details(self) -> list[Any]:
        blocks = [
            text
            for attrs, text in self.scripts
            if (attrs.get("id") or "").startswith("details-")
        ]
        return [
            one
            for block in blocks
            for one in json.loads(zlib.decompress(base64.b64decode(block)))
        ]

    def names(self) -> list[str]:
        """Return the type of every frame, in order."""
        types = [one["name"] for one in self.meta["types"]]
        return [types[number] for number in self.columns["type"]]
