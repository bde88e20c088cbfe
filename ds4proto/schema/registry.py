"""The front of the schemas: frames by name or number, parse and build.

``data`` of a framed message is the whole frame, its 12-byte header included, so
that every offset counts from the first byte on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from ds4proto.schema import ds4d, ds4t
from ds4proto.schema.builder import build_frame
from ds4proto.schema.declare import FrameSpec, Layout, in_dialect
from ds4proto.schema.dialects import dialect as find_dialect
from ds4proto.schema.fast import Odd, header_form, read_fast
from ds4proto.schema.problem import Buf, Problem, SchemaError
from ds4proto.schema.reference import Reader
from ds4proto.schema.rules import shown

_FRAMES: tuple[FrameSpec, ...] = ds4d.FRAMES + ds4t.FRAMES


class Reading(NamedTuple):
    """What a frame holds, and what is wrong with it."""

    values: dict[str, Any]
    problems: tuple[Problem, ...]

    @property
    def whole(self) -> bool:
        """True where every part of the frame could be read."""
        return not any(problem.fatal for problem in self.problems)


def frames(protocol: str | None = None, *, dialect: str = "*") -> tuple[FrameSpec, ...]:
    """Return the declared frames, of one protocol or all, that a dialect has."""
    name = dialect.rstrip("?")
    return tuple(
        spec
        for spec in _FRAMES
        if (protocol is None or spec.protocol == protocol)
        and (name == "*" or _has(spec, name))
    )


def _has(spec: FrameSpec, dialect: str) -> bool:
    family = "DS4D" if spec.protocol == "DS4D" else "DS4T"
    home = find_dialect(dialect)
    if home.protocol != family or home.foreign:
        return False
    return in_dialect(spec.dialects, dialect)


@cache
def _index(dialect: str) -> dict[str, FrameSpec]:
    return {spec.full_name: spec for spec in frames(dialect=dialect)}


@cache
def _codes(protocol: str, dialect: str) -> dict[int, FrameSpec]:
    return {
        spec.code: spec
        for spec in frames(protocol, dialect=dialect)
        if spec.code is not None
    }


def frame(name: str, *, dialect: str) -> FrameSpec:
    """Return the declaration of a frame, such as ``DS4D.WORK``.

    Raises
    ------
    KeyError
        If the dialect has no such frame; the message lists those it has.
    """
    found = _index(dialect.rstrip("?")).get(name)
    if found is None:
        known = ", ".join(_index(dialect.rstrip("?")))
        raise KeyError(f"dialect {dialect} has no frame {name!r}; it has: {known}")
    return found


def frame_of_code(protocol: str, code: int, *, dialect: str) -> FrameSpec | None:
    """Return the frame with a type number, or None if the dialect has none."""
    return _codes(protocol, dialect.rstrip("?")).get(code)


def header_of(protocol: str) -> Layout:
    """Return the layout of the 12-byte header of a protocol."""
    return ds4d.HEADER if protocol == "DS4D" else ds4t.HEADER


def read_body(
    spec: FrameSpec,
    body: memoryview,
    *,
    dialect: str,
    stream_offset: int = 0,
    reference: bool = False,
) -> Reading:
    """Read a body without its header; problems are returned, not raised.

    Parameters
    ----------
    spec : FrameSpec
    body : memoryview
        What follows the header, whole.
    dialect : str
    stream_offset : int
        Offset of the frame's first byte (its header) in the stream.
    reference : bool
        True reads with the interpreted form even where the fast one would do.
    """
    name = dialect.rstrip("?")
    if not reference:
        try:
            values, sound = read_fast(spec, body, name)
        except Odd:
            pass
        else:
            if sound:
                return Reading(values, ())
    reader = Reader(spec, name, spec.header_size)
    values = reader.read(body)
    problems = tuple(problem.at(stream_offset) for problem in reader.problems)
    return Reading(values, problems)


def read(
    spec: FrameSpec,
    data: Buf,
    *,
    dialect: str,
    stream_offset: int = 0,
    reference: bool = False,
) -> Reading:
    """Read a whole frame; what is wrong with it is returned beside its values."""
    view = memoryview(data).cast("B")
    header = _check_header(spec, view)
    if len(view) < spec.header_size:
        return Reading({}, tuple(problem.at(stream_offset) for problem in header))
    reading = read_body(
        spec,
        view[spec.header_size :],
        dialect=dialect,
        stream_offset=stream_offset,
        reference=reference,
    )
    if not header:
        return reading
    found = tuple(problem.at(stream_offset) for problem in header)
    return Reading(reading.values, found + reading.problems)


def _check_header(spec: FrameSpec, view: memoryview) -> list[Problem]:
    if spec.header is None:
        return []
    layout = spec.header
    form, magic = header_form(layout)
    size = form.size
    wanted = (magic, spec.code, len(view) - size)
    if len(view) >= size and form.unpack_from(view) == wanted:
        return []
    where = spec.name + ".header"
    if len(view) < size:
        return [
            Problem(
                layout.short_clause,
                where,
                0,
                None,
                f"a header of {spec.header_size} bytes",
                f"{len(view)} bytes",
                "the stream ends inside a header",
                fatal=True,
            )
        ]
    found = []
    offset = 0
    words = form.unpack_from(view)
    for field, word, due in zip(layout.fields, words, wanted, strict=True):
        if word != due:
            text = "{:#010x}" if field.path == "magic" else "{}"
            found.append(
                Problem(
                    field.clause,
                    f"{where}.{field.path}",
                    offset,
                    None,
                    text.format(due),
                    text.format(word),
                    fatal=field.path == "magic",
                )
            )
        offset += field.size
    return found


def parse(
    spec: FrameSpec, data: Buf, *, dialect: str, stream_offset: int = 0
) -> Mapping[str, Any]:
    """Return the values of a whole frame.

    Raises
    ------
    SchemaError
        At the first part that cannot be read. Rules that a readable frame breaks
        are found with ``read``, which returns them beside the values.
    """
    reading = read(spec, data, dialect=dialect, stream_offset=stream_offset)
    for problem in reading.problems:
        if problem.fatal:
            raise SchemaError(problem)
    return reading.values


def build(
    spec: FrameSpec,
    values: Mapping[str, Any],
    *,
    dialect: str,
    header: Mapping[str, int] | None = None,
) -> list[Buf]:
    """Return the buffers of a whole frame, header included.

    Lengths and counts that are not given are computed from the tails; given ones
    are sent as they are, so that a test can lie. ``header`` overrides header words.

    Raises
    ------
    SchemaError
        For a missing value, or one that does not fit its field.
    """
    return build_frame(spec, values, dialect.rstrip("?"), header)


def to_bytes(
    spec: FrameSpec,
    values: Mapping[str, Any],
    *,
    dialect: str,
    header: Mapping[str, int] | None = None,
) -> bytes:
    """Return a whole frame as one ``bytes``; for tests and small frames."""
    return b"".join(build(spec, values, dialect=dialect, header=header))


__all__ = [
    "Reading",
    "build",
    "frame",
    "frame_of_code",
    "frames",
    "header_of",
    "parse",
    "read",
    "read_body",
    "shown",
    "to_bytes",
]
