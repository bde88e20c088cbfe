"""Late encoding and early decoding give the bytes and bits of the whole payload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ds4proto_runtime.pipeline.activations import (
    BLOCK,
    Decoded,
    Decoding,
    pack,
    pack_late,
    unpack,
    write,
)

from ds4proto.codec import get
from ds4proto.codec.widths import activation_codec
from ds4proto.link.ds4d_frames import WORK_PART
from ds4proto.schema.ds4d_private import FORMATS

WIDTH = 96


def rows(values: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.standard_normal(values, np.float32).reshape(-1, WIDTH)


PRIVATE = sorted(FORMATS)


@pytest.mark.parametrize("bits", PRIVATE)
@pytest.mark.parametrize("count", [1, 3 * BLOCK // WIDTH + 7])
def test_late_rows_with_scales_are_those_of_the_codec(bits: int, count: int) -> None:
    hidden = rows(count * WIDTH)
    wanted = bytes(get(FORMATS[bits], path="numpy").encode(hidden, rows=count))
    assert _sent(pack_late(hidden, bits)) == wanted


def _sent(late: Any) -> bytes:
    sent = bytearray()
    write([late], lambda parts: [sent.extend(part) for part in parts])
    assert len(late) == len(sent)
    return bytes(sent)


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("count", [1, 40, 3 * BLOCK // WIDTH + 7])
def test_late_bytes_are_those_of_the_codec(bits: int, count: int) -> None:
    hidden = rows(count * WIDTH)
    wanted = bytes(activation_codec(bits).encode(hidden.reshape(-1)))
    assert bytes(pack(hidden, bits)) == wanted
    late = pack_late(hidden, bits)
    assert len(late) == len(wanted)
    sent = bytearray()

    def send(parts):  # type: ignore[no-untyped-def]
        for part in parts:
            sent.extend(part)

    write([b"head", late, b"tail"], send)
    assert bytes(sent) == b"head" + wanted + b"tail"
    back = unpack(wanted, bits, WIDTH)
    assert back.shape == (count, WIDTH)
    if bits == 32:
        assert np.array_equal(back, hidden)


def body(bits: int, count: int, tokens: int = 0) -> tuple[bytes, int, int]:
    wire = bytes(pack(rows(count * WIDTH), bits))
    blob = b"r" * 35
    fixed = dict.fromkeys(WORK_PART.names, 0)
    fixed |= {
        "token_bytes": 4 * tokens,
        "input_hc_bytes": len(wire),
        "input_hc_bits": bits,
        "route_bytes": len(blob),
    }
    head = WORK_PART.build(fixed) + bytes(4 * tokens)
    return head + wire + blob, len(head), len(wire)


@pytest.mark.parametrize("bits", [16, 8, *PRIVATE])
@pytest.mark.parametrize("step", [4099, 1 << 20, 1 << 30])
def test_a_body_is_decoded_as_it_comes(bits: int, step: int) -> None:
    count = 4 * BLOCK // WIDTH
    data, start, size = body(bits, count, tokens=count)
    store = memoryview(bytearray(len(data)))
    decoded = Decoded(WIDTH)
    decoding = Decoding(decoded)
    for at in range(0, len(data), step):
        part = data[at : at + step]
        store[at : at + len(part)] = part
        decoding.progress(store, at + len(part))
    assert decoding.active
    decoding.finish()
    wire = store[start : start + size]
    found = decoded.take(wire)
    assert found is not None
    wanted = unpack(bytes(wire), bits, WIDTH)
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert decoded.take(wire) is None


def test_what_does_not_add_up_is_left_alone() -> None:
    data, _, _ = body(8, 4 * BLOCK // WIDTH)
    store = memoryview(bytearray(data + b"x"))
    decoding = Decoding(Decoded(WIDTH))
    decoding.progress(store, len(store))
    assert not decoding.active
    small, _, _ = body(8, 2)
    decoding.progress(memoryview(bytearray(small)), len(small))
    assert not decoding.active


def test_forgotten_frames_do_not_pile_up() -> None:
    decoded = Decoded(WIDTH)
    kept = [memoryview(bytearray(64)) for _ in range(3 * Decoded.KEPT)]
    for view in kept:
        decoded.add(view, np.zeros((1, WIDTH), np.float32))
    assert sum(decoded.take(view) is not None for view in kept) == Decoded.KEPT
