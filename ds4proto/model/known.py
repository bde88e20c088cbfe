"""Models that ds4 knows, declared once, each with where the figures come from.

Shapes and labels are what the protocols carry or compare: the HELLO of DS4D, the hello
of DS4T, the gate schedule, and the layout of saved sessions. The architecture names are
those of public GGUF conversions; a match on shape alone is called a hypothesis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Backend = Literal["cuda", "metal", "rocm", "cpu"]
ALL_BACKENDS: Final[frozenset[Backend]] = frozenset({"cuda", "metal", "rocm", "cpu"})
MASK_WORDS: Final = 3
"""64-bit words of a gate slot mask (DS4T hello)."""


@dataclass(frozen=True, slots=True)
class GateSchedule:
    """Which row gates one decoded token fires; slot = 2 * layer + gate (0 ATTN, 1 FFN).

    Attributes
    ----------
    start, step : int
        First slot and distance, used where `mask` is all zero.
    gates_per_token : int
        Row gates of one token.
    mask : tuple of int
        Three 64-bit words, bit b of word w = slot 64*w + b; all zero = not used.
    """

    start: int
    step: int
    gates_per_token: int
    mask: tuple[int, int, int] = (0, 0, 0)

    def slots(self) -> tuple[int, ...]:
        """Return the slots of one token in firing order."""
        if any(self.mask):
            bits = ((w, b) for w in range(MASK_WORDS) for b in range(64))
            return tuple(64 * w + b for w, b in bits if self.mask[w] >> b & 1)
        return tuple(self.start + k * self.step for k in range(self.gates_per_token))


def slot_mask(slots: Iterable[int]) -> tuple[int, int, int]:
    """Return the mask words with exactly `slots` set; a slot must be below 192."""
    words = [0] * MASK_WORDS
    for slot in slots:
        words[slot // 64] |= 1 << slot % 64
    return (words[0], words[1], words[2])


@dataclass(frozen=True, slots=True)
class SavedShape:
    """Words of a saved session (DSV4, DSVL) that the model decides.

    Attributes
    ----------
    head_dim, indexer_head_dim : int
        The two dimension words; GLM 5.2 puts key and value dimension there.
    raw_window : int or None
        Attention window in raw rows; None where it is the cache's capacity.
    first_ratios : tuple of int
        Compression ratios of the first layers.
    even_ratio, odd_ratio : int
        Ratios of the layers after them, by layer number; 0 = not compressed.
    """

    head_dim: int
    indexer_head_dim: int
    raw_window: int | None
    first_ratios: tuple[int, ...] = ()
    even_ratio: int = 0
    odd_ratio: int = 0

    def ratio(self, layer: int) -> int:
        """Return the compression ratio of `layer`, 0 = not compressed."""
        if layer < len(self.first_ratios):
            return self.first_ratios[layer]
        return self.odd_ratio if layer % 2 else self.even_ratio


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model as the two protocols know it.

    Attributes
    ----------
    model_id : int
        Number in both hellos.
    name : str
        Name in the DS4D HELLO, compared byte for byte.
    architectures : tuple of str
        ``general.architecture`` of files of this model.
    layers : int
        Executed layers (prediction blocks left out).
    prediction_layers : int
        Next-token-prediction blocks that GGUF files add after them.
    width : int
        Values per stream (n_embd).
    streams : int
        Residual streams; ``width * streams`` values a token cross a hop.
    vocabulary, experts : int
    gates : GateSchedule
    gates_streaming : GateSchedule or None
        Where weights that stream from disk use another schedule.
    split_on : frozenset of str
        Backends on which the output head is split between the ranks.
    saved : SavedShape or None
    in_ds4d : bool
        Whether the DS4D text lists it (name and number measured or read there).
    evidence : str
    """

    model_id: int
    name: str
    architectures: tuple[str, ...]
    layers: int
    prediction_layers: int
    width: int
    streams: int
    vocabulary: int
    experts: int
    gates: GateSchedule
    split_on: frozenset[Backend]
    in_ds4d: bool
    evidence: str
    gates_streaming: GateSchedule | None = None
    saved: SavedShape | None = None

    @property
    def hidden_values(self) -> int:
        """Float values per token in a hidden state."""
        return self.width * self.streams


def _glm53_slots() -> list[int]:
    """FFN slot of layers 3..44, ATTN slot of every fourth (the rest are recurrent)."""
    slots = [2 * layer + 1 for layer in range(3, 45)]
    slots += [2 * layer for layer in range(3, 45) if layer % 4 == 3]
    return sorted(slots)


_TABLES = "DS4D HELLO model table; DS4T model table"
_FILES = "architecture name and block counts from public GGUF conversions (hypothesis)"

V4_FLASH: Final = KnownModel(
    model_id=0,
    name="DeepSeek V4 Flash",
    architectures=("deepseek4",),
    layers=43,
    prediction_layers=0,
    width=4096,
    streams=4,
    vocabulary=129280,
    experts=256,
    gates=GateSchedule(0, 1, 86),
    split_on=ALL_BACKENDS,
    in_ds4d=True,
    saved=SavedShape(512, 128, 128, (0, 0), 4, 128),
    evidence=f"{_TABLES}; saved-session layout table; {_FILES}",
)
V4_PRO: Final = KnownModel(
    model_id=1,
    name="DeepSeek V4 Pro",
    architectures=("deepseek4",),
    layers=61,
    prediction_layers=0,
    width=7168,
    streams=4,
    vocabulary=129280,
    experts=384,
    gates=GateSchedule(0, 1, 122),
    split_on=ALL_BACKENDS,
    in_ds4d=True,
    saved=SavedShape(512, 128, 128, (128, 128), 4, 128),
    evidence=f"{_TABLES}; saved-session layout table; {_FILES}",
)
GLM_52: Final = KnownModel(
    model_id=2,
    name="GLM 5.2",
    architectures=("glm-dsa",),
    layers=78,
    prediction_layers=1,
    width=6144,
    streams=1,
    vocabulary=154880,
    experts=256,
    gates=GateSchedule(6, 1, 150),
    gates_streaming=GateSchedule(7, 2, 75),
    split_on=frozenset(),
    in_ds4d=True,
    saved=SavedShape(256, 256, None),
    evidence=f"{_TABLES}; saved-session notes on GLM; {_FILES}",
)
GLM_53_FLASH: Final = KnownModel(
    model_id=3,
    name="GLM 5.3 Flash",
    architectures=("glm5next", "glm5-next"),
    layers=45,
    prediction_layers=1,
    width=4096,
    streams=4,
    vocabulary=154880,
    experts=288,
    gates=GateSchedule(6, 1, 53, slot_mask(_glm53_slots())),
    split_on=frozenset(),
    in_ds4d=False,
    evidence=f"DS4T model table (v14); streams and {_FILES}",
)
V41_FLASH: Final = KnownModel(
    model_id=4,
    name="DeepSeek V4.1 Flash",
    architectures=("deepseek41", "deepseek4"),
    layers=40,
    prediction_layers=3,
    width=5120,
    streams=4,
    vocabulary=129280,
    experts=384,
    gates=GateSchedule(0, 1, 80),
    split_on=frozenset({"cuda"}),
    in_ds4d=False,
    evidence=f"DS4T model table (v14); streams as its family, and {_FILES}",
)

KNOWN_MODELS: Final = (V4_FLASH, V4_PRO, GLM_52, GLM_53_FLASH, V41_FLASH)
"""In the order of their numbers."""

GLM_ARCHITECTURES: Final = frozenset(
    {*GLM_52.architectures, *GLM_53_FLASH.architectures}
)
"""Files of these count their prediction blocks in ``block_count``."""


def known_model(model_id: int) -> KnownModel | None:
    """Return the model with this number, None if there is none."""
    return next((m for m in KNOWN_MODELS if m.model_id == model_id), None)
