"""RDMA_INFO: what two queue pairs tell each other, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ds4proto.link.ds4t_texts import PairFailed, failed
from ds4proto.link.rdma_attributes import MESSAGE, MTU_BYTES, QpAttributes
from ds4proto.link.rdma_choice import GidEntry
from ds4proto.schema.ds4t_answers import DECODE_MSG
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import build, frame

PHASE: Final = "RDMA bring-up"
_PSN_BITS: Final = 24
_QPN_BITS: Final = 24


@dataclass(frozen=True, slots=True)
class RdmaInfo:
    """One side's queue pair.

    Attributes
    ----------
    qpn, psn : int
        24 bits each.
    mtu : int
        Verbs number of the port's active MTU.
    gid : bytes
        16 bytes.
    lid : int
    link_layer : int
        1 InfiniBand, 2 Ethernet.
    reliable : bool
        RC (v14 alone carries it).
    decode_max_msg : int
        v9w alone carries it.
    slab_base, rkey : int
        Exchanged and unused; 0 gives nothing away (DS4T-RDMA-47).
    """

    qpn: int
    psn: int
    mtu: int
    gid: bytes
    lid: int = 0
    link_layer: int = 2
    reliable: bool = False
    decode_max_msg: int = MESSAGE
    slab_base: int = 0
    rkey: int = 0

    def frame(self, dialect: str) -> list[Buf]:
        """Return the RDMA_INFO frame of a dialect."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["reliable"] = int(self.reliable)
        return build(frame("DS4T.RDMA_INFO", dialect=dialect), values, dialect=dialect)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RdmaInfo:
        """Return the info of a frame; words that the dialect lacks keep defaults."""
        found = {name: values[name] for name in cls.__slots__ if name in values}
        found["gid"] = bytes(found["gid"])
        found["reliable"] = bool(found.get("reliable", 0))
        return cls(**found)


def check_info(
    mine: RdmaInfo,
    theirs: RdmaInfo,
    attributes: QpAttributes,
    dialect: str,
    now: float,
    *,
    need_ipv4: bool = True,
) -> PairFailed | None:
    """Judge the peer's info before the queue pair is touched.

    Parameters
    ----------
    need_ipv4 : bool
        The pair relies on IPv4-mapped addresses (macOS always does).
    """
    names = frame("DS4T.RDMA_INFO", dialect=dialect).fixed(dialect)
    if any(spec.path == "reliable" for spec in names):
        transport = (theirs.reliable, theirs.link_layer)
        if transport != (mine.reliable, mine.link_layer):
            return _bad(
                "DS4T-RDMA-43",
                "reliable, link_layer",
                f"{_kind(mine)}",
                f"{_kind(theirs)}",
                "UC is macOS and RC is Linux: the two do not mix, use --transport tcp",
                now,
            )
        if attributes.qp_type == "RC" and theirs.mtu not in MTU_BYTES:
            return _bad("DS4T-RDMA-44", "mtu", "1 to 5", str(theirs.mtu), "", now)
    if any(spec.path == "decode_max_msg" for spec in names):
        size = min(mine.decode_max_msg, theirs.decode_max_msg)
        if size < DECODE_MSG[0]:
            return _bad(
                "DS4T-RDMA-45",
                "decode_max_msg",
                f"{DECODE_MSG[0]} to {DECODE_MSG[1]}",
                str(size),
                "set DS4_TP_RDMA_DECODE_MAX_MSG on both sides",
                now,
                size,
            )
    return _numbers(theirs, now) or _gid(theirs.gid, now, need_ipv4=need_ipv4)


def _kind(info: RdmaInfo) -> str:
    return f"{'RC' if info.reliable else 'UC'}, link layer {info.link_layer}"


def _numbers(info: RdmaInfo, now: float) -> PairFailed | None:
    for name, value, bits in (
        ("qpn", info.qpn, _QPN_BITS),
        ("psn", info.psn, _PSN_BITS),
    ):
        if value >> bits or (name == "qpn" and value == 0):
            return _bad(
                "DS4T-ROBUST-18",
                name,
                f"a number of {bits} bits{', not 0' if name == 'qpn' else ''}",
                f"{value:#x}",
                "the peer's RDMA_INFO is not sound",
                now,
            )
    return None


def _gid(gid: bytes, now: float, *, need_ipv4: bool) -> PairFailed | None:
    entry = GidEntry(0, gid)
    why = ""
    if entry.zero:
        why = "zero"
    elif entry.link_local:
        why = "link-local"
    elif need_ipv4 and not entry.mapped:
        why = "not IPv4-mapped"
    if not why:
        return None
    return _bad(
        "DS4T-RDMA-46",
        "gid",
        "an IPv4-mapped address" if need_ipv4 else "an address",
        f"{gid.hex(':', 2)} ({why})",
        "give the peer's interface an IPv4 address, and its rank that GID index",
        now,
    )


def _bad(
    clause: str,
    name: str,
    expected: str,
    found: str,
    step: str,
    now: float,
    *values: object,
) -> PairFailed:
    own = {
        "DS4T-ROBUST-18": f"tp rdma: peer {name} {found} is out of range",
        "DS4T-RDMA-46": f"tp rdma: peer gid {found} cannot be used",
    }
    return failed(
        now,
        clause,
        *values,
        text=own.get(clause),
        phase=PHASE,
        path=f"RDMA_INFO.{name}",
        expected=expected,
        found=found,
        next_step=step,
    )


def decode_message(mine: RdmaInfo, theirs: RdmaInfo) -> int:
    """Return the decode message size of a v9w pair: the smaller one, bounded above."""
    return min(mine.decode_max_msg, theirs.decode_max_msg, DECODE_MSG[1])
