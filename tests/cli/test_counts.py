"""One of a kind is told in the singular, wherever the commands count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ds4proto
from ds4proto.cli import run
from ds4proto.printable import counted
from ds4proto.testing import captures_dir

ROOT = captures_dir()
NOUNS = (
    "bytes|frames|tokens|packets|connections|streams|gates|payloads|partials|rows|"
    "records|values|times|requests|messages|sessions|lines|files|chunks|machines|"
    "segments"
)
WRONG = re.compile(rf"(?<![\w./+:-])1 (?:TCP )?(?:{NOUNS})\b")
BARE = re.compile(rf"\{{(?P<what>[^{{}}:!]+)\}} (?:{NOUNS})\b")
"""A number before a plural, in an f-string."""
RUNS = (
    "ds4d/a_s2_decode_f32",
    "ds4d/g_kill_mid_request_s2",
    "ds4t/v9_embd4096",
    "ds4t/v10_leader_dies_mid_prefill",
    "ds4t/v9_to_leader_logits_short",
)
OUR_PARTS = ("cli", "trace", "preflight")
NO_COUNTS = re.compile(
    r"^[A-Z_.\w]*[A-Z]{3,}\w*$|_layers\(|_named\(|row\.fields|line\.values|_N"
)
"""Constants, and words of a frame that stand before the name of the next one."""


@pytest.mark.parametrize("command", ["diagnose", "stats", "decode", "whatif"])
@pytest.mark.parametrize("name", RUNS)
def test_no_command_says_one_of_many(
    command: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run([command, str(ROOT / f"{name}.pcap")])
    said = " ".join(" ".join(capfd.readouterr()).split())
    assert said
    assert WRONG.findall(said) == []


def test_numbers_stand_before_their_nouns_through_one_function() -> None:
    folder = Path(ds4proto.__file__).parent
    found = []
    for part in OUR_PARTS:
        for path in sorted((folder / part).rglob("*.py")):
            if path.name.startswith("_spec"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found += [
                    f"{path.relative_to(folder)}:{number}: {match[0]}"
                    for match in BARE.finditer(line)
                    if not NO_COUNTS.search(match["what"])
                ]
    assert found == []


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("gate",), "0 gates"),
        (1, ("gate",), "1 gate"),
        (2, ("gate",), "2 gates"),
        (1, ("byte", "are"), "1 byte is"),
        (3, ("byte", "belong"), "3 bytes belong"),
        (1, ("more note", "were"), "1 more note was"),
    ],
)
def test_nouns_and_verbs_fit_their_number(
    number: int, words: tuple[str, ...], said: str
) -> None:
    assert counted(number, *words) == said
    assert counted(2, "hash", plural="hashes") == "2 hashes"
