"""RoCE v2: the transport headers of a datagram, in the words of the schema.

Source: InfiniBand Architecture Specification 1.4, volume 1, chapter 9 (transport
layer) and annex A17 (RoCE v2: the same packets in UDP datagrams to port 4791).
"""

from __future__ import annotations

from typing import Final

from construct import Int8ub, Int16ub, Int32ub, Int64ub

from ds4proto.schema.declare import FieldSpec as F
from ds4proto.schema.declare import Layout

BTH: Final = Layout(
    "BTH",
    "Base transport header, in front of every packet.",
    (
        F("opcode", Int8ub, "transport in bits 7-5, operation in bits 4-0"),
        F("marks", Int8ub, "bit 7 solicited, 6 migration, 5-4 pad bytes, 3-0 version"),
        F("pkey", Int16ub, "partition key"),
        F("dest_qp", Int32ub, "bits 23-0: number of the receiving queue pair"),
        F("psn", Int32ub, "bit 31 asks for an ACK, bits 23-0: packet number"),
    ),
)
RETH: Final = Layout(
    "RETH",
    "Remote address, with RDMA WRITE and READ; gates never use them.",
    (
        F("address", Int64ub, "remote virtual address"),
        F("rkey", Int32ub, "remote key"),
        F("length", Int32ub, "bytes of the whole operation", unit="bytes"),
    ),
)
AETH: Final = Layout(
    "AETH",
    "Acknowledgement.",
    (F("word", Int32ub, "bits 31-24 syndrome, 23-0 messages completed so far"),),
)
IMMEDIATE: Final = Layout("IMMDT", "Immediate data.", (F("value", Int32ub, "32 bits"),))
