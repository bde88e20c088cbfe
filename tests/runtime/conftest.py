"""What every test of the runtime has around it."""

from __future__ import annotations

import gc
import inspect
import traceback
import warnings
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(call: pytest.CallInfo[Any]) -> None:
    """Let go of what a failed test held, sockets above all, once it is reported.

    Its frames would keep them, and the warning that nobody closed them would come with
    some later test's collection of garbage, and fail that test too.
    """
    error = None if call.excinfo is None else call.excinfo.value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            for frame, _ in traceback.walk_tb(error.__traceback__):
                # before Python 3.13 a copy of the names, which clearing leaves alone
                if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                    copied = frame.f_locals
                    if isinstance(copied, dict):
                        copied.clear()
            error = error.__cause__ or error.__context__
        gc.collect()
