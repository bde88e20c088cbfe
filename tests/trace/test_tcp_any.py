"""TCP reassembly on random deliveries of known bytes, and on random packets."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.tcp_tape import (
    ACK,
    FIN,
    MS,
    PSH,
    RST,
    SYN,
    Tape,
    hear,
)


@st.composite
def deliveries(draw):
    """Bytes, and segments of them: cut anywhere, repeated, in disorder, some lost."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    data = rng.randbytes(rng.randrange(1, 600))
    segments = []
    at = 0
    while at < len(data):
        size = rng.randrange(1, 40)
        segments.append((at, min(at + size, len(data))))
        at += size
    for _ in range(rng.randrange(0, 8)):
        low = rng.randrange(len(data))
        segments.append((low, min(len(data), low + rng.randrange(1, 80))))
    spread = rng.choice((0, 3, 50))
    order = sorted(range(len(segments)), key=lambda k: k + rng.random() * spread)
    loss = rng.choice((0, 0, 0.2))
    return data, [segments[k] for k in order if rng.random() >= loss]


@settings(max_examples=300, deadline=None)
@given(
    deliveries(),
    st.sampled_from([0, 100, 0xFFFF_FF00]),
    st.sampled_from([1, 300, 1 << 20]),
    st.sampled_from(["turn", "batch"]),
    st.booleans(),
)
def test_any_delivery_of_a_stream(delivery, isn, block_bytes, join, replies):
    data, segments = delivery
    tape = Tape()
    tape.put(0, isn, flags=SYN)
    for k, (low, high) in enumerate(segments):
        tape.put(0, isn + 1 + low, data[low:high])
        if replies:
            tape.put(1, 501 + k, b"r", ack=isn + 1)
    heard = hear(tape, block_bytes=block_bytes, join=join)
    seen = bytearray(b"?" * len(data))
    for low, high in segments:
        seen[low:high] = data[low:high]
    lost = set(range(len(data)))
    for low, high in segments:
        lost -= set(range(low, high))
    got = heard.text()
    gaps = {k for at, n, _ in heard.gaps[1, "a>b"] for k in range(at, at + n)}
    assert all(got[k] == seen[k] for k in range(len(got)) if k not in gaps)
    top = max((high for _, high in segments), default=0)
    assert (len(got), gaps) == (top, {k for k in lost if k < top})
    stats = heard.stats[1].ab
    assert stats.unique_bytes == len(data) - len(lost)
    assert stats.conflicts == 0
    if replies:
        assert heard.text("b>a") == b"r" * len(segments)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([200, 1 << 20]))
def test_chaos_keeps_the_books(seed, block_bytes):
    rng = random.Random(seed)
    tape = Tape()
    for _ in range(rng.randrange(80)):
        tape.put(
            rng.randrange(2),
            rng.choice((rng.randrange(200), rng.getrandbits(32), 0xFFFF_FFF0)),
            rng.randbytes(rng.choice((0, 0, 1, 5, 60))),
            ack=rng.choice((rng.randrange(300), rng.getrandbits(32))),
            flags=rng.choice((ACK, ACK, ACK, PSH | ACK, SYN, SYN | ACK, FIN, RST)),
            keep=rng.choice((None, None, 3, 0)),
            wait=rng.choice((0, MS, 60_000 * MS)),
        )
    grace = rng.randrange(5)
    heard = hear(tape, block_bytes=block_bytes, grace_packets=grace)
    again = hear(tape, block_bytes=1, grace_packets=grace)
    assert again.stats == heard.stats
    assert (again.bytes, again.gaps) == (heard.bytes, heard.gaps)
    packets = sum(s.ab.segments + s.ba.segments for s in heard.stats.values())
    assert packets <= 80
