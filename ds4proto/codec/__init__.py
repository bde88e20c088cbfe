"""What the payloads are: codecs between f32 and the bytes on the wire.

``get(name)`` returns a :class:`~ds4proto.codec.base.Codec`. The plain numpy
definition of each codec is the reference; compiled kernels (extra ``fast``) are
proven equal to it bit by bit. Importing this package loads neither numpy nor numba.
"""

from ds4proto.codec.base import PROFILES, Codec, CodecError
from ds4proto.codec.registry import get, names
from ds4proto.codec.token_hash import TokenHash
from ds4proto.codec.widths import ACTIVATION_BITS, activation_codec

__all__ = [
    "ACTIVATION_BITS",
    "PROFILES",
    "Codec",
    "CodecError",
    "TokenHash",
    "activation_codec",
    "get",
    "names",
]
