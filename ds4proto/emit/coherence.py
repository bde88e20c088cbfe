"""How drawn values are made to agree: one small function a layout with rules.

Limits, constants and lengths are kept by construction. What a ``Rule`` asks of
several fields together is mended here, after the draw; values that agree already
are left as they are. A layout without cross-field rules has no entry.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from itertools import pairwise
from typing import Any

from ds4proto.schema.ds4d_forks import HANDLE
from ds4proto.schema.ds4d_private import value_bytes
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto.schema.ds4d_work import (
    INPUT_HC,
    INPUT_HC_IPC,
    OUTPUT_LOGITS,
    SLOT_DESCRIPTOR,
    WIDTHS,
)
from ds4proto.schema.ds4t_commands import KEEP_PREFIX, MAX_PREFIX
from ds4proto.schema.ds4t_gates import BULK_TAG, WAVE_TAG

Values = MutableMapping[str, Any]
Mend = Callable[[Values, str], None]

LAYERS = 256
"""Layers of the models that are drawn; small, so that ranges meet."""


def cycled(pattern: bytes, size: int) -> bytes:
    """Return ``size`` bytes that repeat ``pattern``."""
    pattern = bytes(pattern) or b"\0"
    return (pattern * (size // len(pattern) + 1))[:size]


def _pipeline_hello(v: Values, _dialect: str) -> None:
    layers = v["n_layers"] = v["n_layers"] % LAYERS + 1
    start = v["layer_start"] = v["layer_start"] % layers
    v["layer_end"] = start + v["layer_end"] % (layers - start)
    if v["has_output"]:
        v["layer_end"] = layers - 1


def _route_record(v: Values, dialect: str) -> None:
    v["layer_start"] %= LAYERS
    v["layer_end"] = v["layer_start"] + v["layer_end"] % LAYERS
    v["flags"] &= 3 if dialect == "local-decode" else 1


def _chain(route: list[dict[str, Any]]) -> None:
    for before, record in pairwise(route):
        length = record["layer_end"] - record["layer_start"]
        record["layer_start"] = before["layer_end"] + 1
        record["layer_end"] = record["layer_start"] + length


def _work(v: Values, dialect: str) -> None:
    route = v["route"]
    _chain(route)
    index = v["route_index"] = v["route_index"] % len(route)
    own = route[index]
    v["layer_start"], v["layer_end"] = own["layer_start"], own["layer_end"]
    flags = v["flags"] & ~(INPUT_HC | OUTPUT_LOGITS)
    if v["layer_start"]:
        flags |= INPUT_HC
    if index + 1 < len(route):
        own["flags"] &= ~1
    if own["flags"] & 1:
        flags |= OUTPUT_LOGITS
    size = len(v["tokens"]) * value_bytes(v["input_hc_bits"])
    size *= len(v["hidden"]) % 3 + 1
    if dialect == "anyei" and flags & INPUT_HC_IPC:
        if flags & INPUT_HC:
            v["input_hc_bits"], size = 32, SLOT_DESCRIPTOR
        else:
            flags &= ~INPUT_HC_IPC
    v["flags"] = flags
    v["hidden"] = cycled(v["hidden"], size if flags & INPUT_HC else 0)


def _result(v: Values, dialect: str) -> None:
    v["result_kind"] %= 6 if dialect == "hello-v3" else 3
    if v["status"]:
        return
    kind, payload = v["result_kind"], bytes(v["payload"])
    if kind == ACK:
        v["payload"] = b""
    elif kind == HIDDEN_STATE:
        bits = v["payload_bits"]
        bits = v["payload_bits"] = bits if bits in WIDTHS else WIDTHS[bits % 3]
        v["payload"] = cycled(payload, (len(payload) + 1) * bits // 8)
    elif kind == LOGITS:
        v["payload_bits"] = 32
        v["payload"] = cycled(payload, (len(payload) + 1) * 4)


def _inbox(v: Values, _dialect: str) -> None:
    slots = v["slot_count"]
    v["handles"] = cycled(v["handles"], HANDLE * (slots + 1) if slots else 0)


def _tensor_hello(v: Values, _dialect: str) -> None:
    if "gate_slot_mask0" not in v:
        return
    words = [f"gate_slot_mask{word}" for word in range(3)]
    if not any(v[word] for word in words):
        return
    layers = v["n_layer"] = v["n_layer"] % 96 + 1
    for index, word in enumerate(words):
        room = max(0, min(64, 2 * layers - 64 * index))
        v[word] &= (1 << room) - 1
    if any(v[word] for word in words):
        v["gates_per_token"] = sum(v[word].bit_count() for word in words)


def _verdict(v: Values, dialect: str) -> None:
    if dialect in ("v1", "v6", "v7", "v8-mesh", "v9"):
        return
    v["mode"] %= 3
    if v["mode"] == KEEP_PREFIX:
        v["token_count"] = v["token_count"] % MAX_PREFIX + 1


def _queue_pair(v: Values, _dialect: str) -> None:
    if v.get("reliable"):
        v["mtu"] = v["mtu"] % 5 + 1
    gid = bytes(v["gid"])
    if not any(gid) or gid[0] == 0xFE:
        v["gid"] = b"\x20" + gid[1:]


def _bulk(v: Values, dialect: str) -> None:
    if "tag" in v:
        wave = dialect == "v9w" and v["tag"] & 1
        v["tag"] = WAVE_TAG if wave else BULK_TAG


def _images(v: Values, _dialect: str) -> None:
    at = 0
    for image in v["images"]:
        image["token_start"] = at = at + image["token_start"] % 4
        at += image["token_count"]
    tokens = tuple(v["tokens"])
    v["tokens"] = tokens + (0,) * (at - len(tokens))


def _shape(v: Values) -> None:
    live = min(v["token_count"], v["raw_window"], v["raw_cap"])
    v["raw_live"] = min(v["raw_live"], live)
    for rows in ("n_comp", "n_index_comp"):
        v[rows] = tuple(min(count, v["comp_cap"]) for count in v[rows])


def _session_file(v: Values, dialect: str) -> None:
    v["version"] = 3 + v["version"] % 2 if dialect == "xangel82" else 2
    if v["tokens"] and not v["vocab"]:
        v["vocab"], v["logits"] = 1, bytes(4)
    v["tokens"] = tuple(token % v["vocab"] for token in v["tokens"])
    _shape(v)


def _shard_file(v: Values, dialect: str) -> None:
    v["version"] = 1 + v["version"] % 2 if dialect == "xangel82" else 1
    start, end = v["layer_start"], v["layer_end"]
    if start > end:
        v["layer_end"] = end = start
        v["n_comp"], v["n_index_comp"] = (0,), (0,)
    v["n_layers"] = end + 1 + v["n_layers"] % LAYERS
    _shape(v)


MENDS: dict[str, Mend] = {
    "DS4D.HELLO": _pipeline_hello,
    "ROUTE": _route_record,
    "DS4D.WORK": _work,
    "DS4D.RESULT": _result,
    "DS4D.IPC_INBOX": _inbox,
    "DS4T.HELLO": _tensor_hello,
    "DS4T.VERIFY_COMMIT": _verdict,
    "DS4T.RDMA_INFO": _queue_pair,
    "DS4B.GATE_BULK": _bulk,
    "DS4T.SYNC_MULTIMODAL": _images,
    "FILE.DSV4": _session_file,
    "FILE.DSVL": _shard_file,
}
"""By the name of a frame, or of a record inside one."""
