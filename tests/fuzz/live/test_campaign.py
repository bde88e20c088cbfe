"""Campaigns: every case once, over processes, stopped and resumed."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ds4proto_fuzz.campaign import CHUNK, Campaign, Plan, Pool
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding
from ds4proto_fuzz.mutants import spec_of
from ds4proto_fuzz.target import Settings

from ds4proto.cli import run
from ds4proto.errors import Ds4ProtoError, WrongUsage

PLAN = Plan(Settings("exec:x", "worker"), seed=5, cases=3 * CHUNK + 10)


def finding(index: int) -> Finding:
    step = Step("data", "WORK", b"x" * (1 + index % 3))
    effect = Effect("hang", "no answer")
    peer = {"spec": "exec:x", "role": "worker"}
    return Finding(effect, Case(5, index, "live", "bits", (step,)), peer)


class Fake:
    """Carries chunks out of order; stops after some, or in the middle of one."""

    width = 2

    def __init__(self, stop_after: int = 99, cut: int | None = None) -> None:
        self.given: Counter[int] = Counter()
        self.closed = False
        self._left, self._cut = stop_after, cut

    def submit(self, *args: Any) -> Any:
        return Handle(args)

    def wait(
        self, handles: list[Any], seconds: float = 0.0
    ) -> list[tuple[Any, dict[str, Any]]]:
        del seconds
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        handle = handles[-1]
        _, seed, (start, end), known, _ = handle.args
        assert seed == 5
        if self._cut is not None:
            end, self._cut = min(end, start + self._cut), None
        self.given.update(range(start, end))
        one = finding(start)
        fresh = one.name not in known
        tally = {
            "cases": end - start, "frames": 0, "restarts": 0, "muted": 0,
            "seconds": 1.0, "unproven": {}, "findings": [],
            "reached": [["live", "bits", "refused", end - start]],
        }  # fmt: skip
        found = [one.as_json()] if fresh else []
        return [(handle, {
            "tally": tally, "found": found, "lost": "", "next": end,
            "repeated": {} if fresh else {one.name: 1},
        })]  # fmt: skip

    def close(self) -> None:
        self.closed = True


class Handle:
    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args


def test_every_case_is_given_once_and_duplicates_are_folded(tmp_path: Path) -> None:
    campaign, engine = Campaign(PLAN, tmp_path), Fake(cut=100)
    told: list[str] = []
    campaign.run(engine, tell=lambda found: told.append(found.name))
    assert engine.given == Counter(range(3 * CHUNK + 10))
    assert engine.closed
    assert campaign.tally.cases == 3 * CHUNK + 10
    (kept,) = campaign.store
    assert kept.count == 5  # one chunk came back in two parts
    assert told == [kept.name]


def test_a_stopped_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Fake(stop_after=2, cut=100)
    with pytest.raises(KeyboardInterrupt):
        Campaign(PLAN, tmp_path).run(first)
    assert first.closed
    again, second = Campaign(PLAN, tmp_path, resume=True), Fake()
    assert again.tally.cases == sum(first.given.values())
    again.run(second)
    assert first.given + second.given == Counter(range(3 * CHUNK + 10))
    assert again.tally.cases == 3 * CHUNK + 10
    assert again.tally.reached.table() == [("live", "refused", 3 * CHUNK + 10, 1)]
    (kept,) = again.store
    assert kept.count == 5
    last = Campaign(PLAN, tmp_path, resume=True)
    last.run(third := Fake())
    assert not third.given


def test_another_campaign_is_not_gone_on_with(tmp_path: Path) -> None:
    Campaign(PLAN, tmp_path).run(Fake())
    with pytest.raises(WrongUsage, match="--resume"):
        Campaign(PLAN, tmp_path)
    other = Plan(PLAN.settings, seed=6, cases=10)
    with pytest.raises(WrongUsage, match="the same --peer, --role and --seed"):
        Campaign(other, tmp_path, resume=True)
    (tmp_path / "campaign.json").write_text("{")
    with pytest.raises(WrongUsage, match="cannot be resumed"):
        Campaign(PLAN, tmp_path, resume=True)
    with pytest.raises(WrongUsage, match="nothing to resume"):
        Campaign(PLAN, tmp_path / "new", resume=True)


def die(*_args: Any) -> None:
    os._exit(3)


def test_a_process_that_dies_is_told_in_words(tmp_path: Path) -> None:
    pool = Pool(1)
    try:
        handle = pool._pool.submit(die)
        with pytest.raises(Ds4ProtoError, match="Next: --resume"):
            pool.wait([handle], 120.0)
    finally:
        pool.close()


def test_two_processes_share_a_campaign(tmp_path: Path) -> None:
    settings = Settings(spec_of("worker", "none"), "worker", patience=20.0)
    campaign = Campaign(Plan(settings, 4, CHUNK + 60), tmp_path)
    campaign.run(Pool(2))
    assert not campaign.lost
    assert campaign.tally.cases == CHUNK + 60
    assert not list(campaign.store)
    state = json.loads((tmp_path / "campaign.json").read_text())
    assert state["done"] == {"0": CHUNK, "1": CHUNK + 60}


class Silent(Fake):
    """Finds nothing."""

    def wait(
        self, handles: list[Any], seconds: float = 0.0
    ) -> list[tuple[Any, dict[str, Any]]]:
        return [
            (handle, result | {"found": [], "repeated": {}})
            for handle, result in super().wait(handles, seconds)
        ]


@pytest.mark.parametrize(
    ("engine", "status", "text"),
    [
        (Silent(2), 130, "the same command with --resume goes on"),
        (Fake(2), 1, "the same command with --resume goes on"),
        (Silent(0), 130, "after 0 cases; no case was finished"),
    ],
)
def test_a_stop_is_told_last_and_is_no_success(
    engine: Fake, status: int, text: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("ds4proto_fuzz.cli.peer._engine", lambda _told: engine)
    out = tmp_path / ("a-folder-with-a-long-name-" * 4)
    words = ["fuzz", "peer", "--peer", "exec:x", "--role", "worker", "--seed", "5"]
    assert run([*words, "--cases", "1000", "--out", str(out)]) == status
    shown, told = capsys.readouterr()
    assert told.splitlines()[-1].startswith("stopped early after ")
    assert text in told.splitlines()[-1]
    if status == 1:
        (folder,) = [path for path in out.iterdir() if path.is_dir()]
        assert f"ds4proto fuzz replay {folder}" in shown
