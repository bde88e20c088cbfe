"""pyverbs behind the interface: loading it, GID tables that are odd; real waiting."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ds4proto_runtime.transport.options import NoRdmaError, RdmaOptions
from ds4proto_runtime.transport.provider import open_provider
from ds4proto_runtime.transport.pyverbs_base import raw_gid, read_gids
from ds4proto_runtime.transport.pyverbs_provider import PyverbsProvider
from ds4proto_runtime.transport.rdma import RdmaTransport
from ds4proto_runtime.transport.verbs import NoLibraryError
from ds4proto_runtime.transport.waits import RealClock

from tests.runtime.transport.rig import TOY, Rig

LOCAL = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:c000:0201"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


class GidError(Exception):
    error_code = 61


VERBS = SimpleNamespace(pyverbs_error=SimpleNamespace(PyverbsError=GidError))


class Table:
    """A context with a GID table that has holes, or no query for all of it."""

    def __init__(self, gids: dict[int, str], *, whole: bool, extended: bool) -> None:
        self._gids = gids
        self._whole = whole
        self._extended = extended

    def query_gid_table(self, length: int) -> list[Any]:
        if not self._whole:
            raise GidError("not supported")
        return [
            SimpleNamespace(gid_index=i, gid_type=2, gid_str=lambda g=g: g)
            for i, g in self._gids.items()
            if i < length
        ]

    def query_gid_ex(self, port: int, index: int) -> Any:
        assert port == 1
        if not self._extended or index not in self._gids:
            raise GidError("hole")
        return SimpleNamespace(gid_type=1, gid_str=self._gids[index])

    def query_gid(self, port: int, index: int) -> Any:
        assert port == 1
        if index > 5:
            raise GidError("past the table")
        return SimpleNamespace(gid=self._gids.get(index, ZERO))


def test_a_table_that_is_read_whole() -> None:
    table = Table({0: LOCAL, 3: MAPPED}, whole=True, extended=True)
    found = read_gids(table, VERBS, 1024)
    assert [(e.index, e.kind) for e in found] == [(0, "RoCE v2"), (3, "RoCE v2")]
    assert found[1].mapped
    assert str(found[1]) == "[3] 192.0.2.1 RoCE v2"


@pytest.mark.parametrize("extended", [True, False])
def test_a_table_with_holes_is_read_entry_by_entry(extended: bool) -> None:
    table = Table({2: MAPPED, 4: LOCAL}, whole=False, extended=extended)
    found = read_gids(table, VERBS, 8)
    assert [e.index for e in found] == [2, 4]
    assert {e.kind for e in found} == ({"RoCE v1"} if extended else {""})


def test_gids_come_as_text_or_objects() -> None:
    raw = bytes.fromhex(MAPPED.replace(":", ""))
    assert raw_gid(MAPPED) == raw_gid(lambda: MAPPED) == raw
    assert raw_gid(SimpleNamespace(gid=MAPPED)) == raw


def test_a_machine_without_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    with pytest.raises(NoLibraryError):
        PyverbsProvider().devices()
    with pytest.raises(NoRdmaError) as caught:
        open_provider(explicit=True, say=lambda _: None).probe(256)
    assert caught.value.choice.verdict == "no library"
    assert "libibverbs.so.1" in caught.value.choice.next_step
    said: list[str] = []
    assert not open_provider(say=said.append).probe(256)
    assert "using tcp" in said[0]


def test_other_systems_have_no_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoLibraryError, match="Linux alone"):
        PyverbsProvider().devices()


def test_the_transport_imports_neither_torch_nor_pyverbs() -> None:
    code = (
        "import sys; import ds4proto_runtime.transport.provider;"
        "import ds4proto_runtime.tp.leader, ds4proto_runtime.tp.worker;"
        "sys.exit(sum(n in sys.modules for n in ('torch', 'pyverbs')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=600)
    assert done.returncode == 0


def test_the_real_clock_naps_and_returns() -> None:
    clock = RealClock(spin=0.0)
    done = threading.Event()

    def steps() -> Any:
        while not done.is_set():
            yield clock.now() + 10.0
        return "over"

    timer = threading.Timer(0.01, done.set)
    timer.start()
    try:
        assert clock.run(steps()) == "over"
    finally:
        timer.join()


def test_the_gate_timeout_comes_from_the_option_the_link_or_the_dialect() -> None:
    rig = Rig(TOY)
    plain = RdmaTransport(rig.transports[0].provider)
    settings = rig.settings[0]
    assert plain.gate_seconds(settings) == 0.75
    assert plain.gate_seconds(Rig(TOY, "v7").settings[0]) == 300.0
    rig.up()
    assert plain.gate_seconds(settings, rig.links[0]) == 0.75
    quick = RdmaTransport(plain.provider, RdmaOptions(gate_seconds=0.2))
    assert quick.gate_seconds(settings, rig.links[0]) == 0.2
