"""The RDMA vectors: every row holds for our code, and fails where a rule is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from ds4proto_runtime.transport import choosing

from ds4proto.link import (
    ds4t_rdma_bulk,
    ds4t_rdma_windows,
    rdma_attributes,
    rdma_choice,
)
from ds4proto.rule_vectors import Row, load
from tests.spec import runs_rdma
from tests.spec.runs_ds4t import Fault, assert_all_broken
from tests.spec.runs_rdma import RUNS

ROWS = [(name, row) for name in RUNS for row in load(name).rows]


@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_a_row_holds(name: str, row: Row) -> None:
    RUNS[name](row, load(name).base)


def changed(module: Any, name: str, value: Any) -> Fault:
    return lambda: patch.object(module, name, value)


def attribute(**changes: Any) -> Fault:
    """Queue pairs with another attribute."""
    own = rdma_attributes.attributes_for
    return lambda: patch.object(
        runs_rdma,
        "attributes_for",
        lambda *words, **more: replace(own(*words, **more), **changes),
    )


def choosing_linux(change: Callable[..., Any]) -> Fault:
    own = rdma_choice.choose_linux
    return lambda: patch.object(
        choosing, "choose_linux", lambda *words, **more: change(own, *words, **more)
    )


def choosing_macos(change: Callable[..., Any]) -> Fault:
    own = rdma_choice.choose_macos
    return lambda: patch.object(
        choosing, "choose_macos", lambda *words, **more: change(own, *words, **more)
    )


def _first_device(own: Any, devices: Any, *rest: Any, **words: Any) -> Any:
    return own(devices[:1], *rest, **words)


def _nameless(own: Any, devices: Any, *rest: Any, **words: Any) -> Any:
    return own(devices, *rest, **{**words, "name": None})


def _indexless(own: Any, devices: Any, *rest: Any, **words: Any) -> Any:
    return own(devices, *rest, **{**words, "gid_index": None})


def _by_any_address(own: Any, devices: Any, control: str, **words: Any) -> Any:
    del control
    return own(devices, "203.0.113.9", **words)


def _one_text(own: Any, *rest: Any, **words: Any) -> Any:
    found = own(*rest, **words)
    if isinstance(found, rdma_choice.NoChoice):
        return replace(found, text="tp rdma: no", verdict="no device")
    return found


def _guess(own: Any, devices: Any, *rest: Any, **words: Any) -> Any:
    found = own(devices, *rest, **words)
    if isinstance(found, rdma_choice.NoChoice) and len(devices) > 1:
        return own(devices[:1], *rest, **words)
    return found


FAULTS: dict[str, dict[str, Fault]] = {
    "rdma-devices": {
        "the first device alone": choosing_macos(_first_device),
        "names do nothing": choosing_macos(_nameless),
        "names do nothing on Linux": choosing_linux(_nameless),
        "indexes do nothing": choosing_macos(_indexless),
        "indexes do nothing on Linux": choosing_linux(_indexless),
        "any address": choosing_linux(_by_any_address),
        "one text for all": choosing_linux(_one_text),
        "one text for all on macOS": choosing_macos(_one_text),
        "guessing": choosing_linux(_guess),
        "any table entry": changed(rdma_choice, "MAX_INDEX", 1 << 20),
        "no library is no device": changed(
            choosing, "no_library",
            lambda _: rdma_choice._no_device(None, ()),
        ),
    },
    "rdma-attributes": {
        "always UC": attribute(qp_type="UC"),
        "always RC": attribute(qp_type="RC"),
        "a small queue": attribute(cq_entries=64, max_sge=4, depths=((64, 64),)),
        "far routes": attribute(hop_limit=255),
        "other timers": attribute(min_rnr_timer=0, timeout=20, retry_cnt=7),
        "few signals": attribute(signal_all=False),
        "all signals": attribute(signal_all=True),
        "the larger MTU": changed(
            rdma_attributes.QpAttributes, "path_mtu", lambda _, mine, _theirs: mine
        ),
    },
    "rdma-messages": {
        "pieces of 4096": changed(
            ds4t_rdma_windows, "pieces",
            lambda at, size, _, own=ds4t_rdma_windows.pieces: own(at, size, 4096),
        ),
        "any vector": changed(choosing, "MAX_VECTOR", 1 << 20),
        "bulk always": changed(
            ds4t_rdma_bulk, "bulk_over_rdma", lambda _: True
        ),
        "windows of one size": attribute(bulk_window=16, bulk_message=16384),
        "barriers go on": changed(ds4t_rdma_bulk, "_BYTE", 1 << 16),
        "another text": changed(ds4t_rdma_windows, "text_of", lambda *_: "no"),
        "slabs of any size": changed(
            ds4t_rdma_bulk, "slab_region",
            lambda settings, name, own=ds4t_rdma_windows.slab_region: replace(
                own(settings, name), size=1 << 30
            ),
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_every_clause_of_a_family_is_broken_by_a_planted_fault(name: str) -> None:
    assert_all_broken(name, RUNS[name], FAULTS[name])
