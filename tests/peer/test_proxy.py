"""The proxy between plain sockets: bytes, ends, faults, records, trouble."""

from __future__ import annotations

import io
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ds4proto.errors import WrongUsage
from ds4proto.pcap import CaptureReader
from ds4proto.peer import SYSTEM_CLOCK, PeerLost, SocketChannel, dial, listen
from ds4proto.peer.proxy import Proxy
from ds4proto.peer.proxy_faults import bytes_of, parse_rule, read_rules
from ds4proto.peer.proxy_frames import FrameEditor, rewrite_route
from ds4proto.peer.proxy_places import field_place
from ds4proto.schema import frame, parse, to_bytes
from ds4proto.testing import captures_dir
from ds4proto.trace.tcp import read_streams
from ds4proto.trace.tcp_events import Closed, Data

STEP = 120.0


def soon() -> float:
    return SYSTEM_CLOCK.now() + STEP


@contextmanager
def through(**options: Any) -> Iterator[tuple[SocketChannel, SocketChannel, Proxy]]:
    """Yield the dialling end, the accepting end, and the proxy between."""
    with listen() as goal:
        rules = [parse_rule(text) for text in options.pop("faults", ())]
        with Proxy(listen(), goal.address, rules=rules, **options) as proxy:
            client = dial(*proxy.address, deadline=soon())
            server = goal.accept(deadline=soon())
            try:
                yield client, server, proxy
            finally:
                client.close()
                server.close()


def take(channel: SocketChannel, size: int) -> bytes:
    data = bytearray(size)
    channel.recv_exact(data, deadline=soon())
    return bytes(data)


def take_all(channel: SocketChannel) -> bytes:
    found, buffer = b"", bytearray(1 << 16)
    while count := channel.recv_into(buffer, deadline=soon()):
        found += buffer[:count]
    return found


def test_bytes_pass_both_ways_and_ends_follow() -> None:
    data = random.Random(1).randbytes(3 << 20)
    with through() as (client, server, _):
        sender = threading.Thread(
            target=lambda: (
                client.send([data], deadline=soon()),
                client.shutdown_send(),
            )
        )
        sender.start()
        assert take_all(server) == data
        server.send([b"answer"], deadline=soon())
        server.shutdown_send()
        assert take_all(client) == b"answer"
        sender.join(STEP)


def test_a_reset_is_passed_on_as_a_reset() -> None:
    with through() as (client, server, _):
        client.send([b"x"], deadline=soon())
        assert take(server, 1) == b"x"
        client.close(reset=True)
        with pytest.raises(PeerLost) as caught:
            take(server, 1)
        assert caught.value.kind == "reset"


def test_a_target_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ds4proto.peer.proxy._DIAL_S", 0.2)
    # bound, so that nobody else gets the port, but not listening
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        with Proxy(listen(), gone.getsockname(), say=said.append) as proxy:
            client = dial(*proxy.address, deadline=soon())
            with pytest.raises(PeerLost):
                take(client, 1)
            client.close()
    assert any("refused" in line for line in said)


# -- faults on bytes


@pytest.mark.parametrize(("reset", "kind"), [("no", "closed"), ("yes", "reset")])
def test_cut_after_n_bytes(reset: str, kind: str) -> None:
    with through(faults=[f"cut=1000,way=up,reset={reset}"]) as (client, server, proxy):
        client.send([bytes(4096)], deadline=soon())
        found = bytearray(2000)
        with pytest.raises(PeerLost) as caught:
            server.recv_exact(found, deadline=soon())
        assert caught.value.kind == kind
        assert caught.value.partial <= 1000
        assert reset == "yes" or caught.value.partial == 1000
        assert proxy.faults == ["connection 1 up: cut after 1000 bytes"]


def test_stall_keeps_the_connection_and_passes_nothing_on() -> None:
    with through(faults=["stall=10,way=up"]) as (client, server, _):
        client.send([bytes(range(30))], deadline=soon())
        assert take(server, 10) == bytes(range(10))
        with pytest.raises(PeerLost) as caught:
            server.recv_into(bytearray(1), deadline=SYSTEM_CLOCK.now() + 0.2)
        assert caught.value.kind == "timeout"
        server.send([b"the other way"], deadline=soon())
        assert take(client, 13) == b"the other way"


def test_flip_inverts_one_byte() -> None:
    with through(faults=["flip=5,way=up", "flip=7,way=up"]) as (client, server, _):
        client.send([bytes(4)], deadline=soon())
        client.send([bytes(8)], deadline=soon())
        assert take(server, 12) == bytes([0] * 5 + [255, 0, 255] + [0] * 4)


def test_delay_holds_back_and_keeps_the_order() -> None:
    with through(faults=["delay=80ms,jitter=40ms,way=up"]) as (client, server, _):
        start = SYSTEM_CLOCK.now()
        for n in range(20):
            client.send([bytes([n])], deadline=soon())
        assert take(server, 20) == bytes(range(20))
        assert SYSTEM_CLOCK.now() - start >= 0.08


def test_rate_bounds_the_flow() -> None:
    with through(faults=["rate=1M,way=up"]) as (client, server, _):
        start = SYSTEM_CLOCK.now()
        sender = threading.Thread(
            target=lambda: client.send([bytes(400_000)], deadline=soon())
        )
        sender.start()
        take(server, 400_000)
        assert SYSTEM_CLOCK.now() - start >= 0.38
        sender.join(STEP)


def test_rules_hold_where_they_say() -> None:
    with through(faults=["flip=0,conn=2"]) as (client, server, proxy):
        client.send([b"\0"], deadline=soon())
        assert take(server, 1) == b"\0"
        assert proxy.connections == 1


# -- faults on frames

WORK = frame("DS4D.WORK", dialect="upstream")


def recorded(name: str, way: str) -> bytes:
    path = captures_dir() / "ds4d" / f"{name}.pcap"
    return b"".join(
        bytes(event.data)
        for event in read_streams(path)
        if isinstance(event, Data) and event.direction == way and event.stream == 1
    )


def editor(*texts: str, **options: Any) -> tuple[FrameEditor, list[str]]:
    notes: list[str] = []
    rules = [parse_rule(text) for text in texts]
    made = FrameEditor(
        rules, random.Random(7), rewrite=options.get("rewrite"),
        until_hello=options.get("until_hello", False), note=notes.append,
    )  # fmt: skip
    return made, notes


def fed(made: FrameEditor, data: bytes, step: int) -> bytes:
    out = b""
    for at in range(0, len(data), step):
        out += b"".join(bytes(p) for p in made.feed(data[at : at + step]))
    return out + made.rest()


@pytest.mark.parametrize("step", [1, 7, 100, 1 << 20])
def test_without_a_rule_that_meets_nothing_changes(step: int) -> None:
    data = recorded("d_s3_forward_f16", "b>a")
    made, notes = editor("drop=SNAPSHOT_BEGIN,every=yes")
    assert fed(made, data, step) == data
    assert notes == []


@pytest.mark.parametrize("step", [5, 1 << 20])
def test_one_frame_is_dropped(step: int) -> None:
    data = recorded("d_s3_forward_f16", "b>a")
    size = 12 + int.from_bytes(data[8:12], "big")
    second = size + 12 + int.from_bytes(data[size + 8 : size + 12], "big")
    made, notes = editor("drop=WORK,nth=2")
    assert fed(made, data, step) == data[:size] + data[second:]
    assert notes == [f"dropped DS4D.WORK 2 ({second - size} bytes)"]


def test_a_field_is_corrupted_by_name() -> None:
    data = recorded("d_s3_forward_f16", "b>a")
    size = 12 + int.from_bytes(data[8:12], "big")
    made, notes = editor("corrupt=WORK.pos0,value=77")
    changed = fed(made, data, 1000)
    before = parse(WORK, data[:size], dialect="upstream")
    after = parse(WORK, changed[:size], dialect="upstream")
    assert {k for k in before if before[k] != after[k]} == {"pos0"}
    assert after["pos0"] == 77
    assert changed[size:] == data[size:]
    assert notes == ["DS4D.WORK 1: pos0 0 became 77"]


def test_seeded_corruption_repeats_and_never_leaves_a_field_as_it_was() -> None:
    data = recorded("d_s3_forward_f16", "b>a")
    rule = "corrupt=WORK.request,every=yes"
    one, notes = editor(rule)
    two, _ = editor(rule)
    assert fed(one, data, 999) == fed(two, data, 10) != data
    assert len(notes) == data.count(b"DS4D" + (3).to_bytes(4, "big"))


def test_headers_and_unknown_fields() -> None:
    data = recorded("d_s3_forward_f16", "b>a")
    made, _ = editor("corrupt=WORK.header.magic,value=0x48545450")
    assert fed(made, data, 1 << 20).startswith(b"HTTP")
    made, notes = editor("corrupt=WORK.nonsense")
    assert fed(made, data, 1 << 20) == data
    assert notes == ["DS4D.WORK has no field 'nonsense'"]
    assert field_place(WORK, "tokens", "upstream") is None


def test_what_is_no_frame_passes_as_it_is() -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"ab", b"DS4D" + b"\xff" * 40):
        made, _ = editor("drop=WORK")
        assert fed(made, data, 3) == data


def test_a_pair_of_hellos_is_framed_by_its_version() -> None:
    path = captures_dir() / "ds4t" / "v10_everything.pcap"
    events = [e for e in read_streams(path) if isinstance(e, Data)]
    control = events[0].stream
    data = b"".join(
        bytes(e.data) for e in events if e.stream == control and e.direction == "b>a"
    )
    made, notes = editor("drop=EVAL,nth=1", "corrupt=HELLO.n_layer,value=9")
    changed = fed(made, data, 50)
    assert len(changed) == len(data) - 36
    assert notes[0].startswith("DS4T.HELLO 1: n_layer 2 became 9")
    assert notes[1] == "dropped DS4T.EVAL 1 (36 bytes)"


def test_routes_name_the_address_that_a_worker_can_reach() -> None:
    data = recorded("d_s3_forward_f16", "b>a")
    size = 12 + int.from_bytes(data[8:12], "big")
    whole = bytearray(data[:size])
    changed = rewrite_route(WORK, whole, "fe80::1234%en5")
    before = parse(WORK, bytes(whole), dialect="upstream")
    after = parse(WORK, bytes(changed), dialect="upstream")
    assert [r["host"] for r in after["route"]] == ["fe80::1234%en5"] * 2
    ports = [r["port"] for r in before["route"]]
    assert [r["port"] for r in after["route"]] == ports
    assert bytes(after["hidden"]) == bytes(before["hidden"])
    assert len(changed) == len(whole) + 2 * (14 - len("127.0.0.1"))


# -- records


def test_the_record_holds_both_directions_and_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with through(record=path) as (client, server, _):
        client.send([b"question"], deadline=soon())
        take(server, 8)
        server.send([b"answer"], deadline=soon())
        take(client, 6)
        client.shutdown_send()
        assert take_all(server) == b""
        server.shutdown_send()
        assert take_all(client) == b""
    events = list(read_streams(path))
    data = {e.direction: bytes(e.data) for e in events if isinstance(e, Data)}
    assert data == {"a>b": b"question", "b>a": b"answer"}
    assert {e.direction for e in events if isinstance(e, Closed)} == {"a>b", "b>a"}
    with CaptureReader(path) as reader:
        list(reader)
        assert reader.info.marked_complete


class FullDisk(io.RawIOBase):
    """Takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.data = bytearray()
        self._room = room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)[: self._room - len(self.data)]
        if not part:
            raise OSError(28, "No space left on device")
        self.data += part
        return len(part)


def test_a_full_disk_ends_the_record_and_not_the_traffic() -> None:
    disk = FullDisk(5000)
    said: list[str] = []
    with through(record=disk, say=said.append) as (client, server, proxy):
        for n in range(40):
            client.send([bytes([n]) * 300], deadline=soon())
            assert take(server, 300) == bytes([n]) * 300
    assert "No space left" in proxy.recording_lost
    assert sum("recording ended" in line for line in said) == 1
    with CaptureReader(io.BytesIO(bytes(disk.data))) as reader:
        assert sum(len(batch) for batch in reader) > 10
        assert not reader.info.marked_complete


# -- rules as texts


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("melt=1", "no kind 'melt'"),
        ("delay=fast", "is no time"),
        ("delay=2h", "is no time"),
        ("delay=nan", "is no time"),
        ("rate=0", "at least one byte"),
        ("rate=-1", "is no number of bytes"),
        ("cut=10x", "is no number of bytes"),
        ("drop=", "expected WORK"),
        ("corrupt=WORK", "expected WORK.pos0"),
        ("cut=1,way=left", "way is up or down"),
        ("cut=1,conn=0", "counts from 1"),
        ("cut=1,nth=2", "no 'nth' for cut"),
        ("drop=WROK", "no frame 'WROK'; known: "),
        ("drop=WORK,every=maybe", "every is yes or no"),
        ("corrupt=WORK.pos0,value=x", "invalid literal"),
    ],
)
def test_a_bad_rule_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parse_rule(text)
    assert says in str(caught.value)
    assert text in str(caught.value)


def test_rules_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text('faults = ["delay=1.5ms,jitter=2us", "corrupt=work.flags,nth=3"]')
    delay, corrupt = read_rules(path)
    assert (delay.seconds, delay.jitter) == (0.0015, 2e-6)
    assert (corrupt.frame, corrupt.field, corrupt.nth) == ("WORK", "flags", 3)
    path.write_text("fault = []")
    with pytest.raises(WrongUsage, match="expected faults"):
        read_rules(path)
    assert [bytes_of(t) for t in ("7", "2k", "3M", "1g")] == [7, 2000, 3000000, 10**9]


def test_hello_frames_are_rewritten_alone() -> None:
    hello = to_bytes(
        frame("DS4D.HELLO", dialect="upstream"),
        {"model_id": 0, "quant_bits": 2, "layer_start": 0, "layer_end": 1,
         "has_output": 0, "ctx_size": 0, "n_layers": 2, "listen_port": 5555,
         "model_name": "x"},
        dialect="upstream",
    )  # fmt: skip
    seen: list[str] = []
    rewrite: Callable[..., Any] = lambda spec, whole: (seen.append(spec.name), whole)[1]  # noqa: E731
    made, _ = editor(rewrite=rewrite, until_hello=True)
    assert fed(made, hello + hello, 4) == hello + hello
    assert seen == ["HELLO"]
