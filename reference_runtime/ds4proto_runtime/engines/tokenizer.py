"""The tokenizer that a GGUF file carries, built with the ``tokenizers`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from ds4proto_runtime.engines.base import EngineError

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PLAIN: Final = frozenset({"gpt-2", "gpt2", "default"})
_DIGITS: Final = {"qwen2": "", "llama-bpe": "{1,3}", "llama3": "{1,3}"}
"""Digits that stand together in a word, by how a file wants its text cut up."""


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
        For a tokenizer model other than ``gpt2``, or a way to cut up text that is not
        known: it would run and give other ids.
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
        pre = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
        whole = pre in ("llama-bpe", "llama3")  # a word of the vocabulary stays whole
        built = Built(models.BPE(vocab=ids, merges=merges, ignore_merges=whole))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if pre == "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            built.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
        elif pre in _DIGITS:
            words_of = Regex(_WORDS.format(digits=_DIGITS[pre]))
            split = pre_tokenizers.Split(words_of, "isolated")
            plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            built.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
        elif pre in _PLAIN:
            built.pre_tokenizer = level
        else:
            known = ", ".join(sorted({*_PLAIN, *_DIGITS, "smollm"}))
            raise EngineError(
                f"tokenizer.ggml.pre is {pre!r}; this engine cuts up text for {known}"
            )
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
