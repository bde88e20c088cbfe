"""Small ranks that take or send prompts with images wrongly."""

from __future__ import annotations

import struct
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_worker_rules import Refusal
from ds4proto_conformance.mutants.tp_tools import (
    LOGITS,
    control_out,
    drop,
    frame_bytes,
    judged,
    put,
    refused,
)
from ds4proto_conformance.peers.faults import Fault
from ds4proto_conformance.peers.tp_engine import TINY

_SYNC: Final = 1
_MULTIMODAL: Final = 18
_TOKENS: Final = 2


def record(rows: int = _TOKENS) -> bytes:
    """Return the record of an image at the first two tokens."""
    words = (0, _TOKENS, TINY.n_embd, 28, 28, 27, 27)
    return struct.pack("<7I32x", *words) + bytes(4 * rows * TINY.n_embd)


def with_image(data: bytes, count: int = 1) -> Any:
    """Return a hook that makes each SYNC one with an image, followed by `data`."""

    def change(_spot: Any, _code: int, body: bytes) -> list[bytes]:
        return [frame_bytes(_MULTIMODAL, put(body, 12, count) + data)]

    return control_out(change, _SYNC)


def _note_image(_peer: Any, spot: Any, found: Any) -> bool:
    if isinstance(found, say.RunSync):
        spot.memory["images"] = bool(found.images)
    return False


def _silent(spot: Any, _code: int, _body: bytes) -> Any:
    return drop() if spot.memory.get("images") else None


def _failed(name: str, values: dict[str, Any], outcome: Any, wrong: bool) -> Any:
    if name != "SYNC_MULTIMODAL" or not wrong or not isinstance(outcome, say.RunSync):
        return outcome
    return Refusal("DS4T-MM-07", "no", ack=values["session_id"], found="no")


def _judge_picture(_judge: Any, name: str, values: dict[str, Any], outcome: Any) -> Any:
    flat = any(not entry["height"] for entry in values.get("images", ()))
    return _failed(name, values, outcome, flat)


def _bound(judge: Any, name: str, values: dict[str, Any], outcome: Any) -> Any:
    top = judge._settings.identity.n_vocab
    beyond = any(token >= top for token in values.get("tokens", ()))
    return _failed(name, values, outcome, beyond)


def _any_span(_judge: Any, _name: str, values: dict[str, Any], outcome: Any) -> Any:
    if not refused(outcome, "DS4T-MM-07"):
        return outcome
    return say.RunSync(values["session_id"], values["tokens"])


def _worker(name: str, category: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpw-{name}", "tp-worker", category, about, **hooks)


def _leader(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpl-{name}", "tp-leader", "limits", about, **hooks)


MUTANTS: Final = (
    _worker("images-no-logits", "state", "sends no logits for a prompt with an image",
            event=_note_image, out=control_out(_silent, LOGITS)),
    _worker("picture-judged", "state", "fails a picture that has no height",
            patch=judged(_judge_picture)),
    _worker("spans-unjudged", "limits", "takes images that overlap or leave the prompt",
            patch=judged(_any_span)),
    _worker("placeholders-bound", "limits",
            "wants placeholder tokens inside the vocabulary", patch=judged(_bound)),
    _leader("image-rows-short", "sends an image of one row too few",
            out=with_image(record(_TOKENS - 1))),
    _leader("image-count-off", "announces an image more than it sends",
            out=with_image(record(), 2)),
    _leader("images-too-old", "sends images to a peer that has no such frame",
            position="v7", out=with_image(record())),
)  # fmt: skip
