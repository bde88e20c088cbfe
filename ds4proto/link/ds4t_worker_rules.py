"""What a worker accepts: frames to commands, in the order of its checks.

Length and reserved words make an invalid frame; an unknown session ends the worker;
a bad session request is answered and nothing else happens; what an engine would
refuse is answered where the command has an ack, and ends the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import BatchItem, Image
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_leader_frames import MAX_BLOCK
from ds4proto.link.ds4t_limits import ControlLimits
from ds4proto.link.ds4t_sessions import Sessions
from ds4proto.link.ds4t_texts import text_of
from ds4proto.schema.declare import FrameSpec
from ds4proto.schema.registry import Reading, frames

_NOT_COMMANDS: Final = frozenset({"VERIFY_COMMIT", "HELLO"})
_REFUSING: Final[Mapping[str, tuple[str, ...]]] = {
    "EVAL": ("EVAL.reserved",),
    "EVAL_BATCH": ("EVAL_BATCH.count",),
    "MIXED_BATCH": ("MIXED_BATCH.prompt_count", "MIXED_BATCH.item_count"),
    "GLM_MTP": ("GLM_MTP.limit",),
}
"""Fields whose limit makes a frame invalid (DS4T-EVAL-04, -BATCH-02, -MIXED-02,
-MTP-02); every other limit is judged as a rule of sessions or of the engine."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command is not run.

    Attributes
    ----------
    clause, text : str
        The rule and the words of a ds4 worker, its own prefix included.
    ends : bool
        The worker ends; False answers with status 1 and goes on.
    ack : int or None
        Session id of the COMMAND_ACK with status 1 that comes first.
    found : str
    """

    clause: str
    text: str
    ends: bool = True
    ack: int | None = None
    found: str = ""


def accepted_types(dialect: str) -> dict[int, FrameSpec]:
    """Return what a worker takes at a command boundary (DS4T-CTRL-20 to -22)."""
    return {
        spec.code: spec
        for spec in frames("DS4T", dialect=dialect)
        if spec.code is not None
        and spec.sender == ("tp-leader",)
        and spec.name not in _NOT_COMMANDS
    }


class CommandJudge:
    """Turns frames into commands to run, or into refusals."""

    def __init__(
        self,
        settings: TpSettings,
        sessions: Sessions,
        limits: ControlLimits,
        *,
        vision: bool,
        engine_rules: bool,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._limits = limits
        self._vision = vision
        self._engine_rules = engine_rules
        self._vocabulary = settings.identity.n_vocab
        self._make: dict[str, Callable[[dict[str, Any]], Any]] = {
            "SYNC": self._sync,
            "SYNC_MULTIMODAL": self._multimodal,
            "EVAL": self._eval,
            "REWIND": lambda v: say.Rewind(v["session_id"], v["position"]),
            "INVALIDATE": lambda v: say.Invalidate(v["session_id"]),
            "STOP": lambda _: say.Stop(),
            "VERIFY": self._verify,
            "SESSION_CREATE": self._create,
            "SESSION_DESTROY": self._destroy,
            "EVAL_BATCH": self._batch,
            "MIXED_BATCH": self._mixed,
            "GLM_MTP": self._mtp,
        }

    def judge(self, spec: FrameSpec, reading: Reading, size: int) -> Any:
        """Return the command of a frame, or a ``Refusal``."""
        if self._invalid(spec, reading):
            return invalid(spec.code or 0, size, self._shown(reading))
        values = reading.values
        known = values.get("session_id", 0)
        if (
            "session_id" in values
            and spec.name not in ("SESSION_CREATE", "SESSION_DESTROY")
            and known not in self._sessions
        ):
            return Refusal(
                "DS4T-CTRL-05",
                text_of("DS4T-CTRL-05", known, spec.code),
                found=f"open sessions: {self._sessions.ids or 'none'}",
            )
        return self._make[spec.name](values)

    def _invalid(self, spec: FrameSpec, reading: Reading) -> bool:
        if not reading.whole:
            return True
        paths = _REFUSING.get(spec.name, ())
        for problem in reading.problems:
            if problem.clause == "DS4T-CTRL-03" or problem.path in paths:
                return True
            if problem.path.startswith("SYNC_MULTIMODAL.images["):
                return True
        if spec.name == "SYNC_MULTIMODAL":
            width = self._settings.identity.n_embd
            return any(i["data_width"] != width for i in reading.values["images"])
        return False

    def _shown(self, reading: Reading) -> str:
        return "; ".join(map(str, reading.problems[:3])) or "data_width is not n_embd"

    def _create(self, values: dict[str, Any]) -> Any:
        new, ctx = values["session_id"], values["ctx_size"]
        why = ""
        clause = "DS4T-SESSION-05"
        if new == 0:
            clause, why = "DS4T-SESSION-04", "session id 0"
        elif ctx <= 0:
            why = f"context {ctx}"
        elif new in self._sessions:
            clause, why = "DS4T-SESSION-06", f"session {new} is open"
        elif ctx > self._limits.context or len(self._sessions) >= self._limits.sessions:
            clause = "DS4T-ROBUST-13"
            why = f"context {ctx}, {len(self._sessions)} sessions open"
        if why:
            return Refusal(clause, why, ends=False, ack=new, found=why)
        return say.CreateSession(new, ctx)

    def _destroy(self, values: dict[str, Any]) -> Any:
        known = values["session_id"]
        if known not in self._sessions:
            why = f"session {known} is not open"
            return Refusal("DS4T-SESSION-08", why, ends=False, ack=known, found=why)
        return say.DestroySession(known)

    def _outside(self, tokens: tuple[int, ...]) -> int | None:
        if not self._engine_rules:
            return None
        return next((t for t in tokens if not 0 <= t < self._vocabulary), None)

    def _range_text(self, token: int) -> str:
        return f"tp: token {token} is outside 0..{self._vocabulary - 1}"

    def _sync(self, values: dict[str, Any]) -> Any:
        known, tokens = values["session_id"], values["tokens"]
        refusal = self._prompt(known, tokens)
        if refusal is not None:
            return refusal
        bad = self._outside(tokens)
        if bad is not None:
            text = f"tp worker sync: {self._range_text(bad)}"
            return Refusal("DS4T-ROBUST-12", text, ack=known, found=str(bad))
        return say.RunSync(known, tokens)

    def _prompt(self, known: int, tokens: tuple[int, ...]) -> Refusal | None:
        ctx = self._sessions[known].ctx_size
        if not tokens:
            clause, words = "DS4T-SYNC-04", text_of("DS4T-SYNC-04")
        elif len(tokens) >= ctx:
            clause = "DS4T-SYNC-05"
            words = text_of(clause, len(tokens), ctx)
        else:
            return None
        found = f"{len(tokens)} tokens, context {ctx}"
        return Refusal(clause, f"tp worker sync: {words}", ack=known, found=found)

    def _multimodal(self, values: dict[str, Any]) -> Any:
        known, tokens = values["session_id"], values["tokens"]
        refusal = self._prompt(known, tokens)
        if refusal is not None:
            return refusal
        if values["images"] and not self._vision:
            text = f"tp worker sync: {text_of('DS4T-MM-10')}"
            return Refusal("DS4T-MM-10", text, ack=known, found="no vision encoder")
        end = 0
        for entry in values["images"]:
            stop = entry["token_start"] + entry["token_count"]
            if entry["token_start"] < end or stop > len(tokens):
                where = f"image at {entry['token_start']}..{stop}"
                text = f"tp worker sync: {where} overlaps or leaves the prompt"
                return Refusal("DS4T-MM-07", text, ack=known, found=where)
            end = stop
        return say.RunSync(known, tokens, tuple(map(_image, values["images"])))

    def _eval(self, values: dict[str, Any]) -> Any:
        known, token = values["session_id"], values["token"]
        refusal = self._step(known, token)
        return refusal or say.RunEval(known, token, values["seq"])

    def _step(self, known: int, token: int) -> Refusal | None:
        if self._outside((token,)) is not None:
            text = f"tp worker eval: {self._range_text(token)}"
            return Refusal("DS4T-ROBUST-12", text, found=str(token))
        if self._engine_rules and self._sessions[known].room < 1:
            text = f"tp worker eval: tp: the context of session {known} is full"
            return Refusal("DS4T-EVAL-07", text, found=text)
        return None

    def _mtp(self, values: dict[str, Any]) -> Any:
        known, token = values["session_id"], values["token"]
        refusal = self._step(known, token)
        if refusal is not None:
            return Refusal(refusal.clause, refusal.text, ack=known, found=refusal.found)
        return say.RunMtp(known, token, values["limit"], values["seq"])

    def _verify(self, values: dict[str, Any]) -> Any:
        known, tokens = values["session_id"], values["tokens"]
        count = len(tokens)
        if not 0 < count <= MAX_BLOCK:
            clause, text = "DS4T-VERIFY-02", text_of("DS4T-VERIFY-02", count)
        elif any(not 0 <= t < self._vocabulary for t in tokens):
            bad = next(t for t in tokens if not 0 <= t < self._vocabulary)
            clause, text = "DS4T-VERIFY-03", text_of("DS4T-VERIFY-03", bad)
        elif self._sessions[known].room < count:
            clause, text = "DS4T-VERIFY-04", text_of("DS4T-VERIFY-04")
        else:
            return say.RunVerify(known, tokens)
        return Refusal(clause, f"tp worker verify: {text}", found=f"{count} drafts")

    def _items(self, values: dict[str, Any]) -> tuple[BatchItem, ...]:
        return tuple(BatchItem(v["session_id"], v["token"]) for v in values["items"])

    def _batch_fault(self, items: tuple[BatchItem, ...]) -> str:
        ids = [item.session_id for item in items]
        for known in ids:
            if known not in self._sessions:
                return f"session {known} is not open"
        if not self._engine_rules:
            return ""
        if len(set(ids)) < len(ids):
            return "a session comes twice"
        for item in items:
            if self._sessions[item.session_id].room < 1:
                return f"the context of session {item.session_id} is full"
            if self._outside((item.token,)) is not None:
                return self._range_text(item.token)
        return ""

    def _batch(self, values: dict[str, Any]) -> Any:
        items = self._items(values)
        fault = self._batch_fault(items)
        if fault:
            text = text_of("DS4T-BATCH-05")
            return Refusal("DS4T-BATCH-05", text, ack=0, found=fault)
        return say.RunBatch(items)

    def _mixed(self, values: dict[str, Any]) -> Any:
        known, tokens = values["prefill_session_id"], values["tokens"]
        items = self._items(values)
        fault = self._mixed_fault(known, tokens, items)
        if fault:
            text = text_of("DS4T-MIXED-09")
            return Refusal("DS4T-MIXED-09", text, ack=known, found=fault)
        return say.RunMixed(known, tokens, items)

    def _mixed_fault(
        self, known: int, tokens: tuple[int, ...], items: tuple[BatchItem, ...]
    ) -> str:
        if known not in self._sessions:
            return f"session {known} is not open"
        fault = self._batch_fault(items)
        if fault or not self._engine_rules:
            return fault
        session = self._sessions[known]
        if any(item.session_id == known for item in items):
            return f"session {known} prefills and decodes at once"
        if not session.extends(tokens) or len(tokens) > session.ctx_size:
            return "the prompt does not go on from what the session holds, or is long"
        bad = self._outside(tokens)
        return "" if bad is None else self._range_text(bad)


def invalid(code: int, size: int, found: str, clause: str = "DS4T-CTRL-03") -> Refusal:
    """Return the refusal of a frame that is not a command of this dialect."""
    return Refusal(clause, text_of("DS4T-CTRL-02", code, size), found=found)


def _image(values: dict[str, Any]) -> Image:
    names = ("token_start", "token_count", "rows", "width", "height")
    more = ("content_width", "content_height", "fingerprint")
    return Image(**{name: values[name] for name in names + more})
