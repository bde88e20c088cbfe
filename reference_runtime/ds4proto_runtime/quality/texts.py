"""Texts to score: plain files, or the Wikipedia articles that a package carries.

Nothing is downloaded here; a text that may not be committed is read from the
package that the user installed.
"""

from __future__ import annotations

import bz2
import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

from ds4proto.errors import WrongUsage
from ds4proto_runtime.text_files import bounded_text

WIKI_FILE = (
    "test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302"
    "-shortened.bz2"
)
SHORTEST_ARTICLE = 1500


def load_text(source: str) -> str:
    """Return a text: ``wiki``, or the path of a UTF-8 file.

    Raises
    ------
    WrongUsage
        If it cannot be had; says how to get it.
    """
    if source == "wiki":
        return wikipedia()
    path = Path(source)
    try:
        return bounded_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(
            f"text {source}: {error}; give a UTF-8 file, or 'wiki' for the articles of"
            " the package gensim"
        ) from error


def wikipedia() -> str:
    """Return the articles that the package ``gensim`` carries, cleaned of markup."""
    spec = importlib.util.find_spec("gensim")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    found = [Path(root) / WIKI_FILE for root in roots]
    path = next((candidate for candidate in found if candidate.is_file()), None)
    if path is None:
        raise WrongUsage(
            "the text 'wiki' comes from the package gensim (its test data):"
            " pip install --no-deps gensim==4.4.0"
        )
    with bz2.open(path, "rb") as stream:
        tree = ElementTree.parse(stream)
    articles = []
    for element in tree.iter():
        if element.tag.rpartition("}")[2] == "text" and element.text:
            text = plain(element.text)
            if len(text) >= SHORTEST_ARTICLE:
                articles.append(text)
    return "\n\n".join(articles)


def plain(markup: str) -> str:
    """Return wiki markup as plain paragraphs."""
    text = re.sub(r"<!--.*?-->|<ref[^>/]*/>|<ref.*?</ref>", "", markup, flags=re.S)
    for opening, closing in (("{{", "}}"), ("{|", "|}")):
        text = _without(text, opening, closing)
    text = re.sub(r"\[\[(?:File|Image|Category|[a-z\-]{2,12}):[^\[\]]*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[(?:https?|ftp)://\S+ ?([^\]]*)\]", r"\1", text)
    text = re.sub(r"<[^<>]*>|'{2,}|^[=*#:;|!].*$|__[A-Z]+__", "", text, flags=re.M)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return "\n".join(line for line in lines if len(line) > 40)


def _without(text: str, opening: str, closing: str) -> str:
    """Return a text without bracketed parts, nested ones included."""
    parts: list[str] = []
    depth, at = 0, 0
    for match in re.finditer(re.escape(opening) + "|" + re.escape(closing), text):
        if depth == 0:
            parts.append(text[at : match.start()])
        depth = depth + 1 if match[0] == opening else max(0, depth - 1)
        at = match.end()
    if depth == 0:
        parts.append(text[at:])
    return "".join(parts)
