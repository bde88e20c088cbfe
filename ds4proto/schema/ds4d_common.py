"""What all DS4D messages share: the header, the models, the hand that declares them.

Headers, ids, tokens, routes and telemetry are big-endian; floats are little-endian.
"""

from __future__ import annotations

from construct import Int32ub, Int64ub

from ds4proto.schema.declare import (
    EVERY,
    FieldSpec,
    FrameSpec,
    Layout,
    Limit,
    Name,
)

MAGIC = 0x44533444
LOCAL_DECODE = frozenset({"local-decode"})
FODELF = frozenset({"fodelf"})
ANYEI = frozenset({"anyei"})
HELLO_V3 = frozenset({"hello-v3"})
BOOLEAN = Limit(0, 1)

F = FieldSpec


def number64(name: str, doc: str, path: str | None = None) -> FieldSpec:
    """Return a 64-bit field that travels as two words, the high one first."""
    return F(path or name, Int64ub, doc, words=f"{name}_hi, {name}_lo")


def text_size(text: str) -> int:
    """Return the bytes that ``text`` takes on the wire."""
    return len(text.encode("utf-8", "surrogateescape"))


HEADER = Layout(
    "HEADER",
    "Twelve bytes in front of every message.",
    (
        F("magic", Int32ub, "ASCII DS4D", const=MAGIC, clause="DS4D-FRAME-01"),
        F("type", Int32ub, "message type", clause="DS4D-FRAME-02"),
        F("bytes", Int32ub, "body length", unit="bytes", clause="DS4D-FRAME-03"),
    ),
    short_clause="DS4D-FRAME-03",
)

MODEL_IDS = (
    Name(0, "FLASH", "DeepSeek V4 Flash"),
    Name(1, "PRO", "DeepSeek V4 Pro"),
    Name(2, "GLM_5_2", "GLM 5.2"),
)


def model_id() -> FieldSpec:
    """Return the field that names the model."""
    return F(
        "model_id", Int32ub, "model number; a test model takes any", enum=MODEL_IDS
    )


def frame(
    code: int,
    body: Layout,
    sender: tuple[str, ...],
    receiver: tuple[str, ...],
    dialects: frozenset[str] = EVERY,
    *,
    trailing: bool = False,
) -> FrameSpec:
    """Declare one DS4D message; its name is that of its body."""
    return FrameSpec(
        "DS4D", body.name, code, body, sender, receiver, HEADER, dialects, trailing
    )
