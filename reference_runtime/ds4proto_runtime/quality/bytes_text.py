"""A tokenizer for models without one: a byte is a token."""

from __future__ import annotations

from collections.abc import Sequence


class ByteText:
    """Bytes as tokens, for generated models with a vocabulary of 256."""

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of bytes; what is no text becomes a mark."""
        return bytes(ids).decode("utf-8", "replace")
