"""Two recordings of one prompt: the first token and layer whose values differ."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ds4proto.link.schedule import Schedule
from ds4proto.printable import counted
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4d_result import LOGITS
from ds4proto.schema.problem import Buf
from ds4proto.schema.slab import VALUE
from ds4proto.trace.decoder import CaptureDecoder
from ds4proto.trace.diagnosis.check import is_whole, up_to_damage
from ds4proto.trace.diagnosis.finding import Finding, proof
from ds4proto.trace.diagnosis.tp_gates import gate_name, place_of, place_of_seq
from ds4proto.trace.payload import PayloadSummary, Summarizer, Width
from ds4proto.trace.rows import FrameRow

__all__ = ["Difference", "first_difference", "parting"]

_WINDOW: Final = 65_536
_DIGEST: Final = 8
_MOST_ROWS: Final = 65_536
Key = tuple[Any, ...]


class RowSummary(PayloadSummary):
    """A summary with a hash of each row of values."""

    rows: tuple[bytes, ...] = ()


class RowLook(Summarizer):
    """Describes a payload and hashes it row by row."""

    def __init__(self, path: str, width: Width, row_bytes: int) -> None:
        super().__init__(path, width)
        self._row_bytes = row_bytes
        self._hash = hashlib.blake2b(digest_size=_DIGEST)
        self._left = row_bytes
        self._rows: list[bytes] = []

    def update(self, piece: Buf) -> None:
        """Take the next bytes."""
        super().update(piece)
        view = memoryview(piece)
        while view and self._row_bytes and len(self._rows) < _MOST_ROWS:
            part = view[: self._left]
            self._hash.update(part)
            self._left -= len(part)
            view = view[len(part) :]
            if not self._left:
                self._rows.append(self._hash.digest())
                self._hash = hashlib.blake2b(digest_size=_DIGEST)
                self._left = self._row_bytes

    def finish(
        self, *, shape: tuple[int, ...] = (), notes: tuple[str, ...] = ()
    ) -> PayloadSummary:
        """Return the summary of all bytes taken."""
        plain = msgspec.structs.asdict(super().finish(shape=shape, notes=notes))
        return RowSummary(**plain, rows=tuple(self._rows))


class Step(NamedTuple):
    """One payload of a run, by its place in the model."""

    key: Key
    row: FrameRow
    hashes: tuple[bytes, ...]
    whole: str
    width: str


class Difference(NamedTuple):
    """Where two recordings part.

    Attributes
    ----------
    what : str
        ``tokens``, ``values`` or ``width``.
    place : str
        In words.
    position : int
        Token position (DS4D) or token of the connection (DS4T).
    layer : int
        Whose input, or gate, differs first; -1 for logits.
    equal : int
        Payloads before it that were equal bit by bit.
    """

    what: str
    place: str
    position: int
    layer: int
    equal: int
    rows: tuple[FrameRow, FrameRow]


def first_difference(
    one: str, two: str, n_embd: int = 0, schedule: Schedule | None = None
) -> Difference | int:
    """Compare two recordings payload by payload.

    Parameters
    ----------
    one, two : paths
    n_embd : int
        Values of one row of a gate, for tensor-parallel runs.
    schedule : Schedule, optional
        Gives numbers of gates their tokens and layers.

    Returns
    -------
    Difference or int
        Where they part, or how many payloads were equal.
    """
    equal = 0
    for left, right in _together(_steps(one, n_embd), _steps(two, n_embd)):
        tokens = _tokens(left.row), _tokens(right.row)
        if tokens[0] != tokens[1]:
            at = _first(tokens[0], tokens[1])
            position = int(left.row.fields.get("pos0", 0)) + at
            return Difference(
                "tokens", f"token at position {position}", position, -1, equal,
                (left.row, right.row),
            )  # fmt: skip
        if left.width != right.width:
            place, position, layer = _place(left, 0, schedule)
            rows = (left.row, right.row)
            return Difference("width", place, position, layer, equal, rows)
        if left.whole == right.whole:
            equal += 1
            continue
        place, position, layer = _place(
            left, _first(left.hashes, right.hashes), schedule
        )
        rows = (left.row, right.row)
        return Difference("values", place, position, layer, equal, rows)
    return equal


def parting(
    files: tuple[str, str], found: Difference | int, control: Difference | int | None
) -> Iterator[Finding]:
    """Say what a comparison shows.

    Parameters
    ----------
    files : two paths
    found : Difference or int
        Of `first_difference`.
    control : Difference, int or None
        The same for another pair that shares a recording with this one, where there
        is such: equal if any is, since two equal runs show that a machine repeats
        itself.
    """
    if isinstance(found, int):
        if found:
            yield Finding(
                "compare.equal", "note", "certain",
                f"{files[0]} and {files[1]} hold the same {counted(found, 'payload')}, "
                "bit by bit",
                {"payloads": found},
            )  # fmt: skip
        return
    evidence = tuple(
        proof(row, file) for row, file in zip(found.rows, files, strict=True)
    )
    numbers: dict[str, float | int | str] = {
        "position": found.position, "layer": found.layer, "equal_before": found.equal,
    }  # fmt: skip
    if found.what == "width":
        yield Finding(
            "compare.width", "note", "certain",
            f"the recordings use different widths ({found.place}): bit by bit they "
            "cannot be compared",
            numbers, evidence,
            "ds4proto whatif on the 32-bit one tells what the width changes",
        )  # fmt: skip
        return
    if found.what == "tokens":
        yield Finding(
            "compare.tokens", "warning", "certain",
            f"the recordings part at the {found.place}: other tokens from there on; "
            f"{counted(found.equal, 'payload')} before were equal",
            numbers, evidence,
            "the prompts differ, or the runs chose another token: see whether logits "
            "before it differ",
        )  # fmt: skip
        return
    noisy = isinstance(control, Difference) and control.what == "values"
    yield Finding(
        "compare.diverged", "note" if noisy else "warning",
        "likely" if noisy or isinstance(control, int) else "possible",
        f"first different values: {found.place}; {counted(found.equal, 'payload')} "
        "before it were "
        "equal bit by bit"
        + (". Not discriminating: two runs of one side differ as well "
           f"({control.place})" if isinstance(control, Difference) and noisy else ""),
        numbers, evidence,
        "" if noisy else "what computes just before that place differs (build, "
        "environment, backend)"
        + ("" if control is not None else "; run one side twice and give all three "
           "recordings: a machine that differs from itself proves nothing"),
    )  # fmt: skip


def _steps(file: str, n_embd: int) -> Iterator[Step]:
    sessions: dict[int, int] = {}
    asked: OrderedDict[tuple[int, int], FrameRow] = OrderedDict()
    for row in up_to_damage(CaptureDecoder(file, payload=_look(n_embd))):
        payload = row.payload
        if not row.is_frame or not is_whole(row):
            continue
        key: Key | None = None
        if row.type == "WORK":
            f = row.fields
            ordinal = sessions.setdefault(int(f["session"]), len(sessions))
            asked[row.stream, int(f["request"])] = row
            if len(asked) > _WINDOW:
                asked.popitem(last=False)
            key = ("hidden", ordinal, f["pos0"], f["n_tokens"], f["layer_start"])
        elif row.type == "RESULT" and not row.fields["status"]:
            work = asked.pop((row.stream, int(row.fields["request"])), None)
            if work is not None and not work.fields.get("route_index"):
                f = work.fields
                ordinal = sessions.get(int(f["session"]), 0)
                kind = row.fields["result_kind"]
                key = ("result", ordinal, f["pos0"], f["n_tokens"], kind)
        elif row.type.startswith("GATE"):
            key = (row.type, int(row.fields.get("seq", 0)), row.src_role)
        if key is None or payload is None or payload.captured is not None:
            continue
        hashes = getattr(payload, "rows", ())
        yield Step(key, row, hashes, payload.hash, payload.width)


def _look(
    n_embd: int,
) -> Callable[[FrameSpec, Mapping[str, Any], str, Width], Summarizer]:
    def look(
        spec: FrameSpec, fields: Mapping[str, Any], path: str, width: Width
    ) -> Summarizer:
        row = 0
        if spec.name == "WORK":
            tokens, size = int(fields["n_tokens"]), int(fields["input_hc_bytes"])
            row = size // tokens if tokens and size % tokens == 0 else 0
        elif spec.name.startswith("GATE"):
            row = n_embd * VALUE
        return RowLook(path, width, row)

    return look


def _together(one: Iterator[Step], two: Iterator[Step]) -> Iterator[tuple[Step, Step]]:
    """Yield steps of one key, in the order of the first recording."""
    ahead: OrderedDict[Key, Step] = OrderedDict()
    for step in one:
        other = ahead.pop(step.key, None)
        while other is None:
            candidate = next(two, None)
            if candidate is None:
                break
            if candidate.key == step.key:
                other = candidate
            else:
                ahead[candidate.key] = candidate
                if len(ahead) > _WINDOW:
                    ahead.popitem(last=False)
                    break
        if other is not None:
            yield step, other


def _tokens(row: FrameRow) -> tuple[int, ...]:
    return tuple(row.fields.get("tokens") or ()) if row.type == "WORK" else ()


def _first(one: tuple[Any, ...], two: tuple[Any, ...]) -> int:
    """Return the first place at which two sequences differ."""
    for place, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return place
    return min(len(one), len(two))


def _place(step: Step, row: int, schedule: Schedule | None) -> tuple[str, int, int]:
    """Return a place in words, its token and its layer."""
    f = step.row.fields
    if step.key[0] == "hidden":
        position = int(f["pos0"]) + row
        layer = int(f["layer_start"])
        return f"token at position {position}, input of layer {layer}", position, layer
    if step.key[0] == "result":
        position = int(step.key[2]) + int(step.key[3]) - 1
        what = "logits" if step.key[4] == LOGITS else "hidden state returned"
        return f"{what} after the token at position {position}", position, -1
    layer, _ = place_of(step.row)
    seq = int(f.get("seq", 0))
    place = place_of_seq(seq, schedule) if step.row.type == "GATE_ROW" else None
    name = gate_name(step.row, schedule)
    name = name if place is not None else f"row {row}, {name}"
    token = place.token if place is not None else row
    return f"{name}, partial of the {step.row.src_role}", token, layer
