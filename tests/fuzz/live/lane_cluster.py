"""The ray runner on a local cluster; a lane of its own: `make fuzz-cluster`."""

from pathlib import Path

import pytest
from ds4proto_fuzz.campaign import CHUNK, Campaign, Plan
from ds4proto_fuzz.cluster import Cluster
from ds4proto_fuzz.mutants import spec_of
from ds4proto_fuzz.target import Settings


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    settings = Settings(spec_of("worker", "wrong-after-refusal"), "worker")
    root: Path = tmp_path_factory.mktemp("cluster")
    plan = Plan(settings, 1, 2 * CHUNK)
    made = Campaign(plan, root)
    made.run(Cluster("local", 2))
    return made


def test_every_case_was_given_once(campaign: Campaign) -> None:
    tally = campaign.tally
    assert tally.cases + tally.muted == 2 * CHUNK
    assert campaign.done == {0: CHUNK, 1: 2 * CHUNK}


def test_findings_come_back_and_are_folded(campaign: Campaign) -> None:
    whats = [finding.effect.what for finding in campaign.store]
    assert "request of RESULT is wrong" in whats
    assert len(whats) == len({finding.name for finding in campaign.store})
