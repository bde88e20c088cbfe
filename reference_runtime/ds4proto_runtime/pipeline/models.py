"""From a model's name to an engine over some of its layers, and its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ds4proto.errors import WrongUsage
from ds4proto_runtime.engines.base import Engine

EngineName = Literal["toy", "decoder", "deepseek_v4"]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that is not loaded yet.

    Attributes
    ----------
    engine : {"toy", "decoder", "deepseek_v4"}
    path : Path or None
        GGUF file, or a configuration of DeepSeek V4; the toy model and the small
        DeepSeek V4 have none.
    n_layers : int
    has_output : bool
        Whether the file holds an output head (or an embedding that serves as one).
    """

    engine: EngineName
    path: Path | None
    n_layers: int
    has_output: bool = True


def choose(engine: str | None, model: str | None) -> ModelChoice:
    """Return the model that ``--engine`` and ``-m`` name; no weights are read.

    Raises
    ------
    WrongUsage
        A file is missing, or belongs to another engine.
    """
    if model is None:
        return _without_file(engine or "toy")
    from ds4proto.model import GgufError, model_facts

    path = Path(model)
    if path.suffix == ".json":
        return _deepseek(engine, path)
    try:
        facts = model_facts(path)
    except GgufError as error:
        raise WrongUsage(str(error)) from None
    deepseek = facts.architecture.startswith("deepseek")
    found: EngineName = "deepseek_v4" if deepseek else "decoder"
    if engine not in (None, found):
        raise WrongUsage(
            f"{path} is a {facts.architecture!r} model: use --engine {found}"
        )
    if deepseek:
        return _deepseek(engine, path)
    head = facts.has_output or facts.has_embedding
    return ModelChoice(found, path, facts.layers, head)


def _deepseek(engine: str | None, path: Path) -> ModelChoice:
    from ds4proto_runtime.engines.base import EngineError
    from ds4proto_runtime.engines.v4_weights import read_model

    if engine not in (None, "deepseek_v4"):
        raise WrongUsage(f"{path} is a configuration: use --engine deepseek_v4")
    try:
        config, _, head = read_model(path)
    except EngineError as error:
        raise WrongUsage(str(error)) from None
    except OSError as error:
        raise WrongUsage(f"{path}: {error.strerror or error}") from None
    return ModelChoice("deepseek_v4", path, config.num_hidden_layers, head)


def _without_file(engine: str) -> ModelChoice:
    if engine == "toy":
        from ds4proto_runtime.engines.toy import LAYERS

        return ModelChoice("toy", None, LAYERS)
    if engine == "deepseek_v4":
        from ds4proto_runtime.engines.v4_weights import tiny_config

        return ModelChoice("deepseek_v4", None, tiny_config().num_hidden_layers)
    raise WrongUsage(f"--engine {engine} needs a model: -m FILE.gguf")


def open_engine(
    choice: ModelChoice,
    layers: range,
    *,
    head: bool,
    ctx: int | None = None,
    device: str = "cpu",
) -> Engine:
    """Load the layers of a slice; weights of others are not read.

    Parameters
    ----------
    head : bool
        Whether to load the output head as well, where the model has one.
    """
    own_head = head and choice.has_output
    if choice.engine == "toy":
        from ds4proto_runtime.engines.toy import ToyEngine

        return ToyEngine(layers, ctx=ctx or 256, has_head=own_head)
    words: dict[str, Any] = {"has_head": own_head, "device": device}
    if ctx is not None:
        words["ctx"] = ctx
    if choice.engine == "decoder" and choice.path is not None:
        from ds4proto_runtime.engines.decoder import DecoderEngine

        return DecoderEngine(choice.path, layers, **words)
    from ds4proto_runtime.engines.deepseek_v4 import DeepseekV4Engine

    if choice.path is not None:
        return DeepseekV4Engine.from_file(choice.path, layers=layers, **words)
    from ds4proto_runtime.engines.v4_weights import tiny_config

    return DeepseekV4Engine(tiny_config(), layers, **words)


class NoTokenizer:
    """Text for a model without a tokenizer: token ids, or bytes as ids."""

    eos: int | None = None

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab

    def encode(self, words: str) -> list[int]:
        """Return ids of ``1,2,3``, else the bytes of the text."""
        parts = words.split(",")
        if all(part.strip().isdecimal() for part in parts):
            ids = [int(part) for part in parts]
        else:
            ids = list(words.encode("utf-8", "surrogateescape"))
        wrong = [token for token in ids if token >= self._vocab]
        if wrong:
            raise WrongUsage(
                f"token {wrong[0]} is outside the vocabulary of {self._vocab}"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the ids, as they may be given again."""
        return ",".join(map(str, ids))


def tokenizer_of(engine: Engine) -> Any:
    """Return the tokenizer of the engine's file, or one for ids and bytes."""
    weights = getattr(engine, "weights", None)
    if weights is None or "tokenizer.ggml.tokens" not in weights.metadata:
        return NoTokenizer(engine.shape.vocab)
    from ds4proto_runtime.engines.tokenizer import Tokenizer

    return Tokenizer(weights.metadata)
