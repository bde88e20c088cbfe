"""The small parts of a diagnosis: spreads, texts, schedules, sides, comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4proto.link.schedule import Schedule
from ds4proto.testing import capture_path
from ds4proto.trace.diagnosis import Finding, diagnose
from ds4proto.trace.diagnosis.compare import Difference, first_difference
from ds4proto.trace.diagnosis.cross import control_of
from ds4proto.trace.diagnosis.finding import in_order, worst
from ds4proto.trace.diagnosis.known_texts import UNKNOWN, meaning_of
from ds4proto.trace.diagnosis.logs import LogReader, is_log
from ds4proto.trace.diagnosis.spread import Sizes, Spread, ms
from ds4proto.trace.ds4_logs import infer_schedule, parse_log
from tests.trace.diagnosis.built import two_sides


def test_quantiles_are_within_five_percent_in_little_room() -> None:
    values = np.random.default_rng(1).lognormal(0, 2, 20_000)
    spread = Spread()
    for value in values.tolist():
        spread.add(value)
    for part in (0.01, 0.5, 0.99):
        true = float(np.quantile(values, part))
        assert spread.quantile(part) == pytest.approx(true, rel=0.05)
    assert spread.mean == pytest.approx(values.mean(), rel=1e-9)
    assert (spread.low, spread.high) == (values.min(), values.max())
    assert len(spread._buckets) < 500


def test_a_spread_of_nothing_and_of_zeros() -> None:
    spread = Spread()
    assert (spread.median, spread.mean) == (0.0, 0.0)
    spread.add(0.0)
    spread.add(-1.0)
    spread.add(8.0)
    assert spread.median == 0.0
    assert spread.quantile(1.0) == 8.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2e-5, "20 us"),
        (0.0012, "1.2 ms"),
        (0.0415, "42 ms"),
        (1.25, "1.2 s"),
        (33, "33 s"),
    ],
)
def test_times_read_like_times(seconds: float, text: str) -> None:
    assert ms(seconds) == text


def test_sizes_tell_a_thin_link_from_a_long_one() -> None:
    thin, long = Sizes(), Sizes()
    for _ in range(4):
        for size in (100, 1000):
            thin.add(size, size / 20_000)
            long.add(size, 0.05 + size / 1e9)
    assert 1 / thin.seconds_a_byte() == pytest.approx(20_000)
    assert long.seconds_a_byte() == 0.0


def test_the_worst_comes_first_and_causes_before_ends() -> None:
    def made(code: str, severity: str) -> Finding:
        return Finding(code, severity, "certain", code)  # type: ignore[arg-type]

    found = in_order(
        [made("pipeline.time", "note"), made("end.peer-gone", "severe"),
         made("identity.mismatch", "severe"), made("tcp.delayed-ack", "warning")]
    )  # fmt: skip
    assert [f.code for f in found] == [
        "identity.mismatch", "end.peer-gone", "tcp.delayed-ack", "pipeline.time",
    ]  # fmt: skip
    assert worst(found) == "severe"
    assert worst([]) is None


@pytest.mark.parametrize(
    ("text", "clause", "values"),
    [
        ("layer count mismatch: worker=61 coordinator=43", "DS4D-HELLO-08",
         ("61", "43")),
        ("leader: tp hello: protocol version 9 != 14", "DS4T-HELLO-03", ("9", "14")),
        ("[error] tp worker eval: tp: gate transport failed", "DS4T-GATE-06", ()),
        ("distributed route incomplete: missing layer 4", "DS4D-ROUTE-36", ("4",)),
        ("coordinator error: worker context too small: worker=1 coordinator=2",
         "DS4D-HELLO-14", ("1", "2")),
    ],
)  # fmt: skip
def test_texts_of_peers_lead_to_their_clause(
    text: str, clause: str, values: tuple[str, ...]
) -> None:
    found = meaning_of(text)
    assert (found.clause, found.values) == (clause, values)
    assert found.next_step


@pytest.mark.parametrize("text", ["", "all is well", "tp", "loading model 12 %"])
def test_other_texts_mean_nothing(text: str) -> None:
    assert meaning_of(text) == UNKNOWN


def test_a_gate_with_its_place_names_the_model() -> None:
    # GLM 5.2 resident: slots from 6 on, 150 a token; seq 151 is slot 6 again, layer 3
    lines = ["gate service: row exchange failed (layer 3 gate 0 seq 151); latched"]
    known = infer_schedule(parse_log(lines))
    assert known.schedule == Schedule(78, 150, 6, 1)
    assert known.certain


def test_without_any_sign_the_model_is_a_guess() -> None:
    known = infer_schedule(parse_log(["ds4-tp: timeout waiting gate seq 5"]))
    assert not known.certain
    assert "assumed" in known.why


@pytest.mark.parametrize(
    ("head", "log"),
    [(b"ds4-tp: waiting\n", True), (b"\xd4\xc3\xb2\xa1\x02\0", False), (b"", False),
     (b"DS4D\0\0\0\1", False), ("größer\n".encode(), True), (b"\xff\xfe", False)],
)  # fmt: skip
def test_logs_are_told_by_their_first_bytes(head: bytes, log: bool) -> None:
    assert is_log(head) is log


def test_both_sides_agree_whatever_their_clocks_and_order_say(tmp_path: Path) -> None:
    files = two_sides(tmp_path, way=0.002, late=-0.0, apart=-7200.0)
    for order in (list(files), list(reversed(files))):
        found = {f.code: f for f in diagnose(order)}
        assert found["both.link"].numbers["trip_p50_ms"] == pytest.approx(4.0, rel=0.05)
        assert str(files[0]) + " at the leader's" in found["both.link"].sentence
        clocks = found["both.clocks"]
        assert clocks.numbers["offset_ms"] == pytest.approx(-7.2e6, rel=1e-6)


def test_the_late_rank_is_the_same_from_either_side(tmp_path: Path) -> None:
    files = two_sides(tmp_path, way=0.0005, late=0.003, apart=1.5)
    for order in (list(files), list(reversed(files))):
        found = {f.code: f for f in diagnose(order)}
        assert found["both.late-rank"].numbers["rank"] == "worker"
        late = found["both.late-rank"].numbers["late_p50_ms"]
        assert late == pytest.approx(3.0, rel=0.05)


def test_equal_recordings_are_equal_to_the_last_payload() -> None:
    path = str(capture_path("ds4d/a_s2_decode_f32.pcap"))
    assert first_difference(path, path) == 18


def test_the_first_other_gate_is_named(tmp_path: Path) -> None:
    # the seventh gate of the second run holds other values
    one = two_sides(tmp_path / "one", way=0.001, late=0.0)[0]
    two = two_sides(tmp_path / "two", way=0.001, late=0.0)[0]
    data = two.read_bytes()
    # seq 7 is token 2, layer 1, ATTN; its leader's partial is bytes (7, 0)
    at = data.index(bytes([7, 0]) * 32)
    two.write_bytes(data[:at] + b"\x09" + data[at + 1 :])
    found = first_difference(str(one), str(two), 16, Schedule(2, 4))
    assert isinstance(found, Difference)
    assert found.what == "values"
    assert found.place == "token 2, layer 1, ATTN (seq 7), partial of the leader"


def test_a_partial_that_changed_on_the_way_is_named(tmp_path: Path) -> None:
    files = two_sides(tmp_path, way=0.001, late=0.0)
    data = files[1].read_bytes()
    at = data.index(bytes([7, 0]) * 32)
    files[1].write_bytes(data[:at] + b"\x09" + data[at + 1 :])
    found = diagnose(files)[0]
    assert (found.code, found.severity) == ("both.changed", "severe")
    assert "the leader's of token 2, layer 1, ATTN (seq 7)" in found.sentence


def test_a_partial_that_one_side_alone_saw_was_lost(tmp_path: Path) -> None:
    from ds4proto.pcap import CaptureReader, PcapWriter

    files = two_sides(tmp_path, way=0.001, late=0.0)
    # the leader's last partial, gate seq 24, is cut out of the worker's recording
    kept = tmp_path / "kept.pcap"
    sink = PcapWriter(kept, linktype=101)
    with CaptureReader(files[1]) as reader:
        for batch in reader:
            for row in range(len(batch)):
                packet = bytes(batch.packet(row))
                if not packet.endswith(bytes([24, 0]) * 32):
                    sink.packet(int(batch.time_ns[row]), packet)
    sink.close()
    found = {f.code: f for f in diagnose([files[0], kept])}
    assert "the leader's partial of token 6, layer 1, FFN (seq 24)" in (
        found["both.lost"].sentence
    )


def test_the_size_of_the_slab_names_the_model() -> None:
    # 38,341,696 bytes: GLM 5.2, 78 layers of 6144 values; 150 gates from slot 6 on
    lines = ["[ok] bound: rank 0, slab 38341696 bytes, rdma transport, peer_ctx 0"]
    known = infer_schedule(parse_log(lines))
    assert known.schedule == Schedule(78, 150, 6, 1)
    assert "GLM" in known.why
    assert known.certain


def test_a_header_alone_in_a_batch_is_noted() -> None:
    from ds4proto.trace.diagnosis.front import Examiner
    from ds4proto.trace.tcp_events import Data

    examiner = Examiner(str(capture_path("ds4d/a_s2_decode_f32.pcap")))
    for packet, size in ((5, 12), (6, 16), (7, 13)):
        piece = memoryview(bytes(size))
        examiner._transport.saw(Data(1, "a>b", 0, piece, packet, 0, packet, 0))
    assert list(examiner._transport._short) == [5, 6]


def test_a_damaged_recording_is_compared_up_to_the_damage(tmp_path: Path) -> None:
    whole = capture_path("ds4d/a_s2_decode_f32.pcap")
    data = bytearray(whole.read_bytes())
    at = 24
    for _ in range(80):  # the header of record 81 is made nonsense
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    data[at : at + 16] = b"\xff" * 16
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(data)
    found = {f.code: f for f in diagnose([whole, cut])}
    assert 0 < int(found["compare.equal"].numbers["payloads"]) < 18


def snapped(source: Path, target: Path, size: int) -> Path:
    """Write a classic pcap anew, with at most `size` bytes of each packet."""
    data = source.read_bytes()
    out, at = bytearray(data[:24]), 24
    while at < len(data):
        held = int.from_bytes(data[at + 8 : at + 12], "little")
        kept = min(held, size)
        out += data[at : at + 8] + kept.to_bytes(4, "little") + data[at + 12 : at + 16]
        out += data[at + 16 : at + 16 + kept]
        at += 16 + held
    target.write_bytes(out)
    return target


@pytest.mark.parametrize(
    "name", ["ds4d/f_snapshot_save_s2.pcap", "ds4d/a_s2_decode_f32.pcap"]
)
def test_headers_alone_are_judged_without_a_crash(tmp_path: Path, name: str) -> None:
    cut = snapped(capture_path(name), tmp_path / "cut.pcap", 78)
    assert "unknown.cut" in {f.code for f in diagnose([cut, cut])}


def test_an_equal_pair_shows_that_a_machine_repeats_itself() -> None:
    # recordings 1 and 2 are of one side, 0 is of the other
    other = Difference("values", "gate 7", 2, 1, 6, ())  # type: ignore[arg-type]  # no rows needed
    parted: dict[tuple[int, int], Difference | int] = {(0, 1): other, (0, 2): other}
    assert control_of({**parted, (1, 2): 24}, (0, 1)) == 24
    assert control_of({**parted, (1, 2): 24}, (0, 2)) == 24
    assert control_of({**parted, (1, 2): other}, (0, 1)) == other
    assert control_of({**parted, (1, 2): 0}, (0, 1)) == other  # nothing to compare
    assert control_of({(0, 1): other}, (0, 1)) is None


def test_a_line_without_end_takes_no_room(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("x" * 300_000 + "\nds4-tp: timeout waiting gate seq 77\n")
    reader = LogReader(str(log))
    reader.read()
    assert [(line.number, line.kind) for line in reader.lines] == [(2, "gate-timeout")]


def test_the_end_of_a_talkative_log_counts(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    talk = "".join(f"computed token {n}\n" for n in range(11_000))
    log.write_text(f"{talk}ds4-tp: timeout waiting gate seq 77\n")
    found = diagnose([log])
    assert [f.numbers.get("seq") for f in found] == [77]


def test_a_log_of_nothing_but_gates_hides_no_refusal_with_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4proto.trace.diagnosis.logs._MOST", 3)
    log = tmp_path / "worker.log"
    gates = "".join(f"ds4-tp: timeout waiting gate seq {n}\n" for n in range(1, 6))
    refused = "ds4-tp: connecting to 10.0.0.1:9911 ... (Connection refused)\n"
    log.write_text(gates + refused)
    assert {f.code for f in diagnose([log])} == {"log.gate"}


def test_a_number_beyond_64_bits_in_a_log_is_no_crash(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text(f"ds4-tp: timeout waiting gate seq {'9' * 5000}\n")
    assert [f.code for f in diagnose([log])] == ["log.gate"]


def test_a_text_that_no_clause_declares_is_told_as_well(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("next worker did not answer within 60 s\n" * 3)
    found = diagnose([log])
    assert [(f.code, f.clause) for f in found] == [("log.text", "")]
    assert "the hop behind it" in found[0].sentence


@pytest.mark.parametrize(
    ("line", "meaning", "step"),
    [
        ("ds4: bind 0.0.0.0:9000: Address already in use",
         "another process holds that port", "share its listener"),
        ("ds4: cannot save session: No space left on device", "the disk is full",
         "make room"),
        ("mmap failed: Cannot allocate memory", "no memory left", "ds4proto preflight"),
        ("connect 10.0.0.7:9000: Connection timed out", "no answer at all", "ping it"),
        ("connect 10.0.0.7:9000: No route to host", "not in any network", "interface"),
        ("send: Connection reset by peer", "the other side ended", "last lines"),
        ("send: Broken pipe", "had closed the connection", "it ended first"),
    ],
)  # fmt: skip
def test_what_the_system_said_has_a_cause_and_a_step(
    tmp_path: Path, line: str, meaning: str, step: str
) -> None:
    log = tmp_path / "worker.log"
    log.write_text(f"loading\n{line}\n")
    found = diagnose([log])
    assert [finding.code for finding in found] == ["log.text"]
    assert found[0].sentence.startswith("line 2: ")
    assert meaning in found[0].sentence
    assert step in found[0].next_step
