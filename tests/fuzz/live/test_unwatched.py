"""A campaign that could see no leak says so."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest
from ds4proto_fuzz import watch


@pytest.mark.parametrize("peer", ["tcp:127.0.0.1:1", "listen:127.0.0.1:0"])
def test_a_process_of_somebody_else_is_not_watched(peer: str) -> None:
    assert watch.unwatched(peer) == "the process is not ours"


@pytest.mark.parametrize("peer", ["exec:./ds4", "reference:worker"])
def test_our_own_is_watched_where_psutil_is(
    peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "find_spec", lambda name: ModuleSpec(name, None))
    assert watch.unwatched(peer) == ""
    monkeypatch.setattr(watch, "find_spec", lambda _: None)
    assert "pip install 'ds4proto[fuzz]'" in watch.unwatched(peer)
