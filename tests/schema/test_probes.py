"""137 requests to real peers: what the schema says of each, and of each reply.

The table below is written from the order of checks in the specification and from the
replies, not from what our reader prints. ``decides`` is the rule that the peer
answered by, as (frame, field path, clause); where it needs knowledge that a frame
does not carry (the model, the context, the session), the frame itself parses and the
entry is ``parses``. ``also`` are further rules that the same bytes break.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ds4proto.schema import Problem, frame, frame_of_code, header_of, to_bytes
from ds4proto.schema.fast import header_form
from tests.schema.forms import both_forms, digest

DATA = Path(__file__).parents[1] / "data" / "ds4d_probes"
FILES = ("coordinator_hello", "worker_snapshot", "worker_work")
PROBES = {
    (name, probe["name"]): probe
    for name in FILES
    for probe in json.loads((DATA / f"{name}_probes.json").read_text())["probes"]
}
FORM, MAGIC = header_form(header_of("DS4D"))

Found = tuple[str, str]


@dataclass(frozen=True)
class Says:
    """The broken rules of one request, in any order."""

    broken: frozenset[Found]


def says(*found: Found) -> Says:
    return Says(frozenset(found))


parses = says()


def hello(field: str, number: int) -> Found:
    return f"HELLO.{field}", f"DS4D-HELLO-{number:02}"


def work(field: str, number: int) -> Found:
    return f"WORK.{field}".rstrip("."), f"DS4D-WORK-{number:02}"


def route(field: str, number: int) -> Found:
    return f"WORK.{field}", f"DS4D-ROUTE-{number:02}"


def snap(frame_name: str, field: str, number: int) -> Found:
    path = f"SNAPSHOT_{frame_name}.{field}".rstrip(".")
    return path, f"DS4D-SNAP-{number:02}"


BAD_MAGIC = ("header.magic", "DS4D-FRAME-01")
UNKNOWN_TYPE = ("header.type", "DS4D-FRAME-02")
PAST_MODEL = (hello("layer_start", 12), hello("layer_end", 12))
HEAD_TOO_EARLY = hello("has_output", 13)
RANGE_DIFFERS = work("layer_start", 21)
FLAG_DIFFERS = work("flags", 22)

COORDINATOR = {
    "ok": parses,
    "ok, range overlaps the coordinator": parses,
    "ok, no hidden, with output": parses,
    "bad magic": says(BAD_MAGIC),
    # An empty WORK where HELLO is due: which frame is due is not the frame's matter.
    "first frame not HELLO": says(work("model_id", 1)),
    "body 39": says(hello("model_name_len", 3)),
    # 128 bytes behind a fixed part of zeros.
    "body 168": says(
        hello("model_name", 3),
        hello("model_name_len", 4),
        hello("model_name", 5),
        hello("quant_bits", 9),
        *PAST_MODEL,
        hello("listen_port", 15),
    ),
    "name length field": says(hello("model_name_len", 4)),
    "name 127 bytes": parses,
    "name with NUL": says(hello("model_name", 5)),
    "name empty": parses,
    "name other case": parses,
    "model id": parses,
    # Refused for its layer count, which is not ours to know; with 9 layers the head
    # does not belong to layer 7 either.
    "layer count": says(HEAD_TOO_EARLY),
    "quant 0": says(hello("quant_bits", 9)),
    "quant 1": says(hello("quant_bits", 9)),
    "quant 2": parses,
    "quant 3": says(hello("quant_bits", 9)),
    "quant 4": parses,
    "quant 5": says(hello("quant_bits", 9)),
    "quant 8": says(hello("quant_bits", 9)),
    "has_output 2": says(hello("has_output", 10)),
    "has_hidden 2": says(hello("has_hidden", 11)),
    "layer_start == n_layers": says(*PAST_MODEL, HEAD_TOO_EARLY),
    "layer_end == n_layers": says(hello("layer_end", 12), HEAD_TOO_EARLY),
    "layer_end < layer_start": says(hello("layer_end", 12)),
    "output before last layer": says(HEAD_TOO_EARLY),
    "ctx smaller": parses,
    "port 0": says(hello("listen_port", 15)),
    "port 65536": says(hello("listen_port", 15)),
    # Layers 2 to 7 of a model of one layer.
    "several faults: model first": says(*PAST_MODEL, HEAD_TOO_EARLY),
    "several faults: name before layers": says(
        hello("quant_bits", 9), *PAST_MODEL, HEAD_TOO_EARLY
    ),
    "several faults: layers before quant": says(
        hello("quant_bits", 9), *PAST_MODEL, HEAD_TOO_EARLY
    ),
    "HELLO twice (session coordinator leaves it unread)": parses,
}
SNAPSHOT = {
    "setup: two tokens in session 132": parses,
    "save ok": parses,
    "save body 41": says(snap("SAVE_REQ", "", 1)),
    "save body 0": says(snap("SAVE_REQ", "model_id", 1)),
    "save unknown session": parses,
    "save model": parses,
    "save layers": parses,
    "save token_count > ctx": parses,
    "save token_count mismatch": parses,
    "save hash mismatch": parses,
    "load ok": parses,
    "load: status field ignored": parses,
    "load in three chunks, one empty": parses,
    "load body 59": says(snap("LOAD_BEGIN", "message_bytes", 11)),
    # 4 token bytes stated for 2 tokens, and 8 sent.
    "load token_bytes mismatch": says(
        snap("LOAD_BEGIN", "token_bytes", 12), snap("LOAD_BEGIN", "", 12)
    ),
    "load message_bytes 1": says(snap("LOAD_BEGIN", "message_bytes", 12)),
    "load trailing bytes": says(snap("LOAD_BEGIN", "", 12)),
    "load token outside vocab (last)": parses,
    "load hash mismatch": parses,
    "load model": parses,
    "load layers": parses,
    "load token_count > ctx": parses,
    # A WORK of zeros where a chunk is due.
    "chunk of wrong type": says(
        work("n_tokens", 8), work("route_count", 3), work("route_index", 4)
    ),
    "chunk body 11": says(snap("CHUNK", "chunk_bytes", 19)),
    "chunk request id": parses,
    "chunk_bytes field": says(snap("CHUNK", "chunk_bytes", 20)),
    "chunk beyond payload": parses,
    "chunk bad magic": says(BAD_MAGIC),
    "payload all zero": parses,
    "payload_bytes 0": parses,
    "payload_bytes 0 and a bad first token: stream desync": parses,
}
WORK = {
    "good logits": parses,
    "good logits, RESET_SESSION": parses,
    "ACK_ONLY on the last hop": parses,
    "hidden bits 32": parses,
    "hidden bits 16": parses,
    "hidden bits 8": parses,
    "hidden bits 0 means 32": parses,
    "logits with bits 8 input": parses,
    "bad magic": says(BAD_MAGIC),
    "little-endian header": says(BAD_MAGIC),
    "unsupported type 0": says(UNKNOWN_TYPE),
    # Known types with three bytes of body, sent to a worker: too short as well.
    "unsupported type 1": says(hello("model_id", 3)),
    "unsupported type 4": says(("RESULT.request", "DS4D-RESULT-03")),
    "unsupported type 6": says(snap("BEGIN", "model_id", 31)),
    "unsupported type 7": says(snap("CHUNK", "request", 19)),
    "unsupported type 8": says(snap("DONE", "request", 37)),
    "unsupported type 10": says(UNKNOWN_TYPE),
    "unsupported type 4294967295": says(UNKNOWN_TYPE),
    "ERROR frame to worker": parses,
    "ERROR frame, empty": parses,
    "WORK body 0": says(work("model_id", 1)),
    "WORK body 79": says(work("route_bytes", 1)),
    # Eight token bytes for one token push the route past the end of the body.
    "token_bytes != 4*n_tokens": says(work("token_bytes", 2), work("route_blob", 2)),
    "sum of tails too big": says(work("route_blob", 2)),
    "sum of tails too small": says(work("", 2)),
    "route_count 0, no route bytes": says(
        work("route_count", 3), work("route_index", 4)
    ),
    "route_index == route_count": says(work("route_index", 4)),
    "model id": parses,
    # Refused because the slice is not the worker's; the route still says 5 to 7.
    "layer range": says(RANGE_DIFFERS),
    "unknown WORK flag 0x10": says(work("flags", 7)),
    "unknown WORK flag bit 31": says(work("flags", 7)),
    "n_tokens 0": says(work("n_tokens", 8)),
    "pos0 beyond ctx": parses,
    "pos0 == ctx, one token": parses,
    "span beyond ctx": parses,
    "INPUT_HC missing": says(work("flags", 11)),
    "hidden bytes without INPUT_HC": says(
        work("flags", 11), work("input_hc_bytes", 19)
    ),
    "token == vocab": parses,
    "token 0xffffffff": parses,
    "result hash wrong": parses,
    "bits 7": says(work("input_hc_bits", 17)),
    "bits 64": says(work("input_hc_bits", 17)),
    # Whole rows of another width: wrong only for a reader that knows the model.
    "bits 16 with 32-bit size": parses,
    "hidden size of two tokens": parses,
    "flags vs route: route lacks logits": says(FLAG_DIFFERS),
    "flags vs route: WORK lacks logits": says(FLAG_DIFFERS),
    "route host_len 0": says(route("route[0].host_len", 2)),
    "route host with NUL": says(route("route[0].host", 3)),
    "route port 0": says(route("route[0].port", 4)),
    "route port 65536": says(route("route[0].port", 4)),
    # The model's end is not in the frame; the range differs from that of WORK.
    "route layer_end == n_layers": says(RANGE_DIFFERS),
    "route layer_end < layer_start": says(
        route("route[0].layer_end", 5), RANGE_DIFFERS, FLAG_DIFFERS
    ),
    "route unknown route flag": says(route("route[0].flags", 6), FLAG_DIFFERS),
    "route logits flag before last layer": says(RANGE_DIFFERS),
    "route range differs from WORK": says(RANGE_DIFFERS),
    "route host_len 1025": says(route("route[0].host_len", 2)),
    "route host_len 1024 accepted": parses,
    # The gap decides; WORK, a first hop here, asks for logits and another range too.
    "route not contiguous": says(
        route("route", 8), RANGE_DIFFERS, FLAG_DIFFERS, work("flags", 23)
    ),
    "route truncated entry": says(route("route[0].layer_start", 1)),
    "route without return record": says(route("route_return.kind", 9)),
    "return kind 0": says(route("route_return.kind", 12)),
    "return kind 2": says(route("route_return.kind", 12)),
    "return port set": says(route("route_return.port", 13)),
    "return host set": says(route("route_return.host_len", 13)),
    "return host_len beyond blob": says(route("route_return.host", 10)),
    "route trailing byte": says(route("route_blob", 14)),
    "prefix hash mismatch on a fresh session": parses,
    "position mismatch on a fresh session": parses,
    "RESET with non-initial prefix hash": parses,
    "RESET at pos 1": parses,
    "span above prefill cap": parses,
    "sequence: decode, stale replay, wrong position, right position": parses,
}
EXPECTED = {
    (name, probe): found
    for name, table in zip(FILES, (COORDINATOR, SNAPSHOT, WORK), strict=True)
    for probe, found in table.items()
}


def problems(data: bytes) -> Iterator[Problem]:
    """Yield what is wrong with a stream of frames, as a framing reader sees it."""
    at = 0
    while at < len(data):
        magic, code, size = FORM.unpack_from(data, at)
        if magic != MAGIC:
            yield Problem(BAD_MAGIC[1], BAD_MAGIC[0], 0, at, "", "")
            return
        spec = frame_of_code("DS4D", code, dialect="upstream")
        whole = data[at : at + FORM.size + size]
        assert len(whole) == FORM.size + size, "the request holds whole frames"
        if spec is None:
            yield Problem(UNKNOWN_TYPE[1], UNKNOWN_TYPE[0], 4, at + 4, "", "")
        else:
            yield from both_forms(spec, whole, "upstream", at).problems
        at += len(whole)


def test_the_table_covers_every_request() -> None:
    assert EXPECTED.keys() == PROBES.keys()
    assert len(PROBES) == 137


@pytest.mark.parametrize(
    ("key", "expected"), EXPECTED.items(), ids=[f"{a}-{b}" for a, b in EXPECTED]
)
def test_request(key: tuple[str, str], expected: Says) -> None:
    found = list(problems(bytes.fromhex(PROBES[key]["send"])))
    assert {(p.path, p.clause) for p in found} == expected.broken
    assert len(found) == len(expected.broken)
    for problem in found:
        assert problem.frame_offset is not None


REPLY_NAMES = {2: "ERROR", 4: "RESULT", 6: "SNAPSHOT_BEGIN", 7: "SNAPSHOT_CHUNK"} | {
    8: "SNAPSHOT_DONE"
}
RECORD = [
    "layer_start", "layer_end", "route_index", "pos0", "n_tokens", "eval_usec",
    "downstream_wait_usec", "forward_send_usec", "input_bytes", "output_bytes",
]  # fmt: skip


def reply_values(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a frame's values with every stated figure; what is free is zero."""
    message = reply.get("message", "")
    size = reply.get("payload_bytes", 0)
    request = reply.get("request_id", 0)
    status = reply.get("status", 0)
    return {
        "ERROR": {"text": message},
        "RESULT": {
            "request": request,
            "result_hash": int(reply.get("result_hash", "0"), 16),
            "status": status,
            "result_kind": reply.get("result_kind", 0),
            "payload_bits": reply.get("payload_bits", 0),
            "telemetry": [dict.fromkeys(RECORD, 0)] * reply.get("telemetry_count", 0),
            "payload": message.encode() if status else bytes(size),
        },
        "SNAPSHOT_BEGIN": {
            "model_id": 0,
            "session": reply.get("session_id", 0),
            "request": request,
            "token_hash": 0,
            "layer_start": 5,
            "layer_end": 7,
            "payload_size": size,
            "status": status,
            "message": message,
        },
        "SNAPSHOT_CHUNK": {"request": 0, "data": bytes(reply.get("chunk_bytes", 0))},
        "SNAPSHOT_DONE": {"request": request, "status": status, "message": message},
    }[REPLY_NAMES[reply["type"]]]


REPLIES = [
    (f"{name}-{probe}-{index}", reply)
    for (name, probe), entry in PROBES.items()
    for index, reply in enumerate(entry["expect"])
]


@pytest.mark.parametrize("reply", [r for _, r in REPLIES], ids=[i for i, _ in REPLIES])
def test_reply(reply: dict[str, Any]) -> None:
    name = REPLY_NAMES[reply["type"]]
    spec = frame(f"DS4D.{name}", dialect="upstream")
    whole = to_bytes(spec, reply_values(reply), dialect="upstream")
    reading = both_forms(spec, whole, "upstream")
    assert reading.problems == ()
    assert len(whole) - spec.header_size == reply["body_bytes"]
    values = reading.values
    stated = reply.keys() & {"status", "result_kind", "telemetry_count", "token_count"}
    assert {key: reply[key] for key in stated} == {key: values[key] for key in stated}
    if name == "RESULT":
        assert values["payload_bytes"] == reply["payload_bytes"]
        assert values["payload_bits"] == reply["payload_bits"]


def test_the_replies_are_those_of_the_files() -> None:
    kinds = [REPLY_NAMES[reply["type"]] for _, reply in REPLIES]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counts.keys() == set(REPLY_NAMES.values())
    assert counts["SNAPSHOT_CHUNK"] == 1
    assert counts["ERROR"] == 30


def test_the_shard_is_the_recorded_one() -> None:
    shard = (DATA / "toy_shard_5_7.dsvl").read_bytes()
    assert digest(shard) == (
        "454826531e4dcaaae076bb6db823ef4e45e7b5e30400d7424bf70cfb4e1e0ae9"
    )
    load = bytes.fromhex(PROBES["worker_snapshot", "load ok"]["send"])
    assert shard in load
