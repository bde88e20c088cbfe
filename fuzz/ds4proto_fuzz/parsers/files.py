"""Files of others: saved sessions, KV shards, and the headers of GGUF models.

Invariants: a file is read, or refused with the documented error; the same whatever
kind of buffer or stream it comes from, a stream that gives single bytes included; a
sound file that is cut anywhere is sound no more; nothing is allocated from a number
that the file merely claims.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO, Final, cast

from ds4proto.link.ds4d_facts import ModelFacts as LinkFacts
from ds4proto.link.ds4d_shards import session_fault, shard_fault
from ds4proto.model.errors import GgufError
from ds4proto.model.facts import model_facts
from ds4proto.model.gguf import read_gguf
from ds4proto.model.header import GgufHeader
from ds4proto.model.identity import ds4d_hello_identity, ds4t_identity
from ds4proto.schema.container import container_spec, read_container, zero_tail
from ds4proto.schema.dsv4 import CONTAINERS, DSV4_FILE, Family
from ds4proto.schema.problem import SchemaError
from ds4proto.schema.registry import read, to_bytes
from ds4proto_fuzz.parsers.comparing import lasting
from ds4proto_fuzz.parsers.schemas import pool
from ds4proto_fuzz.parsers.target import Target, broken, same

__all__ = ["GGUF", "SAVED"]

# -- saved sessions and shards

RATIOS: Final = ((0, 0, 4, 128, 4, 128, 4, 128), (4,) * 64, (0,) * 300, ())
FAMILIES: Final[tuple[Family, ...]] = ("deepseek", "glm")
DIALECTS: Final = ("upstream", "xangel82")


def check_saved(data: bytes) -> None:
    """Take model and dialect from the first byte, the file from the rest."""
    if not data:
        return
    word, file = data[0], data[1:]
    ratios = RATIOS[word & 3]
    family = FAMILIES[word >> 2 & 1]
    dialect = DIALECTS[word >> 3 & 1]
    spec = container_spec(file) or CONTAINERS[word >> 4 & 1]
    reading = read(spec, file, dialect=dialect)
    exact = read(spec, file, dialect=dialect, reference=True)
    same("both readers agree", lasting(reading.values), lasting(exact.values))
    same("both readers agree", list(reading.problems), list(exact.problems))
    told = []
    for kind in (bytes, bytearray, memoryview):
        try:
            found = read_container(
                kind(file), ratios=ratios, family=family, dialect=dialect, spec=spec
            )
        except SchemaError as error:
            told.append(str(error))
            continue
        told.append(lasting((found.values, found.problems, found.zero_tail)))
        for tensor in found.tensors:
            if tensor.offset < 0 or tensor.nbytes < 0:
                broken("a tensor has a place", tensor=tensor)
    same("the same from any buffer", told[0], told[1])
    same("the same from any buffer", told[0], told[2])
    zeros = len(file) - len(file.rstrip(b"\0"))
    if zero_tail(file) != zeros:
        broken("zeros at the end are counted", due=zeros, found=zero_tail(file))
    if reading.whole:
        _judge(spec is DSV4_FILE, reading.values, ratios, family)
    if not reading.problems and "body_rest" not in reading.values:
        again = to_bytes(spec, reading.values, dialect=dialect)
        same("a sound file is written again", file, again)
    if isinstance(told[0], list) and not told[0][1] and len(file) > 1:
        cut = file[: len(file) * (1 + (word >> 5)) // 9]
        short = read_container(cut, ratios=ratios, family=family, dialect=dialect)
        if not short.problems:
            broken("a cut file is sound no more", whole=len(file), cut=len(cut))


def _judge(
    session: bool, values: dict[str, Any], ratios: tuple[int, ...], family: Family
) -> None:
    """Ask what a coordinator would say; any values must give an answer."""
    facts = LinkFacts(0, "x", values["n_layers"], 4, values.get("vocab", 1), 1 << 20)
    try:
        if session:
            session_fault(values, facts, ratios=ratios, family=family)
        else:
            layers = values["layer_start"], values["layer_end"]
            shard_fault(values, facts, layers, ratios=ratios, family=family)
    except SchemaError as error:
        if error.problem.clause != "FILE-DSV4-25":
            raise


def seeds_saved() -> Iterator[bytes]:
    """Yield sound files of both kinds and dialects, and one that has tensors."""
    for (spec, dialect), made in pool().items():
        if spec not in CONTAINERS:
            continue
        word = DIALECTS.index(dialect) << 3 if dialect in DIALECTS else 0
        for file in made:
            if len(file) < SAVED.most:
                yield bytes((word,)) + file
    values = {
        "version": 2, "ctx": 64, "prefill_cap": 4, "raw_cap": 4, "raw_window": 2,
        "comp_cap": 4, "token_count": 3, "n_layers": 2, "head_dim": 2,
        "indexer_head_dim": 1, "vocab": 9, "raw_live": 2, "tokens": (1, 2, 3),
        "logits": bytes(36), "n_comp": (0, 0), "n_index_comp": (0, 0),
        "tensors": bytes(range(1, 33)),
    }  # fmt: skip
    yield b"\0" + to_bytes(DSV4_FILE, values, dialect="upstream")


# -- models


class _Dripping:
    """A stream of unknown length that gives single bytes."""

    def __init__(self, data: bytes) -> None:
        self._from = BytesIO(data)

    def read(self, _size: int = -1) -> bytes:
        """Return the next byte, whatever was asked for."""
        return self._from.read(1)


def check_gguf(data: bytes) -> None:
    """Read a header from memory and from a stream that drips; derive its facts."""
    told: list[Any] = []
    header: GgufHeader | None = None
    partial = bool(len(data) & 1)
    drip = cast(BinaryIO, _Dripping(data))
    for source in (data, memoryview(data), BytesIO(data), drip):
        try:
            found = read_gguf(source, partial=partial, file_size=len(data))
        except GgufError as error:
            told.append((error.field, error.offset, error.expected, error.found))
            if not 0 <= error.offset <= len(data):
                broken("an error lies inside the file", error=str(error))
            continue
        header = found
        told.append(
            lasting(
                (
                    repr(found.metadata),
                    repr(found.tensors),
                    found.alignment,
                    found.data_offset,
                    found.missing,
                )
            )
        )
    for other in told[1:]:
        same("whole or byte by byte", told[0], other)
    if header is not None:
        _identify(header, len(data))


def _identify(header: GgufHeader, size: int) -> None:
    """Derive facts and identities; none may cost more than the file holds."""
    if header.data_offset > size + header.alignment:
        broken("the header lies inside the file", at=header.data_offset, size=size)
    facts = model_facts(header)
    last = facts.layers - 1
    if last >= 0:
        ds4d_hello_identity(facts, 0, last)
        ds4d_hello_identity(facts, last, last)
    try:
        ds4d_hello_identity(facts, 0, facts.layers)
    except ValueError:
        pass
    else:
        broken("a slice that leaves the model is refused", layers=facts.layers)
    for streaming in (False, True):
        ds4t_identity(facts, streaming=streaming)


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def seeds_gguf() -> Iterator[bytes]:
    """Yield small files: every kind of value, both orders, tensors, none at all."""
    words = [
        _text(b"general.architecture") + struct.pack("<I", 8) + _text(b"deepseek4"),
        _text(b"deepseek4.block_count") + struct.pack("<II", 4, 3),
        _text(b"deepseek4.embedding_length") + struct.pack("<II", 4, 4096),
        _text(b"general.alignment") + struct.pack("<II", 4, 32),
        _text(b"a.f") + struct.pack("<If", 6, 1.5),
        _text(b"a.b") + struct.pack("<IB", 7, 1),
        _text(b"a.q") + struct.pack("<IQ", 10, 1 << 40),
        _text(b"a.s") + struct.pack("<IIQ", 9, 8, 2) + _text(b"x") + _text(b"yz"),
        _text(b"a.n") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQII", 4, 2, 7, 8),
        _text(b"a.h") + struct.pack("<IIQ", 9, 0, 5) + b"hello",
    ]
    tensor = _text(b"blk.0.ffn_gate_exps.weight") + struct.pack(
        "<IQQIQ", 2, 32, 2, 8, 0
    )
    output = _text(b"output.weight") + struct.pack("<IQIQ", 1, 4, 0, 96)
    yield _gguf(words[:4], [tensor, output])
    yield _gguf(words[4:7], [])
    yield _gguf(words[7:], [output])
    yield _gguf(words, [tensor])
    yield _gguf([], [])
    yield (
        b"GGUF"
        + struct.pack(">IQQ", 3, 0, 1)
        + struct.pack(">Q", 1)
        + b"k"
        + (struct.pack(">II", 4, 9))
    )


def _gguf(words: list[bytes], tensors: list[bytes]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(words))
    head += b"".join(words) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(128 if tensors else 0)


SAVED: Final = Target(
    "saved", "saved sessions (DSV4) and shards (DSVL)", check_saved, seeds_saved, 1500
)
GGUF: Final = Target("gguf", "headers of GGUF models", check_gguf, seeds_gguf, 1200)
