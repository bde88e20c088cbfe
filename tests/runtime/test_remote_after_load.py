"""Decode at the last worker, where the route holds what that worker never got."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds4proto_runtime import kv
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.session import PipelineError

from tests.runtime.cluster import LONG
from tests.runtime.test_private_dialect import toy as toy_model
from tests.runtime.test_remote_decode import near, route


def test_a_loaded_session_is_prefilled_anew_and_handed_over(tmp_path: Path) -> None:
    path, engine = tmp_path / "saved.dsv4", ToyEngine()
    session = engine.open()
    rows = engine.run(session, engine.embed(LONG[:9]), LONG[:9], 0)
    kv.save_session(path, engine, session, engine.head(rows[-1]))
    with route(toy_model) as found:
        found.runs._session.load(path)
        done = found.runs.generate(LONG, 5)
        assert found.runs.gathered.cold == ""
        assert found.runs.gathered.nbytes == found.runs.gathered.predicted_bytes > 0
        assert done.tokens == near(toy_model, LONG, 5)


def test_what_a_failed_generation_left_is_prefilled_anew() -> None:
    def refuse(_token: int) -> None:
        raise PipelineError("the reader went away")

    with route(toy_model) as found:
        with pytest.raises(PipelineError, match="the reader went away"):
            found.runs.generate(LONG[:9], 5, each=refuse)
        done = found.runs.generate(LONG, 5)
        assert found.runs.gathered.cold == ""
        assert done.tokens == near(toy_model, LONG, 5)
