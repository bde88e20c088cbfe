"""A capture of any length: a pipeline with two requests in flight, and a TP pair.

Every frame is built from its declaration; times, payloads and skews are seeded.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np

from ds4proto.pcap import Endpoint, PcapngWriter, TcpConversation
from tests.link.streams import HELLO, ds4d, result, telemetry, work
from tests.link.tp import DOWN, UP, Paper

COORDINATOR, WORKER = Endpoint("10.0.0.1", 8000), Endpoint("10.0.0.2", 50_001)
LEADER, RANK = Endpoint("10.0.1.1", 9911), Endpoint("10.0.1.2", 40_001)
RANK_DATA = Endpoint("10.0.1.2", 40_002)
LAYERS = 43
LAST_HOP = [telemetry()[0] | {"layer_start": 3, "route_index": 0}]
START_NS = 1_750_000_000_000_000_000
MICRO = 1_000


class _Values(random.Random):
    """Random bytes that are numbers of a network: no infinities, no NaN."""

    def randbytes(self, n: int) -> bytes:
        numbers = np.random.default_rng(self.getrandbits(32)).normal(0, 1, n // 4)
        return numbers.astype("<f4").tobytes()


class LongRun:
    """Writes the capture and counts what it wrote.

    Attributes
    ----------
    counts : Counter
        Frames by full name.
    bytes : int
        Bytes of all frames.
    """

    def __init__(self, path: Path, frames: int, seed: int = 8) -> None:
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        self._chance = random.Random(seed)
        self._now = START_NS
        with PcapngWriter(path, buffer_bytes=1 << 20) as writer:
            self._pipeline(writer, frames // 2)
            self._pair(writer, frames - self.total)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def _sent(self, name: str, data: bytes) -> bytes:
        self.counts[name] += 1
        self.bytes += len(data)
        self._now += self._chance.randrange(20, 400) * MICRO
        return data

    def _pipeline(self, writer: PcapngWriter, frames: int) -> None:
        talk = TcpConversation(writer, WORKER, COORDINATOR)
        talk.open(self._now)
        values = HELLO | {"n_layers": 8, "model_name": "Long run"}
        talk.data(self._now, "a>b", self._sent("DS4D.HELLO", ds4d("HELLO", **values)))
        numbers = np.random.default_rng(8)
        waiting: list[int] = []
        request = 0
        route = [{"port": 5555, "layer_start": 3, "layer_end": 7, "flags": 1,
                  "host": WORKER.host}]  # fmt: skip
        while self.total < frames:
            if len(waiting) < 2 and self.total + len(waiting) + 1 < frames:
                request += 1
                hidden = numbers.normal(0, 1 + request % 7, 128).astype("<f4")
                data = work(
                    request, hidden.tobytes(), route=route, layer_end=7, flags=3
                )
                talk.data(self._now, "b>a", self._sent("DS4D.WORK", data))
                waiting.append(request)
                continue
            if not waiting:
                return
            data = result(waiting.pop(0), telemetry=LAST_HOP)
            talk.data(self._now, "a>b", self._sent("DS4D.RESULT", data))

    def _pair(self, writer: PcapngWriter, frames: int) -> None:
        paper = Paper(shape={"n_layer": LAYERS, "gates_per_token": 2 * LAYERS})
        paper.chance = _Values(8)
        paper.create()
        while len(paper.order) < frames:
            paper.eval(len(paper.tokens[1]) + 1)
        talks = {
            "control": TcpConversation(writer, RANK, LEADER, isn_a=9_000, isn_b=9_500),
            "data": TcpConversation(writer, RANK_DATA, LEADER, isn_a=70, isn_b=90),
        }
        for talk in talks.values():
            talk.open(self._now)
        for name, direction, data in paper.order[:frames]:
            assert direction in (DOWN, UP)
            kind = "gate" if name == "data" else "command"
            talks[name].data(self._now, direction, self._sent(kind, data))
