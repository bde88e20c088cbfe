"""Drive the machines with what a capture holds: frames as commands, and answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_gates import GateFailed, GateLink
from ds4proto.link.ds4t_leader import LeaderControl
from ds4proto.link.ds4t_prefill import command_gates
from ds4proto.link.ds4t_states import Leader, Worker
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.link.events import Violation
from ds4proto.link.plan import PlannedGate, PlanOptions
from ds4proto.schema.ds4t_gates import ATTN, FFN
from ds4proto.schema.registry import frame_of_code, parse
from tests.link.ds4t.captured import Captured, frames_of

KINDS = {"ATTN": ATTN, "FFN": FFN}
ACK, LOGITS, TOP2, HASH = 17, 10, 18, 6
BRING_UP = (7, 9)


def command_of(code: int, data: bytes, dialect: str) -> Any:
    """Return the command that a recorded frame says."""
    spec = frame_of_code("DS4T", code, dialect=dialect)
    assert spec is not None, code
    v = parse(spec, data, dialect=dialect)
    items = tuple(
        say.BatchItem(i["session_id"], i["token"]) for i in v.get("items", ())
    )
    make: dict[str, Callable[[], Any]] = {
        "SYNC": lambda: say.RunSync(v["session_id"], v["tokens"]),
        "SYNC_MULTIMODAL": lambda: say.RunSync(
            v["session_id"],
            v["tokens"],
            tuple(
                say.Image(
                    i["token_start"],
                    i["token_count"],
                    bytes(i["rows"]),
                    i["width"],
                    i["height"],
                    i["content_width"],
                    i["content_height"],
                    bytes(i["fingerprint"]),
                )
                for i in v["images"]
            ),
        ),
        "EVAL": lambda: say.RunEval(v["session_id"], v["token"], v["seq"]),
        "REWIND": lambda: say.Rewind(v["session_id"], v["position"]),
        "INVALIDATE": lambda: say.Invalidate(v["session_id"]),
        "STOP": say.Stop,
        "VERIFY": lambda: say.RunVerify(v["session_id"], v["tokens"]),
        "VERIFY_COMMIT": lambda: say.CommitBlock(v["mode"], v["token_count"]),
        "SESSION_CREATE": lambda: say.CreateSession(v["session_id"], v["ctx_size"]),
        "SESSION_DESTROY": lambda: say.DestroySession(v["session_id"]),
        "EVAL_BATCH": lambda: say.RunBatch(items),
        "MIXED_BATCH": lambda: say.RunMixed(
            v["prefill_session_id"], v["tokens"], items
        ),
        "GLM_MTP": lambda: say.RunMtp(
            v["session_id"], v["token"], v["limit"], v["seq"]
        ),
    }
    return make[spec.name]()


def options_of(captured: Captured) -> PlanOptions:
    """Return the settings of the stub engine behind a capture."""
    p = captured.about["parameters"]
    return PlanOptions(
        chunk=p.get("chunk") or None,
        split_min=p.get("split_attn", 32) or 1 << 30,
        resume_min=p.get("resume_min", 4),
        odd_swap=False,
    )


@dataclass
class Run:
    """What a machine did with one capture."""

    out: bytes = b""
    events: list[Any] = field(default_factory=list)
    failure: PairFailed | None = None
    refused: list[LocalProtocolError] = field(default_factory=list)
    gates: list[PlannedGate] = field(default_factory=list)
    state: Any = None

    def take(self, events: Any) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, PairFailed):
                self.failure = event

    @property
    def texts(self) -> list[str]:
        if self.failure is None:
            return []
        return [*self.failure.log, self.failure.text]


def replay_leader(captured: Captured, *, step: int = 0) -> Run:
    """Run a leader on the recorded answers, told what the recorded leader sent."""
    settings = captured.settings("tp-leader")
    # v9w with feature bit 3 over RDMA has no LOGITS frames
    machine = LeaderControl(settings, logits_frames=not _gate_logits(captured))
    size = captured.hello_size
    run = Run()
    answers = _without_bring_up(captured.control.from_worker[size:])
    pieces = [answers[i : i + step] for i in range(0, len(answers), step or 1)]
    for piece in pieces if step else [answers]:
        machine.receive_data(piece, 0.0)
    for code, data in frames_of(captured.control.from_leader[size:]):
        if code in (HASH, *BRING_UP):
            continue
        command = command_of(code, data, captured.dialect)
        if not isinstance(command, say.CommitBlock | say.Stop) and (
            machine.state is not Leader.IDLE
        ):
            break
        waits = machine.state is Leader.ACK and "_to_" in captured.name
        if isinstance(command, say.Stop) and waits:
            # what the recorded leader saw before it said STOP: the end of the stream
            machine.receive_data(None, 1.0)
            _drain(machine, run)
        _plan(captured, machine, command, run)
        try:
            run.out += b"".join(machine.send(command, 0.0))
        except LocalProtocolError as error:
            run.refused.append(error)
            if not isinstance(command, say.CommitBlock):
                break
            # v7: a mode 2 verdict; what such a worker makes of it is a full accept
            machine.send(say.CommitBlock(say.KEEP_ALL), 0.0)
            run.out += data
        for event in _drain(machine, run):
            if isinstance(event, say.Transmit):
                run.out += b"".join(event.buffers)
        if run.failure is not None:
            break
    machine.receive_data(None, 1.0)
    _drain(machine, run)
    run.state = machine.state
    return run


def _without_bring_up(data: bytes) -> bytes:
    """Drop RDMA_INFO and RDMA_READY, which come before the first command."""
    while data[4:8] in [code.to_bytes(4, "little") for code in BRING_UP]:
        data = data[12 + int.from_bytes(data[8:12], "little") :]
    return data


def _gate_logits(captured: Captured) -> bool:
    features = captured.settings("tp-leader").identity.runtime_features
    return over_rdma(captured) and bool(features & 1 << 3)


def over_rdma(captured: Captured) -> bool:
    """Tell whether the pair brought queue pairs up."""
    size = captured.hello_size
    return captured.control.from_leader[size + 4 : size + 8] == b"\x07\0\0\0"


def _plan(captured: Captured, machine: Any, command: Any, run: Run) -> None:
    known = getattr(command, "session_id", None)
    session = machine.sessions.get(known)
    settings = captured.settings("tp-leader")
    run.gates += command_gates(command, session, settings, options_of(captured))


def _drain(machine: Any, run: Run) -> list[Any]:
    events = list(machine.events())
    run.take(events)
    return events


def replay_worker(captured: Captured, *, step: int = 0) -> Run:
    """Run a worker on the recorded commands, its engine answering as recorded."""
    settings = captured.settings("tp-worker")
    machine = WorkerControl(
        settings, engine_rules=False, logits_frames=not _gate_logits(captured)
    )
    size = captured.hello_size
    recorded = frames_of(captured.control.from_worker[size:])
    acks = deque(data for code, data in recorded if code == ACK)
    logits = deque(data[12:] for code, data in recorded if code in (LOGITS, TOP2))
    run = Run()
    commands = _without_bring_up(captured.control.from_leader[size:])
    pieces = [commands[i : i + step] for i in range(0, len(commands), step or 1)]
    for piece in pieces if step else [commands]:
        machine.receive_data(piece, 0.0)
        _serve(machine, run, acks, logits)
    if machine.state is not Worker.STOPPED:
        machine.receive_data(None, 1.0)
        _serve(machine, run, acks, logits)
    run.state = machine.state
    return run


def _serve(
    machine: WorkerControl, run: Run, acks: deque[bytes], logits: deque[bytes]
) -> None:
    """Answer commands until none is left."""
    while events := _drain(machine, run):
        for event in events:
            if isinstance(event, say.Transmit):
                run.out += b"".join(event.buffers)
                if acks:
                    acks.popleft()
                continue
            answer = _answer(machine, event, acks, logits)
            if answer is not None:
                run.out += b"".join(machine.send(answer, 0.0))


def _status(acks: deque[bytes]) -> int:
    data = acks.popleft()
    return int.from_bytes(data[20:24], "little", signed=True)


def _half(machine: WorkerControl, logits: deque[bytes]) -> Any:
    if not machine._split:
        return None
    body = logits.popleft()
    if not machine._settings.top2:
        return body
    import struct

    a, b, x, y = struct.unpack("<iiff", body)
    return say.Top2((a, b), (x, y))


def _answer(machine: Any, event: Any, acks: deque[bytes], logits: deque[bytes]) -> Any:
    quiet = (say.Rewind, say.Invalidate, say.Stop, PairFailed, Violation)
    if isinstance(event, quiet) or machine.failure is not None:
        return None
    try:
        if isinstance(event, say.CreateSession):
            return say.SessionCreated(event.session_id, _status(acks))
        if isinstance(event, say.DestroySession):
            return say.SessionDestroyed(event.session_id, _status(acks))
        if isinstance(event, say.RunSync):
            status = _status(acks)
            half = _half(machine, logits) if status == 0 else None
            return say.SyncDone(event.session_id, status, half, "as recorded")
        if isinstance(event, say.RunEval):
            return say.EvalDone(event.session_id, _half(machine, logits))
        if isinstance(event, say.RunBatch | say.RunMixed):
            status = _status(acks)
            count = len(event.items) + int(isinstance(event, say.RunMixed))
            halves = tuple(
                _half(machine, logits) for _ in range(count if status == 0 else 0)
            )
            if isinstance(event, say.RunMixed):
                return say.MixedDone(event.session_id, status, halves)
            return say.BatchDone(status, halves)
        if isinstance(event, say.RunMtp):
            return say.MtpDone(event.session_id, _status(acks))
        if isinstance(event, say.RunVerify):
            return say.BlockRun()
        if isinstance(event, say.CommitBlock):
            replay = event.mode == say.REPLAY and event.token_count > 0
            half = _half(machine, logits) if replay else None
            return say.BlockCommitted(machine._command.session_id, half)
    except IndexError:
        # the recorded worker gave no answer: its gate failed
        return say.EngineFailed("tp: gate transport failed")
    raise AssertionError(f"no answer for {event}")


def replay_gates(
    captured: Captured, role: str, gates: list[PlannedGate], *, step: int = 0
) -> tuple[bytes, bytes, GateFailed | None, int]:
    """Exchange the planned gates against the recorded data stream.

    Returns
    -------
    tuple
        Bytes sent, payload received, the failure, gates done.
    """
    leader = role == "tp-leader"
    link = GateLink(captured.settings("tp-leader" if leader else "tp-worker"))
    own_stream = captured.data.from_leader if leader else captured.data.from_worker
    peer_stream = captured.data.from_worker if leader else captured.data.from_leader
    vec = captured.settings("tp-leader").identity.vector_bytes
    at = used = done = 0
    sent = bytearray()
    got = bytearray()
    for gate in gates:
        size = gate.rows * vec
        payload = own_stream[at + 16 : at + 16 + size].ljust(size, b"\0")
        own, peer = memoryview(payload), memoryview(bytearray(size))
        if gate.kind == "row":
            link.begin_row(gate.layer, KINDS[gate.gate], own, peer, 0.0)
        elif gate.kind == "batch":
            link.begin_batch(gate.layer, gate.rows, own, peer, 0.0)
        else:
            link.begin_bulk(gate.layer, own, peer, 0.0)
        try:
            while link.sending:
                out = b"".join(bytes(v) for v in link.send_views)
                out = out[: step or len(out)]
                sent += out
                link.sent(len(out), 0.0)
            while link.receiving:
                room = link.receive_view
                count = min(len(room), step or len(room), len(peer_stream) - used)
                room[:count] = peer_stream[used : used + count]
                used += count
                link.received(count, 0.0)
        except GateFailed as error:
            return bytes(sent), bytes(got), error, done
        got += peer
        at += 16 + size
        done += 1
    return bytes(sent), bytes(got), None, done
