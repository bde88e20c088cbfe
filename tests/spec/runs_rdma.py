"""What our own code makes of a row of the RDMA vectors: one function a family."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import pytest
from ds4proto_runtime.transport import choosing
from ds4proto_runtime.transport.options import NoRdmaError, RdmaOptions
from ds4proto_runtime.transport.rdma import RdmaTransport
from ds4proto_runtime.transport.sim import Fabric, SimDevice, SimProvider

from ds4proto.link import ds4t_rdma_bulk
from ds4proto.link.ds4t_identity import Identity, TpSettings
from ds4proto.link.ds4t_rdma_windows import DecodeWindow
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.link.rdma_attributes import ETHERNET, INFINIBAND, attributes_for
from ds4proto.link.rdma_choice import GidEntry, NoChoice
from ds4proto.link.rdma_lint import lint_attributes
from ds4proto.rule_vectors import Row

_LAYERS = {"Ethernet": ETHERNET, "InfiniBand": INFINIBAND}


def provider(row: Row) -> SimProvider:
    """The verbs library of a row."""
    fabric, found = Fabric(), []
    for one in row["devices"] or ():
        gids = [
            GidEntry(index, ipaddress.IPv6Address(address).packed, kind)
            for index, address, kind in one["gids"]
        ]
        device = SimDevice(
            fabric, one["name"], gids, one["state"], _LAYERS[one["link_layer"]]
        )
        device.table_length = one.get("table_length", 256)
        found.append(device)
    return SimProvider(found, row["system"], missing=row["devices"] is None)


def devices(row: Row, _: Mapping[str, Any]) -> None:
    """The choice, or the verdict and the text."""
    wish = RdmaOptions(
        "rdma",
        device=row.values.get("name"),
        gid_index=row.values.get("gid_index"),
    )
    found = choosing.choose(provider(row), wish, row["control"])
    if isinstance(found, NoChoice):
        shown: dict[str, Any] = {"verdict": found.verdict, "text": found.text}
    else:
        shown = {"device": found.device.name, "index": found.gid_index}
        if "score" in row.values:
            shown["score"] = found.score
    names = ("device", "index", "score", "verdict", "text")
    assert shown == {n: row[n] for n in names if n in row.values}


def attributes(row: Row, _: Mapping[str, Any]) -> None:
    """The attributes of a rank's queue pair."""
    found = attributes_for(row["dialect"], row["system"], device=row["device"])
    for name, value in row.values.items():
        if name == "mtu":
            mine, theirs, expected = value
            assert found.path_mtu(mine, theirs) == expected
        elif name == "depths":
            assert [list(pair) for pair in found.depths] == value
        elif name == "endless":
            assert (7 in (found.retry_cnt, found.rnr_retry)) == value
            told = [t for t in lint_attributes(found, 0.75) if "without end" in t.text]
            assert bool(told) == value
        elif name not in ("dialect", "system", "device"):
            assert getattr(found, name) == value


def messages(row: Row, _: Mapping[str, Any]) -> None:
    """Vectors, offers and windows."""
    values = row.values
    dialect = values.get("dialect", "v14")
    layers = values.get("n_layer", 8)
    shape = Identity(9, 0, layers, row["n_embd"], 32, 2, 0, 1, 2 * layers)
    settings = TpSettings("tp-leader", shape, dialect)
    found = attributes_for(dialect, "linux")
    if "vector" in values:
        window = DecodeWindow(settings, found)
        window.open(1)
        window.opened()
        assert [p.length for p in window.sends(0, 0, 1)] == row["vector"]
    if "offered" in values:
        gid = GidEntry(1, ipaddress.IPv6Address("::ffff:192.0.2.1").packed, "RoCE v2")
        library = SimProvider([SimDevice(Fabric(), "rxe0", [gid])])
        wish = RdmaOptions("auto")
        transport = RdmaTransport(library, wish, say=lambda _: None)
        assert transport.probe(4 * row["n_embd"]) is row["offered"]
    if "text" in values:
        with pytest.raises(LocalProtocolError) as caught:
            DecodeWindow(settings, found)
        assert str(caught.value) == row["text"]
        with pytest.raises(NoRdmaError) as refused:
            RdmaTransport(SimProvider(), RdmaOptions("rdma")).probe(4 * row["n_embd"])
        assert refused.value.choice.text == row["text"]
    if "bulk_rdma" in values:
        assert ds4t_rdma_bulk.bulk_over_rdma(settings) is row["bulk_rdma"]
    if "windows" in values:
        gate = ds4t_rdma_bulk.BulkGate(
            settings, found, row["payload"], granted=row["granted"],
            staged=row["staged"],
        )  # fmt: skip
        windows = list(gate.windows())
        assert [len(w.receives) for w in windows] == row["windows"]
        assert [len(w.sends) for w in windows] == row["windows"]
        assert windows[-1].sends[-1].length == row["last_message"]
        assert [w.barrier for w in windows] == row["barriers"]
        total = sum(p.length for w in windows for p in w.sends)
        assert total == row["payload"]


RUNS = {
    "rdma-devices": devices,
    "rdma-attributes": attributes,
    "rdma-messages": messages,
}
