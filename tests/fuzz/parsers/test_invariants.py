"""Every invariant of every parser, on its corpus and on what is made of it."""

from __future__ import annotations

import pytest
from ds4proto_fuzz.parsers import NAMES, target
from ds4proto_fuzz.parsers.bounds import bounded
from ds4proto_fuzz.parsers.corpus import name_of
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.parsers.samples import CORPUS, corpus, mutated, steady

COSTLY = {"rows": 12, "observer": 40, "framing": 40}
"""Examples of targets that read each input several times over."""
MOST_BYTES = 32_000
"""A corpus is to be read by people as well."""


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_holds(name: str) -> None:
    check = target(name).check
    for data in corpus(name):
        check(data)


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_is_small_and_named_by_its_bytes(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files, "a target starts from something"
    assert [path.name for path in files] == [name_of(p.read_bytes()) for p in files]
    sizes = [path.stat().st_size for path in files]
    assert sum(sizes) <= MOST_BYTES
    assert max(sizes) <= target(name).most


def test_every_corpus_belongs_to_a_target() -> None:
    folders = {path.name for path in CORPUS.iterdir() if path.is_dir()}
    assert folders == set(NAMES)
    assert (CORPUS / "PROVENANCE.md").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_memory_and_time_are_bounded(name: str) -> None:
    check = target(name).check
    files = corpus(name)
    for data in {files[0], files[-1 if len(files[-1]) < 500 else len(files) // 2]}:
        check(data)  # what happens on first use is no part of it
        bounded(check, data)
    bounded(check, b"\xff" * 64)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_made_of_the_corpus_holds(name: str) -> None:
    check = target(name).check

    @steady(COSTLY.get(name, 80))
    @given(mutated(name))
    def holds(data: bytes) -> None:
        check(data)

    holds()


@pytest.mark.parametrize("name", NAMES)
def test_bytes_without_any_sense_hold(name: str) -> None:
    check = target(name).check

    @steady(COSTLY.get(name, 60))
    @given(st.binary(max_size=200))
    def holds(data: bytes) -> None:
        check(data)

    holds()
