"""Workers that go or lie while chunks of a prefill are in flight."""

from __future__ import annotations

import pytest
from ds4proto_runtime.pipeline.session import PipelineError
from ds4proto_runtime.pipeline.telemetry import Telemetry

from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_work_link import WorkLink
from tests.runtime.cluster import LONG, SPLITS, Cluster, alone, cluster, same_bits
from tests.runtime.test_recovery import DAMAGE, bent

CHUNK = 4
STRUCK_AT = 3
"""The chunk, of sixteen, behind which the worker goes."""


def whole_again(found: Cluster) -> None:
    """Prefill again over the route that came back."""
    found.wait_registered("4:output", 2)
    found.route()
    outcome = found.coordinator.session(2).sync(LONG)
    assert same_bits(outcome.logits, alone(LONG))


def test_a_worker_that_dies_between_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, written = Telemetry.sent, []
    with cluster(*SPLITS[2], chunk=CHUNK) as found:

        def strike(telemetry: Telemetry, nbytes: int, seconds: float) -> None:
            sent(telemetry, nbytes, seconds)
            written.append(nbytes)
            if len(written) == STRUCK_AT:
                found.workers["4:output"].kill()

        monkeypatch.setattr(Telemetry, "sent", strike)
        lost = pytest.raises(PipelineError, match=text("DS4D-ROUTE-36", 4))
        with found.door_shut(), lost:
            found.coordinator.session(1).sync(LONG)
        assert STRUCK_AT <= len(written) < len(LONG) / CHUNK
        monkeypatch.undo()
        found.restart("4:output")
        whole_again(found)


@pytest.mark.parametrize("damage", ["hash", "end"])
def test_a_damaged_answer_to_a_chunk(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(*SPLITS[2], chunk=CHUNK) as found:
        monkeypatch.setattr(WorkLink, "received", bent(DAMAGE[damage]))
        lost = pytest.raises(PipelineError, match=text("DS4D-ROUTE-36", 4))
        with found.door_shut(), lost:
            found.coordinator.session(1).sync(LONG)
        whole_again(found)
