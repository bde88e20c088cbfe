"""The public fixtures, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ds4proto.peer
from ds4proto.peer import Channel, Session, SocketChannel
from ds4proto.peer.session import PeerSession
from ds4proto.testing import (
    FakeClock,
    FixtureMissingError,
    capture_path,
    loopback_pair,
    vector_path,
)


def test_missing_fixtures_say_where_they_were_looked_for() -> None:
    for find in (capture_path, vector_path):
        with pytest.raises(FixtureMissingError) as caught:
            find("no/such.file")
        assert "looked at /" in str(caught.value)
        assert "Next:" in str(caught.value)


def test_parts_satisfy_the_protocols() -> None:
    clock = FakeClock()
    a, b = loopback_pair(clock=clock)
    proven: Channel = a
    assert isinstance(proven, Channel)
    made: type[Session] = PeerSession
    assert made is PeerSession
    assert SocketChannel.__doc__
    a.close()
    b.close()


def test_every_public_name_loads() -> None:
    for name in ds4proto.peer.__all__:
        assert getattr(ds4proto.peer, name) is not None
    with pytest.raises(AttributeError, match="nonesuch"):
        ds4proto.peer.nonesuch  # noqa: B018


def test_peer_and_model_import_no_heavy_package() -> None:
    code = (
        "import sys, ds4proto.peer, ds4proto.model, ds4proto.testing\n"
        "from ds4proto.peer import parse_peer, open_peer, spawn\n"
        "heavy = {'numpy', 'construct', 'torch', 'scapy', 'numba', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
