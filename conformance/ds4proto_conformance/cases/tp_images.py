"""Prompts with images, as a tp-worker has to take them.

Whether a worker has a vision encoder does not show on the wire. One that fails a sound
prompt with an image says so by its status, and is not judged further (DS4T-MM-10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ds4proto.link.ds4t_events import CHUNK, END, OK, START
from ds4proto.link.plan import GLM_MODELS
from ds4proto_conformance.bench.tp_wire import ControlFrame
from ds4proto_conformance.bench.tp_worker import RankBench, Trace
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable, Unsupported
from ds4proto_conformance.wire import Ended

_HUGE: Final = 0xFFFFFFFF
_OPAQUE: Final[Mapping[str, Any]] = {
    "height": 0,
    "content_width": _HUGE,
    "content_height": _HUGE,
    "fingerprint": b"\xff" * 32,
}
"""Words that a worker passes on unread, and values that no picture has."""
PLACEHOLDERS: Final = 5


def image(
    peer: RankBench, start: int = 0, count: int = 2, **words: Any
) -> dict[str, Any]:
    """Return one image record, sound but for the changes."""
    width = peer.identity.n_embd
    rows = np.random.default_rng(peer.settings.seed).uniform(-0.5, 0.5, count * width)
    return {
        "token_start": start,
        "token_count": count,
        "data_width": width,
        "width": 28,
        "height": 28,
        "content_width": 27,
        "content_height": 27,
        "fingerprint": bytes(range(32)),
        "rows": rows.astype("<f4").tobytes(),
        **words,
    }


def shown(
    peer: RankBench,
    prompt: Sequence[int],
    images: Sequence[dict[str, Any]],
    clause: str,
) -> None:
    """Take it that a prompt with images is served as a prompt without is.

    Raises
    ------
    Unsupported
        The worker fails it.
    """
    known = peer.create()
    plan, total = peer.plan(known, prompt), len(prompt)
    peer.command(
        "SYNC_MULTIMODAL", session_id=known, tokens=tuple(prompt), images=list(images)
    )
    trace = Trace()
    try:
        peer.meet(START, 0, total, trace)
        _goes_on(peer)
        for chunk in plan.chunks:
            peer.gates(peer.chunk(chunk))
            peer.meet(CHUNK, chunk.position + chunk.rows, total, trace)
        for _ in range(plan.single_tokens):
            peer.gates(peer.token())
        peer.meet(END, OK, total, trace)
        peer.ack(known, OK, clause)
    except Deviation as error:
        peer.control.quiet(peer.quiet)
        answer = _failure(peer.control.last)
        if not answer:
            raise
        peer.spent = True
        raise Unsupported(f"a prompt with an image: {answer} ({error.found})") from None
    if peer.split:
        peer.logits(clause)
    peer.held[known] = list(prompt)


def _goes_on(peer: RankBench) -> None:
    """Take it that a worker which met at the start does not end the sync there.

    Raises
    ------
    Deviation
        It says that it has failed.
    """
    if not peer.own.rules.checkpoints:
        return
    found = peer.control.quiet(peer.quiet)
    met = isinstance(found, ControlFrame) and found.name == "SYNC_CHECKPOINT"
    if isinstance(found, ControlFrame) and met and not _failure(found):
        peer.checkpoint(found["point"], found["current"], found["total"])
    elif found is not None:
        raise Deviation("DS4T-MM-11", "the gates of a sync", str(found))


def _failure(found: ControlFrame | None) -> str:
    """Say how a frame tells that a sync has failed; empty where it does not."""
    if found is None:
        return ""
    if found.name == "COMMAND_ACK" and found["status"]:
        return f"COMMAND_ACK with status {found['status']}"
    if found.name == "SYNC_CHECKPOINT" and found["point"] == END and found["current"]:
        return f"checkpoint END with code {found['current']}"
    return ""


@case(
    "tp-worker/images/served",
    clauses=("DS4T-MM-11", "DS4T-MM-08"),
    role="tp-worker",
    category="state",
    params={"word": tuple(_OPAQUE)},
    mutants=("tpw-images-no-logits", "tpw-picture-judged"),
    harm="process",
    needs_restart=True,
)
def served(peer: RankBench, p: dict[str, Any]) -> None:
    """A prompt with an image is answered like SYNC, whatever its picture is said to be.

    Height, content size and fingerprint are nothing that a worker reads.
    """
    peer.needs("multimodal")
    prompt = peer.tokens(5)
    shown(peer, prompt, [image(peer)], "DS4T-MM-11")
    odd = image(peer, **{p["word"]: _OPAQUE[p["word"]]})
    try:
        shown(peer, prompt, [odd], "DS4T-MM-08")
    except Unsupported as error:
        due = f"an image with another {p['word']} to be served as well"
        raise Deviation("DS4T-MM-08", due, str(error)) from None
    except Deviation as error:
        raise Deviation("DS4T-MM-08", error.expected, error.found) from None


@case(
    "tp-worker/images/spans",
    clauses=("DS4T-MM-07",),
    role="tp-worker",
    category="limits",
    params={"spans": ("overlap", "turned", "beyond")},
    mutants=("tpw-spans-unjudged",),
    harm="process",
    needs_restart=True,
)
def spans(peer: RankBench, p: dict[str, Any]) -> None:
    """Images that overlap, stand in another order or leave the prompt are refused."""
    peer.needs("multimodal")
    known, prompt = peer.create(), peer.tokens(6)
    starts = {"overlap": (0, 1), "turned": (3, 0), "beyond": (0, 5)}[p["spans"]]
    images = [image(peer, at) for at in starts]
    peer.command("SYNC_MULTIMODAL", session_id=known, tokens=prompt, images=images)
    found = peer.control.next()
    while not isinstance(found, Ended) and found.name == "SYNC_CHECKPOINT":
        peer.checkpoint(found["point"], found["current"], found["total"])
        found = peer.control.next()
    if isinstance(found, Ended) and found.how != "silence":
        peer.spent = True
        return
    failed = not isinstance(found, Ended) and found.name == "COMMAND_ACK"
    if isinstance(found, Ended) or not failed or found["status"] in (0, 2):
        raise Deviation("DS4T-MM-07", "an ack with status 1, or an end", str(found))
    peer.refused("DS4T-MM-07", "the worker to end behind a failed sync")


@case(
    "tp-worker/images/placeholders",
    clauses=("DS4T-MM-09",),
    role="tp-worker",
    category="limits",
    mutants=("tpw-placeholders-bound",),
    harm="process",
    needs_restart=True,
)
def placeholders(peer: RankBench) -> None:
    """Placeholder tokens of a vision prompt lie behind the vocabulary."""
    peer.needs("multimodal")
    if peer.hello["model_id"] in GLM_MODELS:
        raise NotApplicable("GLM has other placeholders")
    shown(peer, peer.tokens(5), [image(peer)], "DS4T-MM-11")
    first = peer.identity.n_vocab
    prompt = (1, *range(first, first + PLACEHOLDERS), 2)
    try:
        shown(peer, prompt, [image(peer, 1, PLACEHOLDERS)], "DS4T-MM-09")
    except (Deviation, Unsupported) as error:
        due = f"tokens {first} to {first + PLACEHOLDERS - 1} to be taken"
        raise Deviation("DS4T-MM-09", due, str(error)) from None
