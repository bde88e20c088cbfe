"""The toy engine against every payload of the recorded sessions, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ds4proto_runtime.engines.base import F32, EngineError, Session
from ds4proto_runtime.engines.toy import HIDDEN, RATIOS, ToyEngine

from ds4proto import codec
from ds4proto.schema.ds4d import ACK_ONLY, OUTPUT_LOGITS, RESET_SESSION
from ds4proto.schema.dsv4 import DSVL_FILE, layer_tensors
from ds4proto.schema.registry import read
from ds4proto.testing import captures_dir
from ds4proto.trace import decode

TOY = captures_dir() / "toy"
# the number of payloads that a session holds; from its frame list
SESSIONS = {"pipeline_f32": 21, "pipeline_f16": 18, "pipeline_e4m3_hidden": 18}


def _unpack(data: bytes, bits: int) -> F32:
    values = 8 * len(data) // bits
    wire = codec.activation_codec(bits)
    found: F32 = wire.decode(np.frombuffer(data, np.uint8), values=values)
    return found.reshape(-1, HIDDEN)


def _pack(hidden: F32, bits: int) -> bytes:
    return bytes(codec.activation_codec(bits).encode(hidden.reshape(-1)))


class Replay:
    """Feeds recorded WORK frames to engines and notes what should follow."""

    def __init__(self) -> None:
        self.engines: dict[tuple[int, int], tuple[ToyEngine, Session]] = {}
        self.due: dict[tuple[object, ...], bytes] = {}
        self.equal = 0

    def _at(self, start: int, stop: int) -> tuple[ToyEngine, Session]:
        if (start, stop) not in self.engines:
            engine = ToyEngine(range(start, stop))
            self.engines[start, stop] = (engine, engine.open())
        return self.engines[start, stop]

    def work(self, v: dict[str, object], hidden: bytes) -> None:
        start, stop = int(v["layer_start"]), int(v["layer_end"]) + 1
        bits, tokens = int(v["input_hc_bits"]), list(v["tokens"])
        pos, flags = int(v["pos0"]), int(v["flags"])
        if v["route_index"] == 0:
            engine, session = self._at(0, start)
            if flags & RESET_SESSION:
                engine.reset(session)
            if len(session.tokens) == pos:
                first = engine.run(session, engine.embed(tokens), tokens, pos)
                self.due["WORK", v["request"], start] = _pack(first, bits)
        self.check(("WORK", v["request"], start), hidden)
        engine, session = self._at(start, stop)
        if flags & RESET_SESSION:
            engine.reset(session)
        if len(session.tokens) != pos:
            return
        out = engine.run(session, _unpack(hidden, bits), tokens, pos)
        if int(v["route_index"]) + 1 < int(v["route_count"]):
            self.due["WORK", v["request"], stop] = _pack(out, bits)
        elif not flags & ACK_ONLY:
            logits = engine.head(out[-1]).tobytes()
            answer = logits if flags & OUTPUT_LOGITS else _pack(out, bits)
            self.due["RESULT", v["request"]] = answer

    def check(self, key: tuple[object, ...], found: bytes) -> None:
        expected = self.due.pop(key, None)
        if expected is not None:
            assert found == expected, key
            self.equal += 1


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_every_recorded_payload_is_reproduced(name: str) -> None:
    replay = Replay()
    rows = list(decode(str(TOY / name / "trace.pcap"), payload="full"))
    # causes before effects: a recorder may note an answer before its request
    rows.sort(key=lambda row: (row.first_time, row.type == "RESULT"))
    for row in rows:
        data = row.payload.data if row.payload and row.payload.data else b""
        if row.type == "WORK":
            replay.work(row.fields, data)
    for row in rows:
        if row.type == "RESULT" and row.payload and row.payload.data:
            replay.check(("RESULT", row.fields["request"]), row.payload.data)
    assert replay.due == {}
    assert replay.equal == SESSIONS[name]


@pytest.fixture
def make() -> Callable[[list[int]], tuple[ToyEngine, Session]]:
    def build(tokens: list[int]) -> tuple[ToyEngine, Session]:
        engine = ToyEngine(ctx=256, prefill_cap=256)
        session = engine.open()
        engine.run(session, engine.embed(tokens), tokens, 0)
        return engine, session

    return build


@pytest.mark.parametrize("cuts", [(8,), (3, 8), (2, 5, 8), tuple(range(1, 9))])
def test_sliced_equals_unsliced(
    make: Callable[[list[int]], tuple[ToyEngine, Session]], cuts: tuple[int, ...]
) -> None:
    tokens = [int(t) for t in np.random.default_rng(7).integers(0, 256, 40)]
    whole = ToyEngine(prefill_cap=64)
    expected = whole.run(whole.open(), whole.embed(tokens), tokens, 0)
    hidden = whole.embed(tokens)
    for start, stop in zip((0, *cuts[:-1]), cuts, strict=True):
        part = ToyEngine(range(start, stop), prefill_cap=64)
        hidden = part.run(part.open(), hidden, tokens, 0)
    assert hidden.tobytes() == expected.tobytes()


def test_the_recorded_shard_is_taken_and_given_back() -> None:
    path = Path(__file__).parents[2] / "data" / "ds4d_probes" / "toy_shard_5_7.dsvl"
    data = path.read_bytes()
    values = read(DSVL_FILE, data, dialect="upstream").values
    engine = ToyEngine(range(5, 8))
    session = engine.open()
    area = np.frombuffer(values["tensors"], np.float32)
    tensors = layer_tensors(values, RATIOS)
    # the probes that made the shard evaluated two tokens; which ones does not matter
    tokens = [0] * values["token_count"]
    for index, layer in enumerate(range(5, 8)):
        own = [
            area[t.offset // 4 : t.offset // 4 + t.rows * t.width].reshape(
                t.rows, t.width
            )
            for t in tensors
            if t.layer == layer
        ]
        rows = values["n_comp"][index], values["n_index_comp"][index]
        engine.kv_import(session, layer, tokens, rows, own)
    session.tokens.extend(tokens)
    back = b"".join(
        bytes(part)
        for layer in range(5, 8)
        for part in engine.kv_export(session, layer)
    )
    assert back == bytes(values["tensors"])


@pytest.mark.parametrize(
    ("pos", "count", "text"),
    [
        (250, 7, "layer-slice token span exceeds context"),
        (3, 1, "layer-slice KV position mismatch: have 2 want 3"),
        (2, 17, "layer-slice chunk 17 exceeds prefill cap 16"),
    ],
)
def test_refusals_leave_the_session_as_it_was(pos: int, count: int, text: str) -> None:
    engine = ToyEngine()
    session = engine.open()
    engine.run(session, engine.embed([1, 2]), [1, 2], 0)
    tokens = [0] * count
    with pytest.raises(EngineError) as caught:
        engine.run(session, engine.embed(tokens), tokens, pos)
    assert str(caught.value) == text
    assert session.tokens == [1, 2]


def test_a_fresh_session_asks_for_a_reset() -> None:
    engine = ToyEngine()
    with pytest.raises(EngineError, match=r"^layer-slice session needs reset before"):
        engine.run(engine.open(), engine.embed([1]), [1], 3)
