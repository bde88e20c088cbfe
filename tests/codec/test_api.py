"""What callers may pass, what they get back, and how refusals read."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import (
    ACTIVATION_BITS,
    PROFILES,
    Codec,
    CodecError,
    activation_codec,
    get,
    kernels,
    names,
)
from ds4proto.codec.base import Path
from ds4proto.codec.definition import e4m3_decode
from ds4proto.codec.elementwise import BLOCK, STREAM_FROM, ElementwiseCodec
from ds4proto.codec.parallel import CHUNK, PARALLEL_FROM, run_slices

WIDTHS = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1}
ELEMENTWISE = tuple(WIDTHS)
X = np.array([[0.0, 1.0, -2.0], [240.0, 0.1, 3e-3]], dtype=np.float32)


def test_names_and_protocol() -> None:
    assert set(ELEMENTWISE) <= set(names())
    for name in ELEMENTWISE:
        codec = get(name)
        assert isinstance(codec, Codec)
        assert codec.name == name == codec.describe()["name"]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_sizes(name: str) -> None:
    codec = get(name)
    assert [codec.wire_bytes(n) for n in (0, 1, 16_384)] == [
        0,
        WIDTHS[name],
        16_384 * WIDTHS[name],
    ]
    assert codec.wire_bytes(12, rows=3) == 12 * WIDTHS[name]
    assert codec.wire_bytes(0, rows=5) == 0
    largest = (2**32 - 1) // WIDTHS[name]
    assert codec.wire_bytes(largest) == largest * WIDTHS[name]
    with pytest.raises(CodecError, match="at most 4294967295 bytes"):
        codec.wire_bytes(largest + 1)


@pytest.mark.parametrize(("values", "rows"), [(-1, 1), (4, 0), (4, 3), (4, -2)])
def test_bad_counts(values: int, rows: int) -> None:
    with pytest.raises(CodecError, match=r"number of (values|rows)"):
        get("f16").wire_bytes(values, rows)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_shapes_and_buffers(name: str, path: Path) -> None:
    codec = get(name, path=path if name != "f32" else "numpy")
    size = codec.wire_bytes(6)
    wire = codec.encode(X)
    assert wire.dtype == np.uint8
    assert wire.shape == (size,)
    for make in (bytearray, lambda n: np.zeros(n, dtype=np.uint8)):
        out: Any = make(size + 3)
        front = codec.encode(X, out, rows=2)
        assert front.tobytes() == wire.tobytes() == bytes(out)[:size]
        assert bytes(out)[size:] == bytes(3)
        assert np.shares_memory(front, np.frombuffer(out, dtype=np.uint8))
    values = codec.decode(wire, values=6)
    assert values.dtype == np.float32
    assert values.shape == (6,)
    target = np.full((2, 4), 7.0, dtype=np.float32)
    for source in (wire.tobytes(), bytearray(wire), memoryview(wire), wire):
        got = codec.decode(source, target, values=6, rows=2)
        assert got.tobytes() == values.tobytes()
        assert np.shares_memory(got, target)
        assert target.reshape(-1)[6:].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_nothing_to_encode(name: str) -> None:
    codec = get(name)
    assert codec.encode(np.empty((0, 4), dtype=np.float32)).size == 0
    assert codec.decode(b"", values=0).size == 0


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_unaligned_buffers(name: str, path: Path) -> None:
    codec = get(name, path=path if name != "f32" else "numpy")
    x = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    wanted = codec.encode(x)
    raw = bytearray(x.nbytes + 1)
    shifted = np.frombuffer(raw, dtype=np.float32, offset=1, count=x.size)
    assert not shifted.flags.aligned
    shifted[:] = x
    out = np.zeros(wanted.size + 1, dtype=np.uint8)[1:]
    assert codec.encode(shifted, out).tobytes() == wanted.tobytes()
    odd = memoryview(b"\0" + wanted.tobytes())[1:]
    values = codec.decode(odd, shifted, values=x.size)
    assert values.tobytes() == codec.decode(wanted, values=x.size).tobytes()


X_BIG = np.arange(12, dtype=np.float32).reshape(3, 4)
READ_ONLY = np.zeros(64, dtype=np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (X_BIG.astype(np.float64), None, "input dtype: expected float32.*float64"),
        (X_BIG.astype(">f4"), None, "input dtype: expected float32.*>f4"),
        (X_BIG[:, ::2], None, "input layout: expected a C-contiguous array"),
        (X_BIG.T, None, "input layout"),
        ([1.0, 2.0], None, "input type: expected a numpy float32 array.*list"),
        (X_BIG, np.zeros(23, np.uint8), "out size: expected 24 bytes.*found 23"),
        (X_BIG, np.zeros(24, np.int8), "out dtype: expected uint8.*int8"),
        (X_BIG, np.zeros(48, np.uint8)[::2], "out layout"),
        (X_BIG, READ_ONLY, "out access: expected a writable array"),
        (X_BIG, bytes(24), "out access: expected a writable array"),
        (X_BIG, "text", "out type"),
        (X_BIG, X_BIG.view(np.uint8), "out place: expected memory apart"),
    ],
)
def test_encode_refuses(x: Any, out: Any, message: str) -> None:
    before = X_BIG.copy()
    with pytest.raises(CodecError, match=message) as caught:
        get("f16").encode(x, out)
    assert str(caught.value).startswith("codec f16: ")
    assert "; " in str(caught.value)
    assert np.array_equal(before, X_BIG)


FLOATS = np.zeros(8, dtype=np.float32)
FLOATS_READ_ONLY = np.zeros(8, dtype=np.float32)
FLOATS_READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("wire", "out", "message"),
    [
        (bytes(7), None, "wire size: expected 8 bytes, found 7 bytes"),
        (bytes(9), None, "wire size: expected 8 bytes, found 9 bytes"),
        (b"", None, "wire size: expected 8 bytes, found 0 bytes"),
        (np.zeros(8, np.uint16), None, "wire dtype: expected uint8.*uint16"),
        (np.zeros(16, np.uint8)[::2], None, "wire layout"),
        (memoryview(bytes(16))[::2], None, "wire type.*contiguous"),
        ("12345678", None, "wire type"),
        (None, None, "wire type"),
        (bytes(8), np.zeros(3, np.float32), "out size: expected 4 values.*found 3"),
        (bytes(8), np.zeros(4, np.float64), "out dtype: expected float32"),
        (bytes(8), FLOATS_READ_ONLY, "out access"),
        (bytes(8), [0.0] * 4, "out type"),
        (FLOATS.view(np.uint8)[:8], FLOATS, "out place"),
    ],
)
def test_decode_refuses(wire: Any, out: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        get("f16").decode(wire, out, values=4)


def test_rows_must_be_equal() -> None:
    with pytest.raises(CodecError, match="number of rows: expected a divisor of 6"):
        get("e4m3").encode(X, rows=4)
    with pytest.raises(CodecError, match="number of rows"):
        get("e4m3").decode(bytes(6), values=6, rows=4)


def test_unknown_names() -> None:
    with pytest.raises(CodecError, match="unknown codec") as caught:
        get("fp7")
    assert all(name in str(caught.value) for name in names())
    with pytest.raises(CodecError, match="unknown numeric profile") as caught:
        get("e4m3", profile="msvc")
    assert all(profile in str(caught.value) for profile in PROFILES)
    with pytest.raises(CodecError, match="auto, numpy or numba"):
        get("e4m3", path="fast")  # type: ignore[arg-type]
    with pytest.raises(CodecError, match=r"unknown variant.*scale"):
        get("e4m3", scale="absmax")
    for threads in (0, -1, 65):
        with pytest.raises(CodecError, match="1 to 64"):
            get("f16", threads=threads)


def test_error_carries_its_parts_and_survives_pickling() -> None:
    with pytest.raises(CodecError) as caught:
        get("f16").decode(b"", values=4)
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.codec, error.expected, error.found) == ("f16", "8 bytes", "0 bytes")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_widths() -> None:
    assert ACTIVATION_BITS == (32, 16, 8)
    accepted = {0: "f32", 32: "f32", 16: "f16", 8: "e4m3"}
    for bits in range(-1, 65):
        if bits in accepted:
            assert activation_codec(bits).name == accepted[bits]
            continue
        with pytest.raises(CodecError, match=r"must be 32, 16, or 8") as caught:
            activation_codec(bits)
        assert f"found {bits};" in str(caught.value)
    assert activation_codec(16, half="bf16").name == "bf16"
    fast = activation_codec(8, profile="gcc-fast")
    assert "gcc-fast" in fast.describe()["profile"]
    with pytest.raises(CodecError, match="f16 or bf16"):
        activation_codec(16, half="f8")  # type: ignore[arg-type]


def test_threads_give_the_same_bytes(path: Path) -> None:
    size = 3 * CHUNK * 4 + 12_345
    assert size > PARALLEL_FROM
    bits = np.random.default_rng(5).integers(0, 1 << 32, size, dtype=np.uint32)
    x = bits.view(np.float32)
    for name in ("f16", "bf16", "e4m3"):
        one, three = get(name, path=path), get(name, path=path, threads=3)
        wire = one.encode(x)
        assert three.encode(x).tobytes() == wire.tobytes()
        values = one.decode(wire, values=size)
        assert three.decode(wire, values=size).tobytes() == values.tobytes()


@pytest.mark.parametrize("values", [0, 1, PARALLEL_FROM, PARALLEL_FROM * 2 + 1])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_slices_cover_everything_once(values: int, threads: int) -> None:
    seen = np.zeros(values, dtype=np.uint8)
    lock = threading.Lock()

    def step(start: int, stop: int) -> None:
        with lock:
            seen[start:stop] += 1

    run_slices(step, values, threads)
    assert (seen == 1).all()


def test_failure_in_a_thread_is_raised() -> None:
    def step(start: int, stop: int) -> None:
        if start:
            raise CodecError("x", "y", expected="a", found="b", next_step="c")

    with pytest.raises(CodecError, match="codec x"):
        run_slices(step, PARALLEL_FROM * 2, 2)


@pytest.mark.parametrize("shift", [0, 1, 4, 12, 60])
@pytest.mark.parametrize("extra", [0, 1, 15])
def test_large_results_bypass_the_cache_with_the_same_values(
    shift: int, extra: int
) -> None:
    values = STREAM_FROM // 4 + extra
    codes = np.random.default_rng(7).integers(0, 256, values * 2, dtype=np.uint8)
    raw = np.zeros(values * 4 + 128, dtype=np.uint8)
    begin = -raw.ctypes.data % 64 + shift
    out = raw[begin : begin + values * 4].view(np.float32)
    for name, wire in (("e4m3", codes[:values]), ("f16", codes), ("bf16", codes)):
        wanted = get(name, path="numpy").decode(wire, values=values)
        got = get(name).decode(wire, out, values=values)
        assert got.view(np.uint32).tobytes() == wanted.view(np.uint32).tobytes()
        assert not raw[:begin].any()
        assert not raw[begin + values * 4 :].any()


def test_missing_numba_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        return "numba is not installed"

    monkeypatch.setattr(kernels, "reason", absent)
    codec = get("e4m3")
    assert isinstance(codec, ElementwiseCodec)
    assert codec.path == "numpy"
    assert codec.encode(X).tobytes().hex() == "0038c0771d02"
    with pytest.raises(CodecError, match=r"ds4proto\[fast\]"):
        get("e4m3", path="numba")
    with pytest.raises(CodecError, match="no numba path"):
        get("f32", path="numba")


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, ds4proto.codec, ds4proto.cli.codec\n"
        "from ds4proto.codec import get\n"
        "from ds4proto.codec.token_hash import token_hash\n"
        "token_hash([1, 2, 3])\n"
        "heavy = {'numpy', 'numba', 'torch', 'construct', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import numpy\n"
        "get('f16').encode(numpy.zeros(4, numpy.float32))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("shift", [0, 4, 1])
def test_kernel_for_large_results_takes_any_target(shift: int) -> None:
    if not kernels.available("e4m3"):
        pytest.skip(kernels.reason("e4m3"))
    from ds4proto.codec.kernels import e4m3

    codes = np.arange(2 * BLOCK, dtype=np.uint32).astype(np.uint8)
    raw = np.zeros(codes.size * 4 + 128, dtype=np.uint8)
    begin = -raw.ctypes.data % 64 + shift
    bits = raw[begin : begin + codes.size * 4].view(np.uint32)
    e4m3.decode_past_cache(codes, bits, np.empty(BLOCK, dtype=np.uint32))
    assert np.array_equal(bits, e4m3_decode(codes))
