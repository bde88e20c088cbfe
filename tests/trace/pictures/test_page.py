"""The page: what is in it equals what crossed, and nothing in it can act."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections import Counter
from pathlib import Path

import pytest

from ds4proto.pcap import Endpoint, PcapWriter, TcpConversation
from ds4proto.testing import captures_dir
from ds4proto.trace import decode
from ds4proto.trace.diagnosis import Evidence, Finding
from ds4proto.trace.pictures import Place, Remark, draw, remarks_of, write_html
from ds4proto.trace.pictures.collecting import PROBLEM, REVERSE, UNDECODED_FLAG
from ds4proto.trace.pictures.heads import HEAD_BYTES
from ds4proto.trace.redact import head_size
from ds4proto.trace.tcp import read_streams
from ds4proto.trace.tcp_events import Data
from tests.link.streams import HELLO, ds4d, result, work
from tests.trace.pictures.long_run import LongRun
from tests.trace.pictures.reading import Page

ROOT = captures_dir()
THREE = ROOT / "ds4d" / "d_s3_forward_f16.pcap"
PROBES = ROOT / "ds4d" / "i_worker_work.pcap"
PAIR = ROOT / "ds4t" / "v10_everything.pcap"
WINDOW_3 = ROOT / "ds4d" / "e_s2_prefill_c16_w3.pcap"
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028{{7*7}}\x1b[2J\u202e'\""


def page_of(path: Path, folder: Path, **choices: object) -> Page:
    target = folder / "page.html"
    draw(str(path), html=str(target), **choices)  # type: ignore[arg-type]  # as given
    return Page(target)


@pytest.mark.parametrize("path", [THREE, PROBES, PAIR], ids=lambda path: path.stem)
def test_the_page_holds_every_frame_that_the_decoder_finds(
    path: Path, tmp_path: Path
) -> None:
    rows = list(decode(path))
    page = page_of(path, tmp_path)
    assert page.names() == [r.name if r.is_frame else r.type for r in rows]
    columns = page.columns
    assert columns["time"].tolist() == [row.time for row in rows]
    assert columns["length"].tolist() == [row.length for row in rows]
    assert columns["packet"].tolist() == [row.last_packet for row in rows]
    lanes = [node["role"] for node in page.meta["nodes"]]
    if len({row.run for row in rows}) == 1:
        assert [lanes[n] for n in columns["source"]] == [row.src_role for row in rows]
        assert [lanes[n] for n in columns["target"]] == [row.dst_role for row in rows]
    assert [bool(n & PROBLEM) for n in columns["flags"]] == [
        bool(row.problems) for row in rows
    ]
    assert [bool(n & UNDECODED_FLAG) for n in columns["flags"]] == [
        not row.is_frame for row in rows
    ]
    assert len(page.details) == len(rows)
    for (_, fields, problems, _), row in zip(page.details, rows, strict=True):
        assert len(problems) == len(row.problems)
        assert fields["offset in the stream"] == row.stream_offset
        assert set(row.fields) <= set(fields)


@pytest.mark.parametrize("path", [THREE, PAIR, WINDOW_3], ids=lambda path: path.stem)
def test_the_bytes_shown_are_those_of_the_stream(path: Path, tmp_path: Path) -> None:
    streams: dict[tuple[int, str], bytearray] = {}
    for event in read_streams(str(path)):
        if isinstance(event, Data):
            way = streams.setdefault((event.stream, event.direction), bytearray())
            assert len(way) == event.offset
            way += event.data
    rows = list(decode(path))
    found = page_of(path, tmp_path).details
    assert len(found) == len(rows) > 20
    for (_, _, _, head), row in zip(found, rows, strict=True):
        stream = streams[row.stream, row.direction]
        start = row.stream_offset
        assert (
            bytes.fromhex(head) == stream[start : start + min(HEAD_BYTES, row.length)]
        )


def test_counts_of_a_built_run_are_those_of_its_builder(tmp_path: Path) -> None:
    path = tmp_path / "run.pcapng"
    built = LongRun(path, 1200)
    page = page_of(path, tmp_path)
    assert page.meta["summary"]["frames"] == built.total == 1200
    assert page.meta["summary"]["bytes"] == built.bytes
    counts = Counter(page.names())
    assert counts["DS4D.WORK"] == built.counts["DS4D.WORK"]
    assert counts["DS4D.RESULT"] == built.counts["DS4D.RESULT"]
    assert counts["DS4T.GATE_ROW"] == built.counts["gate"]
    assert {t["name"]: t["frames"] for t in page.meta["types"]} == counts
    # the sums over time lose nothing: a lane each, and every byte in a bin
    series = page.meta["series"]
    assert sum(series["frames"]) == built.total
    assert sum(map(sum, series["bytes"].values())) == pytest.approx(built.bytes)
    assert max(series["in_flight"]) == 2
    spans = page.meta["spans"]
    assert len(spans) == built.counts["DS4D.RESULT"]
    assert {page.meta["nodes"][int(s[0])]["role"] for s in spans} == {"worker 3:output"}
    assert page.meta["summary"]["broken rules"] == 0


def test_in_flight_is_the_window_of_the_run(tmp_path: Path) -> None:
    page = page_of(WINDOW_3, tmp_path)
    assert max(page.meta["series"]["in_flight"]) == 3
    assert page.meta["series"]["in_flight"][0] == 0


def test_frames_behind_the_cap_are_counted_and_the_page_says_so(tmp_path: Path) -> None:
    page = page_of(THREE, tmp_path, limit=10)
    assert len(page.columns["time"]) == len(page.details) == 10
    assert page.meta["summary"]["frames"] == 38
    assert sum(page.meta["series"]["frames"]) == 38
    assert "10 of 38 frames are held one by one" in page.text


def hostile_capture(folder: Path) -> Path:
    """Return a run whose peer put markup into every text that it may send."""
    path = folder / "<b>run&amp;.pcap"
    a, b = Endpoint("10.0.0.2", 50_001), Endpoint("10.0.0.1", 8000)
    with PcapWriter(str(path)) as writer:
        talk = TcpConversation(writer, a, b)
        talk.open(1_000)
        name = HOSTILE.encode()[:60].decode("utf-8", "ignore")
        talk.data(2_000, "a>b", ds4d("HELLO", **(HELLO | {"model_name": name})))
        hop = {"host": "<i>x</i>", "port": 1, "layer_start": 3, "layer_end": 7}
        request = work(route=[hop | {"flags": 1}], layer_end=7, flags=3)
        talk.data(3_000, "b>a", request)
        error = HOSTILE.encode()
        talk.data(4_000, "a>b", result(status=1, result_kind=0, payload_bits=32,
                                       telemetry=[], payload=error))  # fmt: skip
        talk.data(5_000, "a>b", ds4d("ERROR", text=HOSTILE))
    return path


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    path = hostile_capture(tmp_path)
    target = tmp_path / "page.html"
    remark = Remark("warning", HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)
    drawn = draw(str(path), html=str(target), findings=[remark])
    assert drawn.picture.summary["frames"] == 4
    page = Page(target)
    assert "onerror=alert(1)" in str(page.details)  # the attack did arrive
    assert HOSTILE[:20] in page.text
    plain = Page(_drawn(THREE, tmp_path / "plain.html"))
    # no element that a harmless page does not have, and no script of a peer's
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags} | {
        "ol", "li", "span", "button",
    }  # fmt: skip
    assert page.code == plain.code
    assert not [name for _, attrs in page.tags for name in attrs if name[:2] == "on"]
    assert "\x1b" not in page.source
    assert "\u2028" not in page.block("meta")
    assert "\u202e" not in str(page.details)
    assert "{{7*7}}" in page.text  # no template ran


def _drawn(path: Path, target: Path) -> Path:
    draw(str(path), html=str(target))
    return target


def test_the_page_reaches_for_nothing_and_runs_only_its_own_code(
    tmp_path: Path,
) -> None:
    page = page_of(PAIR, tmp_path)
    policy = next(
        attrs["content"] or ""
        for tag, attrs in page.tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, text in (("script", page.code[0]), ("style", page.styles)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    (code,) = page.code
    assert not [attrs for _, attrs in page.tags if "src" in attrs]
    links = [attrs["href"] or "" for _, attrs in page.tags if "href" in attrs]
    assert [link for link in links if link[:1] != "#"] == []
    assert re.findall(r"https?://|fetch\(|XMLHttpRequest|import\(", code) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write", code) == []
    assert "url(" not in page.styles
    assert "@import" not in page.styles


def test_the_page_warns_of_prompts_and_names_the_way_out(tmp_path: Path) -> None:
    text = " ".join(page_of(THREE, tmp_path).text.split())
    assert "prompts and answers can be read" in text
    assert "--redact" in text
    assert "--headers-only" in text


def test_a_redacted_page_holds_neither_tokens_nor_values(tmp_path: Path) -> None:
    whole, safe = page_of(THREE, tmp_path), page_of(THREE, tmp_path, privacy="redact")
    assert safe.names() == whole.names()
    assert [node["role"] for node in safe.meta["nodes"]] == [
        node["role"] for node in whole.meta["nodes"]
    ]
    for (line, fields, _, head), row in zip(safe.details, decode(THREE), strict=True):
        assert set(fields.get("tokens", ())) <= {0}
        assert "#" not in line  # the hash of a payload
        if row.type == "WORK":
            assert any(row.fields["tokens"])
            tail = bytes.fromhex(head)[head_size(row) :]
            size = min(len(tail), 4 * len(row.fields["tokens"]))
            assert size > 0
            assert not any(tail[:size])
    assert safe.meta["heat"] == []
    assert "Token ids, payloads and hashes were taken out" in safe.text
    hidden = {r.payload.hash for r in decode(THREE) if r.payload is not None}
    assert not [h for h in hidden if h in safe.source or h in str(safe.details)]


def test_a_page_of_headers_only_shows_no_tails(tmp_path: Path) -> None:
    page = page_of(THREE, tmp_path, privacy="headers-only")
    kinds = zip(page.names(), page.details, strict=True)
    works = [detail for name, detail in kinds if name == "DS4D.WORK"]
    assert len(works) == 18
    for _, fields, _, _ in works:
        assert "tokens" not in fields
        assert fields["n_tokens"] >= 1
    assert "headers and fixed fields alone" in page.text


def test_the_same_capture_gives_the_same_bytes(tmp_path: Path) -> None:
    one = _drawn(PAIR, tmp_path / "one.html").read_bytes()
    two = _drawn(PAIR, tmp_path / "two.html").read_bytes()
    assert one == two


def test_findings_lead_to_their_frames(tmp_path: Path) -> None:
    page = page_of(PROBES, tmp_path)
    clauses = {p.clause for row in decode(PROBES) for p in row.problems}
    assert len(clauses) >= 3
    assert any(clause in page.text for clause in clauses)
    assert_jumps_lead_to_frames(page)


def assert_jumps_lead_to_frames(page: Page) -> None:
    columns = page.columns
    places = set(
        zip(
            columns["stream"].tolist(),
            (columns["flags"] & REVERSE != 0).tolist(),
            columns["offset"].tolist(),
            strict=True,
        )
    )
    assert len(places) == len(columns["time"])  # each place is that of one frame
    jumps = [attrs for tag, attrs in page.tags if attrs.get("class") == "jump"]
    assert jumps
    for attrs in jumps:
        stream, back = int(attrs["data-stream"] or 0), attrs["data-back"] == "1"
        assert (stream, back, float(attrs["data-offset"] or -1)) in places


def test_findings_of_rows_alone_lead_to_their_frames_too(tmp_path: Path) -> None:
    target = tmp_path / "rows.html"
    write_html(str(target), decode(PROBES), title="rows")
    page = Page(target)
    clauses = {p.clause for row in decode(PROBES) for p in row.problems}
    assert all(clause in page.text for clause in clauses)
    assert_jumps_lead_to_frames(page)


def test_evidence_of_a_finding_is_a_place_in_its_own_file_alone() -> None:
    mine = Evidence("a.pcap", 1, "b>a", 7, 822, 100, "DS4D.WORK", 0.5, text="late")
    other = Evidence("b.log", line=3, text="timeout")
    finding = Finding(
        "tp.x", "severe", "likely", "nothing came", evidence=(mine, other),
        next_step="look at b", clause="DS4T-X-01",
    )  # fmt: skip
    (remark,) = remarks_of([finding], "a.pcap")
    assert remark.severity == "error"
    assert remark.text == "Nothing came"
    assert remark.places == (Place(1, "b>a", 822, 7),)
    assert remark.evidence == (
        "tp.x, DS4T-X-01", "DS4D.WORK, packet 7: late", "b.log, line 3: timeout",
    )  # fmt: skip
    assert remark.next_step == "look at b"


def test_findings_of_a_kind_are_counted_behind_the_first_ones() -> None:
    many = [Finding("a.b", "warning", "likely", f"n {n}") for n in range(12)]
    rare = Finding("c.d", "note", "likely", "rare")
    found = [remark.text for remark in remarks_of([*many, rare], "x")]
    assert found[:8] == [f"N {n}" for n in range(8)]
    assert found[8] == "Rare"
    assert found[9].startswith("4 more of a.b")


def test_rows_of_any_source_can_be_drawn_with_findings(tmp_path: Path) -> None:
    target = tmp_path / "rows.html"
    seen: list[str] = []

    def rows():  # type: ignore[no-untyped-def]  # a generator of rows
        for row in decode(THREE):
            seen.append(row.type)
            yield row

    found = (Remark("error", f"{kind} seen") for kind in ["last", *seen[-1:]])
    write_html(str(target), rows(), found, title="by hand")
    page = Page(target)
    assert page.meta["title"] == "by hand"
    assert len(page.details) == 38
    assert "last seen" in page.text


def test_damage_ends_the_page_and_a_fault_leaves_none(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(THREE.read_bytes()[:-5])
    page = page_of(cut, tmp_path)
    assert "ends inside a record" in page.text
    assert len(page.details) >= 37

    target = tmp_path / "broken.html"
    target.write_text("older")

    def broken():  # type: ignore[no-untyped-def]  # a generator of rows
        yield from decode(io.BytesIO(THREE.read_bytes()))
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        write_html(str(target), broken(), title="x")
    assert target.read_text() == "older"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
