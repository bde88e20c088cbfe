"""One request of a coordinator: spans, window, recovery, as one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ds4proto.link.ds4d_facts import ModelFacts
from ds4proto.link.ds4d_route import Route
from ds4proto.link.ds4d_session import PrefillSettings, Session
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.schema.problem import Buf


class Request:
    """A sync (whole transcript) or an eval (one more token) over a route.

    Events: ``ResetLocal``, ``EvaluateLocal``, ``Transmit`` (on the first hop's
    connection), ``Replaying``, ``RouteLost``, then ``Succeeded`` or ``Failed``.
    Commands to ``send``: ``LocalDone``, ``LocalFailed``, ``Written``, ``Rerouted``,
    ``NoRoute``. Events of the ``WorkLink`` go to ``result``.

    Parameters
    ----------
    kind : {"sync", "eval"}
    tokens : sequence of int
        The whole transcript of a sync, or the one token of an eval.
    """

    def __init__(
        self,
        session: Session,
        model: ModelFacts,
        route: Route,
        link: WorkLink | None,
        tokens: Sequence[int],
        *,
        kind: Literal["sync", "eval"] = "sync",
        settings: PrefillSettings | None = None,
        now: float = 0.0,
    ) -> None:
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """True after ``Succeeded`` or ``Failed``."""
        raise NotImplementedError

    def result(self, event: Any, now: float) -> None:
        """Take an event of the route's ``WorkLink``."""
        raise NotImplementedError

    def send(self, event: Any, now: float) -> list[Buf]:
        """Take a command; what follows from it comes as events."""
        raise NotImplementedError

    def events(self) -> Iterator[Any]:
        """Yield what has to be done, in order."""
        raise NotImplementedError
