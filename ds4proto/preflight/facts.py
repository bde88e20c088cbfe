"""What is known of each machine: plain records, as a plan states or a probe finds them.

Everything may be absent. A check that lacks what it needs says nothing, or says that
it could not look; it never guesses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import msgspec

from ds4proto.errors import WrongUsage
from ds4proto.model import (
    GGML_TYPES,
    GgmlType,
    LayerFacts,
    ModelFacts,
    known_model,
    model_facts,
    read_gguf,
)
from ds4proto.preflight.command import Command, parse_command

__all__ = ["GIB", "Interface", "LinkFacts", "Machine", "ModelFile", "Plan", "RunFacts"]

GIB: Final = 1 << 30
Backend = Literal["cuda", "metal", "rocm", "cpu"]
System = Literal["linux", "macos", ""]


class ModelFile(msgspec.Struct, frozen=True):
    """One model file as its header describes it.

    Attributes
    ----------
    path : str
    facts : ModelFacts
    expert_bytes : dict
        Layer -> bytes of its routed experts; a tensor-parallel rank holds half.
    """

    path: str
    facts: ModelFacts
    expert_bytes: dict[int, int] = {}

    @staticmethod
    def read(path: str) -> ModelFile:
        """Read the header of a GGUF file; no weights are read.

        Raises
        ------
        GgufError, OSError
        """
        header = read_gguf(path)
        experts: dict[int, int] = {}
        for tensor in header.tensors.values():
            prefix, _, rest = tensor.name.partition(".")
            number, _, name = rest.partition(".")
            if prefix == "blk" and number.isdecimal() and "_exps" in name:
                index = int(number)
                experts[index] = experts.get(index, 0) + (tensor.nbytes or 0)
        return ModelFile(path, model_facts(header), experts)


def stated_model(
    name: str,
    *,
    model_id: int | None = None,
    label: str | None = None,
    n_layers: int | None = None,
    width: int | None = None,
    streams: int | None = None,
    vocabulary: int | None = None,
    gguf_bytes: int | None = None,
    layer_bytes: int = 0,
    expert_bytes: int = 0,
    other_bytes: int = 0,
    quant: str | None = "IQ2_XXS",
    layers: tuple[int, int] | None = None,
    output: bool = True,
    embedding: bool = True,
) -> ModelFile:
    """Return a model as a plan states it, for a file that is not at hand.

    Parameters
    ----------
    name : str
        Of the model in the plan, for texts.
    model_id : int, optional
        One of the models that ds4 numbers; the rest then follows from the table.
    label : str, optional
        The name in the hello.
    layer_bytes, expert_bytes, other_bytes : int
        Bytes of one layer, of its routed experts, and outside the layers.
    quant : str or None
        Type of the routed experts' gate tensor; None for a model without experts.
    layers : tuple of int, optional
        First and last layer in the file; all where absent.
    output, embedding : bool
        Whether the file holds the output head and the token embedding.

    Raises
    ------
    WrongUsage
        Where neither a number nor the shape is given.
    """
    known = None if model_id is None else known_model(model_id)
    if known is not None:
        n_layers = known.layers if n_layers is None else n_layers
        width = known.width if width is None else width
        streams = known.streams if streams is None else streams
        vocabulary = known.vocabulary if vocabulary is None else vocabulary
        label = known.name if label is None else label
    if not n_layers or not width or not vocabulary:
        raise WrongUsage(
            f"model {name}: give gguf = FILE, or id = N of a model that ds4 numbers, "
            "or n_layers, width and vocabulary"
        )
    first, last = layers or (0, n_layers - 1)
    gate = None if quant is None else ggml_type_named(quant)
    per_layer = {
        n: LayerFacts(n, layer_bytes, {quant or "F16": layer_bytes}, gate)
        for n in range(first, last + 1)
    }
    if known is not None and label != known.name:
        known = replace(known, name=label or known.name)
    facts = ModelFacts(
        architecture=known.architectures[0] if known else "", name=label or name,
        file_size=gguf_bytes, block_count=n_layers, prediction_layers=0,
        layers=n_layers, width=width, streams=streams or 1, heads=None, kv_heads=None,
        head_dim=None, value_dim=None, ffn_width=None, vocabulary=vocabulary,
        context=None, experts=known.experts if known else None, experts_used=None,
        experts_shared=None, expert_width=None, rope_base=None, rope_dims=None,
        norm_epsilon=None, layer_facts=per_layer, has_output=output,
        has_embedding=embedding, other_bytes=other_bytes, split=None, known=known,
        certainty="architecture and shape" if known else "unknown",
    )  # fmt: skip
    shares = {n: expert_bytes for n in per_layer} if expert_bytes else {}
    return ModelFile(name, facts, shares)


def ggml_type_named(name: str) -> GgmlType:
    """Return a tensor type by name, such as ``Q4_K``.

    Raises
    ------
    WrongUsage
        For a name that no type has.
    """
    for one in GGML_TYPES.values():
        if one.name == name:
            return one
    raise WrongUsage(f"no tensor type {name!r}: expected one such as Q4_K or IQ2_XXS")


class Interface(msgspec.Struct, frozen=True):
    """A network interface: name, ``address/prefix`` texts, and what it is.

    Attributes
    ----------
    kind : str
        ``ethernet``, ``thunderbolt``, ``bridge``, ``wifi``, ``loopback`` or empty.
    mtu : int
        Bytes, 0 where unknown.
    members : tuple of str
        Of a bridge.
    """

    name: str
    addresses: tuple[str, ...] = ()
    kind: str = ""
    mtu: int = 0
    up: bool = True
    members: tuple[str, ...] = ()


class Machine(msgspec.Struct, kw_only=True):
    """One process of the run, and the machine it runs on.

    Attributes
    ----------
    name : str
    command : tuple of str
        The ds4 command line.
    env : dict
        Variables of that process.
    model : str
        Which model of the plan it loads; empty takes the only one.
    system : {"linux", "macos", ""}
    backend : str
        ``metal``, ``cuda``, ``rocm``, ``cpu`` or empty.
    gpus : int or None
    memory, gpu_limit : int or None
        Bytes: of the machine, and that the GPU may use at most.
    wired_limit_mb : int or None
        ``iogpu.wired_limit_mb`` on macOS; 0 is the system's default.
    interfaces : tuple of Interface
    dialect : str
        DS4D dialect of the build.
    tp_dialect : str
        DS4T dialect of the build.
    build : str
        What the build says of itself.
    rdma : bool or None
        The verbs probe finds a device.
    features : tuple of str
        ``vision``, ``mtp``, ``dspark``, ``ssd-streaming``, beside the command's.
    prefill_speed, decode_speed : float or None
        Tokens a second of the whole model on this machine alone.
    prefill_cap : int or None
        Largest span that the engine takes at once, in tokens.
    clock : float or None
        Seconds that its clock is ahead of the first machine's.
    """

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    model: str = ""
    system: System = ""
    backend: str = ""
    gpus: int | None = None
    memory: int | None = None
    gpu_limit: int | None = None
    wired_limit_mb: int | None = None
    interfaces: tuple[Interface, ...] = ()
    dialect: str = ""
    tp_dialect: str = ""
    build: str = ""
    rdma: bool | None = None
    features: tuple[str, ...] = ()
    prefill_speed: float | None = None
    decode_speed: float | None = None
    prefill_cap: int | None = None
    clock: float | None = None

    def parsed(self) -> Command:
        """Return the command line, read."""
        return parse_command(self.command)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all interfaces, without prefix."""
        return tuple(a.partition("/")[0] for i in self.interfaces for a in i.addresses)


class LinkFacts(msgspec.Struct, frozen=True):
    """What is known of the link between two machines.

    Attributes
    ----------
    between : tuple of str
        Names of the machines.
    rtt_ms : float or None
        Round trip, median.
    gbit : float or None
        Throughput one way.
    mtu : int or None
    address : str
        The address that was measured.
    """

    between: tuple[str, str]
    rtt_ms: float | None = None
    gbit: float | None = None
    mtu: int | None = None
    rtt_p99_ms: float | None = None
    gbit_back: float | None = None
    gbit_both: float | None = None
    address: str = ""


class RunFacts(msgspec.Struct, frozen=True):
    """What the run is meant to do.

    Attributes
    ----------
    sessions : int
    prompt_tokens, answer_tokens : int
        0 where unknown.
    runtime_bytes : int
        Memory of the runtime beside weights and KV, an assumption.
    """

    sessions: int = 1
    prompt_tokens: int = 0
    answer_tokens: int = 0
    runtime_bytes: int = 2 * GIB


class Plan(msgspec.Struct):
    """Machines, models, links, and the run."""

    machines: tuple[Machine, ...]
    models: dict[str, ModelFile] = {}
    links: tuple[LinkFacts, ...] = ()
    run: RunFacts = RunFacts()
