"""Capture containers: pcap and pcapng, read and written; link, IP and TCP headers.

A leaf: nothing here knows of the protocols of this project. Names load on first use,
so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds4proto.pcap.build import TcpConversation, build_tcp, build_udp
    from ds4proto.pcap.decap import Decapsulator, tcp_columns
    from ds4proto.pcap.reader import CaptureReader, open_capture
    from ds4proto.pcap.source import StreamFile
    from ds4proto.pcap.types import (
        CaptureError,
        CaptureInfo,
        CaptureWriteError,
        Endpoint,
        Interface,
        LinkType,
        PacketBatch,
        TcpColumns,
        UdpDatagram,
    )
    from ds4proto.pcap.writer import PcapngWriter, PcapWriter

_WHERE = {
    "CaptureError": "types",
    "CaptureInfo": "types",
    "CaptureReader": "reader",
    "CaptureWriteError": "types",
    "Decapsulator": "decap",
    "Endpoint": "types",
    "Interface": "types",
    "LinkType": "types",
    "PacketBatch": "types",
    "PcapWriter": "writer",
    "PcapngWriter": "writer",
    "StreamFile": "source",
    "TcpColumns": "types",
    "TcpConversation": "build",
    "UdpDatagram": "types",
    "build_tcp": "build",
    "build_udp": "build",
    "open_capture": "reader",
    "tcp_columns": "decap",
}

__all__ = [
    "CaptureError",
    "CaptureInfo",
    "CaptureReader",
    "CaptureWriteError",
    "Decapsulator",
    "Endpoint",
    "Interface",
    "LinkType",
    "PacketBatch",
    "PcapWriter",
    "PcapngWriter",
    "StreamFile",
    "TcpColumns",
    "TcpConversation",
    "UdpDatagram",
    "build_tcp",
    "build_udp",
    "open_capture",
    "tcp_columns",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that holds it."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{where}"), name)
