"""Coordinators that send WORK wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link import ds4d_registry as registry
from ds4proto.link import ds4d_route as route
from ds4proto.link import ds4d_session as session
from ds4proto.link.ds4d_frames import ROUTE_PART
from ds4proto_conformance.mutants.tools import Parts, work
from ds4proto_conformance.peers import coordinator as small
from ds4proto_conformance.peers.faults import Fault, patched

RESET, ACK = 4, 8
Patch = Callable[[], contextlib.AbstractContextManager[None]]


def _if(
    condition: Callable[[dict[str, int]], bool], change: Callable[[Parts], Any]
) -> Any:
    def some(parts: Parts) -> None:
        if condition(parts.words):
            change(parts)

    return work(some)


def _set(**words: Callable[[int], int]) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        for name, value in words.items():
            parts.words[name] = value(parts.words[name]) & (1 << 64) - 1

    return change


def _always(_words: dict[str, int]) -> bool:
    return True


def _decode(words: dict[str, int]) -> bool:
    return words["n_tokens"] == 1 and not words["flags"] & RESET


def _stale_prefix(parts: Parts) -> None:
    """Hash the new token onto the transcript before the last step."""
    if _decode(parts.words):
        tokens = [int.from_bytes(parts.rest[:4], "big")]
        parts.words["prefix_hash"] ^= 1 << 20
        parts.words["result_hash"] = token_hash(tokens, parts.words["prefix_hash"])


def _suffix_all() -> contextlib.AbstractContextManager[None]:
    own = session.Session.sync_span

    def span(self: Any, tokens: Any) -> Any:
        found = own(self, tokens)
        if found is None or not found.pos0:
            return found
        return replace(found, pos0=found.pos0 - 1, tokens=[7, *found.tokens])

    return patched((session.Session, "sync_span", span))


def _one_row(parts: Parts) -> None:
    words = parts.words
    at, size = words["token_bytes"], words["input_hc_bytes"]
    row = size // max(1, words["n_tokens"])
    parts.rest = parts.rest[: at + row] + parts.rest[at + size :]
    words["input_hc_bytes"] = row


def _beyond(parts: Parts) -> None:
    parts.words["pos0"] += 1000


def _blob(change: Callable[[bytes], bytes]) -> Any:
    def act(parts: Parts) -> None:
        size = parts.words["route_bytes"]
        found = change(parts.rest[-size:])
        parts.rest = parts.rest[:-size] + found
        parts.words["route_bytes"] = len(found)

    return work(act)


def _port_swapped(raw: bytes) -> bytes:
    words = ROUTE_PART.read(raw)
    turned = (words["port"] & 255) << 8 | words["port"] >> 8
    return ROUTE_PART.build({**words, "port": turned or 9}) + raw[ROUTE_PART.size :]


def _host_name(raw: bytes) -> bytes:
    words, name = ROUTE_PART.read(raw), b"localhost"
    rest = raw[ROUTE_PART.size + words["host_len"] :]
    return ROUTE_PART.build({**words, "host_len": len(name)}) + name + rest


def _with_itself(parts: Parts) -> None:
    size = parts.words["route_bytes"]
    own = b"".join(x.to_bytes(4, "big") for x in (1, 9, 0, 1, 0)) + b"a"
    parts.rest = parts.rest[:-size] + own + parts.rest[-size:]
    parts.words["route_bytes"] = size + len(own)
    parts.words["route_count"] += 1


def _reversed_route() -> contextlib.AbstractContextManager[None]:
    own = route.route_blob
    return patched((route, "route_blob", lambda workers: own(list(workers)[::-1])))


def _route_kept() -> contextlib.AbstractContextManager[None]:
    own = small.SmallCoordinator._route

    def again(self: Any) -> Any:
        kept = self.memory.get("route")
        if kept is not None and all(w in self._registry for w in kept.workers):
            return kept
        self.memory["route"] = own(self)
        return self.memory["route"]

    return patched((small.SmallCoordinator, "_route", again))


def _oldest() -> contextlib.AbstractContextManager[None]:
    own = registry.Registry.register

    def register(self: Any, hello: Any, host: str, handle: Any = None) -> Any:
        entry, replaced = own(self, hello, host, handle)
        if replaced is not None:
            self._entries[entry.key] = replaced
            return entry, None
        return entry, replaced

    return patched((registry.Registry, "register", register))


def _hidden_unneeded() -> contextlib.AbstractContextManager[None]:
    return patched((route, "_usable", lambda *_: True))


def _first_full(parts: Parts) -> None:
    if parts.words["flags"] & ACK and parts.words["pos0"] == 8:
        parts.words["flags"] &= ~ACK


def _last_ack(parts: Parts) -> None:
    if parts.words["pos0"] >= 16 and parts.words["n_tokens"] == 8:
        parts.words["flags"] |= ACK


def _f(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "coordinator", category, about, **hooks)


def _state(name: str, about: str, **hooks: Any) -> Fault:
    return _f(name, "state", about, **hooks)


MUTANTS: Final = (
    _state(
        "first-without-reset",
        "begins a session without RESET",
        out=_if(_always, _set(flags=lambda v: v & ~RESET)),
    ),
    _state(
        "first-hash-zero",
        "begins with prefix hash 0",
        out=_if(
            lambda w: w["pos0"] == 0, _set(prefix_hash=lambda v: v ^ TOKEN_HASH_START)
        ),
    ),
    _state(
        "ids-from-zero",
        "counts requests from 0",
        out=_if(_always, _set(request=lambda v: v - 1)),
    ),
    _state(
        "session-zero", "has session id 0", out=_if(_always, _set(session=lambda _v: 0))
    ),
    _state(
        "decode-position-off",
        "decodes one position too far",
        out=_if(_decode, _set(pos0=lambda v: v + 1)),
    ),
    _state("decode-prefix-stale", "decodes on another prefix", out=work(_stale_prefix)),
    _state(
        "decode-with-reset",
        "sends RESET with every step",
        out=_if(_always, _set(flags=lambda v: v | RESET)),
    ),
    _state(
        "ids-by-two",
        "counts requests by two",
        out=_if(_always, _set(request=lambda v: 2 * v - 1)),
    ),
    _state(
        "result-hash-off",
        "sends another result hash",
        out=_if(_always, _set(result_hash=lambda v: v ^ 2)),
    ),
    _state("suffix-with-all", "sends a token of the prefix again", patch=_suffix_all),
    _state(
        "flag-undefined",
        "sets an undefined flag",
        out=_if(_always, _set(flags=lambda v: v | 0x20)),
    ),
    _state(
        "input-flag-missing",
        "does not set INPUT_HC",
        out=_if(_always, _set(flags=lambda v: v & ~1)),
    ),
    _state(
        "logits-flag-missing",
        "does not set OUTPUT_LOGITS",
        out=_if(_always, _set(flags=lambda v: v & ~2)),
    ),
    _f(
        "hidden-one-row",
        "codec",
        "sends the first row alone",
        out=_if(lambda w: w["n_tokens"] > 1, _one_row),
    ),
    _f(
        "beyond-its-context",
        "limits",
        "sends spans past its context",
        out=_if(_decode, _beyond),
    ),
    _f(
        "route-port-swapped",
        "handshake",
        "writes ports low byte first",
        out=_blob(_port_swapped),
    ),
    _f("route-host-name", "handshake", "writes a host name", out=_blob(_host_name)),
    _f(
        "return-kind-0",
        "handshake",
        "writes a return record of kind 0",
        out=_blob(lambda raw: raw[:-12] + bytes(12)),
    ),
    _f(
        "route-index-1",
        "handshake",
        "counts hops from 1",
        out=_if(_always, _set(route_index=lambda v: v + 1)),
    ),
    _f(
        "route-with-itself",
        "handshake",
        "puts itself on the route",
        out=work(_with_itself),
    ),
    _f(
        "route-reversed",
        "handshake",
        "writes the route from its end",
        patch=_reversed_route,
    ),
    _state("route-kept", "keeps its route when workers register", patch=_route_kept),
    _state("oldest-first", "prefers the worker that registered first", patch=_oldest),
    _state(
        "hidden-not-needed",
        "takes a middle hop without hidden state",
        patch=_hidden_unneeded,
    ),
    _state("last-chunk-ack", "asks an ACK of the last chunk", out=work(_last_ack)),
    _state(
        "first-chunk-full",
        "asks a full answer of an early chunk",
        out=work(_first_full),
    ),
    _state(
        "reset-every-chunk",
        "sends RESET with every chunk",
        out=_if(lambda w: bool(w["flags"] & ACK), _set(flags=lambda v: v | RESET)),
    ),
    _f(
        "window-open",
        "limits",
        "sends all chunks at once",
        settings=lambda s: replace(s, window=64, send_depth=8),
    ),
    _f(
        "window-1",
        "limits",
        "sends one chunk at a time",
        settings=lambda s: replace(s, window=1),
    ),
)
