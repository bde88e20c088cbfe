"""RDMA on one machine: ready, or one of four reasons why not, each with its next step.

``no library``, ``no device``, ``port down`` and ``no usable GID`` need different hands;
the choice of device and GID is that of a rank (`ds4proto.link.rdma_choice`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Literal

import msgspec

from ds4proto.link.rdma_choice import (
    Choice,
    Device,
    NoChoice,
    choose_linux,
    choose_macos,
    entry_in_subnet,
    gid_of_address,
    no_library,
)
from ds4proto.link.rdma_lint import lint_gid, lint_link_layer
from ds4proto.preflight.facts import Interface

__all__ = ["RdmaReport", "judge_rdma"]


class RdmaReport(msgspec.Struct, frozen=True):
    """What preflight says about RDMA on a machine.

    Attributes
    ----------
    verdict : str
        ``ready``, ``no library``, ``no device``, ``port down``, ``no usable GID``,
        ``switched off`` or ``no hardware``.
    prints : str
        What a rank prints; empty where it is ready.
    next_step : str
    device : str
    gid : str
        The chosen entry: index, address, type.
    table : tuple of str
        Every entry of every port.
    advice : tuple of str
        What works now and fails later.
    """

    verdict: str
    prints: str = ""
    next_step: str = ""
    device: str = ""
    gid: str = ""
    table: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether a rank would announce RDMA (a device was found)."""
        return self.verdict not in ("no library", "no device", "no hardware",
                                    "switched off")  # fmt: skip


def judge_rdma(
    system: Literal["linux", "macos", ""],
    *,
    library: bool,
    devices: Sequence[Device],
    address: str = "",
    peer: str = "",
    enabled: bool | None = None,
    generation: int | None = None,
    interfaces: Sequence[Interface] = (),
    name: str | None = None,
    gid_index: int | None = None,
) -> RdmaReport:
    """Judge what the tools said.

    Parameters
    ----------
    library : bool
        The verbs library, or its tool, is there.
    devices : sequence of Device
    address, peer : str
        Own and the peer's address on the control connection.
    enabled : bool, optional
        What ``rdma_ctl status`` says, on macOS.
    generation : int, optional
        Of Thunderbolt, on macOS: below 5 there is no RDMA in the hardware.
    interfaces : sequence of Interface
        To name a bridge as the cause of missing addresses.
    name, gid_index
        ``--rdma-device`` and ``--rdma-gid-index``.
    """
    table = tuple(
        f"{device.name} ({device.state}): {entry}"
        for device in devices
        for entry in device.gids
    )
    if not devices and generation is not None and generation < 5:
        return RdmaReport(
            "no hardware",
            no_library(()).text,
            f"this hardware has no RDMA (Thunderbolt {generation}): use --transport "
            "tcp",
        )
    if system == "macos" and enabled is False and not devices:
        return RdmaReport(
            "switched off",
            no_library(()).text,
            "switch RDMA on with rdma_ctl enable in recovery mode and restart, or use "
            "--transport tcp",
        )
    if not library:
        refused = no_library(("libibverbs",) if system != "macos" else ("librdma",))
        return RdmaReport(refused.verdict, refused.text, refused.next_step)
    if system == "macos":
        choice = choose_macos(devices, name=name, gid_index=gid_index)
    else:
        choice = choose_linux(devices, address, name=name, gid_index=gid_index)
    if isinstance(choice, NoChoice):
        step = _bridged(choice, devices, interfaces) or choice.next_step
        return RdmaReport(choice.verdict, choice.text, step, table=table)
    advice = [str(one) for one in lint_gid(choice) + lint_link_layer(choice.device)]
    advice += _other_subnet(choice, peer)
    return RdmaReport(
        "ready", device=choice.device.name, gid=str(choice.entry), table=table,
        advice=tuple(advice),
    )  # fmt: skip


def _bridged(
    choice: NoChoice, devices: Sequence[Device], interfaces: Sequence[Interface]
) -> str:
    """Name the bridge that has the addresses which the ports lack."""
    if choice.verdict != "no usable GID":
        return ""
    ports = {device.name.removeprefix("rdma_") for device in devices}
    for one in interfaces:
        held = sorted(ports & set(one.members))
        if one.kind == "bridge" and held and one.addresses:
            return (
                f"{', '.join(held)} is a member of {one.name}, and the address "
                f"{one.addresses[0]} sits on the bridge alone: take it out of the "
                "bridge and give the interface itself an IPv4 address"
            )
    return ""


def _other_subnet(choice: Choice, peer: str) -> list[str]:
    theirs = gid_of_address(peer) if peer else None
    if theirs is None or ipaddress.ip_address(peer.partition("%")[0]).is_loopback:
        return []
    better = entry_in_subnet(choice.device, theirs)
    if better is None or better.index == choice.entry.index:
        return []
    return [
        f"{choice.entry} is not in the peer's network ({peer}). Next: "
        f"--rdma-gid-index {better.index} ({better})"
    ]
