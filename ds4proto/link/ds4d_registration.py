"""The coordinator's end of a new control connection: one HELLO, 16 checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ds4proto.link.ds4d_events import Fault
from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits
from ds4proto.schema.problem import Buf


@dataclass(frozen=True, slots=True)
class Expected:
    """What the coordinator's own model asks of a worker; ``ctx`` 0 asks nothing."""

    model_id: int
    model_name: str
    n_layers: int
    ctx: int


def check_all(hello: Mapping[str, Any], expected: Expected) -> tuple[Fault, ...]:
    """Return every fault of a HELLO in the order of checks 6 to 15.

    A coordinator reports the first; a preflight shows them all.
    """
    raise NotImplementedError


class Registration:
    """Reads the HELLO of one accepted connection.

    Events: ``HelloAccepted``, or ``HelloRefused`` with ``Transmit`` (ERROR) and
    ``Close``. Bytes behind an accepted HELLO are kept for the ``WorkLink``
    (``trailing_data``); with ``bare=True`` later frames are skipped instead.
    """

    def __init__(
        self,
        expected: Expected,
        *,
        now: float,
        limits: LinkLimits = DEFAULT,
        bare: bool = False,
    ) -> None:
        raise NotImplementedError

    @property
    def trailing_data(self) -> bytes:
        """Bytes that came behind an accepted HELLO."""
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where to ``recv_into`` next; empty once the HELLO was judged."""
        raise NotImplementedError

    def received(self, nbytes: int, now: float) -> None:
        """Tell that ``nbytes`` were put into the last ``get_buffer``; 0 is the end."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes in any split; None is the end of the stream."""
        raise NotImplementedError

    def events(self) -> Iterator[Any]:
        """Yield what the bytes so far mean."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed: the HELLO is late."""
        raise NotImplementedError
