"""What one DS4D connection alone shows of the rules between frames.

Works on frames already read. State that lives elsewhere (sessions reached over other
connections, options of the peers) is not guessed at: what is not known is not judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.ds4d_answers import (
    Fields,
    Outstanding,
    hex64,
    judge_telemetry,
    problem_in,
)
from ds4proto.link.ds4d_snapshots import SnapshotContext
from ds4proto.link.events import Direction, FrameReceived
from ds4proto.schema.ds4d import (
    ACK,
    ACK_ONLY,
    HIDDEN_STATE,
    INPUT_HC,
    LOGITS,
    RESET_SESSION,
    RESULT,
)
from ds4proto.schema.problem import Problem

LOGIT_BYTES = 4
MAX_OUTSTANDING = 4096
"""WORK frames remembered without an answer; a real window is 64 at most."""
MAX_EARLY = 256
"""Answers remembered that came before their WORK, as a capture may have it."""
MAX_SESSIONS = 1024
"""Sessions remembered; the oldest is forgotten."""


def other(direction: Direction) -> Direction:
    """Return the opposite direction."""
    return "b>a" if direction == "a>b" else "a>b"


@dataclass(slots=True)
class Session:
    """What the frames of this connection say that a session holds.

    ``hash`` is None where an error or another connection made it unknown.
    """

    hash: int | None = None
    count: int | None = None


@dataclass(slots=True)
class Context:
    """State of one connection; one object serves both directions."""

    outstanding: dict[Direction, deque[Outstanding]] = field(
        default_factory=lambda: {"a>b": deque(), "b>a": deque()}
    )
    sessions: dict[int, Session] = field(default_factory=dict)
    values_per_token: int | None = None
    vocabulary: int | None = None
    snapshots: SnapshotContext = field(default_factory=SnapshotContext)
    blind: bool = False
    _stale: int | None = None
    _early: dict[Direction, deque[int]] = field(
        default_factory=lambda: {
            "a>b": deque(maxlen=MAX_EARLY),
            "b>a": deque(maxlen=MAX_EARLY),
        }
    )

    def forget(self) -> None:
        """Bytes were lost: nothing is known of what they said.

        Until an answer is matched again, one without its WORK is no problem.
        """
        self.blind = True
        for waiting in self.outstanding.values():
            waiting.clear()
        self.sessions.clear()
        self.snapshots = SnapshotContext()

    def judge(self, frame: FrameReceived) -> list[Problem]:
        """Take one frame; return the rules between frames that it breaks."""
        name = frame.spec.name
        if name == "WORK":
            return list(self._work(frame))
        if name == "RESULT":
            return list(self._result(frame))
        if name.startswith("SNAPSHOT_"):
            return list(self.snapshots.judge(frame))
        return []

    def _work(self, frame: FrameReceived) -> Iterator[Problem]:
        v = frame.fields
        odd = any(p.fatal for p in frame.problems)
        self._stale = None
        if "route_index" not in v:
            # too short to judge; it is answered all the same, with id 0 or its own
            self._wait(frame, Outstanding(v.get("request", 0)))
            return
        if not odd and "tokens" in v:
            yield from self._hashes(frame, v)
            yield from self._width(frame, v)
        route = v.get("route")
        self._wait(
            frame,
            Outstanding(
                v["request"],
                v["session"],
                v["result_hash"],
                v["n_tokens"],
                v["pos0"],
                v["flags"],
                v["input_hc_bits"] or 32,
                (v["layer_start"], v["layer_end"]),
                v["route_count"] - v["route_index"],
                bool(route[-1]["flags"] & 1) if route and not odd else None,
                v["token_bytes"] + v["input_hc_bytes"],
                odd or bool(frame.problems),
                self._stale,
                v["prefix_hash"],
            ),
        )

    def _wait(self, frame: FrameReceived, work: Outstanding) -> None:
        early = self._early[frame.direction]
        if work.request in early:
            early.remove(work.request)
            return
        waiting = self.outstanding[frame.direction]
        if len(waiting) >= MAX_OUTSTANDING:
            waiting.popleft()
        waiting.append(work)

    def _hashes(self, frame: FrameReceived, v: Fields) -> Iterator[Problem]:
        key, tokens = v["session"], v["tokens"]
        due = token_hash(tokens, v["prefix_hash"])
        if due != v["result_hash"]:
            yield problem_in(
                frame,
                "DS4D-WORK-15",
                "result_hash",
                f"{hex64(due)}, prefix_hash extended by the {len(tokens)} tokens",
                hex64(v["result_hash"]),
                "the hash runs over token ids, low byte first",
            )
        reset = bool(v["flags"] & RESET_SESSION)
        empty = v["prefix_hash"] == TOKEN_HASH_START
        if empty != (v["pos0"] == 0):
            yield problem_in(
                frame,
                "DS4D-WORK-37" if reset else "DS4D-WORK-36",
                "pos0" if empty else "prefix_hash",
                "0, as prefix_hash is that of no tokens"
                if empty
                else f"{hex64(TOKEN_HASH_START)}, the hash of no tokens, at pos0 0",
                v["pos0"] if empty else hex64(v["prefix_hash"]),
            )
        session = self.sessions.get(key, Session())
        if not reset and session.hash is not None:
            # another hash may be right: a load over another connection changes the
            # session; only a refusal in the answer tells
            if v["prefix_hash"] != session.hash:
                self._stale = session.hash
            elif v["pos0"] != session.count:
                yield problem_in(
                    frame,
                    "DS4D-SESS-04",
                    "pos0",
                    f"{session.count}, the tokens of the session",
                    v["pos0"],
                )
        if key not in self.sessions and len(self.sessions) >= MAX_SESSIONS:
            del self.sessions[next(iter(self.sessions))]
        self.sessions[key] = Session(v["result_hash"], v["pos0"] + v["n_tokens"])

    def _width(self, frame: FrameReceived, v: Fields) -> Iterator[Problem]:
        bits, rows = v["input_hc_bits"] or 32, v["n_tokens"]
        if not v["flags"] & INPUT_HC or bits not in (8, 16, 32) or frame.problems:
            return
        values, over = divmod(v["input_hc_bytes"] * 8, bits * rows)
        if over or not values:
            return
        if self.values_per_token is None:
            self.values_per_token = values
        elif values != self.values_per_token:
            due = self.values_per_token * rows * bits // 8
            yield problem_in(
                frame,
                "DS4D-WORK-18",
                "input_hc_bytes",
                f"{due}: {rows} x {self.values_per_token} values at {bits} bits",
                v["input_hc_bytes"],
                "earlier frames of this connection had another width of hidden state",
            )

    def _result(self, frame: FrameReceived) -> Iterator[Problem]:
        v = frame.fields
        if "payload_bits" not in v:
            return  # too short to say which WORK it answers
        waiting = self.outstanding[other(frame.direction)]
        if self.blind and all(w.request != v["request"] for w in waiting):
            return
        if self.blind:
            self.blind = False
            while waiting[0].request != v["request"]:
                waiting.popleft()
        if not waiting:
            self._early[other(frame.direction)].append(v["request"])
            yield problem_in(
                frame,
                "DS4D-RESULT-27",
                "request",
                "no RESULT: no WORK waits",
                v["request"],
            )
            return
        work = waiting.popleft()
        failed = v["status"] != 0
        if v["request"] != work.request and not (failed and v["request"] == 0):
            yield problem_in(
                frame,
                "DS4D-RESULT-21",
                "request",
                f"{work.request}, the oldest WORK without an answer",
                v["request"],
                "answers come in the order of the WORK frames",
            )
            if any(w.request == v["request"] for w in waiting):
                while work.request != v["request"]:
                    work = waiting.popleft()
            else:
                waiting.appendleft(work)
                self._early[other(frame.direction)].append(v["request"])
                return
        if failed:
            self.sessions.pop(work.session, None)
            yield from self._error(frame, v, work)
            return
        if v["result_hash"] != work.result_hash:
            yield problem_in(
                frame,
                "DS4D-RESULT-22",
                "result_hash",
                f"{hex64(work.result_hash)}, as in WORK {work.request}",
                hex64(v["result_hash"]),
            )
        if not any(p.fatal for p in frame.problems):
            yield from self._answer(frame, v, work)
            yield from judge_telemetry(frame, v, work)

    def _error(
        self, frame: FrameReceived, v: Fields, work: Outstanding
    ) -> Iterator[Problem]:
        if work.held is not None:
            yield problem_in(
                frame,
                "DS4D-WORK-26",
                "status",
                f"WORK {work.request} to start from {hex64(work.held)}, what the"
                " session held",
                f"a refusal of prefix_hash {hex64(work.prefix_hash)}",
                "send RESET_SESSION and the whole transcript",
            )
        for path in ("result_hash", "result_kind", "payload_bits"):
            if v[path]:
                yield problem_in(
                    frame, "DS4D-RESULT-23", path, "0 in an error", v[path]
                )

    def _answer(
        self, frame: FrameReceived, v: Fields, work: Outstanding
    ) -> Iterator[Problem]:
        kind, nbytes = v["result_kind"], v["payload_bytes"]
        names = {e.value: e.name for f in RESULT.body.fields for e in f.enum}
        due = ACK if work.flags & ACK_ONLY else None
        if due is None and work.wants_logits is not None:
            due = LOGITS if work.wants_logits else HIDDEN_STATE
        if due is not None and kind != due and kind in names:
            clause = {ACK: "DS4D-WORK-50", LOGITS: "DS4D-WORK-51"}
            yield problem_in(
                frame,
                clause.get(due, "DS4D-WORK-52"),
                "result_kind",
                f"{names[due]}, as WORK {work.request} asks",
                names[kind],
            )
        if kind == HIDDEN_STATE:
            bits = v["payload_bits"]
            if bits != work.width:
                yield problem_in(
                    frame, "DS4D-RESULT-25", "payload_bits", work.width, bits
                )
            elif self.values_per_token is not None:
                size = work.n_tokens * self.values_per_token * bits // 8
                if nbytes != size:
                    yield problem_in(
                        frame,
                        "DS4D-RESULT-25",
                        "payload_bytes",
                        f"{size}: {work.n_tokens} tokens of"
                        f" {self.values_per_token} values at {bits} bits",
                        nbytes,
                    )
        elif kind == LOGITS and not frame.problems:
            if self.vocabulary is None and nbytes % LOGIT_BYTES == 0:
                self.vocabulary = nbytes // LOGIT_BYTES
            elif self.vocabulary is not None and nbytes != (
                self.vocabulary * LOGIT_BYTES
            ):
                yield problem_in(
                    frame,
                    "DS4D-RESULT-26",
                    "payload_bytes",
                    f"{self.vocabulary * LOGIT_BYTES}, as in earlier LOGITS",
                    nbytes,
                )
