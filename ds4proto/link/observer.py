"""Find the protocol of a connection by its first bytes, and watch both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

from ds4proto.link.events import Direction, Event
from ds4proto.link.limits import DEFAULT_LIMITS, Limits
from ds4proto.link.pair import TpPair
from ds4proto.link.sink import SinkFactory
from ds4proto.schema.problem import Buf, Problem

FIRST_BYTES = 512
"""Bytes of each direction that settle protocol and dialect in most cases."""
GREETING = 28
"""Bytes of the queue-pair greeting of the edwardtian fork."""
_ZERO_AT, _GID_AT = 10, 12
_GID_HEADS = (bytes.fromhex("fe80000000000000"), bytes(10) + b"\xff\xff")
_MAGIC = 4
_HALF = 16
_FAR = 1 << 32
_MOST_LAYERS = 1 << 12
_MOST_VALUES = 1 << 20
_PREFERRED = ("DS4D", "DS4D-LE", "DS4T", "DS4B", "DS4T-BE")


class StreamObserver(Protocol):
    """What ``open_observer`` returns: an ``Observer`` that also takes gaps."""

    def feed(
        self, direction: Direction, data: Buf | None, now: float
    ) -> Iterator[Event]:
        """Take bytes of one direction; None is its end."""

    def gap(
        self,
        direction: Direction,
        nbytes: int,
        now: float,
        reason: Literal["lost", "not captured"] = "lost",
    ) -> Iterator[Event]:
        """Take ``nbytes`` that crossed the wire but are not at hand."""

    @property
    def protocol(self) -> str:
        """``DS4D``, ``DS4T`` (control) or ``DS4B`` (gates)."""

    @property
    def dialect(self) -> str:
        """Dialect that the frames are read under so far."""

    @property
    def candidates(self) -> list[tuple[str, str]]:
        """Dialects still possible, each with what would settle it."""

    def role_of(self, end: Literal["a", "b"]) -> str | None:
        """Return ``coordinator``, ``worker``, ``tp-leader`` ... or None (unknown)."""


def open_observer(
    first: Mapping[Direction, Buf],
    *,
    pair: TpPair | None = None,
    sink: SinkFactory | None = None,
    limits: Limits = DEFAULT_LIMITS,
    dialect: str | None = None,
    complete: bool = True,
    late: bool = False,
) -> StreamObserver | None:
    """Return an observer for a connection, or None for foreign traffic.

    Parameters
    ----------
    first : mapping
        First bytes of each direction, as many as are at hand (``FIRST_BYTES`` do).
        They are only looked at: feed them to the observer afterwards.
    pair : TpPair, optional
        Shared state of a TP pair; without one a DS4T connection stands alone.
    sink, limits
        As for ``Framer``.
    dialect : str, optional
        Dialect to read under, instead of the one recognised; a connection of
        another protocol than its own is read as without it.
    complete : bool
        False where ``first`` does not start at the first byte of the stream (the
        capture began later): headers are searched for.
    late : bool
        True where frames before ``first`` may not be at hand, though it starts with
        one: an answer of DS4D is not held against requests that may lie there.
    """
    views = {way: memoryview(data).cast("B") for way, data in first.items()}
    protocol = _protocol(views, complete=complete)
    if pair is not None and pair.wants_data and not protocol.startswith("DS4D"):
        from ds4proto.link.ds4t_data import DataObserver

        return DataObserver(pair, sink=sink, limits=limits, complete=complete)
    if protocol.startswith("DS4D"):
        mine = _of_protocol("DS4D", dialect)
        return _ds4d(views, protocol, sink, limits, mine, complete=complete, late=late)
    if protocol:
        mine = _of_protocol("DS4T", dialect)
        return _ds4t(views, protocol, pair, sink, limits, mine, complete=complete)
    return None


def _of_protocol(protocol: str, dialect: str | None) -> str | None:
    """Return the chosen dialect where it is one of the protocol that was found."""
    if dialect is None:
        return None
    from ds4proto.schema.dialects import dialect as find_dialect

    chosen = find_dialect(dialect.rstrip("?")).protocol
    return dialect if chosen.startswith(protocol) else None


def _protocol(views: Mapping[Direction, memoryview], *, complete: bool) -> str:
    """Return the name that ``protocol_of`` gives to the likeliest direction."""
    from ds4proto.schema.recognise import protocol_of

    found = {protocol_of(view) for view in views.values() if len(view) >= _MAGIC}
    for name in _PREFERRED:
        if name in found:
            return name
    if _greets(views):
        return "DS4D-GREETING"
    if not complete:
        for view in views.values():
            data, hits = bytes(view), []
            for magic, name in _anywhere():
                if (at := data.find(magic)) >= 0:
                    hits.append((at, name))
            if hits:
                return min(hits)[1]
    return ""


def _anywhere() -> tuple[tuple[bytes, str], ...]:
    from ds4proto.schema.ds4d import MAGIC
    from ds4proto.schema.ds4t import DS4B_MAGIC, DS4T_MAGIC

    return (
        (MAGIC.to_bytes(_MAGIC, "big"), "DS4D"),
        (DS4T_MAGIC.to_bytes(_MAGIC, "little"), "DS4T"),
        (DS4B_MAGIC.to_bytes(_MAGIC, "little"), "DS4B"),
    )


def _greets(views: Mapping[Direction, memoryview]) -> bool:
    """Tell a queue-pair greeting of the edwardtian fork from foreign bytes.

    Twenty-eight bytes each way: queue pair, sequence number, local id, two zero
    bytes, and a global id, of which link-local and mapped IPv4 forms are known.
    """
    seen = [view for view in views.values() if len(view)]
    return bool(seen) and all(
        len(view) == GREETING
        and not any(view[_ZERO_AT:_GID_AT])
        and bytes(view[_GID_AT:]).startswith(_GID_HEADS)
        for view in seen
    )


def _ds4d(
    views: Mapping[Direction, memoryview],
    protocol: str,
    sink: SinkFactory | None,
    limits: Limits,
    dialect: str | None,
    *,
    complete: bool,
    late: bool,
) -> StreamObserver:
    from ds4proto.link.ds4d_observer import Ds4dObserver, settled_candidates
    from ds4proto.link.opaque import OpaqueObserver
    from ds4proto.schema.recognise import dialect_candidates

    if protocol == "DS4D-LE":
        from struct import Struct

        from ds4proto.schema.ds4d import MAGIC

        problem = Problem(
            "DS4D-DIALECT-17",
            "header.magic",
            0,
            None,
            "44533444, a big-endian header",
            "44345344, the little-endian header of the Swift dialect",
            "its messages share no layout with upstream and stay undecoded",
        )
        return OpaqueObserver(
            "DS4D",
            "swift",
            problem,
            candidates=settled_candidates("swift"),
            header=Struct("<III"),
            magic=MAGIC,
        )
    if protocol == "DS4D-GREETING":
        problem = Problem(
            "DS4D-DIALECT-13",
            "greeting",
            0,
            None,
            "a DS4D header",
            f"{GREETING} bytes that name an RDMA queue pair",
            "the frames of this connection travel over RDMA",
        )
        candidates = settled_candidates("edwardtian")
        return OpaqueObserver("DS4D", "edwardtian", problem, candidates=candidates)
    first: dict[str, Buf] = {way: view for way, view in views.items()}
    found = dialect_candidates(first) if complete else []
    if dialect is not None:
        found = settled_candidates(dialect)
    return Ds4dObserver(
        found or settled_candidates("upstream"),
        sink=sink,
        limits=limits,
        settled=dialect is not None,
        complete=complete,
        late=late,
    )


def _ds4t(
    views: Mapping[Direction, memoryview],
    protocol: str,
    pair: TpPair | None,
    sink: SinkFactory | None,
    limits: Limits,
    dialect: str | None,
    *,
    complete: bool,
) -> StreamObserver:
    from ds4proto.link.ds4t_data import DataObserver
    from ds4proto.link.ds4t_observer import ControlObserver

    if pair is None:
        pair = TpPair()
    gates = protocol == "DS4B" or any(
        _is_row_gate(view, complete=complete) for view in views.values()
    )
    kind = DataObserver if gates else ControlObserver
    return kind(pair, sink=sink, limits=limits, dialect=dialect, complete=complete)


def _is_row_gate(view: memoryview, *, complete: bool) -> bool:
    """Tell a first row gate from a hello or a control frame of the same magic.

    A row gate says layer and kind where a hello says its version, and a sequence
    number in 64 bits where a hello says role and rdma_ok, a control frame its length
    and the session.
    """
    from ds4proto.link.gate_form import Form
    from ds4proto.schema.dialects import dialects_of
    from ds4proto.schema.ds4t import DS4T_MAGIC

    form = Form("v14")
    at = 0 if complete else bytes(view).find(DS4T_MAGIC.to_bytes(_MAGIC, "little"))
    if at < 0 or len(view) < at + form.size:
        return False
    header = form.read(view, at)
    if header is None or header.name != "DS4T.GATE_ROW" or header.word > 1:
        return False
    if not 0 < header.seq < _FAR:
        return False
    if _is_hello(view[at:]):
        return False
    version = header.layer | header.word << _HALF
    known = {entry.version for entry in dialects_of("DS4T")}
    return not complete or version not in known


def _is_hello(view: memoryview) -> bool:
    """Tell whether the words of a hello are there, whatever its version says."""
    from ds4proto.schema.declare import offsets_of
    from ds4proto.schema.ds4t_hello import HELLO

    at = offsets_of(HELLO.body, "v14")
    if len(view) < at["n_vocab"] + _MAGIC:
        return False
    words = {
        name: int.from_bytes(view[at[name] : at[name] + _MAGIC], "little")
        for name in ("role", "rdma_ok", "n_layer", "n_embd")
    }
    return (
        1 <= words["role"] <= 2
        and words["rdma_ok"] <= 1
        and 1 <= words["n_layer"] <= _MOST_LAYERS
        and 1 <= words["n_embd"] <= _MOST_VALUES
    )
