"""Rules between the snapshot frames of one connection: ids, sizes, order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ds4proto.codec.token_hash import token_hash
from ds4proto.link.events import FrameReceived
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.problem import Problem

FIRST_ID = 1 << 63
"""Where upstream starts to number snapshots; WORK ids start at 1."""

_ECHOED = ("model_id", "session", "request", "token_hash", "layer_start", "layer_end")


@dataclass(slots=True)
class SnapshotContext:
    """One save or load at a time, as the protocol has it.

    Attributes
    ----------
    request : int or None
        Id of the transfer in progress.
    left : int or None
        Shard bytes still due; None before their number is known.
    """

    asked: Mapping[str, Any] | None = None
    request: int | None = None
    left: int | None = None
    loading: bool = False

    def judge(self, frame: FrameReceived) -> Iterator[Problem]:
        """Take one snapshot frame; yield the rules between frames that it breaks."""
        v, name = frame.fields, frame.spec.name
        if any(p.fatal for p in frame.problems) or "request" not in v:
            return
        if name == "SNAPSHOT_SAVE_REQ":
            self.asked, self.request, self.left = v, v["request"], None
            self.loading = False
        elif name == "SNAPSHOT_BEGIN":
            yield from self._begin(frame, v)
        elif name == "SNAPSHOT_LOAD_BEGIN":
            self.asked, self.request, self.left = None, v["request"], v["payload_size"]
            self.loading = True
            # tokens that fell into a hole of the capture are not there
            due = token_hash(v["tokens"]) if "tokens" in v else v["token_hash"]
            if due != v["token_hash"]:
                yield _at(
                    frame,
                    "DS4D-SNAP-15",
                    "token_hash",
                    f"{due:#018x}",
                    f"{v['token_hash']:#018x}",
                )
        elif name == "SNAPSHOT_CHUNK":
            yield from self._chunk(frame, v)
        elif name == "SNAPSHOT_DONE":
            yield from self._done(frame, v)

    def _begin(self, frame: FrameReceived, v: Mapping[str, Any]) -> Iterator[Problem]:
        asked, self.asked = self.asked, None
        if v["status"] != 0:
            self.request = self.left = None
            return
        self.request, self.left = v["request"], v["payload_size"]
        if not v["payload_size"]:
            yield _at(frame, "DS4D-SNAP-41", "payload_size", "at least 1 byte", "0")
        for path in _ECHOED if asked is not None else ():
            if asked is not None and v[path] != asked[path]:
                yield _at(
                    frame,
                    "DS4D-SNAP-34",
                    path,
                    f"{asked[path]}, as in the request",
                    f"{v[path]}",
                )

    def _chunk(self, frame: FrameReceived, v: Mapping[str, Any]) -> Iterator[Problem]:
        if self.request is None:
            return
        clause = "DS4D-SNAP-20" if self.loading else "DS4D-SNAP-36"
        if v["request"] != self.request:
            yield _at(frame, clause, "request", f"{self.request}", f"{v['request']}")
        size = v["chunk_bytes"]
        if self.left is not None:
            if size > self.left:
                yield _at(
                    frame,
                    clause,
                    "chunk_bytes",
                    f"at most {self.left}, what the shard still lacks",
                    f"{size}",
                )
            self.left = max(0, self.left - size)

    def _done(self, frame: FrameReceived, v: Mapping[str, Any]) -> Iterator[Problem]:
        if self.request is not None and v["request"] != self.request:
            yield _at(
                frame, "DS4D-SNAP-39", "request", f"{self.request}", f"{v['request']}"
            )
        if self.left and v["status"] == 0:
            yield _at(
                frame,
                "DS4D-SNAP-22" if self.loading else "DS4D-SNAP-35",
                "status",
                f"{self.left} more bytes of the shard first",
                "0 (complete)",
            )
        self.request = self.left = None


def _at(
    frame: FrameReceived, clause: str, path: str, expected: str, found: str
) -> Problem:
    at = frame.spec.header_size + offsets_of(frame.spec.body, "upstream")[path]
    return Problem(
        clause,
        f"{frame.spec.name}.{path}",
        at,
        frame.stream_offset + at,
        expected,
        found,
    )
