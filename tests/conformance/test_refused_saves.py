"""A worker that has no snapshots says so; one that merely refuses is wrong."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from ds4proto_conformance.bench.snapshots import Snapshots
from ds4proto_conformance.verdicts import Deviation, Unsupported
from ds4proto_conformance.wire import Frame

FACTS = SimpleNamespace(model_id=1, layer_start=4, layer_end=7)


def refusing(message: str, **lies: int) -> Snapshots:
    """Transfers with a peer that answers each request with a refusal."""
    said: list[str] = []

    def answer(name: str, _clause: str) -> Frame:
        words: dict[str, Any] = {
            "status": 1,
            "payload_size": 0,
            "token_hash": 0,
            "token_count": 0,
            "token_bytes": 0,
            "model_id": 1,
            "layer_start": 4,
            "layer_end": 7,
            "session": 9,
            "request": transfers.request,
            "message": message,
        }
        return Frame(name, 6, {**words, **lies}, b"")

    wire: Any = SimpleNamespace(send=lambda _: None, frame=answer)
    peer: Any = SimpleNamespace(facts=FACTS, rng=random.Random(1), concept=said.append)
    transfers = Snapshots(peer, wire)
    return transfers


def test_a_sound_refusal_that_says_so_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="snapshots are not supported here"):
        refusing("snapshots are not supported here").save(9, (1, 2))


def test_a_refusal_of_another_form_is_none() -> None:
    with pytest.raises(Deviation, match=r"DS4D-SNAP-55: expected layer_end 7; found 8"):
        refusing("snapshots are not supported here", layer_end=8).save(9, (1, 2))


def test_a_refusal_for_another_reason_is_a_failed_save() -> None:
    with pytest.raises(Deviation, match="DS4D-SNAP-54: expected the shard"):
        refusing("failed to stage snapshot shard").save(9, (1, 2))
