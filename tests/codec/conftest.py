"""The computation paths that a test runs on; the compiled one may be missing."""

from __future__ import annotations

from typing import cast

import pytest

from ds4proto.codec import kernels
from ds4proto.codec.base import Path


@pytest.fixture(params=["numpy", "numba"])
def path(request: pytest.FixtureRequest) -> Path:
    wanted = cast(Path, request.param)
    if wanted == "numba" and not kernels.available("f16"):
        pytest.skip(f"compiled path: {kernels.reason('f16')}")
    return wanted
