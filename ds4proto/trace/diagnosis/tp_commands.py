"""What a worker has to refuse in a command, as far as the control connection tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ds4proto.link.ds4t_context import COMMANDS
from ds4proto.link.ds4t_events import KEEP_PREFIX
from ds4proto.link.ds4t_rules import RULES
from ds4proto.link.ds4t_worker_rules import accepted_types
from ds4proto.printable import counted
from ds4proto.trace.bounds import Bounded
from ds4proto.trace.diagnosis.tp_gates import SYNCS
from ds4proto.trace.rows import FrameRow

__all__ = ["CommandFaults", "Fault"]

_ACCEPTED: Final = frozenset({"DS4T-EVAL-02"})
"""Clauses that real workers do not check."""
_NO_SESSION: Final = frozenset(
    {"SESSION_CREATE", "SESSION_DESTROY", "EVAL_BATCH", "MIXED_BATCH", "STOP"}
)
_COMPARED: Final = frozenset({"EVAL", "EVAL_BATCH", "GLM_MTP", "MIXED_BATCH", *SYNCS})
"""Commands inside which a leader may send HASH."""


class Fault(NamedTuple):
    """Why a worker has to refuse a frame of its leader."""

    row: FrameRow
    clause: str
    words: str


@dataclass(slots=True)
class State:
    """What the commands of one pair have brought about."""

    stream: int
    sessions: Bounded[int, int] = field(default_factory=Bounded)
    vocabulary: int = 0
    drafts: int | None = None
    command: str = ""
    fault: Fault | None = None
    last: FrameRow | None = None


class CommandFaults:
    """Follows the leader's frames of every pair, and judges the last one.

    A pair is judged from its hello on, and not behind a hole in its commands.
    """

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def add(self, row: FrameRow) -> None:
        """Take the next row."""
        if row.protocol != "DS4T" or row.type.startswith("GATE"):
            return
        if not row.is_frame and row.fields.get("reason") == "gap":
            self._states.pop(row.run, None)
            return
        if row.type == "HELLO":
            state = self._states.setdefault(row.run, State(row.stream))
            state.vocabulary = int(row.fields.get("n_vocab", 0))
            return
        held = self._states.get(row.run)
        leads = row.src_role == "leader" and row.length > 0
        if held is None or row.stream != held.stream:
            return
        if not leads:
            self._answered(held, row)
            return
        held.last = row
        held.fault = self._judge(held, row)
        if row.is_frame:
            self._follow(held, row)

    def last(self, run: int) -> FrameRow | None:
        """Return the leader's last frame, None where nothing is known of the pair."""
        state = self._states.get(run)
        return None if state is None else state.last

    def fault(self, run: int) -> Fault | None:
        """Return what is wrong with the leader's last frame."""
        state = self._states.get(run)
        return None if state is None else state.fault

    @property
    def lost(self) -> int:
        """Sessions that were forgotten."""
        return sum(state.sessions.lost for state in self._states.values())

    # -- one frame --------------------------------------------------------------

    def _judge(self, state: State, row: FrameRow) -> Fault | None:
        named = next((p for p in row.problems if p.clause not in _ACCEPTED), None)
        if named is not None:
            words = f"{named.path} is {named.found}, expected {named.expected}"
            return Fault(row, named.clause, words)
        if not row.is_frame:
            return None
        judges = [self._sessions]
        if row.dialect.rstrip("?") in RULES:
            judges = [self._place, self._sessions, self._verdict, self._tokens]
        told = (judge(state, row) for judge in judges)
        return next((Fault(row, *one) for one in told if one is not None), None)

    @staticmethod
    def _place(state: State, row: FrameRow) -> tuple[str, str] | None:
        """Judge the type of a frame against what is due."""
        name = row.type
        if name == "VERIFY_COMMIT":
            stray = "no VERIFY is open, so that no VERIFY_COMMIT is due"
            return None if state.drafts is not None else ("DS4T-CTRL-02", stray)
        if state.drafts is not None and name in COMMANDS and name != "STOP":
            return "DS4T-VERIFY-07", f"VERIFY_COMMIT is due, found {name}"
        hashed = name == "HASH" and state.command not in _COMPARED
        answer = name in ("LOGITS", "LOGITS_TOP2", "COMMAND_ACK", "SYNC_ACK")
        if answer or hashed:
            return "DS4T-CTRL-02", f"{name} is no command"
        late = name.startswith("RDMA_") and bool(state.command)
        known = {s.name for s in accepted_types(row.dialect.rstrip("?")).values()}
        if late or (name in COMMANDS and name not in known):
            return "DS4T-CTRL-02", f"{name} is no command of dialect {row.dialect}"
        return None

    @staticmethod
    def _sessions(state: State, row: FrameRow) -> tuple[str, str] | None:
        """Judge the sessions that a command names."""
        f, name = row.fields, row.type
        if state.sessions.lost:
            return None
        batched = [item.get("session_id") for item in f.get("items", ())]
        if name == "MIXED_BATCH":
            batched.append(f.get("prefill_session_id"))
        absent = [n for n in batched if n is not None and n not in state.sessions]
        if absent:
            clause = "DS4T-MIXED-09" if name == "MIXED_BATCH" else "DS4T-BATCH-05"
            return clause, f"session {absent[0]} does not exist"
        number = f.get("session_id")
        if number is None or number not in state.sessions:
            unknown = number is not None and name in COMMANDS - _NO_SESSION
            if unknown or (number is not None and name == "SESSION_DESTROY"):
                clause = "DS4T-CTRL-05" if unknown else "DS4T-SESSION-08"
                return clause, f"session {number} does not exist"
            return None
        if name == "SESSION_CREATE":
            return "DS4T-SESSION-06", f"session {number} exists already"
        room, tokens = state.sessions[number], len(f.get("tokens") or ())
        if name in SYNCS and tokens >= room > 0:
            return "DS4T-SYNC-05", (
                f"{counted(tokens, 'token', 'do')} not leave one free in a context of "
                f"{room}"
            )
        return None

    @staticmethod
    def _verdict(state: State, row: FrameRow) -> tuple[str, str] | None:
        """Judge what a leader keeps of a draft block."""
        if row.type != "VERIFY_COMMIT" or state.drafts is None:
            return None
        count, drafts = int(row.fields.get("token_count", 0)), state.drafts
        prefix = RULES[row.dialect.rstrip("?")].prefix_commit
        prefix = prefix and row.fields.get("mode") == KEEP_PREFIX
        if prefix and not 0 < count < drafts:
            return "DS4T-VERIFY-10", (
                f"a prefix of {count} is to be kept of {counted(drafts, 'draft')}, "
                "expected 1 to "
                f"{drafts - 1}"
            )
        return None

    @staticmethod
    def _tokens(state: State, row: FrameRow) -> tuple[str, str] | None:
        """Judge token ids against the vocabulary of the hello."""
        if not state.vocabulary or row.type == "SYNC_MULTIMODAL":
            return None
        f = row.fields
        tokens = [f["token"]] if "token" in f else []
        tokens += [item["token"] for item in f.get("items", ()) if "token" in item]
        bad = _outside((*tokens, *(f.get("tokens") or ())), state.vocabulary)
        if bad is None:
            return None
        drafts = row.type == "VERIFY"
        return "DS4T-VERIFY-03" if drafts else "DS4T-ROBUST-12", (
            f"token {bad} is outside the vocabulary of {state.vocabulary}"
        )

    @staticmethod
    def _answered(state: State, row: FrameRow) -> None:
        """Take back a session that the worker could not create."""
        made = state.last
        failed = row.type == "COMMAND_ACK" and row.fields.get("status")
        if not failed or made is None or made.type != "SESSION_CREATE":
            return
        stays = state.fault is not None and state.fault.clause == "DS4T-SESSION-06"
        number = made.fields.get("session_id")
        if not stays and isinstance(number, int):
            state.sessions.pop(number)

    @staticmethod
    def _follow(state: State, row: FrameRow) -> None:
        f, name = row.fields, row.type
        if name not in COMMANDS:
            return
        state.command = name
        state.drafts = None
        if name == "VERIFY":
            state.drafts = len(f.get("tokens") or ()) or int(f.get("count", 0))
        number: Any = f.get("session_id")
        if not isinstance(number, int):
            return
        if name == "SESSION_CREATE" and number not in state.sessions:
            state.sessions.put(number, int(f.get("ctx_size", 0)))
        elif name == "SESSION_DESTROY":
            state.sessions.pop(number)


def _outside(tokens: Iterable[int], vocabulary: int) -> int | None:
    return next((token for token in tokens if not 0 <= token < vocabulary), None)
