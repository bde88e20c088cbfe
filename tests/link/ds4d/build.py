"""Frames for the tests, built from the declarations."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from ds4proto.codec.token_hash import token_hash
from ds4proto.schema import frame, frame_of_code, read, to_bytes
from tests.link.ds4d import toy

UP = "upstream"
BACK = {"kind": 1, "host_len": 0, "port": 0}


def make(name: str, *, header: dict[str, int] | None = None, **values: Any) -> bytes:
    spec = frame(f"DS4D.{name}", dialect=UP)
    return to_bytes(spec, values, dialect=UP, header=header)


def raw(code: int, body: bytes = b"", *, size: int | None = None) -> bytes:
    magic = 0x44533444
    return struct.pack(">III", magic, code, len(body) if size is None else size) + body


def record(start: int, end: int, *, flags: int = 0, **other: Any) -> dict[str, Any]:
    values = {"host": "10.0.0.9", "port": 7, "layer_start": start, "layer_end": end}
    return {**values, "flags": flags, **other}


def work(
    tokens: tuple[int, ...] = (5,),
    *,
    before: tuple[int, ...] = (),
    request: int = 1,
    session: int = 9,
    flags: int = 1 | 2,
    slice_: tuple[int, int] = (5, 7),
    route: list[dict[str, Any]] | None = None,
    bits: int = 32,
    hidden: bytes | None = None,
    **lies: Any,
) -> bytes:
    """Return a WORK for the last hop of the toy model unless told otherwise."""
    if hidden is None:
        hidden = bytes(len(tokens) * toy.HIDDEN * (bits or 32) // 8)
    if route is None:
        route = [record(*slice_, flags=(flags >> 1) & 1)]
    values = {
        "model_id": 0,
        "session": session,
        "request": request,
        "prefix_hash": token_hash(before),
        "result_hash": token_hash(before + tokens),
        "pos0": len(before),
        "layer_start": slice_[0],
        "layer_end": slice_[1],
        "flags": flags,
        "input_hc_bits": bits,
        "route_index": 0,
        "tokens": tokens,
        "hidden": hidden,
        "route": route,
        "route_return": BACK,
    }
    return make("WORK", **{**values, **lies})


def result(request: int, **values: Any) -> bytes:
    base = {
        "request": request,
        "result_hash": 0,
        "status": 0,
        "result_kind": 0,
        "telemetry": [],
        "payload": b"",
        "payload_bits": 0,
    }
    return make("RESULT", **{**base, **values})


def frames(data: bytes | bytearray) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and values of each frame; all of them have to be sound."""
    at = 0
    while at < len(data):
        code, size = struct.unpack_from(">II", data, at + 4)
        spec = frame_of_code("DS4D", code, dialect=UP)
        assert spec is not None
        reading = read(spec, bytes(data[at : at + 12 + size]), dialect=UP)
        assert not reading.problems, reading.problems
        yield spec.name, dict(reading.values)
        at += 12 + size


def texts(data: bytes | bytearray) -> list[str]:
    """Return the message of every frame, or its name where it has none."""
    found = []
    for name, values in frames(data):
        if name == "RESULT" and values["status"]:
            found.append(bytes(values["payload"]).decode())
        else:
            found.append(values.get("message") or values.get("text") or name)
    return found
