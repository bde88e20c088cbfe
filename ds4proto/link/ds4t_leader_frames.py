"""What a leader may send, checked against what the sessions hold, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds4proto.link.ds4t_events import (
    KEEP_ALL,
    KEEP_PREFIX,
    REPLAY,
    BatchItem,
    CommitBlock,
    CreateSession,
    DestroySession,
    Invalidate,
    Rewind,
    RunBatch,
    RunEval,
    RunMixed,
    RunMtp,
    RunSync,
    RunVerify,
    Stop,
)
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_sessions import Session, Sessions
from ds4proto.link.ds4t_texts import LocalProtocolError

MAX_BLOCK = 16
"""Drafts of one block (DS4T-VERIFY-02)."""
MAX_PREFIX = 4
"""Drafts that a verdict may keep (DS4T-VERIFY-10)."""

Values = dict[str, Any]
Built = tuple[str, Values]
"""Frame name and values."""


class CommandRules:
    """The checks that a leader makes before it sends; none of them is on the wire."""

    def __init__(self, settings: TpSettings, sessions: Sessions) -> None:
        self._settings = settings
        self._rules = settings.rules
        self._sessions = sessions
        self._build: dict[type, Callable[[Any], Built]] = {
            CreateSession: self._create,
            DestroySession: self._destroy,
            RunSync: self._sync,
            RunEval: self._eval,
            RunBatch: self._batch,
            RunMixed: self._mixed,
            RunVerify: self._verify,
            RunMtp: self._mtp,
            Rewind: self._rewind,
            Invalidate: self._invalidate,
            Stop: lambda _: ("DS4T.STOP", {}),
        }

    def build(self, command: Any) -> Built:
        """Return the frame of a command.

        Raises
        ------
        LocalProtocolError
            If the protocol forbids it; the text says what would be right.
        """
        return self._build[type(command)](command)

    def _session(self, session_id: int) -> Session:
        if session_id not in self._sessions:
            held = ", ".join(map(str, self._sessions.ids)) or "none"
            raise LocalProtocolError(f"session {session_id} is not open; open: {held}")
        return self._sessions[session_id]

    def _token(self, token: int, what: str = "token") -> None:
        vocabulary = self._settings.identity.n_vocab
        if not 0 <= token < vocabulary:
            raise LocalProtocolError(f"{what} {token} is outside 0..{vocabulary - 1}")

    def _create(self, command: CreateSession) -> Built:
        new = command.session_id
        if not 0 < new < 1 << 64 or self._sessions.was_used(new):
            raise LocalProtocolError(
                f"session id {new} is 0, used before, or too large; next is "
                f"{self._sessions.next_id} (DS4T-SESSION-07)"
            )
        if not 0 < command.ctx_size < 1 << 31:
            raise LocalProtocolError(f"context {command.ctx_size} is not positive")
        return "DS4T.SESSION_CREATE", {
            "session_id": new,
            "ctx_size": command.ctx_size,
        }

    def _destroy(self, command: DestroySession) -> Built:
        return "DS4T.SESSION_DESTROY", {"session_id": command.session_id}

    def _sync(self, command: RunSync) -> Built:
        session = self._session(command.session_id)
        self._prompt(command.tokens, session)
        if not command.images:
            for token in command.tokens:
                self._token(token)
            return "DS4T.SYNC", {
                "session_id": command.session_id,
                "tokens": command.tokens,
            }
        if not self._rules.multimodal:
            raise LocalProtocolError(
                f"dialect {self._settings.dialect} has no SYNC_MULTIMODAL: type 18 is "
                "unknown or another frame there (DS4T-MM-12)"
            )
        end = 0
        width = self._settings.identity.vector_bytes
        for image in command.images:
            stop = image.token_start + image.token_count
            if image.token_start < end or stop > len(command.tokens):
                raise LocalProtocolError(
                    f"image at {image.token_start}..{stop} overlaps or leaves the "
                    "prompt (DS4T-MM-07)"
                )
            end = stop
            size = memoryview(image.rows).nbytes
            if image.token_count < 1 or size != image.token_count * width:
                raise LocalProtocolError(
                    f"image rows take {image.token_count * width} bytes, found {size}"
                )
        return "DS4T.SYNC_MULTIMODAL", {
            "session_id": command.session_id,
            "tokens": command.tokens,
            "images": [self._image(image) for image in command.images],
        }

    def _image(self, image: Any) -> Values:
        names = ("token_start", "token_count", "width", "height", "content_width")
        values = {name: getattr(image, name) for name in names}
        return {
            **values,
            "content_height": image.content_height,
            "data_width": self._settings.identity.n_embd,
            "fingerprint": image.fingerprint,
            "rows": image.rows,
        }

    def _prompt(self, tokens: tuple[int, ...], session: Session) -> None:
        if not 0 < len(tokens) < session.ctx_size:
            raise LocalProtocolError(
                f"a prompt has 1 to {session.ctx_size - 1} tokens in this session, "
                f"found {len(tokens)}: a worker would answer it and end "
                "(DS4T-ROBUST-24)"
            )

    def _room(self, session: Session, count: int) -> None:
        if session.room < count:
            raise LocalProtocolError(
                f"session {session.session_id} holds {len(session.tokens)} of "
                f"{session.ctx_size} tokens, no room for {count} more"
            )

    def _eval(self, command: RunEval) -> Built:
        self._room(self._session(command.session_id), 1)
        self._token(command.token)
        return "DS4T.EVAL", {
            "session_id": command.session_id,
            "seq": command.seq,
            "token": command.token,
        }

    def _items(self, items: tuple[BatchItem, ...], apart: int | None) -> list[Values]:
        ids = [item.session_id for item in items]
        if len(set(ids)) < len(ids) or apart in ids:
            raise LocalProtocolError(
                f"the sessions of a batch are distinct, found {ids} (DS4T-BATCH-07)"
            )
        for item in items:
            self._room(self._session(item.session_id), 1)
            self._token(item.token)
        return [{"session_id": i.session_id, "token": i.token} for i in items]

    def _batch(self, command: RunBatch) -> Built:
        if len(command.items) < 2:
            raise LocalProtocolError(
                "a batch has two items or more; one goes as EVAL (DS4T-BATCH-03)"
            )
        return "DS4T.EVAL_BATCH", {"items": self._items(command.items, None)}

    def _mixed(self, command: RunMixed) -> Built:
        session = self._session(command.session_id)
        self._prompt(command.tokens, session)
        if not session.extends(command.tokens):
            raise LocalProtocolError(
                f"the prompt of a mixed batch goes on from the {len(session.tokens)} "
                "tokens that the session holds (DS4T-MIXED-06)"
            )
        if not command.items:
            raise LocalProtocolError("a mixed batch has items (DS4T-MIXED-02)")
        for token in command.tokens:
            self._token(token)
        return "DS4T.MIXED_BATCH", {
            "prefill_session_id": command.session_id,
            "tokens": command.tokens,
            "items": self._items(command.items, command.session_id),
        }

    def _verify(self, command: RunVerify) -> Built:
        if not 0 < len(command.tokens) <= MAX_BLOCK:
            raise LocalProtocolError(
                f"a draft block has 1 to {MAX_BLOCK} tokens, found "
                f"{len(command.tokens)} (DS4T-VERIFY-02)"
            )
        self._room(self._session(command.session_id), len(command.tokens))
        for token in command.tokens:
            self._token(token, "draft token")
        return "DS4T.VERIFY", {
            "session_id": command.session_id,
            "tokens": command.tokens,
        }

    def commit(self, command: CommitBlock, drafts: int) -> Built:
        """Return the verdict on a block of ``drafts`` tokens.

        Raises
        ------
        LocalProtocolError
            For a mode that the dialect lacks, or a count out of range.
        """
        mode, count = command.mode, command.token_count
        if mode == KEEP_PREFIX and not self._rules.prefix_commit:
            raise LocalProtocolError(
                f"dialect {self._settings.dialect} has no prefix verdict: its worker "
                "would keep the whole block (DS4T-ROBUST-25)"
            )
        allowed = {
            REPLAY: range(drafts + 1),
            KEEP_ALL: range(1),
            KEEP_PREFIX: range(1, min(drafts - 1, MAX_PREFIX) + 1),
        }.get(mode)
        if allowed is None or count not in allowed:
            raise LocalProtocolError(
                f"verdict mode {mode} with count {count} on {drafts} drafts: replay "
                f"0..{drafts}, keep all 0, keep prefix 1..{min(drafts - 1, MAX_PREFIX)}"
            )
        return "DS4T.VERIFY_COMMIT", {"mode": mode, "token_count": count}

    def _mtp(self, command: RunMtp) -> Built:
        if not self._rules.mtp:
            raise LocalProtocolError(
                f"dialect {self._settings.dialect} has no GLM_MTP; send EVAL, with "
                "the same speculation setting on both ranks (DS4T-MTP-04)"
            )
        if command.limit not in (1, 2):
            raise LocalProtocolError(f"limit {command.limit} is not 1 or 2")
        self._room(self._session(command.session_id), 1)
        self._token(command.token)
        return "DS4T.GLM_MTP", {
            "session_id": command.session_id,
            "seq": command.seq,
            "token": command.token,
            "limit": command.limit,
        }

    def _rewind(self, command: Rewind) -> Built:
        self._session(command.session_id)
        if not 0 <= command.position < 1 << 31:
            raise LocalProtocolError(f"position {command.position} is negative")
        return "DS4T.REWIND", {
            "session_id": command.session_id,
            "position": command.position,
        }

    def _invalidate(self, command: Invalidate) -> Built:
        self._session(command.session_id)
        return "DS4T.INVALIDATE", {"session_id": command.session_id}
