"""DS4T and DS4B: every message of the tensor-parallel protocol."""

from __future__ import annotations

from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.ds4t_answers import ANSWERS
from ds4proto.schema.ds4t_commands import COMMANDS
from ds4proto.schema.ds4t_common import DS4B_MAGIC, DS4T_MAGIC, HEADER
from ds4proto.schema.ds4t_gates import GATES
from ds4proto.schema.ds4t_hello import HELLO

FRAMES: tuple[FrameSpec, ...] = (HELLO, *COMMANDS, *ANSWERS, *GATES)

__all__ = ["DS4B_MAGIC", "DS4T_MAGIC", "FRAMES", "HEADER", "HELLO"]
