"""A fault is planted against each invariant: every one of them can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ds4proto_fuzz.parsers import (
    Broken,
    files,
    reassembly,
    reports,
    rows,
    schemas,
    streams,
    target,
)
from ds4proto_fuzz.parsers import captures as captures_module
from ds4proto_fuzz.parsers.bounds import bounded

from ds4proto.errors import Ds4ProtoError
from ds4proto.link.events import FrameReceived, Skipped
from ds4proto.link.framing import Framer
from ds4proto.model import gguf
from ds4proto.model.errors import GgufError
from ds4proto.preflight import protocol
from ds4proto.schema.registry import Reading
from tests.fuzz.parsers.samples import corpus

Patch = pytest.MonkeyPatch


def fails(name: str, with_text: str, kind: type[BaseException] = Broken) -> None:
    """Require that some file of a corpus is told as broken, in these words."""
    with pytest.raises(kind, match=with_text):  # noqa: PT012 - one of many fails
        for data in corpus(name):
            target(name).check(data)


def raising(error: BaseException) -> Callable[..., Any]:
    def planted(*_: Any, **__: Any) -> Any:
        raise error

    return planted


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("schema", schemas, "read"),
        ("framing", streams, "Framer"),
        ("observer", streams, "open_observer"),
        ("rows", rows, "CaptureDecoder"),
        ("capture", captures_module, "CaptureReader"),
        ("tcp", reassembly, "Reassembler"),
        ("saved", files, "read_container"),
        ("gguf", files, "read_gguf"),
        ("message", reports, "receive"),
    ],
)
def test_an_undocumented_exception_escapes(
    name: str, module: Any, function: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(module, function, raising(KeyError("planted")))
    fails(name, "planted", KeyError)


def test_readers_of_a_frame_that_differ(monkeypatch: Patch) -> None:
    real = schemas.read

    def planted(*args: Any, **options: Any) -> Reading:
        found = real(*args, **options)
        if options.get("reference"):
            return Reading({**found.values, "planted": 1}, found.problems)
        return found

    monkeypatch.setattr(schemas, "read", planted)
    fails("schema", "both readers agree")


def test_parse_that_lets_everything_through(monkeypatch: Patch) -> None:
    monkeypatch.setattr(schemas, "parse", lambda *_, **__: {})
    with pytest.raises(Broken, match="parse raises where a reading is not whole"):
        target("schema").check(b"\0DS4D")


def test_a_builder_that_says_something_else(monkeypatch: Patch) -> None:
    monkeypatch.setattr(schemas, "to_bytes", lambda *_, **__: b"other")
    fails("schema", "a sound frame is built again")


def test_a_problem_outside_its_frame(monkeypatch: Patch) -> None:
    real = schemas.read

    def planted(*args: Any, **options: Any) -> Reading:
        found = real(*args, **options)
        moved = tuple(replace(p, frame_offset=1 << 20) for p in found.problems)
        return Reading(found.values, moved)

    monkeypatch.setattr(schemas, "read", planted)
    with pytest.raises(Broken, match="a problem lies inside its frame"):
        target("schema").check(b"\0DS4D")


class SplitSees(Framer):
    """Tells single bytes from longer pieces."""

    def feed(self, data: Any, now: float) -> Any:
        found = super().feed(data, now)
        if data is not None and len(data) > 1:
            found = [e for e in found if not getattr(e, "problems", ())]
        return found


class Loses(Framer):
    """Says of every skipped run that it is one byte longer."""

    def feed(self, data: Any, now: float) -> Any:
        return [
            replace(event, length=event.length + 1)
            if isinstance(event, Skipped)
            else event
            for event in super().feed(data, now)
        ]


@pytest.mark.parametrize(
    ("framer", "text"),
    [
        (SplitSees, "what is pending is known|whole or byte by byte"),
        (Loses, "what is pending is known|every byte is accounted for|the end stands"),
    ],
)
def test_a_framer_that_sees_the_split_or_loses_count(
    framer: type[Framer], text: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(streams, "Framer", framer)
    fails("framing", text)


def test_an_observer_that_sees_the_split(monkeypatch: Patch) -> None:
    real = streams.open_observer

    class Planted:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def feed(self, way: Any, data: Any, now: float) -> Any:
            for event in self._inner.feed(way, data, now):
                single = data is not None and len(data) == 1
                if isinstance(event, FrameReceived) and single:
                    event.missing += 1
                yield event

    def planted(*args: Any, **options: Any) -> Any:
        inner = real(*args, **options)
        return None if inner is None else Planted(inner)

    monkeypatch.setattr(streams, "open_observer", planted)
    fails("observer", "whole or byte by byte, channel")


def test_json_that_no_other_reader_takes(monkeypatch: Patch) -> None:
    class Planted(rows.JsonLines):
        def finish(self) -> None:
            self._block[:] = self._block.replace(b'"time":0.0', b'"time":NaN')
            super().finish()

    monkeypatch.setattr(rows, "JsonLines", Planted)
    fails("rows", "JSON has no such number")


def test_columns_and_rows_of_packets_that_differ(monkeypatch: Patch) -> None:
    real = captures_module.headers.dissect

    def planted(*args: Any) -> Any:
        found = real(*args)
        return found if isinstance(found, str) else found._replace(seq=found.seq ^ 1)

    monkeypatch.setattr(captures_module.headers, "dissect", planted)
    fails("capture", "columns and rows agree")


def test_a_reader_of_captures_that_sees_its_blocks(monkeypatch: Patch) -> None:
    class Planted(captures_module.CaptureReader):
        def __init__(self, source: Any, *, block_bytes: int, max_record: int) -> None:
            super().__init__(source, block_bytes=block_bytes, max_record=max_record)
            self.info.application = str(block_bytes)

    monkeypatch.setattr(captures_module, "CaptureReader", Planted)
    fails("capture", "whole or byte by byte: facts")


def test_books_of_a_stream_that_do_not_balance(monkeypatch: Patch) -> None:
    real = reassembly._Books.take

    def planted(books: Any, event: Any) -> None:
        if isinstance(event, reassembly.End):
            event.stats.ab.unique_bytes += 1
        real(books, event)

    monkeypatch.setattr(reassembly._Books, "take", planted)
    fails("tcp", "bytes and gaps are those counted")


def test_a_cut_file_that_passes_for_sound(monkeypatch: Patch) -> None:
    real = files.read_container

    def planted(data: Any, **options: Any) -> Any:
        return real(data, **options)._replace(problems=())

    monkeypatch.setattr(files, "read_container", planted)
    fails("saved", "a cut file is sound no more")


def test_a_model_reader_that_sees_its_source(monkeypatch: Patch) -> None:
    real = files.read_gguf

    def planted(source: Any, **options: Any) -> Any:
        if isinstance(source, BytesIO):
            raise GgufError("x", offset=0, expected="a", found="b", next_step="c")
        return real(source, **options)

    monkeypatch.setattr(files, "read_gguf", planted)
    fails("gguf", "whole or byte by byte")


def test_layers_that_a_header_merely_claims(monkeypatch: Patch) -> None:
    word = b"\x0d" + bytes(7) + b"x.block_count" + (10).to_bytes(4, "little")
    claims = b"GGUF\3\0\0\0" + bytes(8) + b"\2" + bytes(7)
    claims += b"\x14" + bytes(7) + b"general.architecture" + b"\x08\0\0\0"
    claims += b"\1" + bytes(7) + b"x" + word + (50_000_000).to_bytes(8, "little")
    target("gguf").check(claims)
    bounded(target("gguf").check, claims)
    monkeypatch.setattr(gguf, "_LAYER_COUNTS", ("nothing",))
    with pytest.raises(Broken, match=r"bounded (time|memory)"):
        bounded(target("gguf").check, claims)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("planted"), KeyError, "planted"),
        (Ds4ProtoError("no file is named"), Broken, "an error names the file"),
    ],
)
def test_a_reader_of_reports_that_fails_otherwise(
    error: BaseException, kind: type[BaseException], text: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(reports, "readers", lambda: {"planted": raising(error)})
    fails("report", text, kind)


def test_a_message_whose_length_is_believed(monkeypatch: Patch) -> None:
    long = (16 << 20).to_bytes(4, "big")
    target("message").check(long)
    monkeypatch.setattr(protocol, "_MOST", 1 << 40)
    with pytest.raises(Broken, match="no length is believed unchecked"):
        target("message").check(long)


# -- the bounds themselves


def test_an_allocation_from_a_length_is_seen() -> None:
    def planted(data: bytes) -> None:
        bytearray(int.from_bytes(data, "big"))

    bounded(planted, (1 << 20).to_bytes(4, "big"))
    with pytest.raises(Broken, match="bounded memory: input=4, peak="):
        bounded(planted, (1 << 28).to_bytes(4, "big"))


def test_a_loop_over_a_length_is_seen() -> None:
    def planted(data: bytes) -> None:
        for _ in range(int.from_bytes(data, "big")):
            pass

    lines, _ = bounded(planted, (1000).to_bytes(4, "big"))
    assert lines >= 1000
    with pytest.raises(Broken, match="bounded time: more than"):
        bounded(planted, b"\xff\xff\xff\xff")


def test_the_trace_of_others_is_put_back() -> None:
    before = sys.gettrace()
    with pytest.raises(KeyError):
        bounded(raising(KeyError("x")), b"")
    assert sys.gettrace() is before


def test_a_process_cannot_map_what_a_peer_announces() -> None:
    code = (
        "from ds4proto_fuzz.parsers.bounds import limit_address_space\n"
        "limit_address_space(1 << 28)\n"
        "bytearray(1 << 20)\n"
        "try:\n    bytearray(1 << 30)\n"
        "except MemoryError:\n    print('refused')\n"
        "else:\n    print('given')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    limited = sys.platform.startswith("linux")
    assert done.stdout.strip() == ("refused" if limited else "given")
