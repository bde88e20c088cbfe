"""What a tp-leader makes of the end of a sync, and how it shows images."""

from __future__ import annotations

from typing import Any, Final

from ds4proto_conformance.bench.tp_leader import LeaderBench
from ds4proto_conformance.cases.tp_leader import leading
from ds4proto_conformance.verdicts import Deviation, NotApplicable

_CODE: Final = 18
"""SYNC_MULTIMODAL, where the dialect has it."""


@leading("control/sync-logits", "DS4T-SYNC-13",
         params={"as": ("short", "long", "hash", "ack")},
         mutants=["sync-logits-unchecked"], category="faults")  # fmt: skip
def sync_logits(peer: LeaderBench, p: dict[str, Any]) -> None:
    """Anything but one complete LOGITS behind the ack fails the sync."""
    if not peer.split or peer.own.top2:
        raise NotApplicable("no LOGITS frames in this pair")
    step = peer.until("SYNC")
    peer.exchange(peer.meetings(step))
    peer.ack(step.known)
    if p["as"] == "ack":
        peer.ack(step.known)
    else:
        half = peer.half()
        peer.raw(*{"short": (10, half[:-4]), "long": (10, half + bytes(4)),
                   "hash": (6, bytes(16))}[p["as"]])  # fmt: skip
    peer.no_more_work("DS4T-SYNC-13")


@leading("images/records", "DS4T-MM-01", "DS4T-MM-02", "DS4T-MM-12",
         mutants=["image-rows-short", "image-count-off", "images-too-old"],
         category="limits")  # fmt: skip
def image_records(peer: LeaderBench) -> None:
    """A prompt with images is one whole frame, and goes to no peer that has no such.

    A leader that sends none is judged by the dialects in which it must not.
    """
    seen = False
    try:
        for step in peer.commands():
            last = peer.control.last
            if last is not None and last.code == _CODE:
                seen = True
                _judge(peer, step.values)
            peer.serve(step)
    except Deviation:
        last = peer.control.last
        if last is None or last.code != _CODE or peer.own.rules.multimodal:
            raise
        what = f"no type {_CODE} to a peer of {peer.dialect}"
        raise Deviation("DS4T-MM-12", what, str(last)) from None
    if not seen and peer.own.rules.multimodal:
        raise NotApplicable("the leader sends no images; see --drive")


def _judge(peer: LeaderBench, values: dict[str, Any]) -> None:
    if not peer.own.rules.multimodal:
        raise Deviation("DS4T-MM-12", f"no type {_CODE} in {peer.dialect}", "one came")
    for number, image in enumerate(values["images"]):
        width, due = image["data_width"], peer.identity.n_embd
        if width != due:
            where = f"data_width {due} in image {number}"
            raise Deviation("DS4T-MM-02", where, str(width))
