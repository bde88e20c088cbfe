"""Coordinators that judge RESULT, or recover, wrongly."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ds4proto.link import ds4d_request as request
from ds4proto.link import ds4d_session as session
from ds4proto.link import ds4d_work_link as work_link
from ds4proto.link.ds4d_frames import HEADER_SIZE, RESULT_PART, unpack_header
from ds4proto_conformance.mutants.tools import frame_bytes, frames_in
from ds4proto_conformance.mutants.worker_framing import _any_magic
from ds4proto_conformance.peers.faults import Fault, patched

Patch = Callable[[], contextlib.AbstractContextManager[None]]
Words = dict[str, int]


def _results(change: Callable[[Any, Words, bytes], bytes | None]) -> Any:
    """Repair incoming RESULTs; ``change(link, words, rest)`` returns a body."""

    def some(connection: Any, code: int, body: bytes) -> bytes | None:
        link = connection.machine
        due = _Due.of(link, connection.memory["ahead"])
        if code != 4 or len(body) < RESULT_PART.size or due is None:
            return None
        connection.memory["ahead"] += 1
        found = change(due, RESULT_PART.read(body), body[RESULT_PART.size :])
        return None if found is None else frame_bytes(4, found)

    whole = frames_in(some)

    def received(connection: Any, data: bytes) -> bytes:
        connection.memory["ahead"] = 0  # answers of this segment, not yet judged
        return whole(connection, data)

    return received


@dataclass(frozen=True, slots=True)
class _Due:
    """What the next answer of a worker has to fit."""

    model: Any
    asked: Any

    @classmethod
    def of(cls, link: Any, ahead: int = 0) -> _Due | None:
        """Return it for the answer behind some others; None where none is due."""
        if not isinstance(link, work_link.WorkLink) or len(link._pending) <= ahead:
            return None
        return cls(link.model, link._pending[ahead].asked)


def _body(words: Words, rest: bytes) -> bytes:
    return RESULT_PART.build(words) + rest


def _logits(link: Any, words: Words) -> bytes:
    """Return a sound answer to what is pending."""
    size, asked = link.model.logits_bytes, link.asked
    words.update(
        status=0,
        result_kind=2,
        telemetry_count=0,
        telemetry_bytes=0,
        payload_bytes=size,
        payload_bits=32,
        request=asked.request,
        result_hash=asked.result_hash,
    )
    return _body(words, bytes(size))


def _when(broken: Callable[[Any, Words, bytes], bool]) -> Any:
    """Take an answer for sound where it is broken in one way."""

    def change(link: Any, words: Words, rest: bytes) -> bytes | None:
        if words["status"] or not broken(link, words, rest):
            return None
        return _logits(link, words)

    return _results(change)


def _asked(link: Any) -> Any:
    return link.asked


def _other_id(link: Any, words: Words, _rest: bytes) -> bool:
    return bool((words["request"] ^ _asked(link).request) & 0xFFFFFFFF)


def _upper_id(link: Any, words: Words, _rest: bytes) -> bool:
    differs = words["request"] ^ _asked(link).request
    return differs > 0xFFFFFFFF and not differs & 0xFFFFFFFF


def _telemetry_count(_link: Any, words: Words, rest: bytes) -> bool:
    fits = words["payload_bytes"] + words["telemetry_bytes"] == len(rest)
    return fits and words["telemetry_count"] * 40 != words["telemetry_bytes"] == 40


def _telemetry_bytes(_link: Any, words: Words, _rest: bytes) -> bool:
    return words["telemetry_count"] == 1 and words["telemetry_bytes"] != 40


def _payload_bytes(_link: Any, words: Words, rest: bytes) -> bool:
    return words["telemetry_bytes"] == 40 and words["payload_bytes"] + 40 != len(rest)


def _hidden(broken: Callable[[Any, Words], bool]) -> Any:
    return _when(lambda link, w, _r: w["result_kind"] == 1 and broken(link, w))


def _rows(link: Any, words: Words) -> bool:
    if words["payload_bits"] not in (0, 8, 16, 32):
        return False
    due = link.model.hidden_bytes(_asked(link).n_tokens, words["payload_bits"])
    step = (words["payload_bits"] or 32) // 8
    return bool(words["payload_bytes"] != due and words["payload_bytes"] % step == 0)


def _odd(_link: Any, words: Words) -> bool:
    return bool(words["payload_bytes"] % ((words["payload_bits"] or 32) // 8))


def _skip_frames(*codes: int) -> Any:
    """Pass over other frames where a RESULT is due, and answer in their place."""

    def some(connection: Any, code: int, body: bytes) -> bytes | None:
        link = _Due.of(connection.machine)
        short = code == 4 and len(body) < RESULT_PART.size
        if link is None or not (short if 4 in codes else code in codes):
            return None
        if 2 in codes and len(codes) == 1:
            words = {name: 0 for name in RESULT_PART.names}
            words.update(request=_asked(link).request, status=1)
            return frame_bytes(4, _body(words, b""))
        return frame_bytes(4, _logits(link, {name: 0 for name in RESULT_PART.names}))

    return frames_in(some)


def _ignores_end() -> contextlib.AbstractContextManager[None]:
    own = work_link.WorkLink._item

    def item(self: Any, found: Any, now: float) -> None:
        if type(found).__name__ != "End":
            own(self, found, now)

    return patched(
        (work_link.WorkLink, "_item", item),
        (work_link.WorkLink, "failed", lambda *_: None),
        (work_link.WorkLink, "peer_closed", lambda *_: None),
    )


def _lose(condition: Callable[[Any, Words, bytes], bool]) -> Any:
    """Take an answer that is sound for a broken one."""

    def change(link: Any, words: Words, rest: bytes) -> bytes | None:
        if words["status"] or not condition(link, words, rest):
            return None
        words["request"] ^= 1 << 40
        return _body(words, rest)

    return _results(change)


def _not_finite(_link: Any, words: Words, rest: bytes) -> bool:
    raw = rest[words["telemetry_bytes"] :][:4]
    return len(raw) == 4 and struct.unpack("<I", raw)[0] & 0x7F800000 == 0x7F800000


def _pieces(connection: Any, data: bytes) -> bytes:
    """Want a RESULT in one piece."""
    if connection.kind != "worker" or connection.memory.get("skip", 0):
        connection.memory["skip"] = max(0, connection.memory.get("skip", 0) - len(data))
        return b"" if connection.kind == "worker" else data
    size = HEADER_SIZE + unpack_header(data)[2] if len(data) >= HEADER_SIZE else 1 << 20
    if len(data) < size:
        return (
            data + bytes(12)
            if len(data) < HEADER_SIZE
            else data + bytes(size - len(data))
        )
    return data


def _remote_is_lost() -> contextlib.AbstractContextManager[None]:
    own = request.Request.result

    def result(self: Any, event: Any) -> None:
        if type(event).__name__ == "RemoteError":
            self._link.failed("refused", 0.0)
            for more in self._link.events():
                own(self, more)
            return
        own(self, event)

    return patched((request.Request, "result", result))


_SPAN = session.Session.replay_span


def _replay(change: Callable[[Any, Any], Any]) -> Patch:
    """Alter the span of a replay; ``change(session, span)``."""

    def patch() -> contextlib.AbstractContextManager[None]:
        def span(self: Any, kind: Any, tokens: Any) -> Any:
            return change(self, _SPAN(self, kind, tokens))

        return patched((session.Session, "replay_span", span))

    return patch


def _twice(_session: Any, span: Any) -> Any:
    return replace(span, tokens=[*span.tokens, span.tokens[-1]])


def _less(_session: Any, span: Any) -> Any:
    return replace(span, tokens=list(span.tokens)[:-1])


def _no_reset(_session: Any, span: Any) -> Any:
    return replace(span, reset=False)


def _stale() -> contextlib.AbstractContextManager[None]:
    own = session.Session.advanced

    def advanced(self: Any, span: Any) -> None:
        before = list(self._tokens), self._hash
        own(self, span)
        if (
            span.pos0 == 0
            and before[0]
            and list(span.tokens)[: len(before[0])] == before[0]
        ):
            self._tokens, self._hash = before

    return patched((session.Session, "advanced", advanced))


def _for_ever() -> contextlib.AbstractContextManager[None]:
    own = request.Request._replay

    def again(self: Any) -> None:
        own(self)
        self._replayed = False

    return patched((request.Request, "_replay", again))


def _same_id() -> contextlib.AbstractContextManager[None]:
    own = session.Session.next_request

    def number(self: Any) -> int:
        found = own(self)
        if found % 2 == 0:
            self._requests -= 1
        return max(1, found - (found % 2 == 0))

    return patched((session.Session, "next_request", number))


def _undrained() -> contextlib.AbstractContextManager[None]:
    own = request.Request._stop

    def stop(self: Any, cause: str, fault: Any) -> None:
        link = self._link
        if link is not None and cause == "remote error" and link.pending:
            link._pending.clear()
            link.state = "idle"
        own(self, cause, fault)

    return patched((request.Request, "_stop", stop))


def _wants_ack(link: Any, words: Words, _rest: bytes) -> bool:
    asked = _asked(link)
    return bool(asked.pipelined and not asked.last and words["result_kind"] == 2)


def _last_ack(link: Any, words: Words, _rest: bytes) -> bool:
    return bool(
        _asked(link).pipelined and _asked(link).last and not words["result_kind"]
    )


def _prefill_hash(link: Any, words: Words, _rest: bytes) -> bool:
    asked = _asked(link)
    return bool(asked.pipelined and words["result_hash"] != asked.result_hash)


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "coordinator", category, about, **hooks)


def _takes(name: str, about: str, **hooks: Any) -> Fault:
    return _f(f"takes-{name}", "faults", about, **hooks)


MUTANTS: Final = (
    _takes(
        "bad-magic",
        "takes any magic",
        received=lambda c, d: _any_magic(c, d) if c.kind == "worker" else d,
    ),
    _takes("other-frame", "passes over other frames", received=_skip_frames(2, 3, 99)),
    _takes("short-body", "passes over short RESULTs", received=_skip_frames(4)),
    _takes("error-for-refusal", "takes ERROR for a refusal", received=_skip_frames(2)),
    _takes(
        "telemetry-count",
        "does not compare telemetry_count",
        received=_when(_telemetry_count),
    ),
    _takes(
        "telemetry-bytes",
        "does not compare telemetry_bytes",
        received=_when(_telemetry_bytes),
    ),
    _takes(
        "payload-bytes",
        "does not compare payload_bytes",
        received=_when(_payload_bytes),
    ),
    _takes("request-id", "does not compare request ids", received=_when(_other_id)),
    _takes(
        "request-upper-half",
        "compares the lower half of ids",
        received=_when(_upper_id),
    ),
    _takes(
        "hidden-width",
        "takes any width",
        received=_hidden(lambda _l, w: w["payload_bits"] not in (0, 8, 16, 32)),
    ),
    _takes("hidden-odd-length", "takes half values", received=_hidden(_odd)),
    _takes("hidden-size", "takes any number of rows", received=_hidden(_rows)),
    _takes(
        "result-hash",
        "does not compare hashes",
        received=_when(
            lambda link, w, _r: (
                w["result_hash"] != _asked(link).result_hash
                and not _asked(link).pipelined
            )
        ),
    ),
    _takes(
        "unknown-kind",
        "takes any kind",
        received=_when(lambda _l, w, _r: w["result_kind"] > 2),
    ),
    _takes(
        "logits-size",
        "takes any number of logits",
        received=_when(
            lambda link, w, _r: (
                w["result_kind"] == 2 and w["payload_bytes"] != link.model.logits_bytes
            )
        ),
    ),
    _takes(
        "ack-not-asked",
        "takes an ACK for an answer",
        received=_when(
            lambda link, w, _r: not w["result_kind"] and not _asked(link).pipelined
        ),
    ),
    _takes("last-ack", "takes an ACK for the last chunk", received=_when(_last_ack)),
    _takes(
        "prefill-hash",
        "does not compare hashes of chunks",
        received=_when(_prefill_hash),
    ),
    _f(
        "waits-for-the-gone",
        "faults",
        "waits for a worker that has gone",
        patch=_ignores_end,
    ),
    _f(
        "wants-one-record",
        "telemetry",
        "wants one telemetry record",
        received=_lose(lambda _l, w, _r: w["telemetry_count"] != 1),
    ),
    _f(
        "judges-telemetry",
        "telemetry",
        "judges what stands in telemetry",
        received=_lose(
            lambda _l, w, r: (
                w["telemetry_count"] == 1 and r[:4] in (bytes(4), b"\xff" * 4)
            )
        ),
    ),
    _f(
        "judges-logits-bits",
        "codec",
        "judges payload_bits of logits",
        received=_lose(
            lambda _l, w, _r: w["result_kind"] == 2 and w["payload_bits"] != 32
        ),
    ),
    _f(
        "refuses-not-finite",
        "codec",
        "refuses logits that are not finite",
        received=_lose(_not_finite),
    ),
    _f(
        "refuses-hidden",
        "codec",
        "refuses hidden state",
        received=_lose(lambda _l, w, _r: w["result_kind"] == 1),
    ),
    _f(
        "refuses-narrow-hidden",
        "codec",
        "refuses 8-bit hidden state",
        received=_lose(
            lambda _l, w, _r: w["result_kind"] == 1 and w["payload_bits"] == 8
        ),
    ),
    _f(
        "result-in-one-piece", "framing", "wants RESULTs in one piece", received=_pieces
    ),
    _f(
        "drops-on-remote-error",
        "faults",
        "drops a worker that refuses",
        patch=_remote_is_lost,
    ),
    _f(
        "replays-without-reset",
        "faults",
        "replays without RESET",
        patch=_replay(_no_reset),
    ),
    _f(
        "replays-token-twice",
        "faults",
        "replays the last token twice",
        patch=_replay(_twice),
    ),
    _f(
        "replays-without-token",
        "faults",
        "replays without the last token",
        patch=_replay(_less),
    ),
    _f("replay-then-stale", "faults", "forgets the replayed step", patch=_stale),
    _f("replays-for-ever", "faults", "replays again and again", patch=_for_ever),
    _f("request-id-reused", "state", "uses ids twice", patch=_same_id),
    _f(
        "replays-before-drained",
        "faults",
        "replays before all is answered",
        patch=_undrained,
    ),
    _f("wants-ack", "state", "refuses logits for a chunk", received=_lose(_wants_ack)),
)
