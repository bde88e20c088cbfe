"""The facts of this machine, from its own tools, each with a deadline."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ds4proto.model import GgufError
from ds4proto.preflight import parsers
from ds4proto.preflight.command import Command, parse_command
from ds4proto.preflight.facts import Interface, Machine, ModelFile, System
from ds4proto.preflight.rdma import RdmaReport, judge_rdma

__all__ = ["Gathered", "gather", "run_tool"]

_TOOL_S: Final = 10.0
_MOST_OUTPUT: Final = 1 << 20
_MOST_BINARY: Final = 1 << 30
Tool = Callable[[Sequence[str]], str | None]


def run_tool(argv: Sequence[str]) -> str | None:
    """Return what a tool prints, None where it is missing, fails or hangs."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_TOOL_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    output = done.stdout or done.stderr
    return output[:_MOST_OUTPUT].decode("utf-8", "replace")


class Gathered(msgspec.Struct):
    """What one machine tells about itself.

    Attributes
    ----------
    machine : Machine
    model : ModelFile or None
        Of the file behind ``-m``.
    rdma : RdmaReport
    missing : tuple of str
        What could not be found out, and why.
    time : float
        Its clock, seconds since the epoch.
    """

    machine: Machine
    model: ModelFile | None
    rdma: RdmaReport
    missing: tuple[str, ...] = ()
    time: float = 0.0


def gather(
    words: Sequence[str],
    *,
    name: str,
    peer: str = "",
    environment: Mapping[str, str] | None = None,
    tool: Tool = run_tool,
    system: System | None = None,
) -> Gathered:
    """Ask this machine.

    Parameters
    ----------
    words : sequence of str
        The ds4 command line that is meant to run here; it is read and not run.
    name : str
    peer : str
        Address of the other side, for the choice of a GID.
    environment : mapping, optional
        Where ``DS4_*`` variables are taken from; default: this process's.
    tool : callable
        Runs a tool and returns its output.
    system : {"linux", "macos", ""}, optional
        Default: this one.
    """
    env = os.environ if environment is None else environment
    command = parse_command(list(words))
    kind = _system() if system is None else system
    missing: list[str] = []
    interfaces = _interfaces(tool, kind, missing)
    values = parsers.parse_sysctl(
        tool(["sysctl", "hw.memsize", "iogpu.wired_limit_mb"]) or ""
        if kind == "macos" else ""
    )  # fmt: skip
    rdma = _rdma(tool, kind, command, peer, interfaces)
    gpus, gpu_limit = _nvidia(tool, kind)
    machine = Machine(
        name=name,
        command=tuple(words),
        env={key: env[key] for key in sorted(env) if key.startswith("DS4_")},
        system=kind,
        backend="cuda" if gpus else "",
        gpus=gpus,
        memory=_memory(values, missing),
        gpu_limit=gpu_limit,
        wired_limit_mb=_whole(values.get("iogpu.wired_limit_mb")),
        interfaces=interfaces,
        rdma=rdma.ready,
        build=_build(words, command, missing),
    )
    return Gathered(
        machine, _model(command, missing), rdma, tuple(missing), time.time()
    )


def _system() -> System:
    known: dict[str, System] = {"Darwin": "macos", "Linux": "linux"}
    return known.get(platform.system(), "")


def _whole(words: str | None) -> int | None:
    return int(words) if words is not None and words.isdecimal() else None


def _interfaces(
    tool: Tool, system: System, missing: list[str]
) -> tuple[Interface, ...]:
    text = tool(["ip", "addr"]) if system != "macos" else None
    if text is not None:
        return parsers.parse_ip_addr(text)
    text = tool(["ifconfig", "-a"])
    if text is not None:
        return parsers.parse_ifconfig(text)
    missing.append("interfaces: neither ip nor ifconfig is there")
    return ()


def _memory(values: Mapping[str, str], missing: list[str]) -> int | None:
    size = _whole(values.get("hw.memsize"))
    if size is not None:
        return size
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        missing.append("memory: the system does not tell it")
        return None


def _nvidia(tool: Tool, system: System) -> tuple[int | None, int | None]:
    if system == "macos":
        return None, None
    text = tool(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    )
    sizes = [int(line) for line in (text or "").split() if line.isdecimal()]
    return (len(sizes), min(sizes) << 20) if sizes else (None, None)


def _rdma(
    tool: Tool,
    system: System,
    command: Command,
    peer: str,
    interfaces: tuple[Interface, ...],
) -> RdmaReport:
    text = tool(["ibv_devinfo", "-v"])
    enabled = generation = None
    if system == "macos":
        enabled = parsers.parse_rdma_ctl(tool(["rdma_ctl", "status"]) or "")
        generation = parsers.thunderbolt_generation(
            tool(["system_profiler", "SPThunderboltDataType"]) or ""
        )
    own = command.listen or command.coordinator
    return judge_rdma(
        system,
        library=text is not None,
        devices=parsers.parse_ibv_devinfo(text or ""),
        address=own[0] if own and command.role == "coordinator" else "",
        peer=peer,
        enabled=enabled,
        generation=generation,
        interfaces=interfaces,
        name=command.rdma_device,
        gid_index=command.rdma_gid_index,
    )


def _build(words: Sequence[str], command: Command, missing: list[str]) -> str:
    """Return a digest of the program; it is read and not run."""
    path = next((w for w in words if Path(w).name == command.program), "")
    found = shutil.which(path) if path else None
    if found is None:
        if path:
            missing.append(f"build: {path} is not here, or not executable")
        return ""
    file = Path(found)
    if file.stat().st_size > _MOST_BINARY:
        return ""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return f"{command.program} {digest.hexdigest()[:12]}"


def _model(command: Command, missing: list[str]) -> ModelFile | None:
    if command.model is None:
        missing.append("model: the command names none (-m FILE)")
        return None
    try:
        return ModelFile.read(command.model)
    except (OSError, GgufError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        missing.append(f"model: {command.model}: {why}")
        return None
