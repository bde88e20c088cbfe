"""Test vectors of the codecs: JSON package data in the layout of Wycheproof.

Each file holds groups of tests with an input, the expected code and a result:
``valid``, ``invalid`` (the input must be refused) or ``acceptable`` (several codes are
right; the test lists them by numeric profile, or by who gives them). The files are
written by ``python -m ds4proto.codec.vectors`` and never by hand.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

from ds4proto.codec.base import CodecError
from ds4proto.codec.registry import SCALED

SCHEMA_FILE: Final = "codec_vectors_schema.json"
_NAMES: Final = ("f32", "f16", "bf16", "e4m3", "token_hash", *SCALED)


def names() -> tuple[str, ...]:
    """Return the names of the vector files."""
    return _NAMES


def load(name: str) -> dict[str, Any]:
    """Return the parsed vector file ``name``.

    Raises
    ------
    CodecError
        No such file.
    """
    if name not in _NAMES:
        raise CodecError(
            str(name),
            "no vectors",
            expected="one of " + ", ".join(_NAMES),
            found=repr(name),
            next_step="see `ds4proto codec list`",
        )
    return _read(f"{name}.json")


def schema() -> dict[str, Any]:
    """Return the JSON schema of the vector files."""
    return _read(SCHEMA_FILE)


def _read(file_name: str) -> dict[str, Any]:
    text = files(__package__).joinpath(file_name).read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
