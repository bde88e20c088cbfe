"""A plan made ready for the rules: commands read, slices resolved, roles sorted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ds4proto.link.ds4d_facts import ModelFacts as LinkModel
from ds4proto.link.ds4d_facts import WorkerFacts
from ds4proto.link.ds4t_identity import Identity
from ds4proto.model import ds4d_hello_identity, ds4t_identity
from ds4proto.model.known import Backend
from ds4proto.preflight.command import Command
from ds4proto.preflight.facts import Machine, ModelFile, Plan

__all__ = ["DEFAULT_CTX", "Case", "Member", "make_case"]

DEFAULT_CTX: Final = 32768
"""Context used for estimates where no command states one; an assumption."""
_NOBODY: Final = (1 << 32) - 1
_BACKENDS: Final[Mapping[str, Backend]] = {
    "cuda": "cuda",
    "metal": "metal",
    "rocm": "rocm",
    "cpu": "cpu",
}


@dataclass(slots=True)
class Member:
    """One process: its machine, its command, its model and its slice.

    Attributes
    ----------
    layers : tuple of int or None
        First and last layer, resolved and inside the model; None where the command
        states none, or leaves the model.
    """

    machine: Machine
    command: Command
    model: ModelFile | None
    layers: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """Name of the machine."""
        return self.machine.name

    @property
    def env(self) -> dict[str, str]:
        """Variables of the machine and of the command line."""
        return {**self.machine.env, **self.command.env}

    @property
    def features(self) -> set[str]:
        """What is switched on."""
        return set(self.machine.features) | self.command.features

    @property
    def backend(self) -> Backend | None:
        """Where the model runs; Metal on macOS unless said otherwise."""
        word = self.command.backend or self.machine.backend
        if not word and self.machine.system == "macos":
            return "metal"
        return _BACKENDS.get(word)

    @property
    def head(self) -> bool:
        """Whether the command asks for the output head."""
        return self.command.layers is not None and self.command.layers.output

    def hello(self) -> dict[str, object] | None:
        """Return the HELLO that a worker with this command would send."""
        if self.model is None or self.command.layers is None:
            return None
        facts = self.model.facts
        asked = self.command.layers
        first, last = asked.start, asked.last(facts.layers)
        label = 0
        identity_id, name = _NOBODY, facts.name
        if 0 <= first <= last < facts.layers:
            identity = ds4d_hello_identity(facts, first, last)
            label, name = identity.quant_bits, identity.model_name
            if identity.model_id is not None:
                identity_id = identity.model_id
        ctx = self.command.ctx or 0
        shared = LinkModel(
            identity_id, name, facts.layers, facts.hidden_values,
            facts.vocabulary or 0, ctx,
        )  # fmt: skip
        port = self.command.listen[1] if self.command.listen else 1
        worker = WorkerFacts(shared, first, last, self.head, quant_bits=label)
        return dict(worker.hello(port))

    def identity(self) -> Identity | None:
        """Return the DS4T hello that this rank would announce."""
        if self.model is None:
            return None
        streaming = "ssd-streaming" in self.features
        found = ds4t_identity(
            self.model.facts, backend=self.backend, streaming=streaming
        )
        return Identity(
            gguf_bytes=found.gguf_bytes or 0,
            model_id=_NOBODY if found.model_id is None else found.model_id,
            n_layer=found.n_layer,
            n_embd=found.n_embd,
            n_vocab=found.n_vocab,
            quant_bits=found.quant_bits,
            gate_slot_start=found.gates.start,
            gate_slot_step=found.gates.step,
            gates_per_token=found.gates.gates_per_token,
            gate_slot_mask=found.gates.mask,
        )

    def splits_vocabulary(self) -> bool | None:
        """Whether the worker sends half of the logits; None where not known."""
        if self.model is None:
            return None
        return ds4t_identity(self.model.facts, backend=self.backend).vocabulary_split


@dataclass(slots=True)
class Case:
    """Everything the rules look at.

    Attributes
    ----------
    mode : str
        ``pipeline``, ``tensor-parallel``, ``mixed`` or ``none``.
    coordinators, workers : list of Member
        Leaders and ranks 1 of a tensor-parallel pair as well.
    """

    plan: Plan
    members: list[Member]
    mode: str
    coordinators: list[Member]
    workers: list[Member]

    @property
    def leader(self) -> Member | None:
        """The one coordinator, None where there is none or more than one."""
        return self.coordinators[0] if len(self.coordinators) == 1 else None

    @property
    def ctx(self) -> int:
        """Context for estimates."""
        leader = self.coordinators[0].command.ctx if self.coordinators else None
        return leader or DEFAULT_CTX


def make_case(plan: Plan) -> Case:
    """Read the commands of a plan and sort its members."""
    members = []
    for machine in plan.machines:
        command = machine.parsed()
        model = plan.models.get(machine.model)
        if model is None and not machine.model and len(plan.models) == 1:
            model = next(iter(plan.models.values()))
        member = Member(machine, command, model)
        asked = command.layers
        if model is not None and asked is not None:
            n_layers = model.facts.layers
            first, last = asked.start, asked.last(n_layers)
            if first <= last < n_layers:
                member.layers = (first, last)
        members.append(member)
    parallel = {m.command.tensor_parallel for m in members if m.command.program}
    mode = "none"
    if parallel == {True}:
        mode = "tensor-parallel"
    elif parallel == {False}:
        mode = "pipeline"
    elif parallel:
        mode = "mixed"
    return Case(
        plan,
        members,
        mode,
        [m for m in members if m.command.role == "coordinator"],
        [m for m in members if m.command.role == "worker"],
    )
