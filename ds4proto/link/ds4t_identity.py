"""Who a rank is: the words of the DS4T hello that both ranks must have equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ds4proto.errors import WrongUsage
from ds4proto.link.ds4t_rules import Rules, Transport, rules_of
from ds4proto.link.ds4t_texts import TpRole
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.ds4t_hello import HELLO, ROLE_CODES
from ds4proto.schema.registry import to_bytes

VALUE = 4
"""Bytes of one f32."""
TOP2_BIT = 1 << 5
"""GREEDY_TOP2 in runtime_features."""
_EXPERT_SHIFT, _EXPERT_BITS = 8, 0xFF
_FEATURES = next(f for f in HELLO.body.fields if f.path == "runtime_features")
_SWITCHES = tuple(
    flag for flag in _FEATURES.flags if not flag.name.startswith("FIRST_EXPERT")
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The hello words that are compared (DS4T-HELLO-05, DS4T-HELLO-30).

    Attributes
    ----------
    gguf_bytes : int
        Size of the main GGUF file.
    model_id : int
        0 V4 Flash, 1 V4 Pro, 2 GLM 5.2, 3 GLM 5.3 Flash, 4 V4.1 Flash.
    n_layer : int
        Executed layers.
    n_embd, n_vocab : int
        Values of one vector; tokens.
    quant_bits : int
        4 where the routed experts are Q4_K, else 2.
    gate_slot_start, gate_slot_step, gates_per_token : int
        The gate schedule, used where the mask is all zero.
    gate_slot_mask : tuple of int
        Three 64-bit words; bit b of word w is slot 64 * w + b. v9 and later.
    runtime_features : int
        v9w only; 0 elsewhere.
    """

    gguf_bytes: int
    model_id: int
    n_layer: int
    n_embd: int
    n_vocab: int
    quant_bits: int
    gate_slot_start: int = 0
    gate_slot_step: int = 1
    gates_per_token: int = 0
    gate_slot_mask: tuple[int, int, int] = (0, 0, 0)
    runtime_features: int = 0

    @property
    def vector_bytes(self) -> int:
        """Bytes of one row of a gate."""
        return VALUE * self.n_embd

    def words(self) -> dict[str, int]:
        """Return the compared words by wire name, mask words apart."""
        found = {
            name: getattr(self, name)
            for name in self.__slots__
            if name != "gate_slot_mask"
        }
        found.update(
            (f"gate_slot_mask{i}", w) for i, w in enumerate(self.gate_slot_mask)
        )
        return found

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Identity:
        """Return the identity that a parsed hello carries; absent words are 0."""
        mask = tuple(fields.get(f"gate_slot_mask{i}", 0) for i in range(3))
        plain = {
            name: fields.get(name, 0)
            for name in cls.__slots__
            if name != "gate_slot_mask"
        }
        return cls(**plain, gate_slot_mask=(mask[0], mask[1], mask[2]))

    def mask_fault(self) -> tuple[int, int, int] | None:
        """Return (bits, gates, slots) of an invalid mask, None for a sound one.

        A mask with any bit set has ``gates_per_token`` bits, all below
        ``2 * n_layer`` (DS4T-HELLO-06).
        """
        bits = sum(word.bit_count() for word in self.gate_slot_mask)
        slots = 2 * self.n_layer
        whole = sum(w << 64 * i for i, w in enumerate(self.gate_slot_mask))
        if bits and (bits != self.gates_per_token or whole >> slots):
            return bits, self.gates_per_token, slots
        return None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One word in which two hellos differ."""

    field: str
    mine: int
    theirs: int
    text: str


def all_mismatches(mine: Identity, theirs: Identity) -> tuple[Mismatch, ...]:
    """Return every compared word in which two ranks differ, not only the first.

    A hello check stops at its first failure and prints six words; this names all
    of them, the feature word by its switches.
    """
    found = []
    other = theirs.words()
    for name, value in mine.words().items():
        if value != other[name]:
            found.append(Mismatch(name, value, other[name], _say(name, value, other)))
    return tuple(found)


def _say(name: str, value: int, other: Mapping[str, int]) -> str:
    if name == "runtime_features":
        return feature_difference(value, other[name])
    form = "{:#x}" if name.startswith("gate_slot_mask") else "{}"
    return f"{name}: here {form.format(value)}, peer {form.format(other[name])}"


def feature_names(word: int) -> tuple[str, ...]:
    """Return the switches of a feature word; unknown ones as ``unknown bit n``."""
    names = [flag.name for flag in _SWITCHES if word & flag.value]
    expert = word >> _EXPERT_SHIFT & _EXPERT_BITS
    if expert:
        names.append(f"FIRST_EXPERT={expert}")
    known = _EXPERT_BITS << _EXPERT_SHIFT
    for flag in _SWITCHES:
        known |= flag.value
    rest = word & ~known
    names += [f"unknown bit {b}" for b in range(rest.bit_length()) if rest >> b & 1]
    return tuple(names)


def feature_difference(mine: int, theirs: int) -> str:
    """Return which switches only one of two feature words has."""
    here, there = set(feature_names(mine)), set(feature_names(theirs))
    parts = []
    for label, names in (("here", here - there), ("peer", there - here)):
        parts.append(f"only {label}: {', '.join(sorted(names)) or 'none'}")
    return f"runtime_features: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class TpSettings:
    """What one rank was started with; every machine of a pair takes it.

    Attributes
    ----------
    role : {"tp-leader", "tp-worker"}
    identity : Identity
    dialect : str
        A dialect that is spoken live, see ``ds4t_rules.RULES``.
    vocabulary_split : bool
        Each rank computes half of the logits; decided by model family and back end.
    ctx_size : int
        The leader's context; a worker announces 0.
    transport : {"auto", "tcp", "rdma"}
    rdma_device : bool
        The verbs probe of this rank found a device.

    Raises
    ------
    WrongUsage
        For a dialect that is not spoken, RDMA where it is spoken over TCP alone,
        an odd vocabulary that is to be split (DS4T-LOGITS-04), or a shape that
        makes no sense.
    """

    role: TpRole
    identity: Identity
    dialect: str = "v14"
    vocabulary_split: bool = True
    ctx_size: int = 0
    transport: Transport = "auto"
    rdma_device: bool = False

    def __post_init__(self) -> None:
        try:
            rules = rules_of(self.dialect)
        except KeyError as error:
            raise WrongUsage(str(error.args[0])) from None
        if self.transport == "rdma" and not rules.rdma_live:
            raise WrongUsage(f"dialect {self.dialect} is spoken over TCP alone here")
        shape = self.identity
        if min(shape.n_layer, shape.n_embd, shape.n_vocab) < 1:
            raise WrongUsage(
                f"an identity needs layers, a width and a vocabulary, found {shape}"
            )
        sent = {spec.path for spec in HELLO.fixed(self.dialect)}
        for name, value in shape.words().items():
            if value and name not in sent:
                raise WrongUsage(
                    f"the hello of dialect {self.dialect} has no {name}, and this "
                    f"rank needs {value:#x} in it"
                )
        if self.vocabulary_split and shape.n_vocab % 2:
            raise WrongUsage(
                f"n_vocab {shape.n_vocab} is odd, and its logits are to be split in "
                "halves (DS4T-LOGITS-04); pad the vocabulary or choose a back end "
                "whose leader computes the whole head"
            )

    @property
    def rules(self) -> Rules:
        """The rules of the dialect."""
        return rules_of(self.dialect)

    @property
    def version(self) -> int:
        """The version word."""
        version = find_dialect(self.dialect).version
        if version is None:  # pragma: no cover - every DS4T dialect has one
            raise LookupError(f"dialect {self.dialect} has no version number")
        return version

    @property
    def rank(self) -> int:
        """0 for the leader, 1 for the worker."""
        return 0 if self.role == "tp-leader" else 1

    @property
    def top2(self) -> bool:
        """LOGITS_TOP2 stands in for LOGITS (DS4T-TOP2-02)."""
        return bool(self.rules.features and self.identity.runtime_features & TOP2_BIT)

    @property
    def logits_bytes(self) -> int:
        """Bytes of one LOGITS payload (DS4T-LOGITS-01)."""
        return self.identity.n_vocab // 2 * VALUE

    @property
    def rdma_ok(self) -> bool:
        """What the hello says: a device was found and tcp was not asked for."""
        asked = self.transport != "tcp" and self.rules.rdma_live
        return self.rdma_device and asked

    def hello(self) -> bytes:
        """Return this rank's hello, in the size of its dialect."""
        values: dict[str, Any] = {
            **self.identity.words(),
            "version": self.version,
            "role": ROLE_CODES[self.role],
            "rdma_ok": int(self.rdma_ok),
            "ctx_size": self.ctx_size if self.role == "tp-leader" else 0,
        }
        return to_bytes(HELLO, values, dialect=self.dialect)
