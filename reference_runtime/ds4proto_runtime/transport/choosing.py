"""Device and GID of a rank: asks a provider, applies the rules, says what it chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ds4proto.link.ds4t_texts import text_of
from ds4proto.link.rdma_attributes import INFINIBAND, MAX_VECTOR, MESSAGE
from ds4proto.link.rdma_choice import (
    Choice,
    Device,
    NoChoice,
    changed_entry,
    choose_linux,
    choose_macos,
    entry_in_subnet,
    no_library,
    same_subnet,
)
from ds4proto.link.rdma_lint import lint_gid, lint_link_layer
from ds4proto_runtime.transport.options import NoRdmaError, RdmaOptions
from ds4proto_runtime.transport.verbs import NoLibraryError, Provider, VerbsError

Say = Callable[[str], None]
NATIVE = "native InfiniBand: this transport needs RoCE or Thunderbolt"


def list_devices(provider: Provider) -> tuple[Device, ...] | NoChoice:
    """Return the devices, or why there are none to list."""
    try:
        return provider.devices()
    except NoLibraryError as error:
        return no_library(error.tried)
    except VerbsError as error:
        return NoChoice(
            "no device",
            text_of("DS4T-RDMA-31"),
            f"the verbs library says: {error.reason}; load the driver of the adapter, "
            "or start with --transport tcp",
            "DS4T-RDMA-31",
        )


def choose(
    provider: Provider, options: RdmaOptions, control_address: str | None
) -> Choice | NoChoice:
    """Choose device and GID index by the rules of the provider's system.

    Parameters
    ----------
    control_address : str or None
        Local address of the control connection; None before there is one: then the
        answer only tells whether anything can be chosen at all.
    """
    devices = list_devices(provider)
    if isinstance(devices, NoChoice):
        return devices
    native = _native(devices, options.device)
    if native is not None:
        return native
    if provider.system == "macos":
        return choose_macos(devices, name=options.device, gid_index=options.gid_index)
    if options.gid_index is None:
        devices = tuple(map(_routed, devices))
    found = choose_linux(
        devices,
        control_address or "",
        name=options.device,
        gid_index=options.gid_index,
    )
    if isinstance(found, NoChoice) and found.verdict == "no usable GID":
        bare = [d.name for d in devices if d.state == "ACTIVE" and not d.gids]
        if bare and options.device in (None, *bare):
            step = f"give the interface of {', '.join(bare)} an IPv4 address"
            found = replace(found, next_step=f"{found.next_step}; {step}")
    if isinstance(found, NoChoice) and control_address is None:
        for device in devices:  # several may do: which one is settled by the address
            one = choose_linux([device], "", gid_index=options.gid_index)
            if isinstance(one, Choice) and options.device in (None, device.name):
                return one
    return found


def _routed(device: Device) -> Device:
    """Leave link-local entries out: they exist on every port and lead nowhere."""
    return replace(device, gids=tuple(e for e in device.gids if not e.link_local))


def _native(devices: tuple[Device, ...], name: str | None) -> NoChoice | None:
    """Refuse native InfiniBand in words of its own: an address would not help."""
    asked = [d for d in devices if name in (None, d.name) and d.state == "ACTIVE"]
    if not asked or any(d.link_layer != INFINIBAND for d in asked):
        return None
    shown = ", ".join(f"{d.name} lid {d.lid}" for d in asked)
    return NoChoice(
        "no usable GID",
        f"tp rdma: {NATIVE}",
        f"{shown}: use an Ethernet port, or IP over InfiniBand with --transport tcp",
        "DS4T-RDMA-33",
    )


def check_vector(nbytes: int) -> NoChoice | None:
    """Refuse gate vectors that RDMA does not carry (DS4T-RDMA-02)."""
    if nbytes <= MAX_VECTOR:
        return None
    return NoChoice(
        "no device",
        text_of("DS4T-RDMA-03", nbytes, MESSAGE),
        "nothing to set: this model runs with --transport tcp",
        "DS4T-RDMA-02",
    )


def require(
    provider: Provider,
    options: RdmaOptions,
    control_address: str,
    before: Choice | None,
    say: Say,
) -> Choice:
    """Return the choice, or fail closed; tell what changed since the last set-up.

    Raises
    ------
    NoRdmaError
    """
    found = choose(provider, options, control_address)
    if isinstance(found, NoChoice):
        raise NoRdmaError(found)
    if before is not None and before.device.name == found.device.name:
        change = changed_entry(before, found.device)
        if change:
            say(
                f"ds4-tp: GID changed from {before.entry} to {found.entry}: {change}; "
                "the table was read anew"
            )
    if before is None:
        say(f"ds4-tp: rdma device {found.device.name}, GID {found.entry}")
        for advice in (*lint_gid(found), *lint_link_layer(found.device)):
            say(f"ds4-tp: note: {advice}")
    return found


def subnet_advice(choice: Choice, theirs: bytes, prefix: int = 24) -> str:
    """Return a warning where the chosen GID is not in the peer's subnet, else ""."""
    mine = choice.entry
    if not mine.mapped or same_subnet(mine.gid, theirs, prefix):
        return ""
    peer = ".".join(map(str, theirs[12:16]))
    text = f"the chosen GID {mine} is not in the subnet of the peer ({peer}/{prefix})"
    better = entry_in_subnet(choice.device, theirs, prefix)
    if better is not None:
        text += f"; index {better.index} ({better}) is: --rdma-gid-index {better.index}"
    return text
