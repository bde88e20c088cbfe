"""The scaled formats on torch tensors; eager torch against the definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4proto.codec import CodecError, get, torch_blocks
from ds4proto.codec.registry import SCALED

torch: Any = pytest.importorskip("torch", reason="extra `runtime` is not installed")

VARIANTS = [
    *((name, {}) for name in SCALED),
    ("int8", {"order": "reciprocal", "divisor": "127.5", "lowest": "-128"}),
    ("fp8", {"order": "reciprocal"}),
    ("int4", {"block": "32", "divisor": "7.5"}),
    *(("mxfp4", {"scale": rule}) for rule in ("even", "rceil", "ceil")),
    *(("mxfp8", {"scale": rule}) for rule in ("even", "rceil", "ceil")),
    *(("mxfp4", {"rounding": ties}) for ties in ("away", "down")),
    ("mxfp4", {"nibbles": "halves"}),
    ("nvfp4", {"nibbles": "halves", "order": "divide"}),
    ("nvfp4", {"order": "product-inverse", "global_scale": "encode", "zero": "zero"}),
    ("nvfp4", {"zero": "eighth", "global_scale": "encode"}),
]


def inputs(rows: int, width: int) -> Iterator[Any]:
    rng = np.random.default_rng([21, rows, width])
    yield rng.integers(0, 1 << 32, (rows, width), dtype=np.uint32).view(np.float32)
    spread = np.exp(rng.standard_normal((rows, width)) * 4)
    yield (rng.standard_normal((rows, width)) * spread).astype(np.float32)
    ties = rng.integers(-28, 29, (rows, width)) / 4
    yield np.ldexp(ties, rng.integers(-140, 100, (rows, 1))).astype(np.float32)
    yield np.zeros((rows, width), np.float32)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_eager_torch_equals_the_definition(name: str, variant: Any) -> None:
    codec: Any = get(name, path="numpy", **variant)
    rng = np.random.default_rng(22)
    for rows, width in ((3, 64), (1, 96), (2, 37), (1, 1)):
        if variant.get("nibbles") and width % 32:
            continue
        for x in inputs(rows, width):
            wire = codec.encode(x, rows=rows).reshape(rows, -1)
            got = torch_blocks.encode_rows(codec.form, torch.from_numpy(x))
            assert np.array_equal(got.numpy(), wire)
            for sent in (wire, rng.integers(0, 256, wire.shape, dtype=np.uint8)):
                flat = sent.reshape(-1)
                wanted = codec.decode(flat, values=rows * width, rows=rows)
                tensor = torch.from_numpy(sent)
                values = torch_blocks.decode_rows(codec.form, tensor, width)
                assert values.numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", SCALED)
def test_tensors_in_host_memory(name: str) -> None:
    codec = get(name)
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    wanted = codec.encode(x.numpy(), rows=6)
    out = torch.zeros(wanted.size + 5, dtype=torch.uint8)
    front = codec.encode(x, out, rows=6)
    assert front.data_ptr() == out.data_ptr()
    assert front.numpy().tobytes() == wanted.tobytes()
    values = codec.decode(front, values=240, rows=6)
    assert values.dtype == torch.float32
    assert (
        values.numpy().tobytes() == codec.decode(wanted, values=240, rows=6).tobytes()
    )


def test_devices_without_memory_are_refused() -> None:
    for name in ("mxfp4", "int8"):
        with pytest.raises(CodecError, match="memory of one device"):
            get(name).encode(torch.zeros(32, device="meta"))
        wire = torch.zeros(get(name).wire_bytes(32), dtype=torch.uint8, device="meta")
        with pytest.raises(CodecError, match="memory of one device"):
            get(name).decode(wire, values=32)
    with pytest.raises(CodecError, match=r"input.*float64"):
        get("int8").encode(torch.zeros(4, dtype=torch.float64, device="meta"))


def _nowhere(tensor: Any) -> bool:
    return False


def test_registered_kernels_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host tensors are taken for another device's, to see who is asked."""
    monkeypatch.setattr(torch_blocks, "_on_host", _nowhere)
    asked: list[str] = []

    def encode(form: Any, x: Any, wire: Any) -> bool:
        asked.append(f"encode {form.name} {tuple(x.shape)} {tuple(wire.shape)}")
        wire.fill_(7)
        return bool(form.name == "int8")

    def decode(form: Any, wire: Any, x: Any) -> bool:
        asked.append(f"decode {form.name} {tuple(wire.shape)} {tuple(x.shape)}")
        x.fill_(5.0)
        return bool(form.name == "int8")

    x = torch.ones(2, 32)
    wanted = get("mxfp4").encode(x.numpy(), rows=2)
    assert get("mxfp4").encode(x, rows=2).numpy().tobytes() == wanted.tobytes()
    torch_blocks.register_device("cpu", torch_blocks.DeviceKernels(encode, decode))
    try:
        assert get("int8").encode(x, rows=2).tolist() == [7] * 72
        wire = torch.zeros(72, dtype=torch.uint8)
        assert get("int8").decode(wire, values=64, rows=2).tolist() == [5.0] * 64
        # One that does not know the form leaves it to eager torch.
        got = get("mxfp4").encode(x, rows=2)
        assert got.numpy().tobytes() == wanted.tobytes()
        assert get("mxfp4").decode(got, values=64, rows=2).tolist() == [1.0] * 64
    finally:
        torch_blocks.register_device("cpu", None)
    assert asked == [
        "encode int8 (2, 32) (2, 36)",
        "decode int8 (2, 36) (2, 32)",
        "encode mxfp4 (2, 32) (2, 17)",
        "decode mxfp4 (2, 17) (2, 32)",
    ]
    with pytest.raises(CodecError, match="wire size"):
        get("int8").decode(torch.zeros(9, dtype=torch.uint8), values=64)
    with pytest.raises(CodecError, match="out size"):
        get("int8").encode(x, torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(CodecError, match="a torch tensor"):
        get("int8").encode(x, np.zeros(99, np.uint8))
