"""Workers whose answers, telemetry or payloads are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ds4proto.link import ds4d_worker_queue as worker_queue
from ds4proto.link.ds4d_frames import HEADER_SIZE, TELEMETRY_PART, unpack_header
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.mutants.tools import Parts, frames_in, result
from ds4proto_conformance.peers import engine as small_engine
from ds4proto_conformance.peers.faults import Fault, patched

Change = Callable[[Parts], bool | None]


def _word(
    name: str, value: Callable[[int], int], *, failed: bool | None = False
) -> Any:
    def change(parts: Parts) -> None:
        parts.words[name] = value(parts.words[name])

    return result(change, failed=failed)


def _twice(_connection: Any, frame: bytes) -> list[bytes]:
    return [frame, frame] if unpack_header(frame)[1] == 4 else [frame]


def _refusals_first(connection: Any, frame: bytes) -> list[bytes]:
    """Hold successes back until the next frame leaves."""
    held: list[bytes] = connection.memory.setdefault("held out", [])
    status = int.from_bytes(frame[HEADER_SIZE + 16 : HEADER_SIZE + 20], "big")
    if unpack_header(frame)[1] != 4:
        return [frame]
    if status == 0 and not held and connection.memory.get("busy"):
        held.append(frame)
        return []
    out = [frame, *held]
    held.clear()
    return out


def _busy(connection: Any, data: bytes) -> bytes:
    connection.memory["busy"] = data.count(b"DS4D") > 1
    return data


def _ack(change: Change) -> Any:
    def some(parts: Parts) -> bool | None:
        return change(parts) if parts.words["result_kind"] == ACK else None

    return result(some)


def _ack_bits(parts: Parts) -> None:
    parts.words["payload_bits"] = 32


def _of_kind(kind: int, change: Change) -> Any:
    def some(parts: Parts) -> bool | None:
        return change(parts) if parts.words["result_kind"] == kind else None

    return result(some)


def _last_row(parts: Parts) -> None:
    row = 64 * (parts.words["payload_bits"] or 32) // 8
    parts.put(payload=parts.payload[-row:])


def _zero_bits(connection: Any, code: int, body: bytes) -> bytes | None:
    if code == 3 and len(body) >= 80:
        at = worker_queue_at("input_hc_bits")
        connection.memory["zero"] = body[at : at + 4] == bytes(4)
    return None


def worker_queue_at(name: str) -> int:
    """Return the offset of a word in the fixed part of WORK."""
    from ds4proto.schema.ds4d_work import WORK

    at = 0
    for field in WORK.body.fields:
        if field.path == name:
            return at
        at += field.size
    raise LookupError(name)


def _echo_zero(parts: Parts) -> None:
    if parts.memory.get("zero"):
        parts.words["payload_bits"] = 0


def _want(change: Callable[[Any], str]) -> Callable[[], Any]:
    """Alter what the worker takes a WORK to ask for."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = worker_queue.Queue._start

        def start(self: Any, work: Any, slot: Any) -> Any:
            flags = change(work)
            if flags == "no ack":
                work.fields["flags"] &= ~8
            elif flags == "logits" and work.facts.has_output and work.last:
                work.fields["flags"] |= 2
            return own(self, work, slot)

        return patched((worker_queue.Queue, "_start", start))

    return patch


def _record(change: Callable[[dict[str, int]], None]) -> Any:
    def act(parts: Parts) -> None:
        records = []
        for at in range(0, len(parts.telemetry), TELEMETRY_PART.size):
            words = TELEMETRY_PART.read(parts.telemetry, at)
            change(words)
            records.append(TELEMETRY_PART.build(words))
        parts.put(telemetry=b"".join(records))

    return result(act)


def _add(**steps: int) -> Callable[[dict[str, int]], None]:
    def change(words: dict[str, int]) -> None:
        for name, step in steps.items():
            words[name] += step

    return change


def _scale(words: dict[str, int]) -> None:
    words["eval_usec"] = words["eval_usec"] * 1000 + 10_000_000


def _tokens_only(words: dict[str, int]) -> None:
    words["input_bytes"] = 4 * words["n_tokens"] + 1


def _closes(peer: Any, connection: Any, event: Any) -> bool:
    from ds4proto.link.ds4d_events import Transmit

    if not isinstance(event, Transmit) or connection is None:
        return False
    frame = b"".join(map(bytes, event.buffers))
    if unpack_header(frame)[1] != 4 or frame[
        HEADER_SIZE + 16 : HEADER_SIZE + 20
    ] == bytes(4):
        return False
    connection.sock.sendall(frame)
    peer.end(connection)
    return True


def _engine(**changes: Any) -> Callable[[], Any]:
    return lambda: patched(*[(small_engine, k, v) for k, v in changes.items()])


_PACK, _UNPACK = small_engine.pack, small_engine.unpack


def _bf16(values: Any, bits: int) -> bytes:
    if bits != 16:
        return _PACK(values, bits)
    return bytes((values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())


def _swapped_16(values: Any, bits: int) -> bytes:
    raw = _PACK(values, bits)
    return bytes(np.frombuffer(raw, "<u2").byteswap().tobytes()) if bits == 16 else raw


def _even(values: Any, bits: int) -> bytes:
    """Round to nearest even, as a plain cast to E4M3 does."""
    if bits != 8:
        return _PACK(values, bits)
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    codes = np.frombuffer(_PACK(flat, 8), np.uint8).copy()
    back = _UNPACK(codes.tobytes(), 8)
    odd = (codes & 1).astype(bool) & (codes & 0x7F > 8)
    below = codes - 1
    low = _UNPACK(below.tobytes(), 8)
    tie = np.abs(flat - back) == np.abs(flat - low)
    return bytes(np.where(odd & tie, below, codes).astype(np.uint8).tobytes())


def _truncate(values: Any, bits: int) -> bytes:
    if bits != 8:
        return _PACK(values, bits)
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    codes = np.frombuffer(_PACK(flat, 8), np.uint8).copy()
    over = np.abs(_UNPACK(codes.tobytes(), 8)) > np.abs(flat)
    return bytes((codes - (over & ((codes & 0x7F) > 0))).astype(np.uint8).tobytes())


def _big_in(data: Any, bits: int) -> Any:
    raw = np.frombuffer(data, np.uint8)
    if bits == 32:
        raw = raw.view("<u4").byteswap().view(np.uint8)
        return np.nan_to_num(_UNPACK(raw, 32))
    return _UNPACK(raw, bits)


def _through_half(data: Any, bits: int) -> Any:
    found = _UNPACK(data, bits)
    return found.astype(np.float16).astype(np.float32) if bits == 32 else found


def _reversed_rows(engine: Any, job: Any) -> bytes:
    raw: bytes = engine.evaluate(job)
    if job.want not in ("hidden", "forward"):
        return raw
    step = len(raw) // len(job.tokens)
    return b"".join(raw[at : at + step] for at in range(len(raw) - step, -1, -step))


def _first_logits(engine: Any, job: Any) -> bytes:
    if job.want != "logits":
        return bytes(engine.evaluate(job))
    hidden = _UNPACK(job.hidden, job.bits).reshape(-1, engine.model.hidden_values)
    rows = engine.rows(job.session, job.tokens, hidden)
    return bytes(engine.head(rows[0]).astype("<f4").tobytes())


def _layer_0_bits() -> contextlib.AbstractContextManager[None]:
    from ds4proto.link import ds4d_work_checks as checks

    return patched((checks.Work, "bits", property(lambda _w: 32)))


def _no_zero() -> contextlib.AbstractContextManager[None]:
    from ds4proto.link import ds4d_work_checks as checks

    table = checks.SIZE_CHECKS
    strict = table[1]._replace(
        broken=lambda w: w.fields["input_hc_bits"] not in (8, 16, 32)
    )
    return patched((checks, "SIZE_CHECKS", (table[0], strict, *table[2:])))


def _refusal(change: Change) -> Any:
    return result(change, failed=True)


def _set(**words: int) -> Change:
    def change(parts: Parts) -> None:
        parts.words.update(words)

    return change


def _terminated(parts: Parts) -> None:
    parts.put(payload=parts.payload + b"\0")


def _mute(parts: Parts) -> None:
    parts.put(payload=b"")


def _with_telemetry(parts: Parts) -> None:
    parts.put(telemetry=bytes(40))


def _low_half(value: int) -> int:
    return value & 0xFFFFFFFF


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", category, about, **hooks)


MUTANTS: Final = (
    _f(
        "request-low-half",
        "state",
        "echoes the lower half of the request id",
        out=_word("request", _low_half),
    ),
    _f(
        "request-zero",
        "state",
        "answers with request id 0",
        out=_word("request", lambda _v: 0),
    ),
    _f(
        "result-hash-zero",
        "state",
        "answers with hash 0",
        out=_word("result_hash", lambda _v: 0),
    ),
    _f(
        "result-hash-is-prefix",
        "state",
        "answers with another hash",
        out=_word("result_hash", lambda v: v ^ 1 << 63),
    ),
    _f("answers-twice", "state", "sends every RESULT twice", out=_twice),
    _f(
        "refusals-first",
        "state",
        "refusals overtake answers",
        out=_refusals_first,
        received=_busy,
    ),
    _f(
        "ack-ignored",
        "state",
        "answers ACK_ONLY in full",
        patch=_want(lambda _w: "no ack"),
    ),
    _f("ack-with-bits", "state", "an ACK that states a width", out=_ack(_ack_bits)),
    _f(
        "ack-with-payload",
        "state",
        "an ACK with a payload",
        out=_ack(lambda p: p.put(payload=bytes(4))),
    ),
    _f(
        "logits-always",
        "state",
        "answers logits though nobody asked",
        patch=_want(lambda _w: "logits"),
    ),
    _f(
        "logits-bits-of-work",
        "codec",
        "logits marked with another width",
        out=_of_kind(LOGITS, _set(payload_bits=16)),
    ),
    _f(
        "logits-cut",
        "codec",
        "the last logit is missing",
        out=_of_kind(LOGITS, lambda p: p.put(payload=p.payload[:-4])),
    ),
    _f("logits-of-first", "codec", "logits of the first token", evaluate=_first_logits),
    _f(
        "hidden-last-row",
        "codec",
        "returns the last row alone",
        out=_of_kind(HIDDEN_STATE, _last_row),
    ),
    _f(
        "bits-zero-echoed",
        "codec",
        "echoes width 0 instead of 32",
        received=frames_in(_zero_bits),
        out=_of_kind(HIDDEN_STATE, _echo_zero),
    ),
    _f("bits-zero-refused", "codec", "refuses width 0", patch=_no_zero),
    _f(
        "refusal-with-hash",
        "state",
        "a refusal with a result hash",
        out=_refusal(_set(result_hash=5)),
    ),
    _f(
        "refusal-with-kind",
        "state",
        "a refusal with a result kind",
        out=_refusal(_set(result_kind=2)),
    ),
    _f(
        "refusal-with-bits",
        "state",
        "a refusal with a width",
        out=_refusal(_set(payload_bits=32)),
    ),
    _f(
        "refusal-status-zero",
        "state",
        "a refusal with status 0",
        out=_refusal(_set(status=0)),
    ),
    _f("refusal-terminated", "state", "texts end with NUL", out=_refusal(_terminated)),
    _f("refusal-empty", "state", "refuses without a text", out=_refusal(_mute)),
    _f("refusal-closes", "liveness", "closes behind a refusal", event=_closes),
    _f(
        "refusal-with-telemetry",
        "telemetry",
        "a refusal with telemetry",
        out=_refusal(_with_telemetry),
    ),
    _f(
        "telemetry-missing",
        "telemetry",
        "sends no telemetry",
        out=result(lambda p: p.put(telemetry=b"")),
    ),
    _f(
        "telemetry-twice",
        "telemetry",
        "sends its record twice",
        out=result(lambda p: p.put(telemetry=p.telemetry * 2)),
    ),
    _f(
        "telemetry-layers-off",
        "telemetry",
        "layers one too far",
        out=_record(_add(layer_end=1)),
    ),
    _f(
        "telemetry-pos-off",
        "telemetry",
        "position behind the span",
        out=_record(lambda w: w.update(pos0=w["pos0"] + w["n_tokens"])),
    ),
    _f(
        "telemetry-index-off",
        "telemetry",
        "route index counted from 1",
        out=_record(_add(route_index=1)),
    ),
    _f(
        "telemetry-input-off",
        "telemetry",
        "input without the hidden bytes",
        out=_record(_tokens_only),
    ),
    _f(
        "telemetry-output-off",
        "telemetry",
        "output bytes 0 beside a payload",
        out=_record(lambda w: w.update(output_bytes=w["output_bytes"] // 2)),
    ),
    _f(
        "telemetry-waits",
        "telemetry",
        "a last hop that waited",
        out=_record(_add(downstream_wait_usec=7)),
    ),
    _f(
        "telemetry-nanoseconds",
        "telemetry",
        "times in another unit",
        out=_record(_scale),
    ),
    _f("f16-is-bf16", "codec", "16 bit is BF16", patch=_engine(pack=_bf16)),
    _f(
        "f16-big-endian",
        "codec",
        "16 bit high byte first",
        patch=_engine(pack=_swapped_16),
    ),
    _f("e4m3-to-even", "codec", "8 bit rounds ties to even", patch=_engine(pack=_even)),
    _f(
        "e4m3-truncates",
        "codec",
        "8 bit cuts instead of rounding",
        patch=_engine(pack=_truncate),
    ),
    _f(
        "hidden-in-big-endian",
        "codec",
        "reads 32-bit input high byte first",
        patch=_engine(unpack=_big_in),
    ),
    _f(
        "f32-through-f16",
        "codec",
        "narrows 32-bit input",
        patch=_engine(unpack=_through_half),
    ),
    _f("rows-reversed", "codec", "rows in reverse order", evaluate=_reversed_rows),
    _f(
        "layer-0-always-32",
        "codec",
        "layer 0 answers at 32 bits",
        position="first",
        patch=_layer_0_bits,
    ),
)
