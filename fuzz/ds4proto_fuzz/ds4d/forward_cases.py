"""Cases for a worker that forwards: routes that are wrong, a next hop that lies.

No route that a worker would follow leads anywhere but to us or to the worker itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.ds4d_frames import (
    HEADER_SIZE,
    RETURN_PART,
    ROUTE_PART,
    TELEMETRY_PART,
    WORK_PART,
    error_frame,
    result_frame,
)
from ds4proto.link.ds4d_limits import MAX_HOST, MAX_PORT
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.ds4d_records import ROUTE, ROUTE_RETURN
from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS, RESULT
from ds4proto.schema.ds4d_work import WORK
from ds4proto_fuzz.case import Step, Then
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.mutate import EDGES, mutate, with_field

__all__ = ["ForwardCases", "leads_elsewhere"]

DIALECT: Final = "upstream"
_HOST: Final = b"127.0.0.1"
_HERE: Final = (_HOST, b"localhost")
_PLACE: Final = 9
"""Port that stands in a route until the case is given to a peer."""
_RETURN_PORT_AT: Final = offsets_of(ROUTE_RETURN, DIALECT)["port"]
_PORT_AT: Final = offsets_of(ROUTE, DIALECT)["port"]
_MOST_HOPS: Final = 1 << 10
_TRIES: Final = 8
Record = dict[str, Any]
_RETURNS: Final[tuple[Record, ...]] = (
    {"kind": 0}, {"kind": 2}, {"port": _PLACE}, {"port": 1}, {"host_len": 4},
    {"host_len": 4, "host": b"none"},
)  # fmt: skip
"""Words of a return record that is not empty, or not for the way back."""


def leads_elsewhere(data: bytes, places: Sequence[int]) -> bool:
    """Tell whether a WORK names a host that is dialled and is neither we nor itself.

    It is read as a worker would that checks nothing, so that no finding is made of a
    stranger's machine.

    Parameters
    ----------
    places : sequence of int
        Offsets of the ports that are put in when the case is given.
    """
    for number, (at, record, host) in enumerate(_records(data)):
        if b"\0" in host or not host or len(host) > MAX_HOST:
            continue
        here = host in _HERE or _HOST.startswith(host)
        ours = at + _PORT_AT in places or not 1 <= record["port"] <= MAX_PORT
        if not here or (number and not ours):
            return True
    return False


def _records(data: bytes) -> Iterator[tuple[int, dict[str, int], bytes]]:
    """Yield the records of a route: offset, words, host."""
    if len(data) < HEADER_SIZE + WORK_PART.size:
        return
    words = WORK_PART.read(data, HEADER_SIZE)
    at = HEADER_SIZE + WORK_PART.size + words["token_bytes"] + words["input_hc_bytes"]
    for _ in range(min(words["route_count"], _MOST_HOPS)):
        if at + ROUTE_PART.size > len(data):
            return
        record = ROUTE_PART.read(data, at)
        end = at + ROUTE_PART.size + record["host_len"]
        yield at, record, data[at + ROUTE_PART.size : end]
        at = end


class ForwardCases:
    """Makes the cases of one worker that concern routes.

    Parameters
    ----------
    facts : Facts
    frames : Frames
    """

    def __init__(self, facts: Facts, frames: Frames) -> None:
        self.facts, self.frames = facts, frames

    @property
    def able(self) -> bool:
        """Whether a route can go on behind this worker."""
        return self.facts.layer_end + 1 < self.facts.n_layers

    # routes

    def own(self) -> Record:
        """Return the record of the worker itself."""
        f = self.facts
        return {"host": _HOST, "port": 1, "layer_start": f.layer_start,
                "layer_end": f.layer_end, "flags": 0}  # fmt: skip

    def rest(self) -> list[Record]:
        """Return the records behind it: one hop for all that is left, if anything."""
        f = self.facts
        if not self.able:
            return []
        return [{"host": _HOST, "port": _PLACE, "layer_start": f.layer_end + 1,
                 "layer_end": f.n_layers - 1, "flags": 1}]  # fmt: skip

    def blob(self, records: Sequence[Record], **end: Any) -> bytes:
        """Return the bytes of a route; records may lie in ``host_len``."""
        parts = []
        for record in records:
            words = {"host_len": len(record["host"]), **record}
            parts.append(ROUTE_PART.build(words) + record["host"])
        host: bytes = end.pop("host", b"")
        last = {"kind": 1, "host_len": 0, "port": 0, **end}
        return b"".join(parts) + RETURN_PART.build(last) + host

    def work(
        self, session: int, tokens: Sequence[int], blob: bytes, count: int, **told: Any
    ) -> bytes:
        """Return a WORK with another route."""
        data = self.frames.work(session, tokens, route=blob, logits=False, **told)
        for name, value in (("route_count", count), ("route_index", 0)):
            data = with_field(WORK, DIALECT, data, name, value)
        return data

    def places(self, data: bytes, whose: str = "next") -> tuple[tuple[int, str], ...]:
        """Return where the ports of other hops stand in a WORK."""
        return tuple(
            (at + _PORT_AT, whose)
            for at, record, _ in _records(data)
            if record["port"] == _PLACE
        )

    def _step(
        self, data: bytes, how: str, base: bytes = b"", then: Then = "wait"
    ) -> Step:
        return Step("above", "WORK", data, how, base, then, ports=self.places(data))

    # attacks on the route

    def route(self, rng: Random) -> tuple[str, list[Step]]:
        """Return a WORK whose route is not valid, or odd and valid."""
        session = rng.choice(POOL[:-1])
        for _ in range(_TRIES):
            kind, step = self._route(rng, session)
            places = [at for at, _ in step.ports]
            if not leads_elsewhere(step.data, places):
                return f"route {kind}", [step, *self._check(rng, session)]
        return "route sound", [self._sound(rng, session)]

    def _check(self, rng: Random, session: int) -> list[Step]:
        """Return a sound WORK for the worker alone: the stream is still in step."""
        if rng.random() < 0.5:
            return []
        data = self.frames.work(session, (rng.randrange(64),), ack=True, request=9)
        return [Step("above", "WORK", data, then="wait")]

    def _sound(self, rng: Random, session: int) -> Step:
        records = [self.own(), *self.rest()]
        tokens = (rng.randrange(64),)
        count = len(records)
        return self._step(self.work(session, tokens, self.blob(records), count), "")

    def _route(self, rng: Random, session: int) -> tuple[str, Step]:
        records = [self.own(), *self.rest()]
        sound = self.blob(records)
        count = len(records)
        end: Record = {}
        kind = rng.choice(
            ("field", "host", "count", "range", "loop", "many", "cut", "surplus",
             "bits", "return", "frame")
        )  # fmt: skip
        tokens = tuple(rng.randrange(64) for _ in range(rng.choice((1, 2))))
        base = self.work(session, tokens, sound, count)
        if kind == "frame":
            family, found = mutate(rng, WORK, DIALECT, base)
            kept = tuple(
                (at, whose)
                for at, whose in self.places(base)
                if found.data[at : at + 4] == base[at : at + 4]
            )
            how = f"{family}: {found.how}"
            step = Step("above", "WORK", found.data, how, base, "wait", ports=kept)
            return kind, step
        how = kind
        if kind == "field":
            record = rng.choice(records)
            name = rng.choice(("host_len", "port", "layer_start", "layer_end", "flags"))
            edges = (*EDGES, MAX_PORT + 1, MAX_HOST + 1, 2, self.facts.n_layers)
            record[name], how = rng.choice(edges), name
        elif kind == "host":
            bad = (b"", b"\0", _HOST + b"\0", b"1" * (MAX_HOST + 1), b"127.0.0.1\0x")
            rng.choice(records)["host"] = rng.choice((*bad, b"localhost"))
        elif kind == "count":
            count = rng.choice((0, 1, count + 1, *EDGES))
            how = f"{count:#x} records"
        elif kind == "range":
            record, change = rng.choice(records), rng.choice((-2, -1, 1, 2))
            name = rng.choice(("layer_start", "layer_end"))
            record[name], how = (record[name] + change) & 0xFFFFFFFF, f"{name}{change}"
        elif kind == "loop":
            return self._loop(rng, session, tokens)
        elif kind == "many":
            return kind, self._step(*self._many(rng, session, tokens))
        elif kind == "return":
            end = rng.choice(_RETURNS)
        blob = self.blob(records, **end)
        if kind == "cut":
            blob = blob[: rng.randrange(len(blob))]
        elif kind == "surplus":
            blob += rng.randbytes(rng.choice((1, 4, 12, 64)))
        elif kind == "bits":
            spoilt = bytearray(blob)
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            blob = bytes(spoilt)
        step = self._step(self.work(session, tokens, blob, count), how, base)
        if end.get("port") == _PLACE:
            last = len(step.data) - RETURN_PART.size + _RETURN_PORT_AT
            step = replace(step, ports=(*step.ports, (last, "next")))
        return kind, step

    def _loop(
        self, rng: Random, session: int, tokens: Sequence[int]
    ) -> tuple[str, Step]:
        """Return a route that comes back to the worker."""
        records = [self.own(), *self.rest()]
        if len(records) > 1 and rng.random() < 0.5:  # it dials itself
            data = self.work(session, tokens, self.blob(records), 2)
            own = self.places(data, "own")
            how = "the worker is its own next hop"
            return "loop", Step("above", "WORK", data, how, then="wait", ports=own)
        records = [self.own() | {"port": _PLACE}] * rng.choice((2, 3))
        data = self.work(session, tokens, self.blob(records), len(records))
        return "loop", self._step(data, "the same layers again")

    def _many(
        self, rng: Random, session: int, tokens: Sequence[int]
    ) -> tuple[bytes, str]:
        """Return as many hops as there are layers, or far more."""
        f = self.facts
        records = [self.own()]
        for layer in range(f.layer_end + 1, f.n_layers):
            last = layer == f.n_layers - 1
            records.append({"host": _HOST, "port": _PLACE, "layer_start": layer,
                            "layer_end": layer, "flags": int(last)})  # fmt: skip
        count = len(records)
        if rng.random() < 0.5:
            records += [records[-1]] * rng.choice((1, 64, 1000))
            count = len(records)
        return self.work(session, tokens, self.blob(records), count), f"{count} hops"

    # a next hop that lies

    def result(self, request: int, tokens: Sequence[int], **changes: Any) -> bytes:
        """Return the RESULT of the next hop."""
        f = self.facts
        record = dict.fromkeys(TELEMETRY_PART.names, 0) | {
            "layer_start": f.layer_end + 1,
            "layer_end": f.n_layers - 1,
            "route_index": 1,
            "n_tokens": len(tokens),
        }
        words = {
            "result_hash": token_hash(tokens, TOKEN_HASH_START),
            "kind": LOGITS,
            "bits": 32,
            "telemetry": TELEMETRY_PART.build(record),
            "payload": bytes(i % 251 for i in range(4 * f.vocab)),
        }
        return b"".join(map(bytes, result_frame(request, **{**words, **changes})))

    def forwarded(self, rng: Random) -> tuple[str, list[Step]]:
        """Return sound WORK from above, and what the next hop makes of it."""
        session = rng.choice(POOL[:-1])
        count = rng.choice((1, 1, 1, 2))
        blob = self.blob([self.own(), *self.rest()])
        steps, asked = [], []
        for number in range(count):
            tokens = tuple(rng.randrange(64) for _ in range(rng.choice((1, 2))))
            request = rng.choice((7, 8, 1 << 32, (1 << 64) - 1)) - number
            data = self.work(session, tokens, blob, 2, request=request)
            steps.append(self._step(data, ""))
            asked.append((request, tokens))
        if rng.random() < 0.3:  # something sound first
            steps.insert(1, Step("next", "RESULT", self.result(*asked[0]), then="wait"))
            if count == 1:
                steps.append(self._step(self.work(session, (1,), blob, 2), ""))
                asked.append((1, (1,)))
            asked = asked[1:]
        kind, more = self._answer(rng, asked)
        return f"next {kind}", [*steps, *more]

    def _answer(
        self, rng: Random, asked: Sequence[tuple[int, tuple[int, ...]]]
    ) -> tuple[str, list[Step]]:
        request, tokens = asked[0]
        sound = self.result(request, tokens, **self._kind_of(rng))
        roll = rng.random()
        if roll < 0.5:
            family, found = mutate(rng, RESULT, DIALECT, sound)
            return family, [
                Step("next", "RESULT", found.data, found.how, sound, "wait")
            ]
        plain = Step("next", "RESULT", sound, then="wait")
        kind = rng.choice(
            ("sound", "drip", "cut", "repeat", "swapped", "other frame", "closes",
             "resets", "half-close")
        )  # fmt: skip
        if kind == "drip":
            return kind, [Step("next", "RESULT", sound, "in pieces", then="drip")]
        if kind == "cut":
            size = rng.randrange(len(sound))
            how = f"{size} of {len(sound)} bytes, then an end"
            return kind, [
                Step("next", "RESULT", sound[:size], how, sound, "half-close")
            ]
        if kind == "repeat":
            return kind, [Step("next", "RESULT", sound, "twice"), plain]
        if kind == "swapped":
            other = self.result(request ^ 1, tokens)
            return kind, [Step("next", "RESULT", other, "another's id", sound, "wait")]
        if kind == "other frame":
            name, data = rng.choice((
                ("ERROR", b"".join(map(bytes, error_frame("no more")))),
                ("WORK", self.frames.work(POOL[0], (1,), ack=True)),
                ("SNAPSHOT_SAVE_REQ", self.frames.save(POOL[0], (1,))),
            ))  # fmt: skip
            return kind, [Step("next", name, data, "where RESULT is due", then="wait")]
        if kind in ("closes", "resets", "half-close"):
            ends: dict[str, Then] = {"closes": "close", "resets": "reset"}
            then = ends.get(kind, "half-close")
            return kind, [Step("next", "RESULT", b"", "an end", then=then)]
        return kind, [plain]

    def _kind_of(self, rng: Random) -> dict[str, Any]:
        """Return what else a RESULT may carry that is sound."""
        f = self.facts
        return rng.choice((
            {}, {}, {},
            {"kind": ACK, "bits": 0, "payload": b""},
            {"kind": HIDDEN_STATE, "payload": self.frames.rows(1, 32) or b"\0" * 4},
            {"status": 1, "kind": 0, "bits": 0, "telemetry": b"", "payload": b"no"},
            {"payload": b"\x1b[2J" * f.vocab},
            {"telemetry": bytes(TELEMETRY_PART.size) * 3},
        ))  # fmt: skip
