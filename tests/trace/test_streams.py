"""Finding protocols by content, starting in mid-stream, holes, other traffic."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ds4proto.codec.token_hash import token_hash
from ds4proto.pcap import Endpoint, PcapWriter, TcpConversation
from ds4proto.schema import frame, to_bytes
from ds4proto.testing import captures_dir
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.rows import FrameRow
from ds4proto.trace.stats import CaptureStats
from ds4proto.trace.tcp import read_streams
from ds4proto.trace.tcp_events import Data

ROOT = captures_dir()
COORDINATOR = Endpoint("10.0.0.1", 8000)
WORKER = Endpoint("10.0.0.2", 50_001)
ROUTE_END = {"kind": 1, "host_len": 0, "port": 0, "host": ""}
Talk = Callable[[PcapWriter], None]


def bytes_of(name: str, dialect: str = "upstream", **values: Any) -> bytes:
    return to_bytes(frame(name, dialect=dialect), values, dialect=dialect)


def hello(port: int = 9000, start: int = 4, end: int = 7, **more: Any) -> bytes:
    values = {
        "model_id": 0, "quant_bits": 2, "layer_start": start, "layer_end": end,
        "has_output": int(end == 7), "has_hidden": 1, "ctx_size": 0, "n_layers": 8,
        "listen_port": port, "model_name": "stub",
    }  # fmt: skip
    return bytes_of("DS4D.HELLO", **{**values, **more})


def work(request: int = 1, hidden: bytes = bytes(256), **more: Any) -> bytes:
    route = [
        {
            "host": WORKER.host,
            "port": 9000,
            "layer_start": 4,
            "layer_end": 7,
            "flags": 1,
        }
    ]
    values = {
        "model_id": 0, "session": 5, "request": request, "pos0": 0, "tokens": (7,),
        "prefix_hash": token_hash(()), "result_hash": token_hash((7,)),
        "layer_start": 4, "layer_end": 7,
        "flags": 7, "hidden": hidden, "input_hc_bits": 32, "route": route,
        "route_index": 0, "route_return": ROUTE_END,
    }  # fmt: skip
    return bytes_of("DS4D.WORK", **{**values, **more})


def result(request: int = 1) -> bytes:
    hop = dict.fromkeys(
        (
            "eval_usec",
            "downstream_wait_usec",
            "forward_send_usec",
            "route_index",
            "pos0",
        ),
        0,
    )
    hop |= {"layer_start": 4, "layer_end": 7, "n_tokens": 1, "input_bytes": 260}
    return bytes_of(
        "DS4D.RESULT", request=request, result_hash=token_hash((7,)), status=0,
        result_kind=2, telemetry=[{**hop, "output_bytes": 64}], payload=bytes(64),
        payload_bits=32,
    )  # fmt: skip


def capture(*talks: Talk) -> bytes:
    out = io.BytesIO()
    with PcapWriter(out) as writer:
        for talk in talks:
            talk(writer)
        writer.flush()
        return out.getvalue()


class Decoded:
    def __init__(self, data: bytes) -> None:
        decoder = CaptureDecoder(io.BytesIO(data))
        stats = CaptureStats(decoder)
        self.rows: list[FrameRow] = []
        for row in decoder:
            stats.add(row)
            self.rows.append(row)
        self.report = stats.report()
        total = self.report["accounted_bytes"] + self.report["undecoded_bytes"]
        assert total == self.report["stream_bytes"]

    @property
    def names(self) -> list[str]:
        return [row.type for row in self.rows]


def pipeline(
    writer: PcapWriter, *, opened: bool = True, segment: int = 1448, port: int = 8000
) -> None:
    talk = TcpConversation(
        writer, WORKER, Endpoint(COORDINATOR.host, port), max_segment=segment
    )
    if opened:
        talk.open(1_000)
    talk.data(2_000, "a>b", hello())
    talk.data(3_000, "b>a", work())
    talk.data(4_000, "a>b", result())


@pytest.mark.parametrize("segment", [1, 7, 64, 1448])
@pytest.mark.parametrize("opened", [True, False])
def test_the_split_into_segments_does_not_matter(segment: int, opened: bool) -> None:
    got = Decoded(capture(lambda w: pipeline(w, segment=segment, opened=opened)))
    assert got.names == ["HELLO", "WORK", "RESULT"]
    assert got.report["undecoded_bytes"] == 0
    assert [row.src_role for row in got.rows] == [
        "worker 4:output", "coordinator", "worker 4:output",
    ]  # fmt: skip
    assert got.rows[1].payload is not None
    assert got.rows[1].payload.shape == (1, 64)


def test_protocols_are_found_on_any_port_and_other_traffic_is_left_alone() -> None:
    def web(writer: PcapWriter) -> None:
        talk = TcpConversation(
            writer, Endpoint("10.0.0.9", 40_000), Endpoint("10.0.0.8", 8080)
        )
        talk.open(1)
        talk.data(2, "a>b", b"GET /DS4D HTTP/1.1\r\nHost: DS4D\r\n\r\n")
        # a body that holds a whole true frame: not ours all the same
        talk.data(3, "b>a", b"HTTP/1.1 200 OK\r\n\r\n" + hello() + work() * 3)

    with_web = Decoded(capture(lambda w: pipeline(w, port=31_337), web))
    assert Counter(with_web.names) == Counter(["HELLO", "WORK", "RESULT"])
    assert with_web.report["foreign_streams"] == 1
    assert with_web.report["undecoded_reasons"].keys() == {"foreign"}
    assert with_web.report["undecoded_bytes"] == with_web.report["foreign_bytes"]
    assert not with_web.report["problems"]


def cut_front(payload: bytes, drop: int) -> bytes:
    """Return a capture that begins `drop` bytes into one direction's stream."""

    def talk(writer: PcapWriter) -> None:
        one = TcpConversation(writer, COORDINATOR, WORKER, max_segment=1000)
        one.data(5, "a>b", payload[drop:])

    return capture(talk)


@pytest.mark.parametrize("drop", [1, 3, 5, 11, 12, 13, 100, 300, 439, 1000])
def test_a_capture_that_begins_inside_a_frame_finds_the_next_one(drop: int) -> None:
    frames = [work(number, bytes(256)) for number in range(1, 8)]
    data = b"".join(frames)
    got = Decoded(cut_front(data, drop))
    size = len(frames[0])
    lost = -(-drop // size)  # frames of which the beginning is missing
    found = [row for row in got.rows if row.is_frame]
    assert [row.fields["request"] for row in found] == list(range(1 + lost, 8))
    assert got.report["undecoded_bytes"] == lost * size - drop
    assert found[0].stream_offset == lost * size - drop


def test_a_magic_inside_a_payload_does_not_fool_the_search() -> None:
    lure = b"DS4D\0\0\0\1\0\0\0\x2e" + b"DS4D\0\0\0\3\0\0\1\0" + b"T4SD" + b"B4SD" * 3
    body = (lure * 20)[:1024]
    frames = [work(number, body) for number in range(1, 6)]
    got = Decoded(cut_front(b"".join(frames), 150))
    found = [row for row in got.rows if row.is_frame]
    assert [row.fields["request"] for row in found] == [2, 3, 4, 5]
    assert got.report["undecoded_bytes"] == len(frames[0]) - 150


def test_a_hole_costs_the_frame_that_it_hits_and_no_other() -> None:
    def talk(writer: PcapWriter) -> None:
        one = TcpConversation(writer, WORKER, COORDINATOR, max_segment=400)
        one.open(1)
        one.data(2, "a>b", hello())
        for number in range(1, 9):
            one.data(10 * number, "b>a", work(number)[:200])
            if number == 4:
                one.skip("b>a", len(work(number)) - 200)
            else:
                one.data(10 * number + 1, "b>a", work(number)[200:])

    got = Decoded(capture(talk))
    works = [row.fields["request"] for row in got.rows if row.type == "WORK"]
    assert set(works) >= {1, 2, 3, 5, 6, 7, 8}
    assert got.report["gaps"] == {"lost": len(work(4)) - 200}


def test_a_hole_inside_a_hidden_state_keeps_the_frame() -> None:
    big = work(2, np.arange(65_536, dtype="<f4").tobytes())

    def talk(writer: PcapWriter) -> None:
        one = TcpConversation(writer, WORKER, COORDINATOR)
        one.open(1)
        one.data(2, "a>b", hello())
        one.data(3, "b>a", big[:50_000])
        one.skip("b>a", 40_000)
        one.data(4, "b>a", big[90_000:])
        one.data(5, "b>a", work(3))

    got = Decoded(capture(talk))
    works = [row for row in got.rows if row.type == "WORK"]
    assert [row.fields["request"] for row in works] == [2, 3]
    assert works[0].payload is not None
    assert works[0].payload.length == 4 * 65_536
    assert works[0].payload.captured == 4 * 65_536 - 40_000
    assert got.report["undecoded_bytes"] == 0


def test_silent_connections_are_listed() -> None:
    def silent(writer: PcapWriter) -> None:
        TcpConversation(writer, WORKER, Endpoint(COORDINATOR.host, 8001)).open(9)

    got = Decoded(capture(pipeline, silent))
    assert got.report["streams"] == 2
    last = got.report["connections"][1]
    assert (last["kind"], last["notes"]) == ("silent", ["connected, 0 bytes"])


def test_garbage_at_a_known_listener_breaks_its_first_rule() -> None:
    def stranger(writer: PcapWriter) -> None:
        talk = TcpConversation(writer, Endpoint("10.0.0.7", 1234), COORDINATOR)
        talk.open(10_000)
        talk.data(11_000, "a>b", b"\xa5" * 64)
        talk.fin(12_000, "a>b")

    got = Decoded(capture(pipeline, stranger))
    row = got.rows[-1]
    assert (row.is_frame, row.length, row.run) == (False, 64, 1)
    assert [problem.clause for problem in row.problems] == ["DS4D-FRAME-01"]
    assert got.report["undecoded_reasons"] == {"not a frame": 64}


def test_workers_and_data_connections_join_the_run_of_their_coordinator() -> None:
    second = Endpoint("10.0.0.3", 50_002)
    route = [
        {
            "host": WORKER.host,
            "port": 9000,
            "layer_start": 2,
            "layer_end": 4,
            "flags": 0,
        },
        {
            "host": second.host,
            "port": 9001,
            "layer_start": 5,
            "layer_end": 7,
            "flags": 1,
        },
    ]

    def talks(writer: PcapWriter) -> None:
        first = TcpConversation(writer, WORKER, COORDINATOR)
        last = TcpConversation(writer, second, COORDINATOR)
        other = TcpConversation(writer, WORKER, Endpoint("10.9.9.9", 8000))
        forward = TcpConversation(
            writer, Endpoint(WORKER.host, 60_000), Endpoint(second.host, 9001)
        )
        snapshot = TcpConversation(
            writer, Endpoint(COORDINATOR.host, 61_000), Endpoint(second.host, 9001)
        )
        for talk in (first, last, other, forward, snapshot):
            talk.open(1)
        first.data(2, "a>b", hello(9000, 2, 4))
        last.data(3, "a>b", hello(9001, 5, 7))
        other.data(4, "a>b", hello(9000, 4, 7))
        ids = {"layer_start": 2, "layer_end": 4, "route": route, "flags": 1}
        first.data(5, "b>a", work(1, **ids))
        ids = {"layer_start": 5, "layer_end": 7, "route": route, "route_index": 1}
        forward.data(6, "a>b", work(1, **ids))
        asked = bytes_of(
            "DS4D.SNAPSHOT_SAVE_REQ", model_id=0, session=5, request=2**63,
            token_hash=token_hash((7,)), token_count=1, layer_start=5, layer_end=7,
        )  # fmt: skip
        snapshot.data(7, "a>b", asked)

    got = Decoded(capture(talks))
    assert [(row.type, row.run, row.src_role, row.dst_role) for row in got.rows] == [
        ("HELLO", 1, "worker 2:4", "coordinator"),
        ("HELLO", 1, "worker 5:output", "coordinator"),
        ("HELLO", 2, "worker 4:output", "coordinator"),
        ("WORK", 1, "coordinator", "worker 2:4"),
        ("WORK", 1, "worker 2:4", "worker 5:output"),
        ("SNAPSHOT_SAVE_REQ", 1, "coordinator", "worker 5:output"),
    ]
    runs = got.report["runs"]
    assert runs[0]["streams"] == {
        1: "control", 2: "control", 4: "forward", 5: "snapshot",
    }  # fmt: skip
    assert any("two id spaces" in note for note in runs[0]["notes"])


def test_sessions_that_share_a_request_id_are_ambiguous() -> None:
    def talk(writer: PcapWriter) -> None:
        one = TcpConversation(writer, WORKER, COORDINATOR)
        one.open(1)
        one.data(2, "a>b", hello())
        for time, session in ((3, 5), (4, 6), (5, 5)):
            one.data(time, "b>a", work(1, session=session))

    notes = Decoded(capture(talk)).report["runs"][0]["notes"]
    assert any(note.startswith("ambiguous: two sessions") for note in notes)
    assert "sessions take turns on one connection" in notes


def test_reverse_topology_is_told_and_breaks_no_rule() -> None:
    route = [
        {
            "host": WORKER.host,
            "port": 9000,
            "layer_start": 0,
            "layer_end": 3,
            "flags": 0,
        }
    ]

    def talk(writer: PcapWriter) -> None:
        one = TcpConversation(writer, WORKER, COORDINATOR)
        one.open(1)
        one.data(2, "a>b", hello(9000, 0, 3))
        ids = {"layer_start": 0, "layer_end": 3, "flags": 4, "hidden": b""}
        one.data(3, "b>a", work(1, **ids, route=route))

    got = Decoded(capture(talk))
    assert any("reverse topology" in n for n in got.report["runs"][0]["notes"])
    assert not got.report["problems"]


def test_both_byte_orders_side_by_side() -> None:
    def little(writer: PcapWriter) -> None:
        talk = TcpConversation(writer, Endpoint("10.0.0.5", 7), Endpoint("10.0.0.6", 9))
        talk.open(1)
        body = b"\x01\0\0\0" * 4
        talk.data(2, "a>b", b"D4SD" + (5).to_bytes(4, "little") + b"\x10\0\0\0" + body)

    got = Decoded(capture(pipeline, little))
    assert "SNAPSHOT_SAVE_REQ" not in got.names
    one = got.report["connections"][1]
    assert one["dialect"] == "swift"
    assert one["notes"] == ["a peer writes headers in the other byte order"]


@pytest.mark.parametrize(
    "name", ["ds4d/e_s3_prefill_c8_w4.pcap", "ds4t/v10_everything.pcap"]
)
@pytest.mark.parametrize("seed", range(4))
def test_a_real_run_in_other_segments_gives_the_same_rows(name: str, seed: int) -> None:
    """Random segment sizes, same order of bytes between the directions."""
    rng = random.Random(seed)
    source = ROOT / name
    talks: dict[int, TcpConversation] = {}
    out = io.BytesIO()
    with PcapWriter(out) as writer:
        for event in read_streams(source):
            if not isinstance(event, Data):
                if hasattr(event, "a"):
                    talks[event.stream] = TcpConversation(writer, event.a, event.b)
                    talks[event.stream].open(event.time_ns)
                continue
            data = bytes(event.data)
            at = 0
            while at < len(data):
                size = rng.choice((1, 2, 5, 17, 92, 1448, 9000))
                talks[event.stream].data(
                    event.time_ns, event.direction, data[at : at + size]
                )
                at += size
        writer.flush()
        again = out.getvalue()

    def key(row: FrameRow) -> tuple[Any, ...]:
        return (
            row.stream, row.direction, row.stream_offset, row.name, row.length,
            row.dialect, row.fields, row.payload, row.problems, row.src_role, row.run,
        )  # fmt: skip

    def order(found: list[Any]) -> list[Any]:
        return sorted(found, key=lambda k: k[:3])

    before = order([key(row) for row in CaptureDecoder(source)])
    assert order([key(row) for row in CaptureDecoder(io.BytesIO(again))]) == before


def test_memory_does_not_grow_with_the_frame(tmp_path: Any) -> None:
    """Decode 64 MiB frames while holding a small part of one."""
    import subprocess
    import sys

    hidden = np.zeros(16 << 20, "<f4").tobytes()
    big = work(1, hidden)
    path = tmp_path / "big.pcap"
    with PcapWriter(path) as writer:
        one = TcpConversation(writer, WORKER, COORDINATOR, max_segment=60_000)
        one.open(1)
        one.data(2, "a>b", hello())
        one.data(3, "b>a", [big[:1000], memoryview(big)[1000:]])
    code = (
        "import resource, sys\n"
        "from ds4proto.trace import decode\n"
        "decode.__name__\n"
        "list(decode(sys.argv[2]))\n"
        "limit = 300 << 20\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))\n"
        "rows = list(decode(sys.argv[1]))\n"
        "print(rows[-1].length, rows[-1].payload.zeros)\n"
    )
    small = ROOT / "ds4d" / "a_s2_decode_f32.pcap"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(small)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(big)), str(16 << 20)]
