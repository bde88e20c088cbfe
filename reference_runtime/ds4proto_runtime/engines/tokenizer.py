"""The tokenizer that a GGUF file carries, built with the ``tokenizers`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ds4proto_runtime.engines.base import EngineError

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class ReadsText(Protocol):
    """What a study or a run needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""


class Tokenizer:
    """Byte-level BPE of a GGUF file.

    Raises
    ------
    EngineError
        For a tokenizer model other than ``gpt2``.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Built

        kind = metadata.get("tokenizer.ggml.model")
        if kind != "gpt2":
            raise EngineError(
                f"tokenizer model {kind!r} is not supported; the engine reads 'gpt2'"
            )
        words = list(metadata["tokenizer.ggml.tokens"])
        merges = [
            tuple(line.split(" ", 1)) for line in metadata["tokenizer.ggml.merges"]
        ]
        ids = {word: index for index, word in enumerate(words)}
        built = Built(models.BPE(vocab=ids, merges=merges))
        pre = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if pre == "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            built.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
        elif pre.startswith("qwen"):
            split = pre_tokenizers.Split(Regex(_QWEN), "isolated")
            plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            built.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
        else:
            built.pre_tokenizer = level
        built.decoder = decoders.ByteLevel()
        types = metadata.get("tokenizer.ggml.token_type", ())
        special = [
            AddedToken(word, special=True, normalized=False)
            for word, sort in zip(words, types, strict=False)
            if sort == 3
        ]
        built.add_special_tokens(special)
        self._built = built
        self.eos = metadata.get("tokenizer.ggml.eos_token_id")
        self.bos = metadata.get("tokenizer.ggml.bos_token_id")
        self._add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", False))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids = list(self._built.encode(text, add_special_tokens=False).ids)
        return [self.bos, *ids] if self._add_bos and self.bos is not None else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return str(self._built.decode(list(ids), skip_special_tokens=False))
