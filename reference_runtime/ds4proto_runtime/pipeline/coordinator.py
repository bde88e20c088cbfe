"""A coordinator: its listener, the workers' registry, sessions over the route."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits
from ds4proto.link.ds4d_route import Route, RouteError
from ds4proto.link.ds4d_session import PrefillSettings
from ds4proto.peer import Recorder
from ds4proto_runtime import kv
from ds4proto_runtime.engines.base import Engine
from ds4proto_runtime.pipeline.routes import Door
from ds4proto_runtime.pipeline.session import (
    PipelineError,
    PipelineSession,
    RouteIncomplete,
)
from ds4proto_runtime.pipeline.settings import SocketSettings, prefill_settings
from ds4proto_runtime.pipeline.telemetry import HopTotals, Telemetry

Log = Callable[[str], None]


class PipelineCoordinator:
    """A coordinator. Use as a context manager; ``close`` leaves nothing behind.

    Parameters
    ----------
    engine : Engine
        Holds the own slice; with the head, it can finish hidden states.
    listen : tuple
        Host and port; port 0 lets the system choose, see ``address``.
    layers : range, optional
        The own slice, where the engine holds more than that.
    bits, chunk, window : int
        ``--dist-activation-bits``, ``-prefill-chunk`` and ``-prefill-window``. In the
        private dialect ``bits`` may be a format (``schema.ds4d_private.FORMAT_IDS``).
    dialect : {"upstream", "ds4proto"}
        What workers have to speak.
    link : float, optional
        Bytes a second, for predictions; else those measured while frames are sent.
    rejoin_s : float
        How long a lost route may take to come back within one request. 0 does as ds4:
        a new route at once, or an error.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        layers: range | None = None,
        bits: int = 32,
        chunk: int | None = None,
        window: int | None = None,
        rejoin_s: float = 0.0,
        limits: LinkLimits = DEFAULT,
        sockets: SocketSettings | None = None,
        profile: str = "strict",
        dialect: str = "upstream",
        link: float | None = None,
        recorder: Recorder | None = None,
        log: Log = lambda _line: None,
        debug: Log = lambda _line: None,
    ) -> None:
        self.engine = engine
        self.model = kv.model_facts(engine.shape, dialect)
        self.layers = engine.layers if layers is None else layers
        if not self.model.widths.holds(bits):
            raise ValueError(f"width {bits:#x} is none of dialect {dialect}")
        self.bits, self.profile = bits, profile
        self._chunk, self._window = chunk, window
        self._settings: PrefillSettings | None = None
        self.rejoin_s = rejoin_s
        self.limits = limits
        self.sockets = sockets or SocketSettings.of()
        self.recorder = recorder
        self.log = log
        own = HopTotals(f"{self.layers.start}:{self.layers.stop - 1}")
        self.telemetry = Telemetry(link, own)
        self.route_lock = threading.Lock()
        self.door = Door(
            self.model,
            self.layers,
            has_head=engine.has_head,
            bits=bits,
            idle=self.route_lock,
            listen=listen,
            limits=limits,
            sockets=self.sockets,
            recorder=recorder,
            log=log,
            debug=debug,
        )

    def __enter__(self) -> PipelineCoordinator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where workers register."""
        return self.door.address

    def settings(self) -> PrefillSettings:
        """Return how spans become chunks.

        Raises
        ------
        SettingError
            For an environment that no request can run with.
        """
        if self._settings is None:
            self._settings = prefill_settings(
                self.engine.shape.prefill_cap,
                chunk=self._chunk,
                window=self._window,
                bits=self.bits,
            )
        return self._settings

    def wait_route(self, seconds: float) -> Route:
        """Wait for workers that cover every layer.

        Raises
        ------
        RouteIncomplete
            After ``seconds``; the text names the first missing layer.
        """
        try:
            return self.door.wait(seconds)
        except RouteError as error:
            raise RouteIncomplete(str(error)) from None

    def session(self, seed: int | None = None) -> PipelineSession:
        """Return a new session, its id from the system or from a seed."""
        return PipelineSession(self, seed)

    def close(self) -> None:
        """End every connection and the listener."""
        self.door.close()


__all__ = ["PipelineCoordinator", "PipelineError", "PipelineSession", "RouteIncomplete"]
