"""Small tp-workers that run commands wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ds4proto.link import ds4t_events as say
from ds4proto.link.ds4t_events import KEEP_ALL, KEEP_PREFIX, REPLAY
from ds4proto_conformance.mutants.tp_gates import _options
from ds4proto_conformance.mutants.tp_tools import (
    ACK,
    LOGITS,
    ack_bytes,
    control_in,
    control_out,
    drop,
    frame_bytes,
    judged,
    put,
    refused,
    refused_frame,
    word,
)
from ds4proto_conformance.peers.faults import Fault, patched
from ds4proto_conformance.peers.tp_engine import TinyRank
from ds4proto_conformance.peers.tp_rank import Over

_CHECKPOINT: Final = 22
_COMMIT: Final = 12


def on(kind: type, act: Callable[[Any, Any, Any], bool | None]) -> Any:
    """Return an event hook for one kind of command."""

    def event(peer: Any, spot: Any, found: Any) -> bool:
        return bool(isinstance(found, kind) and act(peer, spot, found))

    return event


def running(peer: Any, spot: Any, found: Any) -> bool:
    """Remember the command that runs."""
    spot.memory["runs"] = found
    del peer
    return False


def _note(_peer: Any, spot: Any, found: Any) -> bool:
    if type(found).__name__.startswith(("Run", "Commit")):
        spot.memory["runs"] = found
    return False


def _ack_early(peer: Any, spot: Any, found: Any) -> bool:
    if isinstance(found, say.RunSync):
        peer.write(spot, ack_bytes(found.session_id))
    return False


def _short(_spot: Any, _code: int, body: bytes) -> bytes:
    return body[:-4]


def _logits_first(spot: Any, code: int, body: bytes) -> Any:
    if not isinstance(spot.memory.get("runs"), say.RunSync):
        return None
    if code == ACK:
        spot.memory["ack"] = body
        return drop()
    ack = spot.memory.pop("ack", None)
    return None if ack is None else [frame_bytes(LOGITS, body), frame_bytes(ACK, ack)]


def _rerun(peer: Any, _spot: Any, found: Any) -> bool:
    held = peer.engine[found.session_id]
    if tuple(held.tokens) == found.tokens:
        held.cut(0)
    return False


def _silent_same(peer: Any, spot: Any, found: Any) -> bool:
    if isinstance(found, say.RunSync):
        held = tuple(peer.engine[found.session_id].tokens)
        spot.memory["same"] = held == found.tokens
    return False


def _no_same(spot: Any, _code: int, _body: bytes) -> Any:
    return drop() if spot.memory.pop("same", False) else None


def _from_zero(peer: Any, _spot: Any, found: Any) -> bool:
    held = peer.engine[found.session_id]
    if len(held.tokens) < len(found.tokens):
        held.cut(0)
    return False


def _guess(peer: Any, _spot: Any, found: Any) -> bool:
    held = peer.engine[found.session_id]
    if tuple(held.tokens[: len(found.tokens)]) == found.tokens:
        held.cut(len(found.tokens))
    return False


def _logits_of(kind: type, made: Callable[[bytes], list[bytes]]) -> Any:
    """Return what leaves in place of the logits of one kind of command."""

    def change(spot: Any, _code: int, body: bytes) -> Any:
        runs = spot.memory.get("runs")
        return made(body) if isinstance(runs, kind) else None

    return control_out(change, LOGITS)


def _judge_number(peer: Any, _spot: Any, found: Any) -> bool:
    due = peer.memory.get("number", 0) + 1
    peer.memory["number"] = found.seq
    if found.seq != due:
        raise Over(f"tp worker eval: number {found.seq}, expected {due}")
    return False


def _mix(peer: Any, _spot: Any, found: Any) -> bool:
    own = peer.engine[found.session_id]
    for known, other in peer.engine.sessions.items():
        if known != found.session_id and other.tokens and own.tokens:
            own.sums[0][-1] = own.sums[0][-1] + other.sums[0][-1]
    return False


def _cut_one_more(peer: Any, _spot: Any, found: Any) -> bool:
    peer.engine[found.session_id].cut(max(found.position - 1, 0))
    return True


def _commit(mode: int, act: Callable[..., Any]) -> Any:
    """Return a patch for verdicts of one mode."""

    def patch() -> Any:
        own = TinyRank.commit

        def commit(self: Any, known: int, drafts: Any, mode_: int, count: int) -> Any:
            if mode_ != mode:
                return own(self, known, drafts, mode_, count)
            return act(self, own, known, drafts, count)

        return patched((TinyRank, "commit", commit))

    return patch


def _undo(rank: Any, _own: Any, known: int, drafts: Any, _count: int) -> None:
    rank[known].cut(len(rank[known].tokens) - len(drafts))


def _keep(rank: Any, own: Any, known: int, drafts: Any, count: int) -> Any:
    return own(rank, known, drafts, REPLAY, count) if count else None


def _keep_whole(rank: Any, own: Any, known: int, drafts: Any, _count: int) -> Any:
    return own(rank, known, drafts, KEEP_ALL, 0)


def _verdict(when: Callable[[int], bool], mode: int | None, count: int | None) -> Any:
    """Read another verdict where the mode says so; None: refuse it."""

    def change(_spot: Any, _code: int, body: bytes) -> Any:
        if len(body) != 8 or not when(word(body, 0, signed=True)):
            return None
        if mode is None:
            return refused_frame()
        kept = word(body, 4) if count is None else count
        return put(put(body, 0, mode), 4, kept)

    return control_in(change, _COMMIT)


def _runs_anyway(
    name: str, made: Callable[[dict[str, Any]], Any], *clauses: str
) -> Any:
    def change(_judge: Any, found: str, values: dict[str, Any], outcome: Any) -> Any:
        taken = found == name and refused(outcome, *clauses)
        return made(values) if taken else outcome

    return judged(change)


def _refuses(name: str, **changes: Any) -> Any:
    """Refuse as before, in another way."""

    def change(_judge: Any, found: str, values: dict[str, Any], outcome: Any) -> Any:
        if found != name or not hasattr(outcome, "ends"):
            return outcome
        ack = values["session_id"] if changes.get("ack") else outcome.ack
        return replace(outcome, **{**changes, "ack": ack})

    return judged(change)


def _verify(values: dict[str, Any]) -> Any:
    return say.RunVerify(values["session_id"], values["tokens"])


def _sync(values: dict[str, Any]) -> Any:
    return say.RunSync(values["session_id"], values["tokens"])


def _eval(values: dict[str, Any]) -> Any:
    return say.RunEval(values["session_id"], values["token"])


def _and_ack(body: bytes) -> list[bytes]:
    return [frame_bytes(LOGITS, body), ack_bytes(1)]


def _ack_one(peer: Any, spot: Any, _found: Any) -> None:
    peer.write(spot, ack_bytes(1))


def _guess_verdict(spot: Any, code: int, body: bytes) -> Any:
    block = isinstance(spot.memory.get("runs"), say.RunVerify)
    if not block or (code == _COMMIT and len(body) == 8):
        return None
    spot.memory["runs"] = None
    return [frame_bytes(_COMMIT, put(bytes(8), 0, KEEP_ALL))]


def _batch_ack(spot: Any, _code: int, body: bytes) -> Any:
    runs = spot.memory.get("runs")
    if isinstance(runs, say.RunBatch):
        return put(body, 0, runs.items[0].session_id, 8)
    return None


def _reverse(kind: type) -> Any:
    def change(spot: Any, _code: int, body: bytes) -> Any:
        runs = spot.memory.get("runs")
        if not isinstance(runs, kind):
            return None
        held = spot.memory.setdefault("halves", [])
        held.append(frame_bytes(LOGITS, body))
        if len(held) < len(getattr(runs, "items", ())) + (kind is say.RunMixed):
            return drop()
        spot.memory["halves"] = []
        return held[::-1]

    return control_out(change, LOGITS)


def _mixed_ack(spot: Any, _code: int, body: bytes) -> Any:
    mixed = isinstance(spot.memory.get("runs"), say.RunMixed)
    return put(body, 0, 0, 8) if mixed else None


def _silent_failure(batch: bool) -> Any:
    def change(_spot: Any, _code: int, body: bytes) -> Any:
        fails = word(body, 8) and (word(body, 0, 8) == 0) == batch
        return drop() if fails else None

    return control_out(change, ACK)


def _empty_ok(spot: Any, _code: int, body: bytes) -> Any:
    if len(body) != 16:
        return None
    spot.sock.sendall(ack_bytes(word(body, 0, 8)))
    return drop()


def _fault(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(f"tpw-{name}", "tp-worker", "state", about, **hooks)


def _events(*hooks: Any) -> Any:
    return lambda peer, spot, found: any([hook(peer, spot, found) for hook in hooks])


MUTANTS: Final = (
    _fault("ack-before-gates", "acknowledges a sync before its gates",
           event=_ack_early),
    _fault("logits-short", "leaves out the last logit",
           out=control_out(_short, LOGITS)),
    _fault("logits-first", "sends the logits of a sync before its ack",
           event=_note, out=control_out(_logits_first, ACK, LOGITS)),
    _fault("same-prompt-runs", "prefills again what it holds",
           event=on(say.RunSync, _rerun)),
    _fault("same-prompt-silent", "sends no logits for what it holds",
           event=_silent_same, out=control_out(_no_same, LOGITS)),
    _fault("resume-in-bulk", "prefills two tokens as a chunk",
           event=_options(resume_min=1)),
    _fault("resume-from-zero", "prefills a longer prompt from the start",
           event=on(say.RunSync, _from_zero)),
    _fault("prefix-guessed", "takes a shorter prompt for a rewind",
           event=on(say.RunSync, _guess)),
    _fault("eval-acked", "acknowledges EVAL", event=_note,
           out=_logits_of(say.RunEval, _and_ack)),
    _fault("eval-silent", "sends no logits for a token", event=_note,
           out=_logits_of(say.RunEval, lambda _: [])),
    _fault("eval-number-judged", "wants EVALs in order of number",
           event=on(say.RunEval, _judge_number)),
    _fault("sessions-mixed", "adds what other sessions hold",
           event=on(say.RunEval, _mix)),
    _fault("invalidate-ignored", "keeps what it should drop",
           event=on(say.Invalidate, lambda *_: True)),
    _fault("rewind-ignored", "keeps what it should cut",
           event=on(say.Rewind, lambda *_: True)),
    _fault("rewind-one-short", "cuts a token too many",
           event=on(say.Rewind, _cut_one_more)),
    _fault("verify-acked", "acknowledges a block",
           event=on(say.CommitBlock, _ack_one)),
    _fault("keep-all-undone", "drops a block that is kept",
           patch=_commit(KEEP_ALL, _undo)),
    _fault("replay-silent", "sends no logits for a replay", event=_note,
           out=_logits_of(say.CommitBlock, lambda _: [])),
    _fault("replay-keeps-block", "keeps a block that is rolled back",
           patch=_commit(REPLAY, _keep)),
    _fault("prefix-keeps-all", "keeps the block in place of a prefix",
           patch=_commit(KEEP_PREFIX, _keep_whole)),
    _fault("old-modes-judged", "judges the verdict before there were modes",
           position="v7", received=_verdict(lambda m: m not in (0, 1), None, None)),
    _fault("prefix-unbounded", "keeps any prefix",
           received=_verdict(lambda m: m == 2, 2, 1)),
    _fault("any-mode", "takes an unknown verdict for full accept",
           received=_verdict(lambda m: m not in (0, 1, 2), 1, 0)),
    _fault("any-block-size", "runs blocks of any size",
           patch=_runs_anyway("VERIFY", _verify, "DS4T-VERIFY-02")),
    _fault("any-draft", "runs drafts outside the vocabulary",
           patch=_runs_anyway("VERIFY", _verify, "DS4T-VERIFY-03")),
    _fault("block-beyond-context", "runs blocks beyond the context",
           patch=_runs_anyway("VERIFY", _verify, "DS4T-VERIFY-04")),
    _fault("verdict-guessed", "takes any frame for full accept", event=_note,
           received=control_in(_guess_verdict)),
    _fault("batch-ack-id", "names the first session in the ack of a batch",
           event=_note, out=control_out(_batch_ack, ACK)),
    _fault("batch-reversed", "sends the logits of a batch in reverse", event=_note,
           out=_reverse(say.RunBatch)),
    _fault("batch-unknown-silent", "leaves without an ack of a failed batch",
           out=_silent_failure(True)),
    _fault("mixed-ack-zero", "acknowledges a mixed batch for session 0", event=_note,
           out=control_out(_mixed_ack, ACK)),
    _fault("mixed-items-first", "sends the prefill's logits last", event=_note,
           out=_reverse(say.RunMixed)),
    _fault("mixed-unknown-silent", "leaves without an ack of a failed prefill",
           out=_silent_failure(False)),
    _fault("empty-prompt-ok", "acknowledges an empty prompt",
           received=control_in(_empty_ok, 1)),
    _fault("failed-sync-goes-on", "stays behind a failed sync",
           patch=_refuses("SYNC", ends=False)),
    _fault("any-token", "prefills tokens outside the vocabulary",
           patch=_runs_anyway("SYNC", _sync,
                              "DS4T-ROBUST-12")),
    _fault("any-eval-token", "decodes tokens outside the vocabulary",
           patch=_runs_anyway("EVAL", _eval,
                              "DS4T-ROBUST-12")),
    _fault("eval-failure-acked", "acknowledges a failed token",
           patch=_refuses("EVAL", ack=1)),
)  # fmt: skip
