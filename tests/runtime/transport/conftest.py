from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.transport.rig import OPEN


@pytest.fixture(autouse=True)
def _sockets_are_closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()
