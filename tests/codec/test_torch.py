"""torch tensors in, torch tensors out, without copies on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4proto.codec import CodecError, get
from ds4proto.codec.base import Path

torch: Any = pytest.importorskip("torch", reason="extra `runtime` is not installed")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "e4m3"])
def test_same_bytes_as_numpy(name: str, path: Path) -> None:
    codec = get(name, path=path if name != "f32" else "numpy")
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(1))
    wanted = codec.encode(x.numpy(), rows=6)
    wire = codec.encode(x, rows=6)
    assert wire.dtype == torch.uint8
    assert wire.numpy().tobytes() == wanted.tobytes()
    out = torch.zeros(wanted.size + 5, dtype=torch.uint8)
    front = codec.encode(x, out)
    assert front.data_ptr() == out.data_ptr()
    assert front.shape == (wanted.size,)
    assert out[wanted.size :].tolist() == [0] * 5
    values = codec.decode(wire, values=192, rows=6)
    assert values.dtype == torch.float32
    assert values.numpy().tobytes() == codec.decode(wanted, values=192).tobytes()
    target = torch.zeros(6, 40)
    got = codec.decode(wire, target, values=192)
    assert got.data_ptr() == target.data_ptr()
    assert torch.equal(got, values)


def test_gradients_do_not_hinder() -> None:
    x = torch.ones(4, requires_grad=True)
    assert get("e4m3").encode(x).tolist() == [0x38] * 4


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (torch.zeros(4, dtype=torch.float64), None, "input dtype.*float64"),
        (torch.zeros(4, 4).t()[:, 1:], None, "input layout"),
        (torch.zeros(4, device="meta"), None, "input device: expected cpu.*meta"),
        (torch.zeros(4).to_sparse(), None, "input layout"),
        (torch.zeros(4), np.zeros(8, np.uint8), "out type: expected a torch tensor"),
        (torch.zeros(4), torch.zeros(3, dtype=torch.uint8), "out size"),
        (torch.zeros(4), torch.zeros(8, dtype=torch.int8), "out dtype"),
    ],
)
def test_encode_refuses(x: Any, out: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        get("f16").encode(x, out)


def test_decode_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(CodecError, match="wire size"):
        get("f16").decode(wire, values=5)
    with pytest.raises(CodecError, match="out type"):
        get("f16").decode(wire, np.zeros(4, np.float32), values=4)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", None)  # nothing is allocated before the checks
        with pytest.raises(CodecError, match="wire size"):
            get("f16").decode(wire, values=1 << 30)
    with pytest.raises(CodecError, match="number of values"):
        get("f16").decode(wire, values=-1)
