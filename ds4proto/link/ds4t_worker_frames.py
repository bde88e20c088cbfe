"""The frames that a worker answers with: acks and logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds4proto.link.ds4t_events import Top2
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_texts import LocalProtocolError
from ds4proto.link.ds4t_verdict import top2_of
from ds4proto.schema.problem import Buf
from ds4proto.schema.registry import build, frame


def ack_frame(settings: TpSettings, session_id: int, status: int) -> list[Buf]:
    """Return one COMMAND_ACK."""
    spec = frame("DS4T.COMMAND_ACK", dialect=settings.dialect)
    values = {"session_id": session_id, "status": status}
    return build(spec, values, dialect=settings.dialect)


def logits_frames(settings: TpSettings, entries: Sequence[Any]) -> list[Buf]:
    """Return one LOGITS, or LOGITS_TOP2, per entry; payloads are not copied.

    Raises
    ------
    LocalProtocolError
        For an entry that is missing, or is not ``n_vocab / 2`` f32 values.
    """
    buffers: list[Buf] = []
    for entry in entries:
        buffers += _top2(settings, entry) if settings.top2 else _half(settings, entry)
    return buffers


def _checked(settings: TpSettings, entry: Any) -> memoryview:
    size = settings.logits_bytes
    view = None if entry is None else memoryview(entry)
    if view is None or view.nbytes != size:
        found = "none" if view is None else f"{view.nbytes} bytes"
        raise LocalProtocolError(
            f"logits of {size} bytes are due (n_vocab / 2 f32 values), found {found}"
        )
    return view.cast("B")


def _half(settings: TpSettings, entry: Any) -> list[Buf]:
    spec = frame("DS4T.LOGITS", dialect=settings.dialect)
    values = {"logits": _checked(settings, entry)}
    return build(spec, values, dialect=settings.dialect)


def _top2(settings: TpSettings, entry: Any) -> list[Buf]:
    half = settings.identity.n_vocab // 2
    if isinstance(entry, Top2):
        best = entry
    else:
        best = top2_of(_checked(settings, entry), half)
    spec = frame("DS4T.LOGITS_TOP2", dialect=settings.dialect)
    values = {
        "id0": best.ids[0],
        "id1": best.ids[1],
        "value0": best.values[0],
        "value1": best.values[1],
    }
    return build(spec, values, dialect=settings.dialect)
