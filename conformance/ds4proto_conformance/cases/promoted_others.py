"""Promoted cases of coordinators and ranks: the bytes, and what is due for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ds4proto.link.ds4d_frames import HEADER_SIZE
from ds4proto_conformance.bench.coordinator import CoordinatorBench, Hop
from ds4proto_conformance.bench.tp import TpBench
from ds4proto_conformance.bench.tp_worker import RankBench
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Frame, Wire

__all__ = ["for_coordinator", "for_rank"]

_PIECES: Final = (1,) * 24 + (1 << 20,)
Told = Mapping[str, Any]


def _same(told: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Take it that the peer has the facts that a case was written for."""
    for name, there in told.items():
        if name in here and here[name] != there:
            raise NotApplicable(f"written for {name} {there}, this is {here[name]}")


def _named(body: Callable[..., None], told: Told) -> Callable[..., None]:
    body.__doc__ = str(told["title"])
    body.__qualname__ = str(told["id"])
    return body


# coordinators


def for_coordinator(told: Told) -> Callable[..., None]:
    """Return the body of a case: a HELLO, or a RESULT for the WORK that comes."""

    def body(peer: CoordinatorBench) -> None:
        f = peer.facts
        _same(told["facts"], {
            "model_id": f.model_id, "model_name": f.model_name,
            "n_layers": f.n_layers, "layer_start": f.layer_end + 1,
        })  # fmt: skip
        if peer.apart:
            raise NotApplicable(
                "the coordinator dials the port that a HELLO announces; the one of"
                " this finding announces one at which nobody listens"
            )
        clause = told["clause"] or told["clauses"][0]
        wire = _given(peer, told["steps"])
        _due(peer, wire, told["due"], clause, asked=told["asked"])
        wire.close()
        peer.check_alive()

    return _named(body, told)


def _given(peer: CoordinatorBench, steps: Sequence[Told]) -> Wire:
    wire, last = peer.dial("promoted"), b""
    for step in steps:
        data = bytearray.fromhex(step["hex"])
        for at, size, there in step["copy"]:
            if at + size <= len(data) and there + size <= len(last):
                data[at : at + size] = last[there : there + size]
        if step["then"] == "drip":
            wire.send_pieces(bytes(data), _PIECES)
        else:
            wire.send(data)
        if step["then"] == "half-close":
            wire.half_close()
        elif step["then"] == "wait":
            peer.drive()
            hop = Hop(peer, wire, ("promoted", {}))
            last = bytes(HEADER_SIZE) + bytes(hop.work().body)
            wire = hop.wire
    return wire


def _due(
    peer: CoordinatorBench, wire: Wire, due: str, clause: str, *, asked: bool
) -> None:
    """Judge what follows the last step; what is asked for may be another request."""
    if asked:
        peer.drive()
    if due == "waiting":
        return
    if due == "accepted" and not asked:
        found = wire.quiet(peer.patience / 4)
        if isinstance(found, Frame) and found.name == "ERROR":
            raise Deviation(clause, "a sound HELLO to be taken", str(found))
        return
    found = wire.next(patience=2 * peer.patience)
    if due in ("refused", "closed"):
        if isinstance(found, Frame) and found.name == "ERROR":
            wire.closed(clause, "a close behind ERROR")
        elif isinstance(found, Frame) or found.how == "silence":
            raise Deviation(clause, "ERROR and a close, or a close", str(found))
    elif isinstance(found, Ended) and found.how == "silence":
        raise Deviation(clause, "WORK or an end behind a RESULT", str(found))
    elif due == "lost" and isinstance(found, Frame) and found.name == "WORK":
        raise Deviation(clause, "the worker to be given up", str(found))
    elif due == "accepted" and isinstance(found, Ended):
        raise Deviation(clause, "WORK behind a sound RESULT", str(found))


# ranks


def for_rank(told: Told) -> Callable[..., None]:
    """Return the body of a case: a hello, or commands to a worker."""

    def body(peer: TpBench) -> None:
        _same(told["facts"], {**peer.hello, "dialect": peer.dialect})
        clause = told["clause"] or told["clauses"][0]
        if told["due"] == "commands":
            assert isinstance(peer, RankBench)
            peer.spent = True  # its sessions are not those that the bench knows of
            for step in told["steps"]:
                if not _commanded(peer, step, clause):
                    return
            return
        (step,) = told["steps"]
        peer.say_hello(bytes.fromhex(step["hex"]))
        if step["then"] == "half-close":
            peer.control.half_close()
        if told["due"] == "agreed":
            peer.accepted(clause)
        elif told["due"] == "failed":
            peer.turned_down(clause)
        else:
            found = peer.control.quiet(peer.quiet)
            if found is not None and not isinstance(found, Ended):
                raise Deviation(clause, "nothing before the hello is whole", str(found))

    return _named(body, told)


def _commanded(peer: RankBench, step: Told, clause: str) -> bool:
    """Give one command and judge its answers; False when the pair is over."""
    peer.pair()
    data = bytes.fromhex(step["hex"])
    if step["then"] == "drip":
        for at in range(len(_PIECES)):
            peer.control.send(data[at : at + 1 if at + 1 < len(_PIECES) else None])
    else:
        peer.control.send(data, "promoted")
    if step["then"] == "half-close":
        peer.control.half_close()
    for known, status in step["acks"]:
        found = peer.control.next()
        if isinstance(found, Ended):
            if status and found.how != "silence":
                return False  # ended instead of refused
            raise Deviation(clause, f"an ack of session {known}", str(found))
        right = found.name == "COMMAND_ACK" and found["session_id"] == known
        if not right or bool(found["status"]) != bool(status):
            due = f"an ack of session {known}, status {status}"
            raise Deviation(clause, due, str(found))
    if step["end"]:
        peer.refused(step["end"], "the rank to end", gates=True)
        return False
    return not step["runs"]
