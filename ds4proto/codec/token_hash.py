"""The 64-bit hash of a token prefix that both sides of DS4D keep (CODEC-HASH).

An FNV-1a walk over the four bytes of each token id, least significant first, from a
start value that lacks the last digit of the usual one. Not cryptographic.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ds4proto.codec.base import CodecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = Iterable[int] | NDArray[np.integer[Any]]

TOKEN_HASH_START: Final = 1469598103934665603
"""Hash of no tokens, 0x14650fb0739d0383."""
TOKEN_HASH_PRIME: Final = 1099511628211
"""0x100000001b3."""

_MASK: Final = (1 << 64) - 1
_TOKEN_LIMIT: Final = 1 << 32
_TWO_BYTES: Final = 1 << 16
_PRIME_CUBED: Final = TOKEN_HASH_PRIME**3 & _MASK
_KERNEL_FROM: Final = 4096  # token count that pays for the kernel's import
_ARRAY_FROM: Final = 128  # ids that pay for an array of them


class TokenHash:
    """Hash of a growing prefix; appending costs the same at any length.

    Parameters
    ----------
    tokens
        First tokens, if any.
    value, count
        State to go on from, as a peer reported it.
    """

    __slots__ = ("_count", "_value")

    def __init__(
        self, tokens: Tokens = (), *, value: int = TOKEN_HASH_START, count: int = 0
    ) -> None:
        if not 0 <= value <= _MASK:
            raise CodecError(
                "token_hash",
                "state",
                expected="an unsigned 64-bit value",
                found=str(value),
                next_step="join the two u32 fields as hi << 32 | lo",
            )
        self._value = value
        self._count = count
        self.update(tokens)

    @property
    def value(self) -> int:
        """The hash, 64 bits."""
        return self._value

    @property
    def words(self) -> tuple[int, int]:
        """The hash as the wire carries it: (hi, lo), u32 each."""
        return self._value >> 32, self._value & 0xFFFFFFFF

    @property
    def count(self) -> int:
        """Number of tokens hashed."""
        return self._count

    def append(self, token: int) -> int:
        """Add one token and return the new hash."""
        self.update((token,))
        return self._value

    def update(self, tokens: Tokens) -> int:
        """Add tokens in order and return the new hash.

        Raises
        ------
        CodecError
            A token that is no integer of 32 unsigned bits; the state is unchanged.
        """
        if type(tokens).__module__ == "numpy":
            self._value, added = _hash_array(self._value, tokens)
        else:
            tokens = tokens if isinstance(tokens, list | tuple) else list(tokens)
            self._value, added = _hash_list(self._value, tokens), len(tokens)
        self._count += added
        return self._value

    def copy(self) -> TokenHash:
        """Return an independent hash in the same state."""
        return TokenHash(value=self._value, count=self._count)

    def __repr__(self) -> str:
        return f"TokenHash(value=0x{self._value:016x}, count={self._count})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenHash):
            return NotImplemented
        return (self._value, self._count) == (other._value, other._count)

    __hash__ = None  # type: ignore[assignment]  # unhashable


def token_hash(tokens: Tokens, start: int = TOKEN_HASH_START) -> int:
    """Return the hash of ``tokens``, going on from ``start``.

    Examples
    --------
    >>> hex(token_hash([5, 6]))
    '0xe50e5a67cb19c4e0'
    """
    return TokenHash(tokens, value=start).value


def _hash_list(state: int, tokens: list[int] | tuple[int, ...]) -> int:
    """Hash many ids with the kernel where it is loaded anyway, else one by one."""
    if len(tokens) >= _ARRAY_FROM and "numba" in sys.modules:
        import numpy as np

        with contextlib.suppress(CodecError, OverflowError, ValueError, TypeError):
            array = np.asarray(tokens)
            if array.dtype.kind == "i" and array.ndim == 1:
                return _hash_array(state, array)[0]
    return _hash_ints(state, tokens)  # which names what is wrong


def _hash_ints(state: int, tokens: list[int] | tuple[int, ...]) -> int:
    prime, mask = TOKEN_HASH_PRIME, _MASK
    for index, token in enumerate(tokens):
        if token.__class__ is int and 0 <= token < _TWO_BYTES:
            # Two zero bytes change nothing, and masking may wait to the end.
            low = (state ^ (token & 0xFF)) * prime
            state = ((low ^ (token >> 8)) * _PRIME_CUBED) & mask
            continue
        try:
            valid = 0 <= token < _TOKEN_LIMIT and token == int(token)
        except TypeError:
            valid = False
        if not valid:
            raise _bad_token(index, token)
        word = int(token)  # a numpy scalar would overflow below
        state = ((state ^ (word & 0xFF)) * prime) & mask
        state = ((state ^ (word >> 8 & 0xFF)) * prime) & mask
        state = ((state ^ (word >> 16 & 0xFF)) * prime) & mask
        state = ((state ^ (word >> 24)) * prime) & mask
    return state


def _hash_array(state: int, tokens: Any) -> tuple[int, int]:
    """Hash a numpy array of any integer type and shape; also numpy scalars."""
    import numpy as np

    flat = np.atleast_1d(np.asarray(tokens)).reshape(-1)
    if flat.dtype.kind not in "iu":
        raise CodecError(
            "token_hash",
            "token array dtype",
            expected="an integer type",
            found=str(flat.dtype),
            next_step="pass token ids, not embeddings or text",
        )
    wrong = np.flatnonzero((flat < 0) | (flat >= _TOKEN_LIMIT))
    if wrong.size:
        index = int(wrong[0])
        raise _bad_token(index, int(flat[index]))
    from ds4proto.codec import kernels

    worth_it = flat.size >= _KERNEL_FROM or "numba" in sys.modules
    if worth_it and kernels.available("token_hash"):
        from ds4proto.codec.kernels.token_hash import update

        words = np.ascontiguousarray(flat, dtype=np.uint32)
        state = int(update(np.uint64(state), words, np.uint64(TOKEN_HASH_PRIME)))
        return state, flat.size
    return _hash_ints(state, flat.tolist()), flat.size


def _bad_token(index: int, token: object) -> CodecError:
    return CodecError(
        "token_hash",
        f"token {index}",
        expected="an integer of 0 to 4294967295",
        found=repr(token),
        next_step="token ids are u32 on the wire",
    )
