"""Activation widths: what a worker takes in and gives out at 32, 16 and 8 bits."""

from __future__ import annotations

from typing import Any, Literal

from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable

EXACT = (0.0, 0.25, -0.5, 1.0, -1.25, 1.5, -1.75, 2.0)
"""Values that every width holds exactly."""


def rows(peer: WorkerBench, count: int, bits: int, shift: int = 0) -> bytes:
    """Return rows of exact values at a width."""
    import numpy as np

    from ds4proto.codec.widths import activation_codec

    size = count * peer.facts.hidden_values
    at = (np.arange(size) * 5 + shift) % len(EXACT)
    values = np.asarray(EXACT, np.float32)[at]
    half: Any = peer.settings.half
    return bytes(activation_codec(bits, half=half).encode(values, rows=count))


def answers(peer: WorkerBench, count: int, widths: tuple[int, ...]) -> list[bytes]:
    """Return the hidden state of one span, asked for at several widths."""
    tokens = peer.tokens(count)
    found = []
    for bits in widths:
        hidden = rows(peer, count, bits) if peer.facts.layer_start else b""
        work = peer.make(tokens, bits=bits, hidden=hidden, logits=False)
        found.append(peer.answer(peer.send(work)).served("DS4D-RESULT-25").payload)
    return found


@case(
    "worker/widths/16-is-the-narrowed-32",
    clauses=("DS4D-RESULT-25", "DS4D-WORK-32", "DS4D-FRAME-09", "CODEC-BF16-04"),
    role="worker",
    category="codec",
    params={"count": (1, 3)},
    mutants=("f16-is-bf16", "f16-big-endian"),
)
def narrow_16(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Rows at 16 bits are the rows at 32 bits, each value narrowed."""
    wide, narrow = answers(peer, p["count"], (32, 16))
    compare(peer, wide, narrow, 16)


@case(
    "worker/widths/8-is-the-narrowed-32",
    clauses=("DS4D-RESULT-25", "CODEC-E4M3-04"),
    role="worker",
    category="codec",
    params={"count": (1, 3, 12)},
    mutants=("e4m3-to-even", "e4m3-truncates"),
)
def narrow_8(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Rows at 8 bits are the rows at 32 bits, each value narrowed."""
    wide, narrow = answers(peer, p["count"], (32, 8))
    compare(peer, wide, narrow, 8)


@case(
    "worker/widths/0-means-32",
    clauses=("DS4D-WORK-38", "DS4D-RESULT-25"),
    role="worker",
    category="codec",
    mutants=("bits-zero-refused", "bits-zero-echoed"),
)
def zero_is_32(peer: WorkerBench) -> None:
    """input_hc_bits 0 is served as 32, and 32 stands in the answer."""
    tokens = peer.tokens(2)
    hidden = peer.hidden(2)
    found = []
    for bits in (32, 0):
        work = peer.make(
            tokens,
            bits=bits,
            logits=False,
            hidden=hidden if peer.facts.layer_start else b"",
        )
        found.append(peer.answer(peer.send(work)).served("DS4D-WORK-38").payload)
    if found[0] != found[1]:
        raise Deviation("DS4D-WORK-38", "the rows of width 32", "other rows")


@case(
    "worker/widths/little-endian",
    clauses=("DS4D-FRAME-09", "DS4D-WORK-32"),
    role="worker",
    category="codec",
    positions=("middle", "last"),
    mutants=("hidden-in-big-endian",),
)
def little_endian(peer: WorkerBench) -> None:
    """The same values at 32 and at 8 bits lead to the same rows."""
    wide, narrow = answers(peer, 2, (32, 8))
    compare(peer, wide, narrow, 8)


@case(
    "worker/widths/no-conversion-of-32",
    clauses=("DS4D-WORK-32", "DS4D-RESULT-25"),
    role="worker",
    category="codec",
    positions=("middle", "last"),
    mutants=("f32-through-f16",),
)
def exact_32(peer: WorkerBench) -> None:
    """Values that only 32 bits can tell apart lead to different rows."""
    import numpy as np

    size = peer.facts.hidden_values
    tokens = peer.tokens(1)
    found = []
    for step in range(2):
        values = np.full(size, 1.0, np.float32)
        values[:] = np.nextafter(np.float32(1), np.float32(2)) if step else 1.0
        work = peer.make(tokens, hidden=values.astype("<f4").tobytes(), logits=False)
        found.append(peer.answer(peer.send(work)).served().payload)
    if found[0] == found[1]:
        raise Deviation(
            "DS4D-WORK-32",
            "32-bit input to be used at full width",
            "inputs that differ in the last bit give the same rows",
        )


@case(
    "worker/widths/input-matters",
    clauses=("DS4D-WORK-32",),
    role="worker",
    category="codec",
    params={"bits": (32, 16, 8)},
    positions=("middle", "last"),
    mutants=("input-ignored",),
)
def input_matters(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Another hidden state leads to another answer."""
    tokens, found = peer.tokens(2), []
    for shift in (0, 3):
        hidden = rows(peer, 2, p["bits"], shift)
        work = peer.make(tokens, bits=p["bits"], hidden=hidden)
        found.append(peer.answer(peer.send(work)).served().payload)
    if found[0] == found[1]:
        raise Deviation("DS4D-WORK-32", "an answer that depends on the input", "equal")


@case(
    "worker/widths/rows-in-token-order",
    clauses=("DS4D-WORK-32", "DS4D-RESULT-25"),
    role="worker",
    category="codec",
    mutants=("rows-reversed",),
)
def row_order(peer: WorkerBench) -> None:
    """The first row of an answer is that of the first token."""
    tokens = peer.tokens(3)
    hidden = peer.hidden(3) if peer.facts.layer_start else b""
    work = peer.make(tokens, hidden=hidden, logits=False)
    whole = peer.answer(peer.send(work)).served().payload
    width = peer.facts.hidden_values * 4
    first = peer.make(tokens[:1], hidden=hidden[:width], logits=False)
    alone = peer.answer(peer.send(first)).served().payload
    if whole[:width] != alone:
        raise Deviation(
            "DS4D-WORK-32", "the row of the first token first", "another row"
        )


@case(
    "worker/widths/layer-0-answers-at-the-width",
    clauses=("DS4D-WORK-40", "DS4D-WORK-39"),
    role="worker",
    category="codec",
    params={"bits": (32, 16, 8, 0)},
    positions=("first",),
    mutants=("layer-0-always-32",),
)
def layer_0(peer: WorkerBench, p: dict[str, Any]) -> None:
    """On layer 0 the width still rules the hidden state that leaves."""
    peer.work(2, bits=p["bits"], logits=False).served("DS4D-WORK-40")


def compare(peer: WorkerBench, wide: bytes, narrow: bytes, bits: int) -> None:
    """Take it that narrow rows are the wide ones, narrowed."""
    import numpy as np

    from ds4proto.codec.base import PROFILES
    from ds4proto.codec.widths import activation_codec

    values = np.frombuffer(wide, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise NotApplicable("the peer's rows are not finite; nothing can be compared")
    halves: tuple[Literal["f16", "bf16"], ...] = ("f16",)
    if bits == 16:
        halves = ("f16", "bf16")
    for profile in PROFILES if bits == 8 else ("strict",):
        for half in halves:
            codec = activation_codec(bits, profile=profile, half=half)
            if bytes(codec.encode(values)) == narrow:
                if half != peer.settings.half:
                    raise Deviation(
                        "DS4D-WORK-32", f"16 bit as {peer.settings.half}", f"{half}"
                    )
                if bits == 8:
                    peer.note(f"numeric profile of the 8-bit encoder: {profile}")
                return
    if len(narrow) * 32 != len(wide) * bits:
        raise Deviation(
            "DS4D-RESULT-25", f"{len(wide) * bits // 32} bytes", f"{len(narrow)} bytes"
        )
    strict = activation_codec(bits)
    due = np.frombuffer(bytes(strict.encode(values)), np.uint8)
    found = np.frombuffer(narrow, np.uint8)
    at = int(np.flatnonzero(due != found)[0])
    raise Deviation(
        "DS4D-RESULT-25" if bits == 16 else "CODEC-E4M3-04",
        f"byte {at} to be {due[at]:#04x}",
        f"{found[at]:#04x}; {int((due != found).sum())} of {len(due)} bytes differ",
    )
