"""A coordinator that is not there, and an interface to dial from."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from ds4proto_runtime.cli.options import parse_options
from ds4proto_runtime.engines.toy import ToyEngine
from ds4proto_runtime.pipeline.dialling import (
    CoordinatorUnreachable,
    Redials,
    interface_option,
)
from ds4proto_runtime.pipeline.worker import PipelineWorker

from ds4proto.errors import WrongUsage
from ds4proto.peer.connect import free_ports


def test_repeated_failures_are_told_at_powers_of_two_and_when_they_change() -> None:
    said: list[str] = []
    redials = Redials(said.append, None)
    for _ in range(9):
        redials.begun()
        redials.failed("refused")
    assert [line.split(" in ")[0] for line in said] == [
        "refused; trying again",
        "refused, 2 times",
        "refused, 4 times",
        "refused, 8 times",
    ]
    redials.failed("unreachable")
    assert said[4:] == ["unreachable; trying again"]
    redials.reached()
    redials.failed("unreachable")
    assert said[5:] == ["unreachable; trying again"]
    assert not redials.give_up


def test_a_worker_gives_up_after_its_dial_limit() -> None:
    worker = PipelineWorker(
        ToyEngine(range(4, 8)), ("127.0.0.1", free_ports(1)[0]), dial_limit_s=0.1
    )
    with pytest.raises(CoordinatorUnreachable, match="within --dial-limit 0") as e:
        worker.run()
    assert e.value.exit_code == 3
    assert "Connection refused" in str(e.value)
    with pytest.raises(WrongUsage, match="requires --role worker"):
        parse_options(["-p", "1", "--dial-limit", "3s"])


def test_an_interface_to_dial_from_is_honoured_or_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(OSError, match="DS4_DIST_CONNECT_BIND_IF=en5") as refused:
        interface_option("en5")
    assert "DS4_DIST_CONNECT_BIND_HOST" in str(refused.value)
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(OSError, match="DS4_DIST_CONNECT_BIND_IF=none9"):
        interface_option("none9")
    index, name = socket.if_nameindex()[0]
    asked: list[tuple[int, int, int]] = []

    class Recording:
        def __init__(self, family: int) -> None:
            self.family = family

        def setsockopt(self, *words: int) -> None:
            asked.append(words)  # type: ignore[arg-type] -- always three

    bind: Any = interface_option(name)
    bind(Recording(socket.AF_INET))
    bind(Recording(socket.AF_INET6))
    # netinet/in.h and netinet6/in6.h of macOS
    assert asked == [(0, 25, index), (41, 125, index)]
