"""The route blob of a WORK: every check, record by record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4proto.schema.declare import offsets_of
from ds4proto.schema.ds4d_records import ROUTE_RETURN
from ds4proto_conformance.bench.work import Hop, Work, return_record, route_blob
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import Position, case

Blob = Callable[[WorkerBench, dict[str, Any]], Work]


def route(
    name: str,
    number: str,
    about: str,
    *,
    params: dict[str, Any] | None = None,
    positions: tuple[Position, ...] = (),
    mutants: tuple[str, ...] = (),
) -> Callable[[Blob], Blob]:
    """Declare the case of one check of the blob."""
    clause = f"DS4D-ROUTE-{number}"

    def declare(make: Blob) -> Blob:
        def body(peer: WorkerBench, p: dict[str, Any] | None = None) -> None:
            peer.answer(peer.send(make(peer, p or {}))).refused(clause)
            peer.work(wire=peer.data).served("DS4D-WORK-45")

        body.__doc__ = about
        body.__qualname__ = f"route_{name}"
        case(
            f"worker/route/{name}",
            clauses=(clause, "DS4D-WORK-20"),
            role="worker",
            category="limits",
            params=params,
            positions=positions,
            mutants=mutants or (f"skip-ROUTE-{number}",),
        )(body)
        return make

    return declare


def _one(peer: WorkerBench, **changes: Any) -> Work:
    return peer.make(2, blob=route_blob([peer.hop(**changes)]))


@route(
    "truncated-record",
    "01",
    "A blob that ends inside a record's head.",
    params={"keep": (1, 19)},
)
def truncated(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return peer.make(2, blob=peer.hop().wire()[: p["keep"]])


@route(
    "missing-record",
    "01",
    "route_count says more records than there are.",
    params={"count": (2, 0xFFFFFFFF)},
    mutants=("route-count-trusted",),
)
def missing(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return peer.make(2, route_count=p["count"], blob=peer.hop().wire())


@route(
    "host-length",
    "02",
    "Host lengths of 0, above 1024, or beyond the blob.",
    params={"length": (0, 1025, 0xFFFFFFFF)},
)
def host_length(peer: WorkerBench, p: dict[str, Any]) -> Work:
    host = b"h" * p["length"] if p["length"] == 1025 else b""
    return _one(peer, host=host, host_len=p["length"])


@route(
    "host-nul",
    "03",
    "A host that holds a NUL byte.",
    params={"host": (b"a\0b", b"\0", b"host\0")},
)
def host_nul(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return _one(peer, host=p["host"])


@route(
    "port", "04", "Ports 0 and above 65535.", params={"port": (0, 65536, 0xFFFFFFFF)}
)
def port(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return _one(peer, port=p["port"])


@route(
    "layer-range",
    "05",
    "A range past the last layer, or turned round.",
    params={"kind": ("past", "turned", "huge")},
)
def layer_range(peer: WorkerBench, p: dict[str, Any]) -> Work:
    n, f = peer.facts.n_layers, peer.facts
    start, end = {
        "past": (f.layer_start, n),
        "turned": (f.layer_end + 1, f.layer_end),
        "huge": (f.layer_start, 0xFFFFFFFF),
    }[p["kind"]]
    return _one(peer, layer_start=start, layer_end=end, flags=0)


@route("flags", "06", "Flags other than 0 and 1.", params={"flags": (2, 3, 0x80000000)})
def flags(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return _one(peer, flags=p["flags"])


@route(
    "logits-before-the-end",
    "07",
    "The logits flag before the last layer.",
    positions=("first", "middle"),
)
def early_logits(peer: WorkerBench, _p: dict[str, Any]) -> Work:
    return _one(peer, flags=1)


@route(
    "gap",
    "08",
    "A record that does not go on where the last one ended.",
    params={"off": (1, -1)},
    positions=("first", "middle"),
)
def gap(peer: WorkerBench, p: dict[str, Any]) -> Work:
    end = peer.facts.layer_end
    after = Hop(b"127.0.0.1", 1, end + 1 + p["off"], peer.facts.n_layers - 1, 1)
    return peer.make(2, hops=[peer.hop(), after])


@route("no-return", "09", "A blob without its return record.", params={"keep": (0, 11)})
def no_return(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return peer.make(2, blob=route_blob([peer.hop()], end=return_record()[: p["keep"]]))


@route("return-host-length", "10", "A return host that runs past the blob.")
def return_length(peer: WorkerBench, _p: dict[str, Any]) -> Work:
    end = bytearray(return_record())
    at = offsets_of(ROUTE_RETURN, "*")["host_len"]
    end[at : at + 4] = (9).to_bytes(4, "big")
    return peer.make(2, blob=route_blob([peer.hop()], end=bytes(end)))


@route("return-host-nul", "11", "A return host that holds a NUL byte.")
def return_nul(peer: WorkerBench, _p: dict[str, Any]) -> Work:
    end = return_record(host=b"a\0b")
    return peer.make(2, blob=route_blob([peer.hop()], end=end))


@route(
    "return-kind",
    "12",
    "Return records of other kinds than UPSTREAM.",
    params={"kind": (0, 2, 0xFFFFFFFF)},
)
def return_kind(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return peer.make(2, blob=route_blob([peer.hop()], end=return_record(p["kind"])))


@route(
    "return-address",
    "13",
    "An UPSTREAM return record that names an address.",
    params={"what": ("host", "port")},
)
def return_address(peer: WorkerBench, p: dict[str, Any]) -> Work:
    end = {
        "host": return_record(host=b"localhost"),
        "port": return_record(port=7),
    }[p["what"]]
    return peer.make(2, blob=route_blob([peer.hop()], end=end))


@route("trailing", "14", "Bytes behind the return record.", params={"extra": (1, 40)})
def trailing(peer: WorkerBench, p: dict[str, Any]) -> Work:
    return peer.make(2, blob=route_blob([peer.hop()]) + bytes(p["extra"]))


@route("empty", "15", "Records are stated, the blob is empty.")
def empty(peer: WorkerBench, _p: dict[str, Any]) -> Work:
    return peer.make(2, blob=b"")


@route(
    "fault-before-own",
    "05",
    "A fault in any record is found before the own one.",
    positions=("middle", "last"),
    mutants=("route-own-first",),
)
def fault_before(peer: WorkerBench, _p: dict[str, Any]) -> Work:
    n = peer.facts.n_layers
    bad = Hop(b"127.0.0.1", 5, n, n, 0)
    return peer.make(2, hops=[bad, peer.hop(layer_end=n + 3)], route_index=1)


@case(
    "worker/route/own-address-not-compared",
    clauses=("DS4D-ROUTE-26",),
    role="worker",
    category="state",
    params={"host": (b"192.0.2.1", b"no.such.host.invalid", b"h" * 1024)},
    mutants=("own-address-compared",),
)
def own_address(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The own record may name any host: a worker does not compare it."""
    work = peer.make(2, hops=[peer.hop(host=p["host"], port=65535)])
    peer.answer(peer.send(work)).served("DS4D-ROUTE-26")
