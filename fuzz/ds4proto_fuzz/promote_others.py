"""What coordinators and ranks owe for the bytes of a finding, as a case holds it."""

from __future__ import annotations

from typing import Any, Final

from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.link.ds4d_registration import Registration
from ds4proto.link.ds4d_work_link import WorkLink
from ds4proto.link.ds4t_worker import WorkerControl
from ds4proto.schema.ds4d_work import INPUT_HC, OUTPUT_LOGITS, RESET_SESSION
from ds4proto_fuzz.ds4d.coordinator import after_hello, after_result, expected
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.findings import Finding
from ds4proto_fuzz.tp.lockstep import rank_settings
from ds4proto_fuzz.tp.pair import hello_verdict
from ds4proto_fuzz.tp.worker import due_of

__all__ = ["of_coordinator", "of_rank"]

_TOKENS: Final = (5, 6, 7)
_NO_FACTS: Final = ("spec", "role", "rdma_ok", "ctx_size")


def of_coordinator(finding: Finding) -> dict[str, Any]:
    """Return facts, steps and what is due: of a HELLO, or of a RESULT behind a WORK."""
    known = Facts.__dataclass_fields__
    words = {k: v for k, v in finding.peer.items() if k in known}
    facts = Facts(**words)
    registration = Registration(expected(facts), now=0.0)
    link: WorkLink | None = None
    state, last = "waiting", b""
    for step in finding.case.steps:
        ends = [None] if step.then == "half-close" else []
        if link is not None:
            data = step.copied(step.data, last)
            state = after_result(link, [data, *ends])
            continue
        state = after_hello(registration, [step.data, *ends])
        if state == "accepted" and step.then == "wait":
            link = WorkLink(facts.model)
            last = b"".join(map(bytes, link.work(_work(facts), 0.0)))
    due, _, clause = state.partition(" ")
    steps = [
        {"hex": s.data.hex(), "then": s.then, "copy": [list(c) for c in s.copy]}
        for s in finding.case.steps
    ]
    names = ("model_id", "model_name", "n_layers", "layer_start")
    return {"facts": {name: getattr(facts, name) for name in names}, "steps": steps,
            "asked": link is not None, "due": due, "clause": clause}  # fmt: skip


def _work(facts: Facts) -> dict[str, Any]:
    """Return a WORK as a coordinator of these facts may send it."""
    last = facts.n_layers - 1
    return {
        "model_id": facts.model_id, "session": 77, "request": 1, "pos0": 0,
        "prefix_hash": TOKEN_HASH_START, "result_hash": token_hash(_TOKENS),
        "n_tokens": len(_TOKENS), "layer_start": facts.layer_start, "layer_end": last,
        "flags": INPUT_HC | OUTPUT_LOGITS | RESET_SESSION, "input_hc_bits": 32,
        "route_count": 1, "route_index": 0, "tokens": _TOKENS,
        "hidden": bytes(facts.model.hidden_bytes(len(_TOKENS), 32)), "route_blob": b"",
    }  # fmt: skip


def of_rank(finding: Finding) -> dict[str, Any]:
    """Return facts, steps and what is due of a hello, or of commands to a worker."""
    facts = {k: v for k, v in finding.peer.items() if k not in _NO_FACTS}
    dialect = str(facts["dialect"])
    role: Any = finding.peer["role"]
    settings = rank_settings(finding.peer, dialect, role)
    first = finding.case.steps[0]
    if first.name == "HELLO":
        ends = [None] if first.then == "half-close" else []
        due, _, clause = hello_verdict(settings, [first.data, *ends]).partition(" ")
        steps = [{"hex": first.data.hex(), "then": first.then}]
        return {"facts": facts, "steps": steps, "due": due, "clause": clause}
    machine = WorkerControl(settings)
    commands: list[dict[str, Any]] = []
    for step in finding.case.steps:
        machine.receive_data(step.data, 0.0)
        if step.then == "half-close":
            machine.receive_data(None, 0.0)
        answers, end, runs = due_of(machine, dialect)
        acks = [answer for answer in answers if not isinstance(answer, bytes)]
        # a prompt that is refused between checkpoints is no matter of acks alone
        runs = runs or len(acks) < len(answers)
        commands.append(
            {"hex": step.data.hex(), "then": step.then, "end": end or "",
             "acks": [list(ack) for ack in acks], "runs": runs}
        )  # fmt: skip
        if end is not None or runs:
            break
    return {"facts": facts, "steps": commands, "due": "commands", "clause": ""}
