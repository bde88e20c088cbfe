"""Stages, widths, pipelining, sessions and snapshots: peers over loopback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ds4proto_runtime.engines.base import EngineError

from ds4proto.testing import capture_path
from tests.runtime.cluster import LONG, SPLITS, alone, cluster, same_bits

RECORDED = capture_path("toy/pipeline_f32/session.dsv4")


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_any_number_of_stages_gives_the_bits_of_one_process(
    stages: int, tmp_path: Path
) -> None:
    with cluster(*SPLITS[stages]) as found:
        session = found.coordinator.session(1)
        outcome = session.sync(LONG)
        assert same_bits(outcome.logits, alone(LONG))
        assert outcome.n_tokens == len(LONG)
        whole = list(LONG)
        for token in (42, 43):
            whole.append(token)
            assert same_bits(session.eval(token).logits, alone(whole))
        longer = [*whole, *range(20)]
        outcome = session.sync(longer)
        assert (outcome.n_tokens, outcome.replayed) == (20, False)
        assert same_bits(outcome.logits, alone(longer))
        rows = found.coordinator.telemetry.rows()
        assert len(rows) == stages - 1
        assert all(row["tokens"] == len(longer) for row in rows)
        session.load(RECORDED)
        assert session.save(tmp_path / "again.dsv4") == RECORDED.stat().st_size
        assert (tmp_path / "again.dsv4").read_bytes() == RECORDED.read_bytes()


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_pipelined_equals_sequential_at_every_width(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(*SPLITS[3], bits=bits, chunk=4, window=3) as found:
        pipelined = found.coordinator.session(1).sync(LONG)
        assert not pipelined.replayed
        monkeypatch.setenv("DS4_DIST_DISABLE_PREFILL_PIPELINE", "1")
        found.coordinator._settings = None
        sequential = found.coordinator.session(2).sync(LONG)
        assert same_bits(pipelined.logits, sequential.logits)
        assert same_bits(pipelined.logits, alone(LONG)) == (bits == 32)
        if bits == 16:
            assert np.allclose(pipelined.logits, alone(LONG), atol=0.05)


@pytest.mark.parametrize("ack", [True, False])
def test_a_headless_last_worker_returns_hidden_state(
    ack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ack:
        monkeypatch.setenv("DS4_DIST_DISABLE_PREFILL_ACK_ONLY", "1")
    with cluster("0:1", "2:4", "5:7") as found:
        session = found.coordinator.session(1)
        assert same_bits(session.sync(LONG).logits, alone(LONG))
        assert same_bits(session.eval(9).logits, alone([*LONG, 9]))


def test_sessions_share_a_route_and_do_not_mix() -> None:
    with cluster(*SPLITS[3]) as found:
        texts = {n: [n, n + 1, n + 2] for n in (5, 50, 150)}
        sessions = {n: found.coordinator.session(n) for n in texts}
        for n, tokens in texts.items():
            sessions[n].sync(tokens)
        for step in range(3):
            for n, tokens in texts.items():
                tokens.append(step)
                assert same_bits(sessions[n].eval(step).logits, alone(tokens))


def test_snapshots_cross_topologies(tmp_path: Path) -> None:
    path = tmp_path / "session.dsv4"
    last = None
    for number, stages in enumerate((2, 3, 4)):
        with cluster(*SPLITS[stages]) as found:
            session = found.coordinator.session(number + 1)
            if number:
                session.load(path)
            else:
                session.sync(range(10, 71))
                session.eval(42)
            session.save(path)
            assert path.read_bytes() == RECORDED.read_bytes()
            logits = session.eval(43).logits
            assert last is None or same_bits(last, logits)
            last = logits


def test_a_refused_file_leaves_the_session_whole(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.dsv4"
    damaged.write_bytes(RECORDED.read_bytes()[:-4])
    with cluster(*SPLITS[3]) as found:
        session = found.coordinator.session(1)
        session.sync([5, 6, 7])
        with pytest.raises(EngineError, match="truncated distributed payload"):
            session.load(damaged)
        outcome = session.eval(8)
        assert (outcome.n_tokens, outcome.replayed) == (1, False)
        assert same_bits(outcome.logits, alone([5, 6, 7, 8]))
