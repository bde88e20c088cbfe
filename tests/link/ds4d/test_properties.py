"""Any input, in any split: the same answers, and never anything but events."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.link.ds4d_intake import BadMagic, End, Frame, Intake
from ds4proto.link.ds4d_limits import DEFAULT
from ds4proto.link.ds4d_registration import Expected, Registration
from ds4proto.link.ds4d_work_link import WorkLink
from tests.link.ds4d import toy
from tests.link.ds4d.build import make, raw, record, work
from tests.link.ds4d.host import Host
from tests.link.ds4d.test_work_link import ask

SLICE = toy.facts(5, 7, head=True)
SAVE = make(
    "SNAPSHOT_SAVE_REQ", model_id=0, session=9, request=1, token_hash=0, token_count=0,
    layer_start=5, layer_end=7,
)  # fmt: skip

pieces = st.one_of(
    st.builds(
        work,
        st.lists(st.integers(0, 300), max_size=4).map(tuple),
        before=st.sampled_from([(), (1,)]),
        flags=st.integers(0, 31),
        bits=st.sampled_from([0, 7, 8, 16, 32]),
        route=st.sampled_from([None, [record(2, 4), record(5, 7, flags=1)]]),
        session=st.integers(1, 3),
    ),
    st.builds(raw, st.integers(0, 11), st.binary(max_size=90)),
    st.just(SAVE),
    st.binary(max_size=30),
)


def told(data: bytes, cuts: list[int], *, end: bool) -> tuple[bytes, bool]:
    host = Host(SLICE)
    link = host.open()
    last = 0
    for cut in [*sorted(cuts), len(data)]:
        if link not in host.closed:
            host.give(link, data[last:cut])
        last = max(last, cut)
    if end and link not in host.closed:
        host.give(link, None)
    return bytes(host.wrote[link]), link in host.closed


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(pieces, max_size=5), st.data(), st.booleans())
def test_a_worker_does_not_see_how_bytes_were_split(
    parts: list[bytes], data: st.DataObject, end: bool
) -> None:
    stream = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    whole = told(stream, [], end=end)
    assert told(stream, cuts, end=end) == whole
    if len(stream) < 1500:
        assert told(stream, list(range(len(stream))), end=end) == whole


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(pieces, max_size=3), st.integers(1, 40))
def test_the_coordinator_takes_any_bytes(parts: list[bytes], step: int) -> None:
    stream = b"".join(parts)

    def feed(machine: Any) -> list[str]:
        for at in range(0, len(stream), step):
            machine.receive_data(stream[at : at + step], 0.0)
        machine.receive_data(None, 0.0)
        return [type(event).__name__ for event in machine.events()]

    link = WorkLink(toy.MODEL)
    ask(link)
    assert feed(link)[-1] == "Close"
    registration = Registration(Expected(0, "Toy V4", 8, 256), now=0.0)
    assert feed(registration)[-1] in ("Close", "HelloAccepted")


def plan(kind: int, size: int, kept: memoryview) -> int:
    """Keep nothing, a part, or in two stages, by the type."""
    if kind < 3:
        return 0
    if len(kept) < 40:
        return min(size, 40)
    return size if kind > 6 else len(kept)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_the_intake_keeps_what_the_plan_says(seed: int) -> None:
    rng = random.Random(seed)
    sizes = (0, 1, 39, 40, 41, 700, 70_000, 1_100_000)
    sent = [
        (rng.randrange(12), rng.randbytes(rng.choice(sizes)))
        for _ in range(rng.randrange(8))
    ]
    stream = b"".join(raw(kind, body) for kind, body in sent) + b"DS4Dxx"
    intake = Intake(plan, DEFAULT)
    found: list[Any] = []
    at = 0
    while at < len(stream):
        buffer = intake.get_buffer()
        step = min(len(buffer), len(stream) - at, rng.randrange(1, 200_000))
        buffer[:step] = stream[at : at + step]
        intake.received(step, 0.0)
        at += step
        while (item := intake.next()) is not None:
            found.append(item)
    intake.received(0, 0.0)
    assert intake.next() == End("header", offset=len(stream) - 6)
    assert [type(item) for item in found] == [Frame] * len(sent)
    for (kind, body), frame in zip(sent, found, strict=True):
        kept = 0 if kind < 3 else len(body) if kind > 6 else min(40, len(body))
        assert (frame.type, frame.size) == (kind, len(body))
        assert frame.body == body[:kept]


def test_three_wrong_bytes_are_not_yet_a_bad_magic() -> None:
    intake = Intake(plan, DEFAULT)
    intake.feed(b"XYZ", 0.0)
    assert intake.next() is None
    intake.feed(b"W", 0.0)
    assert intake.next() == BadMagic(0x58595A57, 0)
    assert intake.next() is None
