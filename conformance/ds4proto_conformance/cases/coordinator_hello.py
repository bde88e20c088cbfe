"""HELLO as a coordinator has to judge it: every check, their order, registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4proto_conformance.bench.coordinator import CoordinatorBench
from ds4proto_conformance.bench.texts import template
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Frame

Lies = Callable[[CoordinatorBench, Any], tuple[dict[str, Any], tuple[object, ...]]]


def refusal(
    name: str, number: str, about: str, values: tuple[Any, ...], lies: Lies
) -> None:
    """Declare the case of one check that is answered by ERROR."""
    clause = f"DS4D-HELLO-{number}"

    def body(peer: CoordinatorBench, p: dict[str, Any]) -> None:
        words, found = lies(peer, p["value"])
        peer.refused(clause, template(clause) % found, **words)

    body.__doc__ = about
    body.__qualname__ = f"hello_{name}"
    case(
        f"coordinator/hello/{name}",
        clauses=(clause, "DS4D-ERROR-01"),
        role="coordinator",
        category="handshake",
        params={"value": values},
        mutants=(f"skip-HELLO-{number}",),
        smoke=number in ("06", "12"),
    )(body)


def _range(
    peer: CoordinatorBench, kind: str
) -> tuple[dict[str, Any], tuple[object, ...]]:
    n = peer.facts.n_layers
    start, end = {
        "end": (1, n),
        "start": (n, n),
        "turned": (3, 2),
        "huge": (1, 0xFFFFFFFF),
    }[kind]
    return {"layer_start": start, "layer_end": end, "has_output": 0}, (start, end, n)


refusal(
    "model-id",
    "06",
    "Another model id.",
    (1, 7),
    lambda p, v: (
        {"model_id": p.facts.model_id + v},
        (p.facts.model_id + v, p.facts.model_id),
    ),
)
refusal(
    "model-name",
    "07",
    "Another name, byte for byte.",
    (b"", b"other", b"n" * 127),
    lambda p, v: ({"model_name": v}, (v.decode(), p.facts.model_name)),
)
refusal(
    "n-layers",
    "08",
    "Another number of layers.",
    (1, 0xFFFF),
    lambda p, v: (
        {"n_layers": p.facts.n_layers + v},
        (p.facts.n_layers + v, p.facts.n_layers),
    ),
)
refusal(
    "quant",
    "09",
    "Quant labels other than 2 and 4.",
    (0, 1, 3, 8),
    lambda _p, v: ({"quant_bits": v}, (v,)),
)
refusal(
    "has-output",
    "10",
    "has_output is 0 or 1.",
    (2, 0xFFFFFFFF),
    lambda _p, v: ({"has_output": v}, (v,)),
)
refusal(
    "has-hidden",
    "11",
    "has_hidden is 0 or 1.",
    (2, 0xFFFFFFFF),
    lambda _p, v: ({"has_hidden": v}, (v,)),
)
refusal(
    "layer-range",
    "12",
    "A range past the last layer, or turned round.",
    ("end", "start", "turned", "huge"),
    _range,
)
refusal(
    "head-early",
    "13",
    "The head without the final layer.",
    (1, 2),
    lambda p, v: (
        {"layer_start": 1, "layer_end": p.facts.n_layers - 1 - v},
        (1, p.facts.n_layers - 1 - v, p.facts.n_layers),
    ),
)
refusal(
    "ports",
    "15",
    "Ports 0 and above 65535.",
    (0, 65536, 0xFFFFFFFF),
    lambda _p, v: ({"listen_port": v}, (v,)),
)


@case(
    "coordinator/hello/context",
    clauses=("DS4D-HELLO-14",),
    role="coordinator",
    category="handshake",
    params={"short": (1, 1 << 31)},
    mutants=("skip-HELLO-14",),
)
def context(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A worker whose context is smaller is refused."""
    from ds4proto_conformance.verdicts import NotApplicable

    own = peer.facts.ctx
    if not own:
        raise NotApplicable("the coordinator has no context size: the check is off")
    short = max(0, own - p["short"])
    text = template("DS4D-HELLO-14") % (short, own)
    peer.refused("DS4D-HELLO-14", text, ctx_size=short)


ORDER: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("06", "07", {"model_id": 0xFFFFFFF0, "model_name": b"x"}),
    ("07", "08", {"model_name": b"x", "n_layers": 1}),
    ("08", "09", {"n_layers": 1, "quant_bits": 9}),
    ("09", "10", {"quant_bits": 9, "has_output": 2}),
    ("10", "11", {"has_output": 2, "has_hidden": 2}),
    ("11", "12", {"has_hidden": 2, "layer_start": 0xFFFF}),
    ("12", "15", {"layer_start": 0xFFFF, "listen_port": 0}),
    ("13", "15", {"layer_start": 1, "layer_end": 1, "listen_port": 0}),
)


def _order(first: str, second: str, lies: dict[str, Any]) -> None:
    clause = f"DS4D-HELLO-{first}"

    def body(peer: CoordinatorBench) -> None:
        from ds4proto_conformance.bench.texts import fits, owner

        wire = peer.dial("two faults")
        wire.send(peer.hello(**lies))
        found = wire.frame("ERROR", clause)
        if not fits(clause, found.message):
            raise Deviation(
                clause,
                f"the text of check {first}",
                f"{found.message!r} ({owner(found.message)})",
            )

    body.__doc__ = f"Of two faults, check {first} is answered before check {second}."
    body.__qualname__ = f"hello_order_{first}"
    case(
        f"coordinator/hello/order-{first}-before-{second}",
        clauses=(clause, f"DS4D-HELLO-{second}"),
        role="coordinator",
        category="handshake",
        mutants=(f"hello-order-{first}-{second}",),
    )(body)


for _row in ORDER:
    _order(*_row)


def unreadable(
    name: str,
    number: str,
    about: str,
    values: tuple[Any, ...],
    make: Callable[[CoordinatorBench, Any], bytes],
) -> None:
    """Declare the case of first bytes that are not worth an answer."""
    clause = f"DS4D-HELLO-{number}"

    def body(peer: CoordinatorBench, p: dict[str, Any]) -> None:
        peer.unreadable(clause, make(peer, p["value"]))

    body.__doc__ = about
    body.__qualname__ = f"unreadable_{name}"
    case(
        f"coordinator/hello/{name}",
        clauses=(clause,),
        role="coordinator",
        category="framing",
        params={"value": values},
        mutants=(f"answers-{name}",),
    )(body)


unreadable(
    "magic",
    "01",
    "Another magic: a close without a frame.",
    (b"DS4T", b"\xa5" * 4, b"GET "),
    lambda p, v: v + p.hello()[4:] + bytes(40),
)
unreadable(
    "other-type",
    "02",
    "Another first frame than HELLO.",
    (3, 4, 99),
    lambda p, v: b"DS4D" + v.to_bytes(4, "big") + p.hello()[8:],
)
unreadable(
    "length",
    "03",
    "A body below 40 or above 167 bytes.",
    (39, 168, 3000),
    lambda p, v: p.hello(body=bytes(v)),
)
unreadable(
    "name-length",
    "04",
    "A name length that does not fit the body.",
    (1, -1, 90),
    lambda p, v: p.hello(model_name_len=len(p.facts.model_name.encode()) + v),
)
unreadable(
    "name-nul",
    "05",
    "A name that holds a NUL.",
    (0, 2),
    lambda p, v: p.hello(model_name=_nul(p, v)),
)


def _nul(peer: CoordinatorBench, at: int) -> bytes:
    name = bytearray(peer.facts.model_name.encode() or b"abc")
    name[min(at, len(name) - 1)] = 0
    return bytes(name)


@case(
    "coordinator/hello/accepted-in-silence",
    clauses=("DS4D-HELLO-16",),
    role="coordinator",
    category="handshake",
    params={"quant": (2, 4), "hidden": (1, 0)},
    mutants=("hello-answered",),
    smoke=True,
)
def silence(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A sound HELLO is answered by nothing; the next frame is WORK."""
    hop = peer.register(quant_bits=p["quant"], has_hidden=p["hidden"])
    peer.drive()
    hop.work("DS4D-HELLO-16")


@case(
    "coordinator/hello/output-without-hidden",
    clauses=("DS4D-HELLO-28",),
    role="coordinator",
    category="handshake",
    mutants=("wants-hidden",),
)
def without_hidden(peer: CoordinatorBench) -> None:
    """A last worker with the head need not return hidden state."""
    hop = peer.register(has_hidden=0, has_output=1)
    peer.drive()
    hop.work("DS4D-HELLO-28")


@case(
    "coordinator/hello/overlap",
    clauses=("DS4D-HELLO-29",),
    role="coordinator",
    category="handshake",
    mutants=("refuses-overlap",),
)
def overlap(peer: CoordinatorBench) -> None:
    """A range that overlaps the coordinator's own is registered all the same."""
    wire = peer.register(layer_start=0).wire
    found = wire.quiet(peer.quiet)
    if found is not None:
        raise Deviation("DS4D-HELLO-29", "no answer, an open connection", str(found))


@case(
    "coordinator/hello/replaced",
    clauses=("DS4D-HELLO-31", "DS4D-HELLO-32"),
    role="coordinator",
    category="state",
    mutants=("keeps-replaced",),
)
def replaced(peer: CoordinatorBench) -> None:
    """A registration that equals an older one takes its place, which is closed."""
    old = peer.register("old")
    peer.drive()
    old.work()  # nothing else tells that it has been registered
    peer.register("new")
    old.wire.closed("DS4D-HELLO-32", "the older connection to close")


@case(
    "coordinator/hello/split",
    clauses=("DS4D-FRAME-06",),
    role="coordinator",
    category="framing",
    params={"sizes": ((1,), (11, 1), (12, 39, 1))},
    mutants=("hello-in-one-piece",),
)
def split(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """A HELLO that arrives in pieces is read as one."""
    wire = peer.dial()
    wire.send_pieces(peer.hello(), p["sizes"])
    peer.drive()
    found = wire.next(patience=2 * peer.patience)
    if not isinstance(found, Frame) or found.name != "WORK":
        raise Deviation("DS4D-FRAME-06", "WORK for the registered worker", str(found))


@case(
    "coordinator/hello/cut",
    clauses=("DS4D-FRAME-07",),
    role="coordinator",
    category="framing",
    params={"keep": (4, 12, 30)},
    mutants=("hello-cut-answered",),
)
def cut(peer: CoordinatorBench, p: dict[str, Any]) -> None:
    """An end of stream inside a HELLO: a close without a frame."""
    wire = peer.dial()
    wire.send(peer.hello()[: p["keep"]])
    wire.half_close()
    wire.closed("DS4D-FRAME-07", "a close without a frame")
