"""The fused Triton kernels, run by Triton's interpreter on the processor.

That proves the steps, not the compiler: on a CUDA device the same comparison is part
of the prepared GPU check.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ds4proto_runtime import kernels

pytest.importorskip("triton", reason="triton (extra `crosscheck`) is not installed")

SCRIPT = Path(__file__).with_name("compare_triton.py")


def test_kernels_give_the_bytes_of_the_definition() -> None:
    # Triton decides at import time whether it interprets.
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1800,  # 12 s where nothing else runs
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("0 differ")
    assert int(done.stdout.split()[0]) > 150


def test_a_difference_is_found() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--break"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1800,  # 12 s where nothing else runs
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_nothing_is_compiled() -> None:
    assert kernels.enable() == ()
