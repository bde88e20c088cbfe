"""``cluster.toml``: machines, models and links of a run, read strictly.

A key that is not known is an error with the nearest known one: a misspelt limit must
not pass as no limit.
"""

from __future__ import annotations

import difflib
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto.preflight import MOST_SESSIONS
from ds4proto.preflight.facts import (
    GIB,
    Interface,
    LinkFacts,
    Machine,
    ModelFile,
    Plan,
    RunFacts,
    stated_model,
)
from ds4proto.preflight.options_ds4d import layer_range

__all__ = ["read_plan"]

_MOST_BYTES: Final = 1 << 20
_MOST_MACHINES: Final = 64
_TOP: Final = ("run", "model", "machine", "link")
_RUN: Final = ("sessions", "prompt_tokens", "answer_tokens", "runtime_gib")
_MODEL: Final = (
    "gguf", "id", "label", "n_layers", "width", "streams", "vocabulary", "gguf_bytes",
    "layer_gib", "expert_gib", "other_gib", "quant", "layers", "output", "embedding",
)  # fmt: skip
_MACHINE: Final = (
    "name", "command", "env", "model", "system", "backend", "gpus", "memory_gib",
    "gpu_limit_gib", "wired_limit_mb", "addresses", "interface", "dialect",
    "tp_dialect", "build", "rdma", "features", "prefill_speed", "decode_speed",
    "prefill_cap", "clock",
)  # fmt: skip
_INTERFACE: Final = ("name", "addresses", "kind", "mtu", "up", "members")
_LINK: Final = ("between", "rtt_ms", "gbit", "mtu")
_SYSTEMS: Final = ("linux", "macos")
_BACKENDS: Final = ("cuda", "metal", "rocm", "cpu")


class _Table:
    """One table of the file, with its place for error texts."""

    def __init__(
        self, values: Any, where: str, known: tuple[str, ...] | None = None
    ) -> None:
        if not isinstance(values, Mapping):
            raise WrongUsage(f"{where}: expected a table, found {values!r}")
        self.values = values
        self.where = where
        for key in values:
            if known is not None and key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise WrongUsage(
                    f"{where}: unknown key {key!r}{hint} Known: {', '.join(known)}"
                )

    def _get(self, key: str, kinds: tuple[type, ...], what: str) -> Any:
        value = self.values.get(key)
        if value is None:
            return None
        plain = isinstance(value, kinds)
        if not plain or (isinstance(value, bool) and bool not in kinds):
            raise WrongUsage(f"{self.where}.{key}: expected {what}, found {value!r}")
        return value

    def text(self, key: str, choices: tuple[str, ...] = ()) -> str:
        value = self._get(key, (str,), "text") or ""
        if choices and value and value not in choices:
            raise WrongUsage(
                f"{self.where}.{key}: expected one of {', '.join(choices)}, "
                f"found {value!r}"
            )
        return str(value)

    def whole(self, key: str, low: int = 0, high: int | None = None) -> int | None:
        value = self._get(key, (int,), "a whole number")
        most = (1 << 63) - 1 if high is None else high
        if value is not None and not low <= value <= most:
            due = f"{low} or more" if high is None else f"{low} to {high}"
            raise WrongUsage(f"{self.where}.{key}: expected {due}, found {value}")
        return None if value is None else int(value)

    def real(self, key: str, *, signed: bool = False) -> float | None:
        value = self._get(key, (int, float), "a number")
        if value is None:
            return None
        number = float(value)
        if not abs(number) <= 1e15 or (number < 0 and not signed):  # NaN, too
            raise WrongUsage(f"{self.where}.{key}: expected 0 or more, found {value}")
        return number

    def gib(self, key: str) -> int | None:
        value = self.real(key)
        return None if value is None else int(value * GIB)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, (bool,), "true or false")
        return default if value is None else bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._get(key, (list,), "a list of texts") or []
        for value in values:
            if not isinstance(value, str):
                raise WrongUsage(f"{self.where}.{key}: expected texts, found {value!r}")
        return tuple(values)

    def tables(self, key: str, known: tuple[str, ...]) -> list[_Table]:
        values = self._get(key, (list,), f"[[{key}]] tables") or []
        if len(values) > _MOST_MACHINES:
            raise WrongUsage(f"{self.where}.{key}: more than {_MOST_MACHINES} tables")
        return [
            _Table(value, f"{key} {number}", known)
            for number, value in enumerate(values, 1)
        ]


def read_plan(path: str | Path) -> Plan:
    """Read a plan; headers of the GGUF files it names are read as well.

    Raises
    ------
    WrongUsage
        With the table and the key that is wrong.
    OSError, ds4proto.model.GgufError
        Where a file cannot be read.
    """
    source = Path(path)
    with source.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise WrongUsage(f"{path}: a plan is at most {_MOST_BYTES} bytes")
    try:
        values = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{path}: no sound TOML: {error}") from None
    try:
        return _plan(values, source.parent)
    except WrongUsage as error:
        raise WrongUsage(f"{path}: {error}") from None


def _plan(values: Mapping[str, Any], folder: Path) -> Plan:
    top = _Table(values, "the plan", _TOP)
    models = {
        name: _model(name, value, folder)
        for name, value in _Table(values.get("model", {}), "model").values.items()
    }
    machines = tuple(_machine(one) for one in top.tables("machine", _MACHINE))
    if not machines:
        raise WrongUsage(
            "no [[machine]]: a plan needs at least one, with name and command; "
            "docs/preflight.md has an example"
        )
    _check_names(machines, models)
    names = {machine.name for machine in machines}
    links = tuple(_link(one, names) for one in top.tables("link", _LINK))
    return Plan(machines, models, links, _run(values.get("run", {})))


def _check_names(machines: tuple[Machine, ...], models: Mapping[str, Any]) -> None:
    seen = set()
    for machine in machines:
        if machine.name in seen:
            raise WrongUsage(f"two machines are named {machine.name!r}")
        seen.add(machine.name)
        if machine.model and machine.model not in models:
            known = ", ".join(models) or "none"
            raise WrongUsage(
                f"machine {machine.name}: no [model.{machine.model}]; known: {known}"
            )
        if not machine.model and len(models) > 1:
            raise WrongUsage(
                f"machine {machine.name}: say which model: {', '.join(models)}"
            )


def _run(values: Any) -> RunFacts:
    table = _Table(values, "run", _RUN)
    runtime = table.gib("runtime_gib")
    default = RunFacts()
    return RunFacts(
        sessions=table.whole("sessions", 1, MOST_SESSIONS) or 1,
        prompt_tokens=table.whole("prompt_tokens") or 0,
        answer_tokens=table.whole("answer_tokens") or 0,
        runtime_bytes=default.runtime_bytes if runtime is None else runtime,
    )


def _model(name: str, values: Any, folder: Path) -> ModelFile:
    table = _Table(values, f"model.{name}", _MODEL)
    gguf = table.text("gguf")
    if gguf:
        others = sorted(set(values) - {"gguf"})
        if others:
            raise WrongUsage(
                f"model.{name}: gguf says it all; leave out {', '.join(others)}"
            )
        try:
            return ModelFile.read(str(folder / gguf))
        except FileNotFoundError:
            raise WrongUsage(
                f"model.{name}.gguf: there is no file {str(folder / gguf)!r}. Next: "
                "correct the path, or state the model instead: id or n_layers, width "
                "and vocabulary; gguf_bytes, layer_gib, expert_gib, other_gib, quant"
            ) from None
    part = table.text("layers")
    layers = None
    if part:
        found = layer_range(part)
        layers = (found.start, found.start if found.end is None else found.end)
    quant = table.text("quant") if "quant" in values else "IQ2_XXS"
    return stated_model(
        name,
        model_id=table.whole("id"),
        label=table.text("label") or None,
        n_layers=table.whole("n_layers", 1),
        width=table.whole("width", 1),
        streams=table.whole("streams", 1),
        vocabulary=table.whole("vocabulary", 1),
        gguf_bytes=table.whole("gguf_bytes"),
        layer_bytes=table.gib("layer_gib") or 0,
        expert_bytes=table.gib("expert_gib") or 0,
        other_bytes=table.gib("other_gib") or 0,
        quant=quant or None,
        layers=layers,
        output=table.flag("output", True),
        embedding=table.flag("embedding", True),
    )


def _machine(table: _Table) -> Machine:
    name = table.text("name")
    if not name:
        raise WrongUsage(f"{table.where}: give it a name")
    table.where = f"machine {name}"
    command = table.values.get("command", "")
    if isinstance(command, str):
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise WrongUsage(f"{table.where}.command: {error}") from None
    else:
        words = table.texts("command")
    env = _Table(table.values.get("env", {}), f"{table.where}.env").values
    return Machine(
        name=name,
        command=words,
        env={str(key): str(value) for key, value in env.items()},
        model=table.text("model"),
        system=table.text("system", _SYSTEMS),  # type: ignore[arg-type]  # one of them
        backend=table.text("backend", _BACKENDS),
        gpus=table.whole("gpus"),
        memory=table.gib("memory_gib"),
        gpu_limit=table.gib("gpu_limit_gib"),
        wired_limit_mb=table.whole("wired_limit_mb"),
        interfaces=_interfaces(table),
        dialect=table.text("dialect"),
        tp_dialect=table.text("tp_dialect"),
        build=table.text("build"),
        rdma=table.flag("rdma", False) if "rdma" in table.values else None,
        features=table.texts("features"),
        prefill_speed=table.real("prefill_speed"),
        decode_speed=table.real("decode_speed"),
        prefill_cap=table.whole("prefill_cap", 1),
        clock=table.real("clock", signed=True),
    )


def _interfaces(table: _Table) -> tuple[Interface, ...]:
    found = [
        Interface(
            name=one.text("name") or "?",
            addresses=one.texts("addresses"),
            kind=one.text("kind"),
            mtu=one.whole("mtu") or 0,
            up=one.flag("up", True),
            members=one.texts("members"),
        )
        for one in table.tables("interface", _INTERFACE)
    ]
    loose = table.texts("addresses")
    if loose:
        found.append(Interface("?", loose))
    return tuple(found)


def _link(table: _Table, names: set[str]) -> LinkFacts:
    ends = table.texts("between")
    if len(ends) != 2 or not set(ends) <= names or ends[0] == ends[1]:
        raise WrongUsage(
            f"{table.where}.between: expected two of {', '.join(sorted(names))}, "
            f"found {list(ends)}"
        )
    return LinkFacts(
        (ends[0], ends[1]),
        rtt_ms=table.real("rtt_ms"),
        gbit=table.real("gbit"),
        mtu=table.whole("mtu"),
    )
