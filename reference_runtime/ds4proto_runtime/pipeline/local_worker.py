"""A worker's part in local decode: its KV goes out in spans, or comes in and decodes.

Any worker of the private dialect exports what a WORK added and takes back what was
decoded elsewhere. The one that holds the whole model keeps, beside its slice, a
session over all layers for each session of the route; KV is never mixed, because
each layer carries position and token hash of what it holds (DS4D-OURS-12).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import numpy as np

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.ds4d_frames import microseconds
from ds4proto.link.ds4d_local import local_frame, logits_hash
from ds4proto.link.ds4d_texts import text
from ds4proto.link.ds4d_worker import Worker
from ds4proto.link.ds4d_worker_events import EvaluateWork, LocalFrame
from ds4proto.peer import Recorder
from ds4proto.schema.ds4d_private_frames import (
    COLD,
    EXACT,
    KV_RETURN,
    LAST,
    LOCAL_ANSWER,
    LOCAL_TOKENS,
    NO_TOKEN,
)
from ds4proto.schema.problem import Buf
from ds4proto_runtime.engines.base import F32, EngineError, Session
from ds4proto_runtime.pipeline.generation import Alone, Sampler
from ds4proto_runtime.pipeline.kv_spans import KvSender, export, extend, span_frame
from ds4proto_runtime.pipeline.line import Line
from ds4proto_runtime.pipeline.settings import SocketSettings
from ds4proto_runtime.pipeline.worker_engine import EngineRoom

_EMPTY: Final = (0, TOKEN_HASH_START)


@dataclass(slots=True)
class Whole:
    """All layers of one session.

    Attributes
    ----------
    held : dict
        By layer: tokens and their hash; a layer that lost its thread has none.
    received : dict
        By first layer of a slice: KV bytes since position 0, or the last check.
    """

    session: Session
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    logits: F32 | None = None


class LocalWorker:
    """Answers the frames of local decode, and exports spans.

    Parameters
    ----------
    lock : threading.Lock
        Guards ``machine``.
    """

    def __init__(
        self,
        room: EngineRoom,
        machine: Worker,
        lock: threading.Lock,
        *,
        sockets: SocketSettings,
        recorder: Recorder | None,
        log: Callable[[str], None],
    ) -> None:
        self._room, self._machine, self._lock = room, machine, lock
        self._engine, self._layers = room.engine, room.layers
        self._sockets, self._recorder, self._log = sockets, recorder, log
        self._decodes = machine.facts.local_decode
        self._wholes: dict[int, Whole] = {}
        self._checked: dict[int, Whole] = {}
        """What was last checked or begun cold: late spans never touch the latter."""
        self._changed = threading.Condition(threading.RLock())
        self._senders: dict[tuple[str, int], KvSender] = {}
        room.on_span = self._evaluated

    def close(self) -> None:
        """End the connections that carry spans."""
        for sender in self._senders.values():
            sender.close()

    def drop(self, sessions: tuple[int, ...]) -> None:
        """Free sessions."""
        with self._changed:
            for number in sessions:
                self._wholes.pop(number, None)
                self._checked.pop(number, None)

    # out

    def _evaluated(self, job: EvaluateWork, session: Session) -> None:
        order = job.kv
        if order is None:
            return
        words = {
            "model_id": self._engine.shape.model_id,
            "session": job.session,
            "request": job.request,
            "prefix_hash": order.prefix_hash,
            "result_hash": order.result_hash,
            "pos0": job.pos0,
            "n_tokens": len(job.tokens),
        }
        try:
            data = export(
                self._engine, session, self._layers, job.pos0, len(job.tokens)
            )
            if self._decodes:
                self._span(words, self._layers, data)
                return
        except EngineError as error:
            self._log(f"no KV of request {job.request}: {error}")
            return
        key = (order.host, order.port)
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = KvSender(
                key, self._sockets, recorder=self._recorder, log=self._log
            )
        sender.put(span_frame(words, self._layers, data), len(data))

    # in

    def take(self, event: LocalFrame, line: Line) -> None:
        """Answer one frame; what goes wrong becomes a refusal in words."""
        values = event.values
        try:
            if values["model_id"] != self._engine.shape.model_id:
                raise EngineError("the KV is that of another model")
            if event.name == "KV_INCREMENT":
                self._increment(values)
            elif event.name == "KV_CHECK":
                self._check(values, line)
            elif event.name == "LOCAL_GENERATE":
                self._generate(values, line)
            elif event.name == "KV_FETCH":
                self._fetch(values, line)
            else:
                self._returned(values)
                _answer(line, values["request"])
        except EngineError as error:
            if event.name == "KV_INCREMENT":
                self._log(f"KV refused: {error}")
            else:
                _answer(line, values["request"], str(error))

    def _whole(self, number: int) -> Whole:
        found = self._wholes.get(number)
        if found is None:
            while len(self._wholes) >= self._machine.limits.max_sessions:
                self._wholes.pop(next(iter(self._wholes)))
            found = self._wholes[number] = Whole(self._engine.open())
        return found

    def _settled(self, number: int) -> Whole:
        """Return what decodes: of the last check, else what spans have gathered."""
        return self._checked.get(number) or self._whole(number)

    def _increment(self, values: Mapping[str, Any]) -> None:
        layers = range(values["layer_start"], values["layer_end"] + 1)
        shape = self._engine.shape
        end = values["pos0"] + values["n_tokens"]
        if not layers or layers.stop > shape.n_layers or end > shape.ctx:
            raise EngineError(
                f"KV span of layers {layers.start}:{layers.stop - 1} up to token {end}:"
                f" the model has {shape.n_layers} layers, the context {shape.ctx}"
            )
        self._span(values, layers, values["payload"])

    def _span(self, values: Mapping[str, Any], layers: range, data: Buf) -> None:
        """Add a span to the whole model's session (DS4D-OURS-12)."""
        pos, count = values["pos0"], values["n_tokens"]
        start = (pos, values["prefix_hash"])
        with self._changed:
            whole = self._whole(values["session"])
            follows = start == _EMPTY or all(
                whole.held.get(layer) == start for layer in layers
            )
            for layer in layers:
                whole.held.pop(layer, None)
            try:
                if not follows:
                    raise EngineError(
                        f"KV of layers {layers.start}:{layers.stop - 1} at {pos} does"
                        " not follow what is held"
                    )
                extend(self._engine, whole.session, layers, pos, count, data)
                for layer in layers:
                    whole.held[layer] = (pos + count, values["result_hash"])
                before = whole.received.get(layers.start, 0) if pos else 0
                whole.received[layers.start] = before + len(data)
            finally:
                self._changed.notify_all()

    # the check

    def _check(self, values: Mapping[str, Any], line: Line) -> None:
        tokens, shape = list(values["tokens"]), self._engine.shape
        if not tokens or len(tokens) > shape.ctx or max(tokens) >= shape.vocab:
            raise EngineError("the transcript does not fit the model or its context")
        if token_hash(tokens) != values["token_hash"]:
            raise EngineError("the token hash is not that of the prompt")
        started = perf_counter()
        with self._changed:
            number = values["session"]
            self._checked.pop(number, None)
            if values["flags"] & COLD:
                # spans of the prefill that failed may still come, into another one
                self._wholes.pop(number, None)
                whole = Whole(self._engine.open())
                logits = self._alone(whole).prefill(tokens, lambda _tokens: None)
                waited = 0.0
            else:
                whole = self._whole(number)
                self._await(whole, tokens[:-1], values["wait_msec"] / 1e3)
                waited = perf_counter() - started
                whole.session.tokens[:] = tokens[:-1]
                logits = self._alone(whole).step(tokens[-1])
                if _other(logits, values):
                    self._wholes.pop(number, None)
                    raise EngineError(text("DS4D-OURS-14"))
            while len(self._checked) >= self._machine.limits.max_sessions:
                self._checked.pop(next(iter(self._checked)))
            self._checked[number] = whole
            whole.logits = logits
            self._hold(whole)
            nbytes = sum(whole.received.values())
            whole.received.clear()
        _answer(line, values["request"], kv_bytes=nbytes, waited=waited)

    def _await(self, whole: Whole, before: list[int], seconds: float) -> None:
        """Wait until every layer holds the transcript less its last token."""
        wanted = (len(before), token_hash(before))
        layers = self._engine.layers
        if not before:
            self._engine.reset(whole.session)
            return

        def there() -> bool:
            return all(whole.held.get(layer) == wanted for layer in layers)

        if not self._changed.wait_for(there, seconds):
            layer = next(la for la in layers if whole.held.get(la) != wanted)
            count = whole.held.get(layer, _EMPTY)[0]
            raise EngineError(text("DS4D-OURS-13", layer, count, len(before)))

    def _alone(self, whole: Whole) -> Alone:
        alone = Alone(self._engine)
        alone.session = whole.session
        return alone

    def _hold(self, whole: Whole) -> None:
        tokens = whole.session.tokens
        state = (len(tokens), token_hash(tokens))
        with self._changed:
            whole.held = dict.fromkeys(self._engine.layers, state)

    # decoding

    def _generate(self, values: Mapping[str, Any], line: Line) -> None:
        started = perf_counter()
        temperature = struct.unpack(">f", struct.pack(">I", values["temperature"]))[0]
        sampler = Sampler(float(temperature), values["seed"])
        with self._changed:
            whole = self._settled(values["session"])
            held = whole.held.get(self._engine.layers.start, _EMPTY)
            logits = whole.logits
            alike = all(whole.held.get(la) == held for la in self._engine.layers)
            if logits is None or held[1] != values["token_hash"] or not alike:
                raise EngineError(text("DS4D-OURS-15"))
        alone, made = self._alone(whole), 0
        while True:
            token = sampler.pick(logits)
            made += 1
            full = held[0] + made >= self._engine.shape.ctx
            over = (
                full or made >= values["n_predict"] or line.ended.is_set()
                or token == values["eos"] != NO_TOKEN
            )  # fmt: skip
            frame = local_frame(
                LOCAL_TOKENS,
                request=values["request"],
                flags=LAST if over else 0,
                decode_usec=microseconds(perf_counter() - started),
                tokens=(token,),
            )
            if over:
                self._hold(whole)
            line.put(frame)
            line.flush()
            if over:
                return
            with self._changed:  # between tokens other sessions have their turn
                logits = whole.logits = alone.step(token)

    # back to the slices

    def _fetch(self, values: Mapping[str, Any], line: Line) -> None:
        layers = range(values["layer_start"], values["layer_end"] + 1)
        pos, count = values["pos0"], values["n_tokens"]
        with self._changed:
            tokens = self._settled(values["session"]).session.tokens
            if layers.stop > len(self._engine.layers) or pos + count != len(tokens):
                raise EngineError(
                    f"{count} tokens from {pos} on are asked for,"
                    f" {len(tokens)} are held"
                )
            data = self._tail(values["session"], layers, pos, count)
            words = {
                **{name: values[name] for name in ("model_id", "session", "request")},
                "prefix_hash": token_hash(tokens[:pos]),
                "result_hash": token_hash(tokens),
                "pos0": pos,
                "n_tokens": count,
            }
            tail = tokens[pos:]
        line.put(span_frame(words, layers, data, spec=KV_RETURN, tokens=tail))
        line.flush()

    def _tail(self, number: int, layers: range, pos: int, count: int) -> bytes:
        with self._changed:
            session = self._settled(number).session
            return export(self._engine, session, layers, pos, count)

    def _returned(self, values: Mapping[str, Any]) -> None:
        """Take what was decoded elsewhere into the slice (DS4D-OURS-16)."""
        tokens, number = list(values["tokens"]), values["session"]
        pos, count = values["pos0"], values["n_tokens"]
        before = (pos, values["prefix_hash"])
        own = (values["layer_start"], values["layer_end"] + 1)
        with self._lock:
            known = self._machine.sessions.get(number)
            follows = (
                known is not None
                and not known.dropped
                and (known.count, known.hash) == before
                and own == (self._layers.start, self._layers.stop)
                and len(tokens) == count
                and token_hash(tokens, before[1]) == values["result_hash"]
                and pos + count <= self._engine.shape.ctx
            )
        if known is None or not follows:
            raise EngineError(text("DS4D-OURS-16"))
        data: Buf = values["payload"]
        if self._decodes and not len(data):
            data = self._tail(number, self._layers, pos, count)
        session = self._room.session(number)
        extend(self._engine, session, self._layers, pos, count, data)
        session.tokens.extend(tokens)
        with self._lock:
            known.count, known.hash = pos + count, values["result_hash"]


def _other(logits: F32, values: Mapping[str, Any]) -> bool:
    """Tell whether logits are not those of the route (DS4D-OURS-14)."""
    if not np.isfinite(logits).all() or int(logits.argmax()) != values["next_token"]:
        return True
    exact = bool(values["flags"] & EXACT)
    return exact and logits_hash(logits.tobytes()) != values["logits_hash"]


def _answer(
    line: Line,
    request: int,
    message: str = "",
    *,
    kv_bytes: int = 0,
    waited: float = 0.0,
) -> None:
    line.put(
        local_frame(
            LOCAL_ANSWER,
            request=request,
            status=1 if message else 0,
            kv_bytes=kv_bytes,
            wait_usec=microseconds(waited),
            message=message,
        )
    )
    line.flush()
