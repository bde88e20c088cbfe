"""No wait without an end: of campaigns, of replay scripts, of a peer that is met."""

import socket
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ds4proto_fuzz.campaign import PORTION_S, Campaign, Plan, Pool
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.cluster import Cluster
from ds4proto_fuzz.ds4d.worker import WorkerTarget
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding
from ds4proto_fuzz.hunt import Hunt
from ds4proto_fuzz.script import script
from ds4proto_fuzz.target import Settings
from ds4proto_fuzz.watch import Gauge

from ds4proto.errors import Ds4ProtoError
from ds4proto.peer import PeerLost
from ds4proto.peer.connect import free_ports

STEP = Step("data", "WORK", b"x")


def test_a_process_that_stands_still_is_ended() -> None:
    before = set(active_children())
    pool = Pool(1)
    handle: Any = pool._pool.submit(time.sleep, 3600)
    try:
        with pytest.raises(Ds4ProtoError, match="has come back for 0 s"):
            pool.wait([handle], 0.0)
    finally:
        pool.close()
    assert handle.exception(60) is not None
    assert set(active_children()) <= before


class Waits:
    """An engine of which nothing comes back; notes how long it was to wait."""

    width = 1

    def __init__(self) -> None:
        self.seconds = 0.0

    def submit(self, *args: Any) -> Any:
        return args[1]

    def wait(self, handles: list[Any], seconds: float) -> Any:
        assert len(handles) == self.width
        self.seconds = seconds
        raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_a_campaign_waits_for_a_chunk_and_its_last_case_and_no_longer(
    tmp_path: Path,
) -> None:
    engine = Waits()
    settings = Settings("exec:x", "worker", patience=7.0, connect=11.0)
    with pytest.raises(KeyboardInterrupt):
        Campaign(Plan(settings, 1, 10), tmp_path).run(engine)
    assert PORTION_S + 20 * (7 + 11) < engine.seconds < 2000


class RayError(Exception):
    pass


class Ray(SimpleNamespace):
    """As much of ray as the runner uses."""

    exceptions = SimpleNamespace(RayError=RayError)
    ready: Any = ()

    def init(self, **_told: Any) -> None:
        pass

    def remote(self, **_told: Any) -> Any:
        return lambda function: function

    def wait(self, handles: Any, *, num_returns: int, timeout: float) -> Any:
        assert (num_returns, timeout) == (1, 5.0)
        return self.ready, handles

    def get(self, handle: Any, *, timeout: float) -> Any:
        assert timeout == 5.0
        if handle == "bad":
            raise RayError("the node died\nmore")
        return {"of": handle}


def test_a_cluster_that_says_nothing_or_fails_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    cluster = Cluster("auto", 2)
    with pytest.raises(Ds4ProtoError, match="has come back for 5 s"):
        cluster.wait(["one"], 5.0)
    ray.ready = ["one"]
    assert cluster.wait(["one", "two"], 5.0) == [("one", {"of": "one"})]
    ray.ready = ["bad"]
    with pytest.raises(Ds4ProtoError, match=r"failed: the node died; .* --resume"):
        cluster.wait(["bad"], 5.0)


@pytest.mark.parametrize("role", ["worker", "tp-worker", "tp-leader"])
def test_a_script_waits_for_no_peer_for_ever(role: str, tmp_path: Path) -> None:
    case = Case(1, 2, "live", "bits", (STEP,))
    text = script(Finding(Effect("hang", "x"), case, {"role": role, "spec": "x"}))
    assert "socket.setdefaulttimeout(60)" in text
    path = tmp_path / "replay.py"
    path.write_text(text.replace("setdefaulttimeout(60)", "setdefaulttimeout(0.1)"))
    told = '{"case": {"repeat": 1, "steps": []}}'
    (tmp_path / "finding.json").write_text(told)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if role != "tp-leader":  # it listens itself
            (port,) = free_ports(1)
        done = subprocess.run(
            [sys.executable, "-I", str(path), "127.0.0.1", str(port)],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    assert "then: timed out" in done.stdout


def lost() -> PeerLost:
    return PeerLost("closed", phase="meeting", address="x", reason="another program")


@pytest.mark.parametrize(("spec", "tries"), [("exec:x", 2), ("tcp:127.0.0.1:1", 1)])
def test_a_process_of_ours_is_started_twice_before_it_is_lost(
    spec: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = WorkerTarget(Settings(spec, "worker"))
    seen: list[None] = []

    def start(failures: int) -> Any:
        def once() -> None:
            seen.append(None)
            if len(seen) <= failures:
                raise lost()

        return once

    monkeypatch.setattr(target, "_start", start(failures=9))
    with pytest.raises(PeerLost):
        target.start()
    assert len(seen) == tries
    seen.clear()
    monkeypatch.setattr(target, "_start", start(failures=tries - 1))
    target.start()
    assert len(seen) == tries


class Held:
    """A peer that holds more each time, and is another process each time or not."""

    settings = Settings("exec:x", "worker")
    starts = 1

    def __init__(self, *, anew: bool) -> None:
        self._anew, self._held, self.replayed = anew, 0, 0

    def innocent(self) -> None:
        return None

    def settled(self) -> Gauge:
        self._held += 100 << 20
        self.starts += self._anew
        return Gauge(0, self._held, 9, 1)

    def alive(self) -> bool:
        return True

    def play(self, case: Case) -> Any:
        assert case.repeat > 1
        self.replayed += 1
        return SimpleNamespace(effect=None)

    def renew(self) -> None:
        pass


@pytest.mark.parametrize("anew", [False, True])
def test_what_another_process_held_is_no_growth(anew: bool) -> None:
    target: Any = Held(anew=anew)
    hunt = Hunt(target, 1)
    for _ in range(2):
        hunt._window = [Case(1, 2, "live", "bits", (STEP,))]
        hunt._look()
    assert target.replayed == (not anew)
    assert bool(hunt.tally.unproven) != anew
