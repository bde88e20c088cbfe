"""The coordinator's end of the first hop: WORK out, RESULT in, checked in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits
from ds4proto.schema.problem import Buf


class WorkLink:
    """One connection that carries WORK to a first hop and its RESULTs back.

    States: ``idle``, ``waiting``, ``draining``, ``dead``. Events:
    ``ResultReceived``, ``RemoteError``, ``Drained``, ``TransportError``, ``Close``.

    Parameters
    ----------
    model : ModelFacts
    initial : bytes
        ``Registration.trailing_data``: read as the head of the first RESULT.
    """

    def __init__(
        self, model: ModelFacts, *, limits: LinkLimits = DEFAULT, initial: bytes = b""
    ) -> None:
        raise NotImplementedError

    @property
    def state(self) -> str:
        """``idle``, ``waiting``, ``draining`` or ``dead``."""
        raise NotImplementedError

    def work(
        self,
        values: Mapping[str, Any],
        now: float,
        *,
        pipelined: bool = False,
        last: bool = True,
        route_logits: bool = True,
    ) -> list[Buf]:
        """Return the buffers of one WORK and await its RESULT.

        ``values`` are those of the WORK declaration, with ``route_blob`` as bytes.
        """
        raise NotImplementedError

    def drain(self, now: float) -> None:
        """Discard the RESULT of every WORK already sent; ``Drained`` follows."""
        raise NotImplementedError

    def get_buffer(self) -> memoryview:
        """Return where to ``recv_into`` next; empty while nothing is pending."""
        raise NotImplementedError

    def received(self, nbytes: int, now: float) -> None:
        """Tell that ``nbytes`` were put into the last ``get_buffer``; 0 is the end."""
        raise NotImplementedError

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes in any split; None is the end of the stream."""
        raise NotImplementedError

    def failed(self, reason: str, now: float) -> None:
        """Tell that a read or write failed (RESULT check 2)."""
        raise NotImplementedError

    def events(self) -> Iterator[Any]:
        """Yield what the bytes so far mean."""
        raise NotImplementedError

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        raise NotImplementedError

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed."""
        raise NotImplementedError
