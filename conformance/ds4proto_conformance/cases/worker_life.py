"""A worker's life: HELLO, its control connection, what outlives what."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4d_frames import FIXED
from ds4proto.link.ds4d_limits import MAX_NAME
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Ended


@case(
    "worker/hello/fields",
    clauses=("DS4D-HELLO-23", "DS4D-HELLO-20", "DS4D-HELLO-25"),
    role="worker",
    category="handshake",
    mutants=("hello-end-exclusive", "hello-output-range"),
    smoke=True,
)
def fields(peer: WorkerBench) -> None:
    """The layers of a HELLO are inclusive, within the model, and fit has_output."""
    assert peer.hello is not None
    for problem in peer.hello.problems:
        raise Deviation(problem.clause, problem.expected, problem.found)
    f = peer.facts
    if not f.layer_start <= f.layer_end < f.n_layers:
        raise Deviation(
            "DS4D-HELLO-23",
            f"layers within 0..{f.n_layers - 1}",
            f"{f.layer_start}:{f.layer_end}",
        )
    if f.has_output and f.layer_end != f.n_layers - 1:
        raise Deviation(
            "DS4D-HELLO-23",
            f"layer_end {f.n_layers - 1} with the head",
            str(f.layer_end),
        )
    peer.work(1).served("DS4D-HELLO-23")


@case(
    "worker/hello/name",
    clauses=("DS4D-HELLO-21", "DS4D-HELLO-20"),
    role="worker",
    category="handshake",
    mutants=("hello-name-padded",),
)
def name(peer: WorkerBench) -> None:
    """The model name is 1 to 127 bytes without NUL, and nothing follows it."""
    assert peer.hello is not None
    body = peer.hello.body
    size, text = FIXED[HELLO].read(body)["model_name_len"], body[FIXED[HELLO].size :]
    if size != len(text) or not 1 <= size <= MAX_NAME or b"\0" in text:
        raise Deviation(
            "DS4D-HELLO-21",
            "a name that fills the body, without NUL",
            f"model_name_len {size} and {text!r}",
        )


@case(
    "worker/hello/quant",
    clauses=("DS4D-HELLO-24",),
    role="worker",
    category="handshake",
    mutants=("hello-quant-8",),
)
def quant(peer: WorkerBench) -> None:
    """The quant label is 2 or 4, or 0 for a slice without routed experts."""
    if peer.facts.quant_bits not in (0, 2, 4):
        raise Deviation("DS4D-HELLO-24", "0, 2 or 4", str(peer.facts.quant_bits))


@case(
    "worker/hello/hidden",
    clauses=("DS4D-HELLO-27",),
    role="worker",
    category="handshake",
    mutants=("hello-no-hidden",),
)
def hidden(peer: WorkerBench) -> None:
    """A worker that returns hidden state says so."""
    peer.work(1, logits=False).served("DS4D-WORK-52")
    if not peer.facts.has_hidden:
        raise Deviation(
            "DS4D-HELLO-27", "has_hidden 1", "0, yet it returns hidden state"
        )


@case(
    "worker/hello/data-port",
    clauses=("DS4D-HELLO-26", "DS4D-WORKER-20", "DS4D-ROUTE-24"),
    role="worker",
    category="handshake",
    mutants=("hello-port-off",),
    smoke=True,
)
def data_port(peer: WorkerBench) -> None:
    """The announced data port is open by the time the HELLO is here."""
    if not 1 <= peer.facts.port <= 65535:
        raise Deviation("DS4D-HELLO-26", "a port in 1..65535", str(peer.facts.port))
    try:
        peer.work(1).served("DS4D-WORKER-20")
    except PeerLost as error:
        raise Deviation(
            "DS4D-HELLO-26", "a data listener on the port", str(error)
        ) from None


@case(
    "worker/hello/quiet-behind-it",
    clauses=("DS4D-HELLO-34", "DS4D-HELLO-20"),
    role="worker",
    category="handshake",
    harm="session",
    mutants=("hello-twice",),
)
def quiet(peer: WorkerBench) -> None:
    """Behind its HELLO a worker sends nothing until it is given work."""
    peer.lose_control()
    control = peer.meet()
    found = control.quiet(peer.quiet)
    if found is not None:
        raise Deviation("DS4D-HELLO-34", "nothing behind the HELLO", str(found))


@case(
    "worker/control/serves-work",
    clauses=("DS4D-WORKER-01",),
    role="worker",
    category="state",
    params={"bits": (32, 8)},
    mutants=("control-deaf",),
    smoke=True,
)
def control_work(peer: WorkerBench, p: dict[str, Any]) -> None:
    """WORK on the control connection is served like any other."""
    wire = peer.control
    peer.work(2, bits=p["bits"], wire=wire).served("DS4D-WORKER-01")
    peer.work(2, wire=wire, flags=0xF0).refused("DS4D-WORK-07")


@case(
    "worker/control/both-at-once",
    clauses=("DS4D-SESS-09", "DS4D-WORKER-01"),
    role="worker",
    category="state",
    params={"first": ("control", "data")},
    mutants=("one-connection-at-a-time",),
)
def both(peer: WorkerBench, p: dict[str, Any]) -> None:
    """WORK on both connections at the same time is answered on each."""
    wires = [peer.control, peer.data]
    if p["first"] == "data":
        wires.reverse()
    works = [peer.send(peer.make(2), wire) for wire in wires]
    for work, wire in zip(works, wires, strict=True):
        peer.answer(work, wire).served("DS4D-SESS-09")


@case(
    "worker/control/dials-again",
    clauses=("DS4D-WORKER-21",),
    role="worker",
    category="liveness",
    harm="session",
    params={"how": ("close", "reset", "error", "garbage", "unknown", "cut")},
    mutants=("no-redial", "no-redial-after-error"),
)
def dials_again(peer: WorkerBench, p: dict[str, Any]) -> None:
    """However its control connection ended, a worker dials again and says HELLO."""
    wire = peer.control
    if p["how"] == "close":
        wire.close()
    elif p["how"] == "reset":
        wire.close(reset=True)
    else:
        wire.send(
            {
                "error": b"DS4D\0\0\0\2\0\0\0\4boom",
                "garbage": b"\xa5" * 64,
                "unknown": b"DS4D\0\0\0\x2a\0\0\0\0",
                "cut": b"DS4D\0\0\0\3\0\0\0\x64" + bytes(50),
            }[p["how"]]
        )
        if p["how"] == "cut":
            wire.half_close()
        found = wire.next()
        while not isinstance(found, Ended):
            found = wire.next()
        if found.how == "silence":
            raise Deviation(
                "DS4D-WORKER-21", "the control connection to end", "silence"
            )
    peer.lose_control()
    try:
        peer.meet()
    except PeerLost as error:
        raise Deviation(
            "DS4D-WORKER-21", "a new control connection", str(error)
        ) from None


@case(
    "worker/control/end-drops-sessions",
    clauses=("DS4D-WORKER-22",),
    role="worker",
    category="state",
    harm="session",
    mutants=("sessions-outlive-control",),
)
def end_drops(peer: WorkerBench) -> None:
    """The end of the control connection drops all sessions, others' too."""
    tokens = peer.tokens(2)
    first = peer.make(tokens)
    peer.answer(peer.send(first)).served()
    peer.lose_control()
    peer.meet()
    second = peer.make(
        1, pos0=2, prefix=tokens, reset=False, session=first.words["session"]
    )
    wire = peer.dial("data 2")
    peer.answer(peer.send(second, wire), wire).refused("DS4D-WORK-26")


@case(
    "worker/control/unknown-type",
    clauses=("DS4D-WORKER-02", "DS4D-WORKER-01"),
    role="worker",
    category="framing",
    harm="session",
    mutants=("unknown-ignored",),
)
def control_unknown(peer: WorkerBench) -> None:
    """An unknown type on the control connection: ERROR, then a close."""
    wire = peer.control
    wire.send(b"DS4D\0\0\0\x2a\0\0\0\0")
    wire.frame("ERROR", "DS4D-WORKER-02")
    wire.closed("DS4D-ERROR-02")


@case(
    "worker/life/many-connections",
    clauses=("DS4D-WORKER-01", "DS4D-WORKER-37"),
    role="worker",
    category="liveness",
    mutants=("one-connection-at-a-time", "eight-connections"),
)
def many(peer: WorkerBench) -> None:
    """Twenty data connections are open at once, and each is served."""
    wires = [peer.dial(f"data {i}") for i in range(20)]
    for wire in wires:
        peer.work(1, wire=wire).served("DS4D-WORKER-01")


@case(
    "worker/life/reset-by-client",
    clauses=("DS4D-WORKER-38",),
    role="worker",
    category="liveness",
    params={"count": (1, 3)},
    mutants=("dies-of-reset",),
)
def reset_by_client(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A client that resets with answers due costs its connection, not the worker."""
    for _ in range(p["count"]):
        wire = peer.dial("to be reset")
        wire.send(peer.make(3).frame() * 3)
        wire.close(reset=True)
    peer.work(1).served("DS4D-WORKER-38")


@case(
    "worker/life/stuck-neighbour",
    clauses=("DS4D-FRAME-13", "DS4D-WORKER-01"),
    role="worker",
    category="liveness",
    mutants=("one-connection-at-a-time",),
)
def stuck_neighbour(peer: WorkerBench) -> None:
    """A connection that stops inside a frame does not hold up another one."""
    stuck = peer.dial("stuck")
    stuck.send(peer.make(2).frame()[:100])
    peer.work(1).served("DS4D-WORKER-01")


@case(
    "worker/life/announces-much",
    clauses=("DS4D-WORK-60", "DS4D-FRAME-12"),
    role="worker",
    category="limits",
    params={"code": (3, 9, 99), "size": (1 << 30, 0xFFFFFFFF)},
    mutants=("dies-of-large-length",),
)
def announces_much(peer: WorkerBench, p: dict[str, Any]) -> None:
    """A header that announces gigabytes, then silence: others are still served."""
    wire = peer.dial("announces")
    wire.send(b"DS4D" + p["code"].to_bytes(4, "big") + p["size"].to_bytes(4, "big"))
    wire.send(bytes(1000))
    peer.work(1).served("DS4D-WORK-60")
