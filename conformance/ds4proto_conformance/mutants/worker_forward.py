"""Workers that forward or relay wrongly. All stand in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link import ds4d_forward as forward
from ds4proto.link import ds4d_worker_queue
from ds4proto.link.ds4d_frames import RESULT_PART, TELEMETRY_PART
from ds4proto.schema.ds4d_result import ACK
from ds4proto_conformance.mutants.tools import Parts, frames_in, result, work
from ds4proto_conformance.mutants.worker_answers import _even
from ds4proto_conformance.mutants.worker_framing import _any_magic, _swallow
from ds4proto_conformance.peers import engine as small_engine
from ds4proto_conformance.peers.faults import Fault, patched

Change = Callable[[Parts], bool | None]
worker_queue: Any = ds4d_worker_queue
_RELAYED = worker_queue.Queue.relayed


def _below(hook: Callable[[Any, bytes], bytes]) -> Callable[[Any, bytes], bytes]:
    """Apply a hook for received bytes to forward connections alone."""

    def received(connection: Any, data: bytes) -> bytes:
        return hook(connection, data) if connection.kind == "forward" else data

    return received


def _set(**words: Callable[[int], int]) -> Any:
    def change(parts: Parts) -> None:
        for name, value in words.items():
            parts.words[name] = value(parts.words[name])

    return work(change)


def _route_cut(parts: Parts) -> None:
    size = parts.words["route_bytes"]
    parts.rest = parts.rest[:-size] + parts.rest[-size:-12] + bytes(11) + b"\1"


def _wide(parts: Parts) -> None:
    bits, tokens = parts.words["input_hc_bits"], parts.words["token_bytes"]
    size = parts.words["input_hc_bytes"]
    raw = small_engine.unpack(parts.rest[tokens : tokens + size], bits)
    wide = small_engine.pack(raw, 32)
    parts.rest = parts.rest[:tokens] + wide + parts.rest[tokens + size :]
    parts.words.update(input_hc_bits=32, input_hc_bytes=len(wide))


def _not_evaluated(engine: Any, job: Any) -> bytes:
    return bytes(job.hidden) if job.want == "forward" else bytes(engine.evaluate(job))


def _keep_zero() -> contextlib.AbstractContextManager[None]:
    own = worker_queue.work_frame

    def frame(fixed: Any, tokens: Any, hidden: Any, blob: Any) -> Any:
        zero = _ZERO.pop("seen", False)
        return own(
            {**fixed, "input_hc_bits": 0 if zero else fixed["input_hc_bits"]},
            tokens,
            hidden,
            blob,
        )

    return patched((worker_queue, "work_frame", frame))


_ZERO: dict[str, bool] = {}


def _note_zero(_connection: Any, code: int, body: bytes) -> bytes | None:
    from ds4proto_conformance.mutants.worker_answers import worker_queue_at

    if code == 3 and len(body) >= 80:
        at = worker_queue_at("input_hc_bits")
        if body[at : at + 4] == bytes(4):
            _ZERO["seen"] = True
    return None


def _relay(change: Change) -> Any:
    """Alter RESULTs that hold more than one record: those that were relayed."""

    def some(parts: Parts) -> bool | None:
        return change(parts) if parts.words["telemetry_count"] > 1 else None

    return result(some)


def _relay_error(change: Change) -> Any:
    def some(parts: Parts) -> bool | None:
        return change(parts) if parts.words["telemetry_count"] else None

    return result(some, failed=True)


def _turn(parts: Parts) -> None:
    raw = parts.telemetry
    parts.put(telemetry=raw[-40:] + raw[:-40])


def _own(change: Callable[[dict[str, int]], None]) -> Any:
    def act(parts: Parts) -> None:
        words = TELEMETRY_PART.read(parts.telemetry, len(parts.telemetry) - 40)
        change(words)
        parts.put(telemetry=parts.telemetry[:-40] + TELEMETRY_PART.build(words))

    return _relay(act)


def _cut_last(parts: Parts) -> None:
    parts.put(telemetry=parts.telemetry[:-40])


def _other_payload(parts: Parts) -> None:
    parts.put(payload=parts.payload[4:] + parts.payload[:4])


def _answers_ack() -> contextlib.AbstractContextManager[None]:
    own = worker_queue.Queue._forward

    def instead(self: Any, work_: Any, event: Any, record: Any, now: float) -> None:
        if not work_.fields["flags"] & 8:
            own(self, work_, event, record, now)
            return
        frame = worker_queue.result_frame(
            work_.fields["request"],
            result_hash=work_.fields["result_hash"],
            kind=ACK,
            telemetry=TELEMETRY_PART.build(record),
        )
        self._answer_request(work_.fields["request"], frame)

    return patched((worker_queue.Queue, "_forward", instead))


def _dials_each() -> contextlib.AbstractContextManager[None]:
    def relayed(self: Any, request: int, frame: Any, now: float) -> None:
        _RELAYED(self, request, frame, now)
        self._forwards.clear()

    return patched((worker_queue.Queue, "relayed", relayed))


def _failure(change: Callable[[Any, Any, list[int], Any, float], None]) -> Any:
    return lambda: patched((worker_queue.Queue, "forward_failed", change))


def _dial_closes(
    self: Any, link: Any, _waiting: list[int], fault: Any, now: float
) -> None:
    self._forwards.pop((link.host, link.port), None)
    self.forward_ended(fault, now)


def _dial_silent(
    self: Any, link: Any, _waiting: list[int], _fault: Any, now: float
) -> None:
    self._forwards.pop((link.host, link.port), None)
    self._slots.clear()
    self.pump(now)


def _loss(change: Callable[[Any, Any, list[int], Any, float], None]) -> Any:
    return lambda: patched((worker_queue.Queue, "forward_lost", change))


def _loss_silent(
    self: Any, link: Any, _waiting: list[int], fault: Any, now: float
) -> None:
    self._forwards.pop((link.host, link.port), None)
    self.forward_ended(fault, now)


def _loss_open(
    self: Any, link: Any, waiting: list[int], fault: Any, now: float
) -> None:
    self._forwards.pop((link.host, link.port), None)
    for request in waiting:
        self._answer_request(request, worker_queue.refusal_frame(request, fault.text))
    self.pump(now)


_LOST = worker_queue.Queue.forward_lost


def _idle_ignored(
    self: Any, link: Any, waiting: list[int], fault: Any, now: float
) -> None:
    if waiting or fault.clause != "DS4D-FWD-11":
        _LOST(self, link, waiting, fault, now)
    else:
        self._forwards.pop((link.host, link.port), None)


def _extra_ignored() -> contextlib.AbstractContextManager[None]:
    own = forward.Forwarder._frame

    def frame(self: Any, frame: Any, now: float) -> None:
        if self._pending:
            own(self, frame, now)

    return patched((forward.Forwarder, "_frame", frame))


_LOSE = forward.Forwarder._lose


def _cut_silent() -> contextlib.AbstractContextManager[None]:
    def lose(self: Any, clause: str, now: float) -> None:
        _LOSE(self, "DS4D-FWD-11" if clause == "DS4D-FWD-13" else clause, now)

    return patched((forward.Forwarder, "_lose", lose))


def _cut_filled() -> contextlib.AbstractContextManager[None]:
    def lose(self: Any, clause: str, now: float) -> None:
        if clause == "DS4D-FWD-18":
            request = self._pending[0].request
            frame = worker_queue.result_frame(request, kind=ACK)
            self.upstream.relayed(request, frame, now)
        _LOSE(self, clause, now)

    return patched((forward.Forwarder, "_lose", lose))


def _others_skipped(_connection: Any, code: int, _body: bytes) -> bytes | None:
    return b"" if code != 4 else None


def _short_padded(_connection: Any, code: int, body: bytes) -> bytes | None:
    return b"" if code == 4 and len(body) < RESULT_PART.size else None


def _lenient(clause_text: str) -> Callable[[], Any]:
    """Leave out a check of the next hop's RESULT by repairing its words."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = forward.Forwarder._frame

        def frame(self: Any, frame: Any, now: float) -> None:
            body = bytearray(frame.body)
            if frame.type == 4 and len(body) >= RESULT_PART.size and self._pending:
                words = RESULT_PART.read(body)
                if clause_text == "id":
                    words["request"] = self._pending[0].request
                else:
                    words["telemetry_count"] = 1
                    words["telemetry_bytes"] = 40
                    words["payload_bytes"] = len(body) - RESULT_PART.size - 40
                body[: RESULT_PART.size] = RESULT_PART.build(words)
                frame.body = memoryview(body)
            own(self, frame, now)

        return patched(
            (forward.Forwarder, "_frame", frame),
            (forward.Forwarder, "_plan", lambda _s, _t, size, _k: size),
        )

    return patch


def _reversed(connection: Any, frame: bytes) -> list[bytes]:
    """Give relayed answers up two by two, the second first."""
    from ds4proto.link.ds4d_frames import HEADER_SIZE, unpack_header

    if connection.kind != "data" or unpack_header(frame)[1] != 4:
        return [frame]
    words = RESULT_PART.read(frame, HEADER_SIZE)
    if words["telemetry_count"] < 2:
        return [frame]
    changed = dict(words, request=words["request"] ^ 2)
    return [
        frame[:HEADER_SIZE]
        + RESULT_PART.build(changed)
        + frame[HEADER_SIZE + RESULT_PART.size :]
    ]


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", category, about, "middle", **hooks)


def _fwd(name: str, about: str, **hooks: Any) -> Fault:
    return _f(name, "forwarding", about, **hooks)


MUTANTS: Final = (
    _fwd(
        "forward-own-layers",
        "forwards its own layers",
        out=_set(layer_start=lambda _v: 2, layer_end=lambda _v: 4),
    ),
    _fwd(
        "forward-index-kept",
        "does not count the route on",
        out=_set(route_index=lambda v: v - 1),
    ),
    _fwd(
        "forward-index-1",
        "always forwards route index 1",
        out=_set(route_index=lambda _v: 1),
    ),
    _fwd(
        "forward-logits-lost", "never asks for logits", out=_set(flags=lambda v: v & ~2)
    ),
    _fwd(
        "forward-logits-always",
        "always asks for logits",
        out=_set(flags=lambda v: v | 2),
    ),
    _fwd("forward-reset-lost", "forwards no RESET", out=_set(flags=lambda v: v & ~4)),
    _fwd("forward-ack-lost", "forwards no ACK_ONLY", out=_set(flags=lambda v: v & ~8)),
    _fwd(
        "forward-new-request",
        "forwards under an id of its own",
        out=_set(request=lambda v: v ^ 0x55),
    ),
    _fwd(
        "forward-hash-swapped",
        "swaps the halves of the prefix hash",
        out=_set(prefix_hash=lambda v: (v << 32 | v >> 32) & (1 << 64) - 1),
    ),
    _fwd("forward-route-cut", "writes the route anew", out=work(_route_cut)),
    _fwd("forward-always-32", "forwards at 32 bits", out=work(_wide)),
    _fwd(
        "forward-zero-kept",
        "forwards width 0",
        patch=_keep_zero,
        received=frames_in(_note_zero),
    ),
    _fwd("forward-not-evaluated", "forwards what it received", evaluate=_not_evaluated),
    _fwd(
        "forward-rounds-to-even",
        "re-encodes with ties to even",
        patch=lambda: patched((small_engine, "pack", _even)),
    ),
    _fwd("forward-ack-answered", "answers ACK_ONLY by itself", patch=_answers_ack),
    _fwd("forward-dials-each-time", "dials for every request", patch=_dials_each),
    _fwd(
        "forward-window-1",
        "forwards one request at a time",
        settings=lambda limits: limits.__class__(forward_window=1),
    ),
    _fwd(
        "relay-changes-bits",
        "marks what it relays as 32 bits",
        out=_relay(lambda p: p.words.update(payload_bits=32)),
    ),
    _fwd(
        "relay-changes-payload",
        "turns what it relays round",
        out=_relay(_other_payload),
    ),
    _fwd("relay-reversed", "relays under another id", out=_reversed),
    _fwd(
        "relay-rewrites-error",
        "words relayed errors anew",
        out=_relay_error(lambda p: p.put(payload=b"next worker failed")),
    ),
    _fwd(
        "relay-error-bare",
        "relays errors without its record",
        out=_relay_error(_cut_last),
    ),
    _f(
        "telemetry-in-front", "telemetry", "puts its record in front", out=_relay(_turn)
    ),
    _f("telemetry-not-appended", "telemetry", "adds no record", out=_relay(_cut_last)),
    _f(
        "telemetry-index-zero",
        "telemetry",
        "says route index 0",
        out=_own(lambda w: w.update(route_index=0)),
    ),
    _f(
        "forward-record-of-next",
        "telemetry",
        "tells the next slice",
        out=_own(lambda w: w.update(layer_start=w["layer_end"] + 1, layer_end=7)),
    ),
    _f(
        "forward-record-no-output",
        "telemetry",
        "says it put out nothing",
        out=_own(lambda w: w.update(output_bytes=0)),
    ),
    _f(
        "forward-wait-missing",
        "telemetry",
        "measures no wait",
        out=_own(lambda w: w.update(downstream_wait_usec=0)),
    ),
    _f(
        "forward-dial-closes",
        "faults",
        "closes when it cannot dial",
        patch=_failure(_dial_closes),
    ),
    _f(
        "forward-dial-silent",
        "faults",
        "is silent when it cannot dial",
        patch=_failure(_dial_silent),
    ),
    _f(
        "forward-loss-silent",
        "faults",
        "closes without an error",
        patch=_loss(_loss_silent),
    ),
    _f(
        "forward-loss-stays-open",
        "faults",
        "stays open behind a loss",
        patch=_loss(_loss_open),
    ),
    _f(
        "forward-idle-loss-ignored",
        "faults",
        "passes over an idle loss",
        patch=_loss(_idle_ignored),
    ),
    _f(
        "forward-extra-result-ignored",
        "faults",
        "passes over surplus RESULTs",
        patch=_extra_ignored,
    ),
    _f(
        "forward-cut-silent",
        "faults",
        "closes without a word when the next worker ends inside a RESULT",
        patch=_cut_silent,
    ),
    _f(
        "forward-cut-filled",
        "faults",
        "makes an answer of its own where the next worker ends inside a payload",
        patch=_cut_filled,
    ),
    _f(
        "forward-skips-others",
        "faults",
        "passes over other frames from below",
        received=_below(frames_in(_others_skipped)),
    ),
    _f(
        "forward-short-result-padded",
        "faults",
        "passes over short RESULTs",
        received=_below(frames_in(_short_padded)),
    ),
    _f("forward-id-unchecked", "faults", "does not compare ids", patch=_lenient("id")),
    _f(
        "forward-lengths-unchecked",
        "faults",
        "does not compare lengths",
        patch=_lenient("lengths"),
    ),
    _f(
        "magic-ignored-below",
        "faults",
        "takes any magic from below",
        received=_below(_any_magic),
    ),
    _f(
        "split-body-below",
        "framing",
        "wants RESULTs in one piece",
        received=_below(_swallow),
    ),
)
