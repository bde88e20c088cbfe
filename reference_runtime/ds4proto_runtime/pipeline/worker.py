"""A worker process: its data listener, its connections, its engine's thread.

The machines (``ds4proto.link.ds4d_worker``) say what is to be done; this module does
it. One lock guards them, never the engine's work or a write. Each connection has a
reading thread; one more thread runs the engine, except that a single token is
evaluated where it was read, which saves two changes of thread a token.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link.ds4d_events import Close, Transmit
from ds4proto.link.ds4d_forward import Forwarder
from ds4proto.link.ds4d_limits import DEFAULT, LinkLimits
from ds4proto.link.ds4d_texts import printable, text
from ds4proto.link.ds4d_worker import Kind, Worker, WorkerLink
from ds4proto.link.ds4d_worker_events import (
    DropSessions,
    EvaluateWork,
    LoadAborted,
    LoadData,
    LoadStarted,
    LocalFrame,
    OpenForward,
    PeerError,
    ResetSession,
    RestoreShard,
    SaveShard,
)
from ds4proto.link.events import Violation
from ds4proto.peer import Listener, PeerLost, Recorder
from ds4proto_runtime.engines.base import Engine
from ds4proto_runtime.pipeline.activations import Decoding
from ds4proto_runtime.pipeline.dialling import (
    REDIAL_S,
    Redials,
    bound_listener,
    connect,
    dial_reason,
)
from ds4proto_runtime.pipeline.line import SLICE_S, Line, now, tapped
from ds4proto_runtime.pipeline.local_worker import LocalWorker
from ds4proto_runtime.pipeline.settings import SocketSettings
from ds4proto_runtime.pipeline.worker_engine import (
    EngineRoom,
    Job,
    Log,
    Spool,
    worker_facts,
)

MAX_CONNECTIONS: Final = 128
"""Data connections at one time; each costs a thread (DS4D-WORKER-35)."""
RECEIVE: Final = 1 << 20
"""Bytes read at once where they are decoded while they arrive."""
Machine = WorkerLink | Forwarder


class PipelineWorker:
    """One worker.

    Parameters
    ----------
    engine : Engine
        Holds the slice, and the head where this worker owns it.
    coordinator : tuple
        Host and port to dial.
    listen : tuple, optional
        Host and port of the data listener. By default a free port of the address that
        the control connection leaves from, which is where others find this worker.
    dialect : {"upstream", "ds4proto"}
    layers : range, optional
        The slice, where the engine holds more than that.
    local_decode : bool
        The engine holds the whole model and may decode alone (private dialect).
    dial_limit_s : float, optional
        Seconds without a coordinator after which ``run`` gives up; None never.
    """

    def __init__(
        self,
        engine: Engine,
        coordinator: tuple[str, int],
        *,
        listen: tuple[str, int] | None = None,
        limits: LinkLimits = DEFAULT,
        sockets: SocketSettings | None = None,
        profile: str = "strict",
        dialect: str = "upstream",
        layers: range | None = None,
        local_decode: bool = False,
        dial_limit_s: float | None = None,
        recorder: Recorder | None = None,
        log: Log = lambda _line: None,
        debug: Log = lambda _line: None,
    ) -> None:
        self.facts = worker_facts(engine, dialect, layers, local_decode=local_decode)
        self._machine = Worker(self.facts, limits=limits)
        self._room = EngineRoom(engine, profile=profile, log=log, layers=layers)
        self._coordinator, self._listen = coordinator, listen
        self._sockets = sockets or SocketSettings.of()
        self._recorder, self._log, self._debug = recorder, log, debug
        self._redials = Redials(log, dial_limit_s)
        self._lock = threading.Lock()
        self._local = LocalWorker(
            self._room,
            self._machine,
            self._lock,
            sockets=self._sockets,
            recorder=recorder,
            log=log,
        )
        self._lines: dict[Machine, Line] = {}
        self._spools: dict[WorkerLink, Spool] = {}
        self._jobs: queue.SimpleQueue[tuple[WorkerLink, Job] | None]
        self._jobs = queue.SimpleQueue()
        self._stop = threading.Event()
        self._listener: Listener | None = None
        self._registered = 0

    # life

    @property
    def port(self) -> int:
        """Port of the data listener; 0 before it is open."""
        return self._listener.address[1] if self._listener is not None else 0

    @property
    def registrations(self) -> int:
        """HELLO frames sent so far."""
        return self._registered

    def stop(self) -> None:
        """End ``run`` soon; may be called from a signal handler or another thread."""
        self._stop.set()

    def run(self) -> None:
        """Serve until ``stop``; dial again one second after every end.

        Raises
        ------
        ds4proto_runtime.pipeline.dialling.CoordinatorUnreachable
            After ``dial_limit_s`` of failed dials.
        """
        evaluator = self._thread(self._evaluate_all, "engine")
        try:
            if self._listen is not None:
                self._open_listener(self._listen)
            while not self._stop.is_set():
                self._serve_coordinator()
                if self._redials.give_up:
                    raise self._redials.error()
                self._stop.wait(REDIAL_S)
        finally:
            self._stop.set()
            self._jobs.put(None)
            if self._listener is not None:
                self._listener.close()
            with self._lock:
                lines = list(self._lines.values())
            for line in lines:
                line.close()
            self._local.close()
            evaluator.join(SLICE_S)

    def _thread(self, what: Callable[..., None], name: str, *args: Any) -> Any:
        thread = threading.Thread(target=what, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _serve_coordinator(self) -> None:
        host, port = self._coordinator
        self._redials.begun()
        try:
            channel = connect(
                host,
                port,
                self._sockets,
                recorder=self._recorder,
                log=self._log,
                bind_host=self._source(),
                alive=lambda: not self._stop.is_set(),
                until=self._redials.until,
                phase="dialling the coordinator",
            )
        except (PeerLost, OSError) as error:
            if not self._stop.is_set():
                self._redials.failed(dial_reason(host, port, error)[0])
            return
        self._redials.reached()
        if self._listener is None:
            self._open_listener((channel.local[0], 0))
        with self._lock:
            link = self._machine.open("control", now())
        line = self._line(link, channel)
        line.put(link.hello(self.port))
        self._registered += 1
        self._log(f"registered with {host}:{port}, data port {self.port}")
        line.flush()
        reader = self._thread(self._read, "control", link, line)
        while not line.ended.wait(SLICE_S) and reader.is_alive():
            if self._stop.is_set():
                line.close()

    def _source(self) -> str | None:
        """Return where to dial from: where this worker's data port can be met."""
        if self._sockets.bind_host is not None:
            return None
        if self._listen is None or self._listen[0] in ("0.0.0.0", "::", ""):
            return None
        return self._listen[0]

    def _open_listener(self, address: tuple[str, int]) -> None:
        self._listener = bound_listener(address, self._log)
        self._thread(self._accept_all, "listener", self._listener)

    def _accept_all(self, listener: Listener) -> None:
        while not self._stop.is_set():
            try:
                channel = listener.accept(deadline=now() + SLICE_S)
            except PeerLost:
                continue
            except OSError as error:
                if not self._stop.wait(REDIAL_S):  # out of descriptors: no busy loop
                    self._log(f"data listener: {error}")
                continue
            if len(self._lines) >= MAX_CONNECTIONS:
                self._log("too many connections, one refused")
                channel.close()
                continue
            self._sockets.apply(channel.fileno())
            tapped(channel, self._recorder, opened_by_us=False)
            self._open("data", channel)

    def _open(self, kind: Kind, channel: Any) -> None:
        with self._lock:
            link = self._machine.open(kind, now())
        line = self._line(link, channel)
        self._thread(self._read, kind, link, line)

    def _line(self, machine: Machine, channel: Any) -> Line:
        def broken(reason: str) -> None:
            with self._lock:
                if isinstance(machine, Forwarder):
                    machine.broken(now())
                else:
                    machine.broken(reason, now())
            self._settle(machine)

        def written(request: int, started: float, finished: float) -> None:
            if isinstance(machine, Forwarder):
                with self._lock:
                    machine.written(request, started, finished)

        line = Line(channel, self._sockets, on_broken=broken, on_written=written)
        with self._lock:
            self._lines[machine] = line
        return line

    # reading

    def _read(self, machine: Machine, line: Line) -> None:
        try:
            self._read_on(machine, line)
        finally:
            line.linger()
            with self._lock:
                self._lines.pop(machine, None)

    def _read_on(self, machine: Machine, line: Line) -> None:
        heard = now()
        decoding = Decoding(self._room.decoded)
        while not self._stop.is_set():
            with self._lock:
                if machine.closed or line.channel.closed:
                    return
                buffer, due = machine.get_buffer(), machine.deadline()
                arriving = machine.arriving() if len(buffer) > RECEIVE else None
                if not len(buffer):
                    line.resume.clear()
            if not len(buffer):
                line.resume.wait(SLICE_S)
                self._tick(machine, due)
                continue
            buffer = buffer[:RECEIVE] if arriving is not None else buffer
            until = now() + SLICE_S
            if due is not None:
                until = min(until, due)
            try:
                got = line.channel.recv_into(buffer, deadline=until)
            except PeerLost as error:
                if error.kind != "timeout":
                    self._lost(machine, error.reason or error.kind)
                    return
                self._tick(machine, due)
                silent = self._sockets.receive_s
                if silent is not None and now() >= heard + silent:
                    self._lost(machine, f"nothing came for {silent:g} s")
                    return
                continue
            heard = now()
            if arriving is not None and isinstance(machine, WorkerLink):
                decoding.progress(arriving[1], len(arriving[0]) + got)
            with self._lock:
                machine.received(got, heard)
                over = decoding.active and machine.arriving() is None
            if over:
                decoding.finish()
            self._settle(machine, inline=machine)

    def _tick(self, machine: Machine, due: float | None) -> None:
        if due is not None and now() >= due:
            with self._lock:
                machine.timeout(now())
            self._settle(machine)

    def _lost(self, machine: Machine, reason: str) -> None:
        with self._lock:
            if isinstance(machine, Forwarder):
                machine.receive_data(None, now())
            else:
                machine.broken(reason, now())
        self._settle(machine)

    # what the machines want

    def _settle(self, *machines: Any, inline: Machine | None = None) -> None:
        """Carry out what the machines have to say, without holding the lock long."""
        while True:
            flush: dict[Line, None] = {}
            later: list[Callable[[], None]] = []
            jobs: list[tuple[WorkerLink, Job]] = []
            with self._lock:
                todo = list(machines)
                while todo:
                    for machine in todo:
                        line = self._lines.get(machine)
                        for event in machine.events():
                            self._take(machine, event, line, later, jobs)
                        if line is not None:
                            flush[line] = None
                    todo = list(self._machine.woken())
            for act in later:
                act()
            for line in flush:
                if not line.resume.is_set():  # setting takes a lock
                    line.resume.set()
                line.flush()
            if not jobs:
                return
            link, job = jobs[0]
            single = isinstance(job, EvaluateWork) and len(job.tokens) == 1
            if link is not inline or not single:
                self._jobs.put((link, job))
                return
            self._work(link, job)
            machines = (link,)

    def _take(
        self,
        machine: Any,
        event: Any,
        line: Line | None,
        later: list[Callable[[], None]],
        jobs: list[tuple[WorkerLink, Job]],
    ) -> None:
        if isinstance(event, Transmit):
            if line is not None:
                line.put(event.buffers, event.request)
        elif isinstance(event, EvaluateWork | SaveShard | RestoreShard):
            jobs.append((machine, event))
        elif isinstance(event, Close):
            self._debug(f"connection closed: {printable(event.reason)}")
            if line is not None:
                line.put_close()
        elif isinstance(event, ResetSession):
            self._room.reset(event.session)
        elif isinstance(event, LocalFrame):
            if line is not None:
                asked, on = event, line
                later.append(lambda: self._local.take(asked, on))
        elif isinstance(event, DropSessions):
            self._room.drop(event.sessions)
            later.append(lambda: self._local.drop(event.sessions))
            self._log(text("sessions-dropped", len(event.sessions)))
        elif isinstance(event, OpenForward):
            self._thread(self._dial_next, "dial", event)
        elif isinstance(event, LoadStarted):
            self._spools[machine] = Spool()
        elif isinstance(event, LoadData):
            spool, data = self._spools[machine], event.data
            later.append(lambda: spool.write(data))
        elif isinstance(event, LoadAborted):
            later.append(self._spools.pop(machine).close)
        elif isinstance(event, PeerError):
            self._log(f"coordinator error: {printable(event.text)}")
        elif isinstance(event, Violation):
            problem = event.problem
            self._debug(f"{problem.clause}: {printable(problem.found)}")

    def _dial_next(self, event: OpenForward) -> None:
        forwarder = event.forwarder
        try:
            channel = connect(
                event.host,
                event.port,
                self._sockets,
                recorder=self._recorder,
                log=self._log,
                alive=lambda: not (self._stop.is_set() or forwarder.closed),
                phase="dialling the next worker",
            )
        except (PeerLost, OSError) as error:
            _, reason, resolving = dial_reason(event.host, event.port, error)
            with self._lock:
                forwarder.failed(reason, now(), resolving=resolving)
            self._settle(forwarder)
            return
        line = self._line(forwarder, channel)
        with self._lock:
            forwarder.opened(now())
        self._settle(forwarder)
        self._thread(self._read, "forward", forwarder, line)

    def _work(self, link: WorkerLink, job: Job) -> None:
        spool = None
        if isinstance(job, RestoreShard):
            with self._lock:
                spool = self._spools.pop(link, None)
        answer = self._room.do(job, spool)
        with self._lock:
            link.send(answer, now())

    def _evaluate_all(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._work(*item)
            self._settle(item[0])
