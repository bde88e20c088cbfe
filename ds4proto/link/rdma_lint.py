"""Advice about RDMA settings that work now and fail later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds4proto.link.rdma_attributes import (
    ETHERNET,
    INFINIBAND,
    MAX_VECTOR,
    MTU_BYTES,
    RNR_MILLISECONDS,
    QpAttributes,
)
from ds4proto.link.rdma_choice import Choice, Device

Topic = Literal["gid", "link layer", "attributes", "vector"]
_HARD_CODED_INDEX = 1
_MANY_RETRIES = 7


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding: what it is about, what was seen, what to do."""

    topic: Topic
    text: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.text}. Next: {self.next_step}"


def lint_gid(choice: Choice) -> list[Advice]:
    """Return advice about the chosen GID."""
    found = []
    entry = choice.entry
    if entry.mapped and entry.index != _HARD_CODED_INDEX:
        other = choice.device.entry(_HARD_CODED_INDEX)
        found.append(
            Advice(
                "gid",
                f"{choice.device.name}: the IPv4-mapped GID is {entry}, not index 1 "
                f"(which holds {other or 'nothing'}); software that hard-codes index "
                "1 for its address handle would advertise one entry and route from "
                "another, and on UC lose every message in silence",
                "give RTR the same index as the GID that was announced, or reorder "
                "the interface's addresses so that the IPv4 one comes first",
            )
        )
    if entry.link_local:
        found.append(
            Advice(
                "gid",
                f"{choice.device.name}: {entry} is link-local and exists on every port",
                "select an address of the direct link with --rdma-gid-index",
            )
        )
    twins = [
        e for e in choice.device.gids if e.gid == entry.gid and e.index != entry.index
    ]
    if twins and entry.kind != "RoCE v2":
        kind = entry.kind or "of an unknown kind"
        others = ", ".join(map(str, twins))
        found.append(
            Advice(
                "gid",
                f"{choice.device.name}: index {entry.index} is {kind}, and {others} "
                "has its address too",
                "RoCE v1 is not routed: take the entry that says RoCE v2",
            )
        )
    return found


def lint_link_layer(device: Device) -> list[Advice]:
    """Return advice about the kind of link."""
    if device.link_layer == INFINIBAND:
        return [
            Advice(
                "link layer",
                f"{device.name} is native InfiniBand: upstream on Linux takes "
                "Ethernet ports alone, and addresses go by lid, not by GID",
                "use an Ethernet (RoCE v2) port, or IP over InfiniBand with "
                "--transport tcp",
            )
        ]
    if device.link_layer != ETHERNET:
        return [
            Advice(
                "link layer",
                f"{device.name} reports link layer {device.link_layer}",
                "1 is InfiniBand, 2 Ethernet; a driver that says neither is not "
                "chosen on Linux",
            )
        ]
    return []


def lint_attributes(attributes: QpAttributes, gate_seconds: float) -> list[Advice]:
    """Return advice about queue pair attributes, RC alone.

    Parameters
    ----------
    attributes : QpAttributes
    gate_seconds : float
        The gate timeout that errors have to beat.
    """
    if attributes.qp_type != "RC":
        return []
    found = []
    if attributes.min_rnr_timer == 0:
        found.append(
            Advice(
                "attributes",
                f"min_rnr_timer 0 stands for {RNR_MILLISECONDS[0]:g} ms, the longest "
                "wait, not for none: one late receive costs most of a gate timeout",
                "use 12 (0.64 ms), as ds4 does",
            )
        )
    retries = (attributes.retry_cnt, attributes.rnr_retry)
    if _MANY_RETRIES in retries:
        found.append(
            Advice(
                "attributes",
                f"retry_cnt {retries[0]}, rnr_retry {retries[1]}: 7 repeats without "
                "end on soft-RoCE (and for rnr_retry everywhere), so that a lost link "
                "never ends in an error",
                "use 3 for both where a lost link has to be found",
            )
        )
    wait = 4.096e-6 * 2**attributes.timeout * (attributes.retry_cnt + 1)
    if attributes.timeout == 0 or wait > gate_seconds:
        span = "without limit" if attributes.timeout == 0 else f"up to {wait:.2f} s"
        found.append(
            Advice(
                "attributes",
                f"timeout {attributes.timeout} with retry_cnt {attributes.retry_cnt} "
                f"waits {span}, longer than the gate timeout of {gate_seconds:g} s",
                "lower one of them, or the gate fails before the queue pair says why",
            )
        )
    return found


def lint_vector(n_embd: int, device: Device) -> list[Advice]:
    """Return advice about the size of a gate vector."""
    size = 4 * n_embd
    if size > MAX_VECTOR:
        return [
            Advice(
                "vector",
                f"a gate vector of {size} bytes exceeds {MAX_VECTOR}: ranks report "
                "rdma_ok 0 and use TCP",
                "nothing to set; this model runs over TCP",
            )
        ]
    mtu = MTU_BYTES.get(device.active_mtu, 0)
    if mtu and mtu < 1024:
        return [
            Advice(
                "vector",
                f"{device.name} has an active MTU of {mtu}, and UC uses 1024 always",
                "raise the interface MTU to 1500 or more",
            )
        ]
    return []
